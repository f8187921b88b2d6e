"""Declarations of settings that configs without a common base class share."""

from typing import Any, Literal

from bertkit.setting import DATA, MODEL, setting
from bertkit.utils.codecs import describe_unknown_encoding
from bertkit.utils.devices import AUTO, describe_unknown_device

Pooling = Literal["cls", "mean"]


def data_dir_setting() -> Any:
    """Declare `data_dir`, which commands for training and for prediction have."""
    return setting(
        None,
        "Directory that holds the original dataset files (environment: BERTKIT_DATA_DIR).",
        DATA,
        is_path=True,
    )


def encoding_setting() -> Any:
    """Declare `encoding`, which all commands that read data files have."""
    return setting(
        None,
        "Encoding of text files, such as cp949 or latin-1; Parquet files have none.",
        DATA,
        default_text="UTF-8, or UTF-16 with a byte order mark",
        describe_problem=describe_unknown_encoding,
    )


def device_setting(panel: str = MODEL) -> Any:
    """Declare `device`, which all commands that run a model have."""
    return setting(
        AUTO,
        "Device that runs the model: cpu, cuda, cuda:N, mps, or auto for a GPU if there is one. auto uses "
        "MPS only after a check of its results.",
        panel,
        is_saved=False,
        describe_problem=describe_unknown_device,
    )


def pooling_setting() -> Any:
    """Declare `pooling`, for commands whose head reads one vector per text."""
    return setting(
        "cls",
        "Input of the head: the vector of [CLS] (in left-to-right models, of the last token), or the mean "
        "over all tokens except padding.",
        MODEL,
    )


def metric_setting() -> Any:
    """Declare `metric`, which commands that score predictions have."""
    return setting(
        (),
        "Also score with a module of the library evaluate: the path of its code, or a name on the Hub. "
        "NAME:KEY=VALUE passes arguments (f1:average=macro). Repeatable.",
    )
