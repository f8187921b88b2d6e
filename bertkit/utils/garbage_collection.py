"""Postponed garbage collection, which makes the start of a process faster.

Importing torch, transformers and datasets creates about 700,000 objects that live until the process ends.
Python's collector would traverse them again and again while they are created, which takes about a quarter of
the CPU time of the imports. Imports in a background thread would not help, because they hold the global
interpreter lock.
"""

import gc
import sys

# Number of new objects after which garbage is collected. The libraries create fewer. Without a limit, garbage
# could fill the memory.
STARTUP_THRESHOLD = 1_000_000
_default_thresholds = gc.get_threshold()


def postpone_collection() -> None:
    """Postpone garbage collection until `resume_collection`, unless torch is imported already.

    Only the command line calls this, because the setting holds for the whole process.
    """
    if "torch" not in sys.modules:
        gc.set_threshold(STARTUP_THRESHOLD, *_default_thresholds[1:])


def resume_collection() -> None:
    """Collect garbage as usual again, but ignore all current objects, because nearly all of them are needed.

    This does nothing if collection is not postponed: the garbage of a notebook must not be ignored.
    """
    if gc.get_threshold()[0] == STARTUP_THRESHOLD:
        gc.freeze()
        gc.set_threshold(*_default_thresholds)
