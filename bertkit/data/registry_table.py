"""`registry.yaml` as it stands. Light: a shell that completes names loads it."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def load_registry() -> dict[str, dict[str, Any]]:
    """Name -> what is said of it, for each known data set."""
    return yaml.safe_load((Path(__file__).parent / "registry.yaml").read_text("utf-8"))
