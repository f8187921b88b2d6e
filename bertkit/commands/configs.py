"""The settings of the commands that do not train. Importing this module is fast."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from bertkit.run_directory import RunDir
from bertkit.settings.declaration import (
    DATA_PANELS,
    MODEL_PANELS,
    Panel,
    Pooling,
    RaySettings,
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
            first.metadata, help=text, panel=Panel.RENAMED_COLUMNS, is_common=False, default_text=None
        )
        fields.append((name, first.type, dataclasses.field(default=None, metadata={"setting": metadata})))
    namespace = {"__doc__": config.__doc__, "__module__": config.__module__}
    return dataclasses.make_dataclass(  # type: ignore[return-value]
        config.__name__, fields, bases=(config,), frozen=True, kw_only=True, namespace=namespace
    )


PREDICT_TEXT_SETTINGS = ("text", "text_pair", "question", "context", "ending")  # the texts of rows


def _nproc_setting(has_parameter: bool = False) -> Any:
    return setting(
        1, "Processes: one per GPU, or several on a CPU.", Panel.SPEED, min=1, has_parameter=has_parameter
    )


def _eval_batch_size_setting() -> Any:
    return setting(
        None, "Rows per batch.", Panel.SPEED, min=1,
        default_text="as in training",
    )  # fmt: skip


@add_column_settings
@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(Settings):
    """Settings of `bertkit calibrate`."""

    run: str = setting(
        dataclasses.MISSING, "Finished run to calibrate.", Panel.COMMON, is_positional=True,
        completion="runs",
    )  # fmt: skip
    output_dir: str | None = setting(
        None, "Directory for a calibrated copy of the run.", Panel.COMMON, flags=("--output-dir", "-o"),
        default_text="the run itself, whose weights are replaced",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the run in --output-dir.", Panel.OUTPUT)
    data: DataSource | None = setting(
        None, "Labeled rows to fit on: a file, a directory, a known or a Hub dataset.", Panel.COMMON,
        completion="data", default_text="the validation rows of the run",
    )  # fmt: skip
    threshold: str | None = setting(
        None,
        "Also fit the probability from which a label is predicted: f1 or macro_f1 for the best score; "
        "recall=R or precision=P for at least this value.",
        Panel.COMMON,
        default_text="0.5",
    )
    coverage: float | None = setting(
        None,
        "Also fit the confidence below which the model abstains, to answer this fraction of rows; with "
        "--out-of-scope, what fraction to accept.",
        Panel.COMMON, min=0.01, max=0.99, default_text="all, or 0.95",
    )  # fmt: skip
    out_of_scope: DataSource | None = setting(
        None,
        "Also fit which texts belong to no class: a file of such texts, or sample for shipped texts.",
        Panel.COMMON, default_text="as in training",
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
        "Model: a finished run of any task, a name on the Hub, a path, or minilm.",
        Panel.COMMON, is_positional=True, completion="models",
    )  # fmt: skip
    data: DataSource | None = setting(
        None, "Rows to embed: a file, a directory, a known or a Hub dataset.", Panel.COMMON,
        default_text="standard input: lines, or JSON objects", completion="data",
    )  # fmt: skip
    split: str = setting(
        "train", "Split of --data to embed; a single file is one split, train.", Panel.COMMON
    )
    text: list[str] = setting((), "Text to embed. Repeatable.", Panel.COMMON)
    text_column: str | None = setting(None, "Column of the text.", Panel.COLUMNS, default_text="guessed")
    text_pair_column: str | None = setting(
        None, "Column of the second text, for pairs.", Panel.COLUMNS, default_text="guessed"
    )
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()
    delimiter: str | None = delimiter_setting()
    header: bool | None = header_setting()
    pooling: Pooling | None = setting(
        None,
        "Vector of a text: cls, that of [CLS]; mean, the average over all tokens, with [CLS] and [SEP].",
        Panel.VECTORS,
        default_text="as the model was trained, else cls",
    )
    layer: str | None = setting(
        None, "Layer: 0 for the embeddings, 1 for the first encoder layer, -1 for the last, or "
        "concat-last-4.",
        Panel.VECTORS, default_text="-1",
    )  # fmt: skip
    max_length: int | None = setting(
        None, "Maximum length of a text in tokens, including special tokens; the rest is truncated.",
        Panel.VECTORS, min=4, default_text="the model's maximum",
    )  # fmt: skip
    normalize: bool | None = setting(
        None, "Scale each vector to length 1.", Panel.VECTORS, flags=("--normalize/--no-normalize",),
        default_text="as the model was trained, else no",
    )  # fmt: skip
    batch_size: int = setting(32, "Texts per batch.", Panel.SPEED, min=1)
    nproc: int = _nproc_setting()
    device: str = device_setting()
    query: list[str] = setting(
        (), "Show the rows that are most similar to this text (cosine similarity). Repeatable.",
        Panel.SEARCH,
    )  # fmt: skip
    top: int = setting(10, "Number of rows to show per query.", Panel.SEARCH, min=1)
    index: str | None = setting(
        None, "Search this file, which bertkit embed wrote, instead of embedding rows.", Panel.SEARCH
    )
    word: str | None = setting(
        None, "Embed each occurrence of this word in the texts, and compare the vectors.", Panel.VECTORS
    )
    output: str | None = setting(
        None, "File to write: .npy or .parquet.", Panel.COMMON, flags=("--output", "-o")
    )
    overwrite: bool = setting(False, "Replace the file of --output.", Panel.OUTPUT)


@add_column_settings
@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Settings):
    """Settings of `bertkit evaluate`."""

    run: str = setting(
        dataclasses.MISSING,
        "Finished run, or an exported model; with --minimal-pairs also a path, or a name on the Hub.",
        Panel.COMMON, is_positional=True, completion="runs",
    )  # fmt: skip
    data: DataSource | None = setting(
        None, "Rows to score: a file, a directory, a known or a Hub dataset.", Panel.COMMON,
        completion="data", default_text="the evaluation splits of the run",
    )  # fmt: skip
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()
    delimiter: str | None = delimiter_setting()
    header: bool | None = header_setting()
    max_eval_samples: int | None = setting(
        None, "Score at most N rows of each split, sampled with the run's seed.", Panel.COMMON, min=1
    )
    compare: str | None = setting(
        None, "Another finished run of the task, to compare with on the same rows.", Panel.COMMON
    )
    by: list[str] = setting(
        (), "Score the rows of each value of a column; also length, label, agreement. Repeatable.",
        Panel.COMMON, default_text="length, label and agreement, in the report",
    )  # fmt: skip
    metric: list[str] = metric_setting(Panel.COMMON)
    minimal_pairs: str | None = setting(
        None,
        "Score a language model on pairs of a good and a bad sentence: a file, or a directory of files.",
        Panel.COMMON, is_path=True,
    )  # fmt: skip
    batch_size: int | None = _eval_batch_size_setting()
    nproc: int = _nproc_setting()
    device: str = device_setting()
    output_dir: str | None = setting(
        None, "Directory for scores, predictions and the report.", Panel.COMMON,
        flags=("--output-dir", "-o"), default_text="runs/evaluate-RUN-DATA",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the evaluation in --output-dir.", Panel.OUTPUT)


@dataclass(frozen=True, kw_only=True)
class ExportConfig(Settings):
    """Settings of `bertkit export`."""

    run: str = setting(
        dataclasses.MISSING, "Finished run to export.", Panel.COMMON, is_positional=True, completion="runs"
    )
    format: Literal["onnx"] = setting("onnx", "Format of the exported model.", Panel.COMMON)
    quantize: Literal["int8", "fp16"] | None = setting(
        None,
        "Also write a model with 8-bit weights (int8, for CPUs) or in fp16 (for GPUs), and compare it.",
        Panel.COMMON,
    )
    max_drop: float | None = setting(
        None,
        "Points that the --quantize model may lose. If it may lose more, nothing is written (exit status 3).",
        Panel.COMMON, min=0.0, max=100.0, default_text="not checked",
    )  # fmt: skip
    data: DataSource | None = setting(
        None, "Labeled rows to compare on: a file, a directory, a known or a Hub dataset.", Panel.COMMON,
        completion="data", default_text="the validation rows of the run",
    )  # fmt: skip
    triton: bool = setting(
        False, "Also write `triton/`, a model repository for the Triton server.", Panel.COMMON
    )
    max_eval_samples: int | None = setting(
        None, "Compare on at most N validation rows, sampled with the run's seed.", Panel.COMMON, min=1,
        default_text="all",
    )  # fmt: skip
    output_dir: str | None = setting(
        None, "Directory for the exported model.", Panel.COMMON, flags=("--output-dir", "-o"),
        default_text="RUN/onnx",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the model in --output-dir.", Panel.OUTPUT)
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()
    delimiter: str | None = delimiter_setting()
    header: bool | None = header_setting()


@dataclass(frozen=True, kw_only=True)
class FillMaskConfig(Settings):
    """Settings of `bertkit fill-mask`."""

    model: str = setting(
        dataclasses.MISSING,
        "Model with a language modeling head: a run of pretrain-mlm-nsp, a name on the Hub, or a path.",
        Panel.COMMON, is_positional=True, completion="models",
    )  # fmt: skip
    text: list[str] = setting(
        (), "Texts with [MASK], or the mask token of the model; without any, lines on standard input.",
        Panel.COMMON, is_positional=True,
    )  # fmt: skip
    top: int = setting(5, "Number of words for each mask.", Panel.COMMON, min=1)
    device: str = device_setting()


@add_column_settings
@dataclass(frozen=True, kw_only=True)
class PredictConfig(RaySettings):
    """Settings of `bertkit predict`."""

    run: str = setting(
        dataclasses.MISSING, "Finished run, or an exported model.", Panel.COMMON,
        is_positional=True, completion="runs",
    )  # fmt: skip
    data: DataSource | None = setting(
        None, "Rows to predict, in any format that training reads.", Panel.COMMON, completion="data",
        default_text="standard input",
    )  # fmt: skip
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()
    delimiter: str | None = delimiter_setting()
    header: bool | None = header_setting()
    text: list[str] = setting((), "Text to predict. Repeatable.", Panel.COMMON)
    text_pair: list[str] = setting((), "Second text, for runs on pairs. Repeatable.", Panel.TEXTS)
    question: list[str] = setting((), "Question, for qa. Repeatable.", Panel.TEXTS)
    context: list[str] = setting((), "Paragraph, for qa; context, for swag. Repeatable.", Panel.TEXTS)
    ending: list[str] = setting((), "One ending, for swag. Repeatable.", Panel.TEXTS)
    all_scores: bool = setting(False, "Also write the scores of the other labels or answers.", Panel.COMMON)
    explain: bool = setting(
        False, "Also write how much each word contributed to the prediction (classify, nli).", Panel.COMMON
    )
    rank_for_labeling: bool = setting(
        False,
        "Put rows first that are worth labeling: uncertain, unlike each other. Do not score a model on them.",
        Panel.COMMON,
    )
    output: str | None = setting(
        None, "File for the predictions: .jsonl, .csv or .conll.", Panel.COMMON, flags=("--output", "-o"),
        default_text="standard output", has_parameter=False,
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the file of --output.", Panel.OUTPUT, has_parameter=False)
    resume: bool = setting(
        False, "With a pattern in --data: predict only the files that have no predictions in --output.",
        Panel.OUTPUT, has_parameter=False,
    )  # fmt: skip
    format: Literal["table", "jsonl", "csv", "conll"] | None = setting(
        None, "Format of the predictions: table, jsonl, csv or conll.", Panel.OUTPUT,
        default_text="that of --output; else a table on a terminal, and jsonl in a pipe",
        has_parameter=False,
    )  # fmt: skip
    batch_size: int | None = _eval_batch_size_setting()
    nproc: int = _nproc_setting(has_parameter=True)
    device: str = device_setting()


CHECK_HELP = "Check the data before training; exit with status 2 if training would refuse it."


@cache_by_class
def make_check_config(config_class: type[RunConfig]) -> type[RunConfig]:
    """Return a subclass of a task's config with only the settings of the data and the model, and `--strict`.

    The data is checked as it is in the files, so `--label-fixes` is left out.
    """
    excluded = {
        name
        for name, (_, metadata, _) in get_settings(config_class).items()
        if metadata.panel not in DATA_PANELS | MODEL_PANELS or name == "label_fixes"
    }
    strict = setting(False, "Also exit with status 2 if there are warnings.", Panel.COMMON)
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
        dataclasses.MISSING, "Directory of a finished ladder, or of a study with folds.", Panel.COMMON,
        is_positional=True, completion="runs",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Settings):
    """Settings of `bertkit serve`."""

    run: list[str] = setting(
        dataclasses.MISSING, "Finished runs, exported models or ensembles.", Panel.COMMON,
        is_positional=True, completion="runs",
    )  # fmt: skip
    name: list[str] = setting(
        (), "Name of a run in requests. Repeat it for each run, in the same order.", Panel.COMMON,
        default_text="the directory's name",
    )  # fmt: skip
    device: str = device_setting()
    max_batch_size: int = setting(
        64, "Maximum number of rows that are computed together.", Panel.SPEED, min=1
    )
    max_delay_ms: float = setting(
        10.0, "Maximum milliseconds that a row waits for other rows of its batch.", Panel.SPEED, min=0
    )
    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all of IPv4.", Panel.COMMON)
    port: int = setting(8000, "Port to listen on; 0 for any free port.", Panel.COMMON, min=0, max=65535)
    max_body_mb: int = setting(2, "Maximum size of a request in megabytes.", Panel.ACCESS, min=1, max=1000)
    max_request_tokens: int = setting(
        131_072, "Maximum number of tokens of a request, in all its rows.", Panel.ACCESS, min=1
    )
    token_file: str | None = setting(
        None, "File with a token that requests must send: Authorization: Bearer TOKEN.", Panel.ACCESS,
        is_path=True,
    )  # fmt: skip
    verify: bool = setting(
        False, "First compare outputs of exported models with those of the export, on validation rows.",
        Panel.COMMON,
    )  # fmt: skip
    log_texts: bool = setting(False, "Also log the rows of requests.", Panel.OUTPUT)


NUM_EXPLAINED = 20  # examples with --explain: the first page of the error browser


@dataclass(frozen=True, kw_only=True)
class ReportConfig(Settings):
    """Settings of `bertkit report`."""

    runs: list[str] = setting(
        dataclasses.MISSING, "Finished runs; if there are several, each is compared with the first.",
        Panel.COMMON, is_positional=True,
    )  # fmt: skip
    output: str | None = setting(
        None, "HTML file to write.", Panel.COMMON, flags=("--output", "-o"),
        default_text=f"RUN/{RunDir.REPORT_FILE}; for several runs {RunDir.REPORT_FILE}",
    )  # fmt: skip
    explain: bool = setting(
        False,
        f"Shade the words of the {NUM_EXPLAINED} worst examples by their attribution (classify, nli).",
        Panel.COMMON,
    )
    device: str = device_setting()


@dataclass(frozen=True, kw_only=True)
class FetchConfig(Settings):
    """The settings of `bertkit fetch`."""

    model: str | None = setting(
        None, "Model on the Hub.", Panel.COMMON, is_positional=True, completion="models"
    )
    data: str | None = setting(
        None, "Dataset: a known one (`bertkit data ls`), or ORG/NAME[:CONFIG] on the Hub.", Panel.COMMON,
        is_positional=True, completion="data",
    )  # fmt: skip
    models: list[str] = setting(
        (), "Another model on the Hub. Repeatable.", Panel.COMMON, flags=("--model", "-m"),
        completion="models",
    )  # fmt: skip
    datasets: list[str] = setting(
        (), "Further dataset, or the only one. Repeatable.", Panel.COMMON, flags=("--data",),
        completion="data",
    )  # fmt: skip
    to: str | None = setting(None, "Directory to fetch to, such as a USB stick.", Panel.COMMON)


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(TextConfig):
    """The settings of `bertkit train-tokenizer`."""

    extend: str | None = setting(
        None, "Pre-trained model to add words of the text to, as tokens with embeddings.", Panel.COMMON,
        completion="models", default_text="a new vocabulary",
    )  # fmt: skip
    vocab_size: int | None = setting(
        None, "Maximum number of tokens, including special tokens.", Panel.COMMON, min=6,
        default_text=f"{DEFAULT_VOCAB_SIZE}; with --extend, 1000 more than the model has",
    )  # fmt: skip
    cased: bool = setting(False, "Keep capital letters instead of lower-casing the text.", Panel.COMMON)
    strip_accents: bool | None = setting(
        None, "Remove accents from letters.", Panel.VOCABULARY,
        flags=("--strip-accents/--no-strip-accents",),
        default_text="yes, except with --cased or for scripts such as Hangul",
    )  # fmt: skip
    character_coverage: float = setting(
        0.9999, "Fraction of the text whose characters get tokens; rarer characters become [UNK].",
        Panel.VOCABULARY, min=0.9, max=1.0,
    )  # fmt: skip
    word_units: WordUnits = setting(
        "words",
        "Units that tokens are learned within; morphemes are Korean (extra 'korean').",
        Panel.VOCABULARY,
    )
    output_dir: str | None = setting(
        None, "Directory for the tokenizer.", Panel.COMMON, flags=("--output-dir", "-o"),
        default_text="runs/tokenizer-DATA",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the tokenizer in --output-dir.", Panel.OUTPUT)


@dataclass(frozen=True, kw_only=True)
class DistillConfig(FineTuningConfig):
    """The settings of `bertkit distill`.

    The student has the rows, the columns and the splits of its teacher, so they are no settings here.
    """

    excluded_settings = frozenset({
        "validation", "test", "validation_fraction", "keep_overlap", "max_eval_samples", "split_seed",
        "group_column", "time_column", "weight_column", "label_fixes", "model", "teacher", "unlabeled",
        "head",
    })  # fmt: skip

    run: str = setting(
        dataclasses.MISSING, "Run of the teacher, or a study with an ensemble.", Panel.COMMON,
        is_positional=True, completion="runs",
    )  # fmt: skip
    num_layers: int | None = setting(
        None,
        "Student: N of the teacher's encoder layers, evenly spread from the first to the last, and its head.",
        Panel.COMMON,
        min=1,
    )
    student: str | None = setting(
        None,
        "Student: another pre-trained model, or hybrid, static, tfidf or tfidf-chars, in place of "
        "--num-layers.",
        Panel.COMMON,
        completion="models",
    )  # fmt: skip
    data: DataSource | None = setting(
        None,
        "More rows, without labels, to learn from the teacher: a file, a directory, or a known dataset.",
        Panel.COMMON, completion="data", is_path=True, default_text="none",
    )  # fmt: skip
    temperature: float = setting(
        FineTuningConfig.temperature,
        "Number by which the logits of both models are divided.",
        Panel.DISTILLATION,
        min=0.1,
    )
    alpha: float = setting(
        FineTuningConfig.alpha,
        "Weight of the teacher's predictions in the loss; that of the labels is 1 - alpha.",
        Panel.DISTILLATION, min=0.0, max=1.0,
    )  # fmt: skip
    output_dir: str | None = setting(
        None, "Directory of the student.", Panel.COMMON, flags=("--output-dir", "-o"), is_saved=False,
        default_text="runs/TASK-DATA-RUN",
    )  # fmt: skip
