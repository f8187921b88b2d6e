"""`bertkit env`: versions, devices, what can be reached."""

import json
import os
import platform
from typing import Annotated

import typer


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Print versions, devices, what can be reached and where caches lie: what a bug report needs."""
    found = {**_versions(), **_device(), **_places()}
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    for name, value in found.items():
        typer.echo(f"{name:<18} {value}")


def _versions() -> dict[str, str]:
    from bertkit.run_directory import RECORDED_PACKAGES, get_installed_versions
    from bertkit.training.arguments import TRACKERS

    python = f"{platform.python_version()} on {platform.platform()}"
    return {"python": python, **get_installed_versions([*RECORDED_PACKAGES, "huggingface-hub", *TRACKERS])}


def _device() -> dict[str, str]:
    import torch

    from bertkit.training.defaults import is_bf16_faster

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {
        "device": f"{accelerator}" if accelerator else f"CPU, {torch.get_num_threads()} threads",
        "bf16": "native" if is_bf16_faster() else "not native: fp32 is chosen",
    }


def _places() -> dict[str, str]:
    from huggingface_hub import constants, get_token

    from bertkit.hub.client import explain_unreachable
    from bertkit.utils.cache import get_cache_directory

    return {
        "Hub": explain_unreachable() or f"{constants.ENDPOINT} is reached",
        "Hub token": "set" if get_token() else "none",
        "Hub cache": constants.HF_HUB_CACHE,
        "BERTKIT_DATA_DIR": os.environ.get("BERTKIT_DATA_DIR") or "unset",
        "cache": f"{get_cache_directory()} ({_cached()})",
    }


def _cached() -> str:
    from bertkit.utils.cache import get_cache_directory, get_cache_size

    if get_cache_directory().is_file():
        return "a file, so nothing is cached; name a folder with BERTKIT_CACHE_DIR"
    return f"{get_cache_size() / 1e6:,.0f} MB, safe to delete"
