"""Settings of the commands that use a finished run or a model. Importing this module is fast."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from bertkit.common_settings import (
    Pooling,
    data_dir_setting,
    device_setting,
    encoding_setting,
    metric_setting,
)
from bertkit.data_objects import DataSource
from bertkit.infer.columns import add_column_settings
from bertkit.setting import DATA, MODEL, OUTPUT, Settings, setting

CALIBRATE_HELP = (
    "Calibrate the probabilities of a finished run: fit a temperature on its validation rows, or on other "
    "labeled rows, and fold it into the model. Optionally, fit thresholds and abstention."
)
EMBED_HELP = "Write vectors of texts, or of one word in its contexts, to a file; --query searches them."
EVALUATE_HELP = (
    "Score a finished run on other data, with confidence intervals and baselines; --compare tests it "
    "against another run."
)
EXPORT_HELP = "Export a finished run to ONNX and compare it with the PyTorch model on the validation rows."
FILL_MASK_HELP = "Print the most probable words for each [MASK] in a text."
PREDICT_HELP = "Predict with a finished run: rows of a file, texts, or lines on standard input."

SEARCH_PANEL = "Search"
PREDICT_OUTPUT_SETTINGS = ("output", "overwrite", "format")  # not accepted by bertkit.predict()
PREDICT_TEXT_SETTINGS = ("text", "text_pair", "question", "context", "ending")  # the texts of rows

# Variants of a model that `export` measures.
PYTORCH, FP32, INT8 = "pytorch", "onnx", "int8"


def _eval_batch_size_setting() -> Any:
    return setting(
        None, "Rows per batch; predictions do not depend on this number.", OUTPUT, min=1,
        default_text="as in training",
    )  # fmt: skip


@add_column_settings
@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(Settings):
    """Settings of `bertkit calibrate`."""

    run: str = setting(
        dataclasses.MISSING, "Finished run to calibrate; its weights are replaced.", OUTPUT,
        is_positional=True, completion="runs",
    )  # fmt: skip
    data: DataSource | None = setting(
        None,
        "Labeled rows to fit on: a known name, a file, a directory, or a Hub dataset.",
        DATA,
        completion="data",
        default_text="the validation rows of the run",
    )
    threshold: str | None = setting(
        None,
        "Also fit the probability above which a label is predicted, for two labels or label sets: f1 or "
        "macro_f1 maximizes this score; recall=R or precision=P reaches at least this value.",
        MODEL,
        default_text="0.5",
    )
    coverage: float | None = setting(
        None,
        "Also fit the confidence below which the model abstains, so that this fraction is answered.",
        MODEL,
        min=0.01,
        max=0.99,
        default_text="all rows are answered",
    )
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()
    batch_size: int | None = _eval_batch_size_setting()
    device: str = device_setting()


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(Settings):
    """Settings of `bertkit embed`."""

    model: str = setting(
        dataclasses.MISSING,
        "Model to embed with: a known name (minilm), a path, a finished run of any task, or a Hub model.",
        MODEL,
        is_positional=True,
        completion="models",
    )
    data: DataSource | None = setting(
        None, "Rows to embed: a known name, a file, a directory, or a Hub dataset.", DATA,
        default_text="lines, or JSON objects, on standard input",
        completion="data",
    )  # fmt: skip
    split: str = setting("train", "Split of --data to embed; a single file is one split, train.", DATA)
    text: list[str] = setting((), "Text to embed. Repeatable.", DATA)
    text_column: str | None = setting(None, "Column with the text.", DATA, default_text="detected")
    text_pair_column: str | None = setting(
        None, "Column with the second text, if rows are pairs.", DATA, default_text="detected"
    )
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()
    pooling: Pooling | None = setting(
        None,
        "Vector of a text: cls is the vector of [CLS]; mean is the average over all tokens except padding, "
        "so it includes [CLS] and [SEP].",
        MODEL,
        default_text="the pooling that the model was trained with, and the linear layers after it, if they "
        "are known; otherwise cls",
    )
    layer: str | None = setting(
        None,
        "Layer to take vectors from: 0 is the embedding layer, 1 the first encoder layer, -1 the last; "
        "concat-last-4 concatenates the last four.",
        MODEL,
        default_text="-1",
    )
    max_length: int | None = setting(
        None,
        "Maximum sequence length in tokens, including special tokens; longer texts are truncated.",
        MODEL,
        min=4,
        default_text="the model's maximum",
    )
    normalize: bool | None = setting(
        None,
        "Scale each vector to length 1.",
        MODEL,
        flags=("--normalize/--no-normalize",),
        default_text="yes if the pooling is that of the model, and its last module is Normalize; else no",
    )
    batch_size: int = setting(32, "Texts per batch.", MODEL, min=1)
    device: str = device_setting()
    query: list[str] = setting(
        (), "Show the rows that are most similar to this text (cosine similarity). Repeatable.", SEARCH_PANEL
    )
    top: int = setting(10, "Number of rows to show per query.", SEARCH_PANEL, min=1)
    index: str | None = setting(
        None, "Search this file, which bertkit embed wrote, instead of embedding rows.", SEARCH_PANEL
    )
    word: str | None = setting(
        None, "Embed each occurrence of this word in the texts, and compare the vectors.", SEARCH_PANEL
    )
    output: str | None = setting(None, "File to write: .npy or .parquet.", OUTPUT, flags=("--output", "-o"))
    overwrite: bool = setting(False, "Replace the file of --output.", OUTPUT)


@add_column_settings
@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Settings):
    """Settings of `bertkit evaluate`."""

    run: str = setting(
        dataclasses.MISSING, "Finished run, or an exported model.", OUTPUT,
        is_positional=True, completion="runs",
    )  # fmt: skip
    data: DataSource | None = setting(
        None,
        "Rows to score: a known name, a file, a directory, or a Hub dataset.",
        DATA,
        completion="data",
        default_text="the evaluation splits of the run",
    )
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()
    max_eval_samples: int | None = setting(
        None, "Score at most this many rows of each split, sampled with the run's seed.", DATA, min=1
    )
    compare: str | None = setting(
        None, "Another finished run of the same task, to score on the same rows and compare with.", DATA
    )
    metric: list[str] = metric_setting()
    batch_size: int | None = _eval_batch_size_setting()
    device: str = device_setting()
    output_dir: str | None = setting(
        None, "Directory for scores, predictions and the report.", OUTPUT, flags=("--output-dir", "-o"),
        default_text="runs/evaluate-RUN-DATA",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the evaluation in --output-dir.", OUTPUT)


@dataclass(frozen=True, kw_only=True)
class ExportConfig(Settings):
    """Settings of `bertkit export`."""

    run: str = setting(
        dataclasses.MISSING, "Finished run to export.", OUTPUT, is_positional=True, completion="runs"
    )
    format: Literal["onnx"] = setting("onnx", "Format of the exported model.", OUTPUT)
    quantize: Literal["int8"] | None = setting(
        None, "Also write a model with 8-bit weights, and measure its scores, speed and size.", OUTPUT
    )
    triton: bool = setting(
        False, "Also write `triton/`, a model repository for the Triton Inference Server.", OUTPUT
    )
    max_eval_samples: int | None = setting(
        None, "Compare on at most this many validation rows, sampled with the run's seed.", DATA, min=1,
        default_text="all",
    )  # fmt: skip
    output_dir: str | None = setting(
        None, "Directory for the exported model.", OUTPUT, flags=("--output-dir", "-o"),
        default_text="RUN/onnx",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the model in --output-dir.", OUTPUT)


@dataclass(frozen=True, kw_only=True)
class FillMaskConfig(Settings):
    """Settings of `bertkit fill-mask`."""

    model: str = setting(
        dataclasses.MISSING,
        "Pre-trained model with a language modeling head: a path, a run of pretrain-mlm-nsp, or a Hub model.",
        MODEL,
        is_positional=True,
        completion="models",
    )
    text: list[str] = setting(
        (), "Texts with [MASK] or the mask token of the model; default: lines on standard input.", DATA,
        is_positional=True,
    )  # fmt: skip
    top: int = setting(5, "Number of words for each mask.", OUTPUT, min=1)
    device: str = device_setting()


@add_column_settings
@dataclass(frozen=True, kw_only=True)
class PredictConfig(Settings):
    """Settings of `bertkit predict`."""

    run: str = setting(
        dataclasses.MISSING, "Finished run, or the directory of an exported model.", OUTPUT,
        is_positional=True, completion="runs",
    )  # fmt: skip
    data: DataSource | None = setting(
        None, "Rows to predict, in any format that training reads.", DATA, completion="data"
    )
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()
    text: list[str] = setting((), "Text to predict. This flag and the four below are repeatable.", DATA)
    text_pair: list[str] = setting((), "Second text, for runs on text pairs.", DATA)
    question: list[str] = setting((), "Question, for qa.", DATA)
    context: list[str] = setting((), "Paragraph, for qa; context, for swag.", DATA)
    ending: list[str] = setting((), "One ending, for swag.", DATA)
    all_scores: bool = setting(False, "Also write the scores of alternatives to the prediction.", OUTPUT)
    explain: bool = setting(
        False, "Also write the attribution of each word to the prediction, for classify and nli.", OUTPUT
    )
    output: str | None = setting(
        None, "File for the predictions: .jsonl, .csv or .conll.", OUTPUT, flags=("--output", "-o"),
        default_text="standard output",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the file of --output.", OUTPUT)
    format: Literal["table", "jsonl", "csv", "conll"] | None = setting(
        None,
        "Format of the predictions.",
        OUTPUT,
        default_text="the suffix of --output; without --output, a table on a terminal and jsonl elsewhere",
    )
    batch_size: int | None = _eval_batch_size_setting()
    device: str = device_setting()
