"""Other libraries' chatter, off while bertkit works: it has its own words for what matters."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

NOISY = [
    "transformers",
    "accelerate",
    "datasets",
    "huggingface_hub",
    "torch",
    "filelock",
    "httpx",
    "httpcore",
]


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Errors only, no warnings, no progress bars of others; everything is put back afterwards."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    levels = {name: logging.getLogger(name).level for name in NOISY}
    from transformers.utils import logging as transformers_logging

    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NOISY:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            if bars:
                transformers_logging.enable_progress_bar()
