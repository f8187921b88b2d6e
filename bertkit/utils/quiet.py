"""Other libraries' chatter, off while bertkit works: it has its own words for what matters."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

NOISY_LOGGERS = [
    "transformers",
    "accelerate",
    "datasets",
    "huggingface_hub",
    "torch",
    "onnxscript",
    "onnx_ir",
    "filelock",
    "httpx",
    "httpcore",
]
VERBOSITY_VARIABLE = "TRANSFORMERS_VERBOSITY"


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Errors only, no warnings, no progress bars of others; everything is put back afterwards.

    What they print all the same goes to standard error: standard output has results only. transformers
    takes a second to import, and what is refused before may need none of it. Where it is imported
    meanwhile, it finds in the environment how loud to be, and its bars as those of the Hub.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    levels = {name: logging.getLogger(name).level for name in NOISY_LOGGERS}
    said, os.environ[VERBOSITY_VARIABLE] = os.environ.get(VERBOSITY_VARIABLE), "error"
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    bars = not are_progress_bars_disabled()
    _show_bars(False)
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        for name in NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            del os.environ[VERBOSITY_VARIABLE]
            os.environ.update({VERBOSITY_VARIABLE: said} if said is not None else {})
            if bars:
                _show_bars(True)


def _show_bars(shown: bool) -> None:
    """Those of the Hub, and of transformers where it is imported."""
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if shown else disable_progress_bars)()
    if "transformers" in sys.modules:
        from transformers.utils import logging as of_transformers

        (of_transformers.enable_progress_bar if shown else of_transformers.disable_progress_bar)()
