"""`bertkit env`: versions, devices, what can be reached."""

import os
import platform

import typer


def env() -> None:
    """Print versions, devices, what can be reached and where caches lie: what a bug report needs."""
    import torch

    from bertkit.cache import cache_directory, cache_size
    from bertkit.hub import reachable
    from bertkit.rundir import PACKAGES, installed_versions
    from bertkit.training.precision import bf16_is_faster

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    lines = {
        "python": f"{platform.python_version()} on {platform.platform()}",
        **installed_versions(PACKAGES),
        "device": f"{accelerator}" if accelerator else f"CPU, {torch.get_num_threads()} threads",
        "bf16": "native" if bf16_is_faster() else "not native: fp32 is chosen",
        "Hub": "reachable" if reachable() else "not reachable",
        "BERTKIT_DATA_DIR": os.environ.get("BERTKIT_DATA_DIR") or "unset",
        "cache": f"{cache_directory()} ({cache_size() / 1e6:,.0f} MB, safe to delete)",
    }
    for name, value in lines.items():
        typer.echo(f"{name:<18} {value}")
