"""Defaults that depend on the data, the model and the device, each with its reason.

Devlin et al. 2018, appendix A.3: batch size 16 or 32, learning rate 5e-5 to 2e-5, 2 to 4 epochs. Small models
take higher rates (google-research/bert README, "smaller BERT models": 3e-4 to 3e-5).
"""

from typing import Any

from bertkit.config import RunConfig
from bertkit.errors import UserError, format_count

TINY_MODEL, SMALL_MODEL, LARGE_MODEL = 10e6, 50e6, 200e6  # parameters
FEW_ROWS, MANY_ROWS = 5_000, 100_000


def suggest_hyperparameters(rows: int, parameters: int, unit: str = "row") -> tuple[dict[str, Any], str]:
    """Return values for `epochs`, `learning_rate` and `batch_size`, and the reason in one line.

    Args:
        rows: number of training examples.
        parameters: number of parameters of the whole model.
        unit: what a training example is called.
    """
    size = f"{format_count(rows, f'training {unit}')} and {_format_parameters(parameters)} parameters"
    hyperparameters = {
        "epochs": 4.0 if rows < FEW_ROWS else 3.0 if rows <= MANY_ROWS else 2.0,
        "batch_size": 16 if rows < FEW_ROWS else 32,
        "learning_rate": _suggest_learning_rate(rows, parameters),
    }
    return hyperparameters, f"for {size}"


def _format_parameters(parameters: int) -> str:
    """Return `412k`, `4.4M` or `110M`."""
    if parameters < 999_500:
        return f"{parameters / 1e3:.0f}k"
    return f"{parameters / 1e6:.{1 if parameters < 9.95e6 else 0}f}M"


def _suggest_learning_rate(rows: int, parameters: int) -> float:
    if parameters < TINY_MODEL:
        return 3e-4
    if parameters < SMALL_MODEL:
        return 1e-4 if rows <= MANY_ROWS else 5e-5
    if parameters > LARGE_MODEL:
        return 2e-5
    return 3e-5 if rows <= MANY_ROWS else 2e-5


def check_precision(config: RunConfig) -> None:
    """Refuse number formats that the device cannot train in.

    Raises:
        UserError: `--fp16` without an accelerator (Trainer would ignore it silently), or with `--bf16`.
    """
    if config.fp16 and config.bf16:
        raise UserError("--fp16 and --bf16: exclude each other; leave one out")
    if config.fp16:
        import torch

        if not torch.accelerator.is_available():
            raise UserError("--fp16: needs an accelerator, and there is none; leave it out or use --bf16")


def choose_precision(config: RunConfig) -> tuple[str, str]:
    """Return `fp32`, `bf16` or `fp16` for training, and the reason; evaluation always runs in fp32."""
    if config.fp16:
        return "fp16", "set with --fp16"
    if config.bf16 is not None:
        return ("bf16", "set with --bf16") if config.bf16 else ("fp32", "set with --no-bf16")
    if is_bf16_faster():
        return "bf16", "this device computes it natively"
    return "fp32", "this device does not compute bf16 natively"


def is_bf16_faster() -> bool:
    """Return whether the device has bf16 instructions; without them, bf16 is emulated many times slower."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
