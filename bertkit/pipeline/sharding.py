"""Settings that cannot be combined with sharded weights."""

from bertkit.errors import UserError
from bertkit.pipeline.prepare import PreparedRun


def check_sharding(prepared: PreparedRun) -> None:
    """Check that a run whose weights are sharded (FSDP or DeepSpeed) uses no setting that needs all of them.

    Raises:
        UserError: It uses one.
    """
    config = prepared.config
    flags = {
        f"--lora {config.lora}": config.lora is not None,
        "--probe": prepared.probe is not None,
        "--objective rtd": getattr(config, "objective", None) == "rtd",
        f"--method {getattr(config, 'method', None)}": prepared.task.training_method.fits_head,
    }
    for flag in (flag for flag, is_used in flags.items() if is_used):
        raise UserError(f"{flag}: cannot be combined with FSDP or DeepSpeed; leave out one of them")
