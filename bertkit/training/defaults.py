"""Default hyperparameters by data and model size, and default precision by device.

Devlin et al. 2018, appendix A.3, recommend batch size 16 or 32, learning rate 2e-5 to 5e-5, and 2 to 4
epochs. For smaller BERT models, the README of google-research/bert recommends learning rates from 3e-5 to
3e-4.
"""

from typing import Any

from bertkit.config import RunConfig
from bertkit.errors import UserError, format_count

TINY_MODEL, SMALL_MODEL, LARGE_MODEL = 10e6, 50e6, 200e6  # numbers of parameters
FEW_ROWS, MANY_ROWS = 5_000, 100_000  # numbers of training rows


def suggest_hyperparameters(rows: int, parameters: int, unit: str = "row") -> tuple[dict[str, Any], str]:
    """Suggest values for `epochs`, `learning_rate` and `batch_size`.

    Args:
        rows: Number of training rows.
        parameters: Number of parameters of the encoder.
        unit: Noun for a training row, such as "question".

    Returns:
        The values by setting, and the reason in one line.
    """
    size = f"{format_count(rows, f'training {unit}')} and {_format_parameters(parameters)} parameters"
    if rows < FEW_ROWS:
        epochs, batch_size = 4.0, 16
    elif rows <= MANY_ROWS:
        epochs, batch_size = 3.0, 32
    else:
        epochs, batch_size = 2.0, 32
    learning_rate = _suggest_learning_rate(rows, parameters)
    return {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}, f"for {size}"


def _format_parameters(parameters: int) -> str:
    """Format a number of parameters, such as `412k`, `4.4M` or `110M`."""
    if parameters < 999_500:  # larger numbers would be rounded to 1000k
        return f"{parameters / 1e3:.0f}k"
    if parameters < 9.95e6:  # larger numbers would be rounded to 10.0M
        return f"{parameters / 1e6:.1f}M"
    return f"{parameters / 1e6:.0f}M"


def _suggest_learning_rate(rows: int, parameters: int) -> float:
    if parameters < TINY_MODEL:
        return 3e-4
    if parameters < SMALL_MODEL:
        return 1e-4 if rows <= MANY_ROWS else 5e-5
    if parameters > LARGE_MODEL:
        return 2e-5
    return 3e-5 if rows <= MANY_ROWS else 2e-5


def check_precision(config: RunConfig) -> None:
    """Check `--fp16` and `--bf16`.

    Raises:
        UserError: Both are set, or there is no accelerator for fp16. Trainer would silently ignore `--fp16`.
    """
    if config.fp16 and config.bf16:
        raise UserError("--fp16 and --bf16: exclude each other; leave one out")
    if config.fp16:
        import torch

        if not torch.accelerator.is_available():
            raise UserError("--fp16: needs an accelerator, but none is available; leave it out or use --bf16")


def choose_precision(config: RunConfig) -> tuple[str, str]:
    """Choose the training precision; evaluation always uses fp32.

    Returns:
        "fp32", "bf16" or "fp16", and the reason.
    """
    if config.fp16:
        return "fp16", "set with --fp16"
    if config.bf16 is not None:
        return ("bf16", "set with --bf16") if config.bf16 else ("fp32", "set with --no-bf16")
    if is_bf16_faster():
        return "bf16", "this device computes it natively"
    return "fp32", "this device does not compute bf16 natively"


def is_bf16_faster() -> bool:
    """Return whether the device has bf16 instructions. Emulated bf16 is many times slower than fp32."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
