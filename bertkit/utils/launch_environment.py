"""Environment variables in which torchrun and `--nproc` describe the processes (ranks) of a run."""

import os


def read_int(name: str, default: int) -> int:
    """Return the value of an environment variable, or the default if it is not a number."""
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default


def get_launched_world_size() -> int:
    """Return the number of processes that were started for this run."""
    return read_int("WORLD_SIZE", 1) if "RANK" in os.environ else 1


def get_local_rank() -> int:
    """Return the number of this process on its machine."""
    return read_int("LOCAL_RANK", 0) if get_launched_world_size() > 1 else 0
