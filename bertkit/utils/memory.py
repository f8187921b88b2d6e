"""Memory use of this process, on every operating system."""

import psutil

from bertkit.utils.system import IS_MACOS


def get_peak_memory() -> int:
    """Return the peak memory use of this process in bytes, or its current use if the peak is unknown."""
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return int(memory.peak_wset)
    try:
        import resource
    except ImportError:
        return int(memory.rss)
    unit = 1 if IS_MACOS else 1024  # ru_maxrss is in bytes on macOS, and in KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
