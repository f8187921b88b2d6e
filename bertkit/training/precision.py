"""Number formats: which one the device runs fastest, and which it cannot run."""

from bertkit.config import RunConfig
from bertkit.errors import UserError


def check_precision(config: RunConfig) -> None:
    """Refuse what cannot be trained in.

    Raises:
        UserError: --fp16 with no accelerator (Trainer lets it pass in silence), or with --bf16.
    """
    if config.fp16 and config.bf16:
        raise UserError("--fp16 and --bf16 exclude each other; leave one out")
    if config.fp16:
        import torch

        if not torch.accelerator.is_available():
            raise UserError("--fp16 needs an accelerator and there is none; leave it out, or try --bf16")


def choose_precision(config: RunConfig) -> tuple[str, str]:
    """`fp32`, `bf16` or `fp16` for training, and the reason. Scores are always fp32."""
    if config.fp16:
        return "fp16", "as asked"
    if config.bf16 is not None:
        return ("bf16" if config.bf16 else "fp32"), "as asked"
    if is_bf16_faster():
        return "bf16", "this device computes it natively"
    return "fp32", "this device does not compute bf16 natively"


def is_bf16_faster() -> bool:
    """Whether the device has instructions for bf16; without them it is emulated, many times slower."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    abilities = torch.cpu.get_capabilities()
    return bool(abilities.get("avx512_bf16") or abilities.get("amx_bf16"))
