"""The settings of the commands that do not train. Importing this module is fast."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from bertkit.run_directory import RunDir
from bertkit.settings.declaration import (
    DATA,
    MODEL,
    OUTPUT,
    Pooling,
    SettingField,
    Settings,
    cache_by_class,
    data_dir_setting,
    delimiter_setting,
    device_setting,
    encoding_setting,
    get_settings,
    header_setting,
    is_column_setting,
    metric_setting,
    setting,
)
from bertkit.settings.run_settings import (
    DEFAULT_VOCAB_SIZE,
    FineTuningConfig,
    RunConfig,
    TextConfig,
    WordUnits,
)
from bertkit.settings.validation import DataSource
from bertkit.tasks import TASKS, task_definition

COLUMN_PANEL = "Columns of the rows"
ConfigClass = TypeVar("ConfigClass", bound=type[Settings])


def add_column_settings(config: ConfigClass) -> ConfigClass:
    """Return a subclass of a config that also has the column settings of all tasks that predict rows."""
    declarations: dict[str, dict[str, SettingField]] = {}
    for task in TASKS:
        definition = task_definition(task)
        if not definition.predicts_rows:
            continue
        for name, declared in get_settings(definition.config).items():
            if is_column_setting(name):
                declarations.setdefault(name, {})[task] = declared
    fields = []
    for name, by_task in declarations.items():
        # The help text combines those of the tasks, with the names of the tasks.
        tasks_by_help: dict[str, list[str]] = {}
        for task, declared in by_task.items():
            tasks_by_help.setdefault(declared.metadata.help.removesuffix("."), []).append(task)
        text = " ".join(f"{text} ({', '.join(tasks)})." for text, tasks in tasks_by_help.items())
        first = next(iter(by_task.values()))
        metadata = dataclasses.replace(
            first.metadata, help=text, panel=COLUMN_PANEL, default_text="as in training"
        )
        fields.append((name, first.type, dataclasses.field(default=None, metadata={"setting": metadata})))
    namespace = {"__doc__": config.__doc__, "__module__": config.__module__}
    return dataclasses.make_dataclass(  # type: ignore[return-value]
        config.__name__, fields, bases=(config,), frozen=True, kw_only=True, namespace=namespace
    )


SEARCH_PANEL = "Search"
PREDICT_TEXT_SETTINGS = ("text", "text_pair", "question", "context", "ending")  # the texts of rows


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
        None, "Labeled rows to fit on: a known name, a file, a directory, or a Hub dataset.", DATA,
        completion="data", default_text="the validation rows of the run",
    )  # fmt: skip
    threshold: str | None = setting(
        None,
        "Also fit the probability above which a label is predicted, for two labels or label sets: f1 or "
        "macro_f1 maximizes this score; recall=R or precision=P reaches at least this value.",
        MODEL,
        default_text="0.5",
    )
    coverage: float | None = setting(
        None, "Also fit the confidence below which the model abstains, so that this fraction is answered.",
        MODEL, min=0.01, max=0.99, default_text="all rows are answered",
    )  # fmt: skip
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()
    delimiter: str | None = delimiter_setting()
    header: bool | None = header_setting()
    batch_size: int | None = _eval_batch_size_setting()
    device: str = device_setting()


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(Settings):
    """Settings of `bertkit embed`."""

    model: str = setting(
        dataclasses.MISSING,
        "Model to embed with: a known name (minilm), a path, a finished run of any task, or a Hub model.",
        MODEL, is_positional=True, completion="models",
    )  # fmt: skip
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
    delimiter: str | None = delimiter_setting()
    header: bool | None = header_setting()
    pooling: Pooling | None = setting(
        None,
        "Vector of a text: cls is the vector of [CLS]; mean is the average over all tokens except padding, "
        "so it includes [CLS] and [SEP].",
        MODEL,
        default_text="the pooling that the model was trained with, and the linear layers after it, if they "
        "are known; otherwise cls",
    )
    layer: str | None = setting(
        None, "Layer to take vectors from: 0 is the embedding layer, 1 the first encoder layer, -1 the last; "
        "concat-last-4 concatenates the last four.",
        MODEL, default_text="-1",
    )  # fmt: skip
    max_length: int | None = setting(
        None, "Maximum sequence length in tokens, including special tokens; longer texts are truncated.",
        MODEL, min=4, default_text="the model's maximum",
    )  # fmt: skip
    normalize: bool | None = setting(
        None, "Scale each vector to length 1.", MODEL, flags=("--normalize/--no-normalize",),
        default_text="yes if the pooling is that of the model, and its last module is Normalize; else no",
    )  # fmt: skip
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
        None, "Rows to score: a known name, a file, a directory, or a Hub dataset.", DATA, completion="data",
        default_text="the evaluation splits of the run",
    )  # fmt: skip
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()
    delimiter: str | None = delimiter_setting()
    header: bool | None = header_setting()
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
        MODEL, is_positional=True, completion="models",
    )  # fmt: skip
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
    delimiter: str | None = delimiter_setting()
    header: bool | None = header_setting()
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
        default_text="standard output", has_parameter=False,
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the file of --output.", OUTPUT, has_parameter=False)
    format: Literal["table", "jsonl", "csv", "conll"] | None = setting(
        None, "Format of the predictions.", OUTPUT,
        default_text="the suffix of --output; without --output, a table on a terminal and jsonl elsewhere",
        has_parameter=False,
    )  # fmt: skip
    batch_size: int | None = _eval_batch_size_setting()
    device: str = device_setting()


CHECK_HELP = "Check the data before training; exit with code 2 if training would refuse it."


@cache_by_class
def make_check_config(config_class: type[RunConfig]) -> type[RunConfig]:
    """Return a subclass of a task's config with only the Data and Model settings, and with `--strict`.

    The data is checked as it is in the files, so `--label-fixes` is left out.
    """
    excluded = {
        name
        for name, (_, metadata, _) in get_settings(config_class).items()
        if metadata.panel not in (DATA, MODEL) or name == "label_fixes"
    }
    strict = setting(False, "Also exit with code 2 if there are warnings.", OUTPUT)
    namespace = {
        "excluded_settings": config_class.excluded_settings | excluded,
        "__doc__": CHECK_HELP,
        "__module__": __name__,
    }
    return dataclasses.make_dataclass(
        f"Check{config_class.__name__}", [("strict", bool, strict)], bases=(config_class,), frozen=True,
        kw_only=True, namespace=namespace,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LabelIssuesConfig(Settings):
    """Settings of `bertkit label-issues`."""

    study: str = setting(
        dataclasses.MISSING, "Directory of a finished study with folds.", OUTPUT, is_positional=True,
        completion="runs",
    )  # fmt: skip


BATCHES, NETWORK = "Batches", "Network"


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Settings):
    """Settings of `bertkit serve`."""

    run: list[str] = setting(
        dataclasses.MISSING, "Finished runs, exported models or ensembles.", MODEL,
        is_positional=True, completion="runs",
    )  # fmt: skip
    name: list[str] = setting(
        (), "Name of a run in requests. Repeat it for each run, in the same order.", MODEL,
        default_text="the directory's name",
    )  # fmt: skip
    device: str = device_setting()
    max_batch_size: int = setting(64, "Maximum number of rows that are computed together.", BATCHES, min=1)
    max_delay_ms: float = setting(
        10.0, "Maximum time in milliseconds that a row waits for other rows of its batch.", BATCHES, min=0
    )
    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all IPv4 addresses.", NETWORK)
    port: int = setting(8000, "Port to listen on; 0 for any free port.", NETWORK, min=0, max=65535)
    max_body_mb: int = setting(2, "Maximum size of a request in megabytes.", NETWORK, min=1, max=1000)
    max_request_tokens: int = setting(
        131_072, "Maximum number of tokens of a request, in all its rows and windows.", NETWORK, min=1
    )
    token_file: str | None = setting(
        None, "File with a token that requests must send: Authorization: Bearer TOKEN.", NETWORK, is_path=True
    )
    log_texts: bool = setting(False, "Also log the rows of requests.", OUTPUT)


NUM_EXPLAINED = 20  # examples with --explain: the first page of the error browser


@dataclass(frozen=True, kw_only=True)
class ReportConfig(Settings):
    """Settings of `bertkit report`."""

    runs: list[str] = setting(
        dataclasses.MISSING, "Finished runs; if there are several, each is compared with the first.", OUTPUT,
        is_positional=True,
    )  # fmt: skip
    output: str | None = setting(
        None, "HTML file to write.", OUTPUT, flags=("--output", "-o"),
        default_text=f"RUN/{RunDir.REPORT_FILE}; for several runs {RunDir.REPORT_FILE}",
    )  # fmt: skip
    explain: bool = setting(
        False,
        f"Shade the words of the {NUM_EXPLAINED} worst examples by their attribution to the prediction "
        "(classify and nli).",
        OUTPUT,
    )
    device: str = device_setting()


VOCABULARY = "Vocabulary"


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(TextConfig):
    """The settings of `bertkit train-tokenizer`."""

    vocab_size: int = setting(
        DEFAULT_VOCAB_SIZE, "Maximum number of tokens, including special tokens.", VOCABULARY, min=6
    )
    cased: bool = setting(False, "Keep capital letters instead of lower-casing the text.", VOCABULARY)
    strip_accents: bool | None = setting(
        None, "Remove accents from letters.", VOCABULARY, flags=("--strip-accents/--no-strip-accents",),
        default_text="unless --cased is passed, or stripping decomposes the script of the text",
    )  # fmt: skip
    character_coverage: float = setting(
        0.9999, "Minimum fraction of the text that consists of characters with a token of their own. Rarer "
        "characters become [UNK].",
        VOCABULARY, min=0.9, max=1.0,
    )  # fmt: skip
    word_units: WordUnits = setting(
        "words",
        "Units that tokens are learned within: words, or Korean morphemes (extra 'korean').",
        VOCABULARY,
    )
    output_dir: str | None = setting(
        None, "Directory to write the tokenizer to.", OUTPUT, flags=("--output-dir", "-o"),
        default_text="runs/tokenizer-DATA",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the tokenizer in --output-dir.", OUTPUT)


DISTILLATION = "Distillation"


@dataclass(frozen=True, kw_only=True)
class DistillConfig(FineTuningConfig):
    """The settings of `bertkit distill`.

    The student has the rows, the columns and the splits of its teacher, so they are no settings here.
    """

    excluded_settings = frozenset({
        "validation", "test", "validation_fraction", "keep_overlap", "max_eval_samples", "split_seed",
        "label_fixes", "model", "teacher", "unlabeled", "head",
    })  # fmt: skip

    run: str = setting(
        dataclasses.MISSING, "Run of the teacher, or a study with an ensemble.", MODEL,
        is_positional=True, completion="runs",
    )  # fmt: skip
    num_layers: int | None = setting(
        None,
        "Student: N of the teacher's encoder layers, evenly spread from the first to the last, and its head.",
        DISTILLATION,
        min=1,
    )
    student: str | None = setting(
        None, "Student: another pre-trained model, in place of --num-layers.", DISTILLATION,
        completion="models",
    )  # fmt: skip
    data: DataSource | None = setting(
        None,
        "More rows, without labels, to learn the teacher's predictions on: a file, a directory, or a known "
        "dataset.",
        DATA, completion="data", is_path=True, default_text="none",
    )  # fmt: skip
    temperature: float = setting(
        FineTuningConfig.temperature,
        "Number by which the logits of both models are divided before their predictions are compared.",
        DISTILLATION,
        min=0.1,
    )
    alpha: float = setting(
        FineTuningConfig.alpha,
        "Weight of the teacher's predictions in the loss; the weight of the labels is 1 - alpha.",
        DISTILLATION, min=0.0, max=1.0,
    )  # fmt: skip
    output_dir: str | None = setting(
        None, "Run directory of the student.", OUTPUT, flags=("--output-dir", "-o"), is_saved=False,
        default_text="runs/TASK-DATA-RUN",
    )  # fmt: skip
