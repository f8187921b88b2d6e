"""A finished run as pages show it, the base class of views, and the examples of the error browser."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypedDict, TypeVar

import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from msgspec import Meta

from bertkit.charts import Chart, plot_bars, plot_reliability_diagram
from bertkit.errors import UserError, format_list
from bertkit.run_directory import EXTRA_SPLITS, RETRAIN_HINT, RunDir
from bertkit.settings.declaration import is_column_setting
from bertkit.settings.recipes import read_recipe
from bertkit.settings.validation import DataObject
from bertkit.stats.calibration import compute_calibration
from bertkit.stats.judgement import Verdict
from bertkit.stats.scores import Scores
from bertkit.stats.significance import Scorer
from bertkit.tasks import TaskDef, list_tasks, task_definition
from bertkit.utils.compat import NotRequired
from bertkit.utils.text import validate

# ---- the run


class DataRecord(TypedDict):
    name: str
    fingerprint: str
    validation: int
    test: NotRequired[int]
    validation_mismatched: NotRequired[int]
    test_mismatched: NotRequired[int]


class DifferenceRecord(TypedDict):
    difference: float
    interval: tuple[float, float]
    p: float
    test: str


ComparedRecord = TypedDict(
    "ComparedRecord", {"with": str, "validation": Scores, "difference": dict[str, DifferenceRecord]}
)


class ModelSizeRecord(TypedDict):
    parameters: int
    megabytes: float
    rows_per_second: float


class DistillationRecord(TypedDict):
    """The teacher of a student, and the size and the speed of both."""

    teacher: str
    models: dict[Literal["teacher", "student"], ModelSizeRecord]


class JudgementRecord(TypedDict):
    verdict: Verdict
    against: str
    text: str
    calibration: NotRequired[str]


class SliceRecord(TypedDict):
    value: str
    rows: int
    metric: str
    scores: Scores
    intervals: dict[str, tuple[float, float]]
    difference: DifferenceRecord | None


class WorstSliceRecord(TypedDict):
    column: str
    value: str
    is_worse: bool
    text: str


class RunMetricsRecord(TypedDict):
    """The part of the `metrics.json` of a single run that pages show."""

    model: str
    data: DataRecord
    validation: Annotated[Scores, Meta(min_length=1)]
    intervals: dict[str, tuple[float, float]]
    baselines: dict[str, Scores]
    baseline_rows: NotRequired[dict[str, int]]
    judgement: NotRequired[JudgementRecord]
    slices: NotRequired[dict[str, list[SliceRecord]]]
    worst_slice: NotRequired[WorstSliceRecord]
    test: NotRequired[Scores]
    validation_mismatched: NotRequired[Scores]
    test_mismatched: NotRequired[Scores]
    details: NotRequired[dict[str, dict[str, Scores]]]
    compared: NotRequired[ComparedRecord]
    distillation: NotRequired[DistillationRecord]
    training: NotRequired[dict[str, Any]]


class LogRecord(TypedDict):
    """A line of the training log; further keys may have any values."""

    step: Annotated[int, Meta(ge=0, le=2**53)]


@dataclass(frozen=True)
class FinishedRun(RunDir):
    """A run directory whose files are read at first use."""

    metrics: Mapping[str, Any]  # of `metrics.json`; when a run ends, the page is written before this file

    @property
    def definition(self) -> TaskDef:
        return task_definition(self.metrics["task"])

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.folder.absolute().name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings that differ from their defaults."""
        recipe = read_recipe(str(self.settings_file), self.definition.name, self.definition.config)
        return {
            name: str(value) if isinstance(value, DataObject) else value
            for name, value in recipe.settings.items()
        }

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """Lines of the training log."""
        lines = list(self.iter_lines(self.LOG_FILE))
        for number, line in enumerate(lines, 1):
            validate(line, LogRecord, f"{self.folder / self.LOG_FILE}:{number}")
        return lines


def load_finished_run(folder: Path) -> FinishedRun:
    """Load a finished run; raise a `UserError` if the directory does not have exactly one valid one."""
    metrics = RunDir(folder).require_metrics()
    if metrics["task"] not in list_tasks():
        RunDir(folder).require_plugins()
        runs = sorted(str(path.parent) for path in folder.glob(f"*/**/{RunDir.METRICS_FILE}"))
        raise UserError(f"{folder}: contains several runs; pass one of them: {format_list(runs)}")
    validate(metrics, RunMetricsRecord, folder / RunDir.METRICS_FILE)
    # keys to which another part of the file refers
    sizes, compared = metrics["data"], metrics.get("compared", {})
    missing = [f"data.{split}" for split in EXTRA_SPLITS if metrics.get(split) and split not in sizes]
    lost = [name for name in compared.get("difference", {}) if name not in compared.get("validation", {})]
    missing += [f"compared.validation.{name}" for name in lost]
    if missing:
        raise UserError(f"{folder / RunDir.METRICS_FILE}: {format_list(missing)} missing; {RETRAIN_HINT}")
    return FinishedRun(folder, metrics)


# ---- examples

MAX_EXAMPLES = 10_000
MAX_BYTES = 4_500_000  # size of the JSON; the whole page stays below 5 MB
# Maximum lengths of a text in characters, tried in this order until the JSON fits; None keeps whole texts.
TEXT_LENGTHS = [None, 3000, 2000, 1400, 1000, 700, 500, 350, 250, 150, 80]
CHARACTERS_BEFORE_MARK = 60  # context that a shortened text keeps before its first mark
ELLIPSIS = "… "
dump_compact_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


class Mark(NamedTuple):
    """A highlighted span of a text."""

    start: int
    end: int  # exclusive
    kind: str  # CSS class: "gold", "predicted", "both", "masked", or "type0" to "type7"
    label: str = ""  # shown after the span


class Attribution(NamedTuple):
    """The attribution of one word."""

    start: int
    end: int  # exclusive
    value: float  # negative if the word lowers the score
    strength: float  # as a fraction of the highest absolute attribution of the example


SpanT = TypeVar("SpanT", Mark, Attribution)


@dataclass(frozen=True)
class Field:
    """One text of an example, with its name, its marks and the attributions of its words.

    Marks are sorted and do not overlap; so are attributions. A field has only one of them.
    """

    name: str
    text: str
    marks: list[Mark] = field(default_factory=list)
    attributions: list[Attribution] = field(default_factory=list)


@dataclass(frozen=True)
class Example:
    """One row of the error browser."""

    id: Any
    gold: list[str]  # labels to filter by, like `predicted`
    predicted: list[str]
    is_correct: bool | None  # None without gold labels
    measure: float | None  # confidence of the model, or the other measure of the view
    priority: float  # examples with a higher priority come first
    fields: list[Field]
    display_labels: tuple[str, str] | None = None  # gold and predicted, if not those to filter by
    explained: tuple[str, float] | None = None  # what is explained, and the completeness error


def format_value(value: Any) -> str:
    """Format the value of a column as text; None becomes an empty string."""
    if isinstance(value, (list, tuple)):
        return " · ".join(map(format_value, value))
    return "" if value is None else str(value)


def get_mark_kind(is_gold: bool, is_predicted: bool) -> str | None:
    """Return the kind of mark for a span; None if the span is neither gold nor predicted."""
    kinds = {(True, True): "both", (True, False): "gold", (False, True): "predicted"}
    return kinds.get((is_gold, is_predicted))


def overlay_spans(gold: list[tuple[int, int]], predicted: list[tuple[int, int]]) -> list[Mark]:
    """Return the marks of gold and predicted spans, split wherever a span begins or ends."""
    marks: list[Mark] = []
    boundaries = sorted({position for span in (*gold, *predicted) for position in span})
    for start, end in pairwise(boundaries):
        is_gold, is_predicted = (
            any(span[0] <= start and end <= span[1] for span in spans) for spans in (gold, predicted)
        )
        kind = get_mark_kind(is_gold, is_predicted)
        if kind and marks and marks[-1].end == start and marks[-1].kind == kind:
            marks[-1] = Mark(marks[-1].start, end, kind)
        elif kind:
            marks.append(Mark(start, end, kind))
    return marks


def sort_worst_first(examples: Sequence[Example]) -> list[int]:
    """Return the indices of the examples; errors come first, then those with a high priority."""
    return sorted(
        range(len(examples)), key=lambda row: (examples[row].is_correct is True, -examples[row].priority)
    )


# ---- JSON of the browser


@dataclass(frozen=True)
class ErrorBrowser:
    """Examples for the script of a page."""

    data: Markup  # JSON that is escaped for a script element
    notes: list[str]  # clauses that say which examples or parts of texts are missing


def build_error_browser(
    examples: Sequence[Example], measure_name: str, filter_names: tuple[str, str]
) -> ErrorBrowser:
    """Serialize the worst examples; long texts are shortened until the JSON is within the size limit."""
    worst = [(row, examples[row]) for row in sort_worst_first(examples)[:MAX_EXAMPLES]]
    notes = []
    if len(worst) < len(examples):
        notes.append(f"only the {MAX_EXAMPLES:,} worst of {len(examples):,} examples are shown")
    names = {"measure": measure_name, "filter_names": filter_names}
    for length in TEXT_LENGTHS[_estimate_length_index(worst) :]:
        content, num_shortened = _pack(worst, length)
        data = htmlsafe_json_dumps(content | names, dump_compact_json)
        if len(data.encode(errors="replace")) <= MAX_BYTES:
            break
    if num_shortened:
        notes.append(f"{num_shortened:,} texts are shortened to {length:,} characters")
    return ErrorBrowser(data, notes)


def _estimate_length_index(examples: Sequence[tuple[int, Example]]) -> int:
    """Return the index of the first length in `TEXT_LENGTHS` at which the texts alone probably fit."""
    texts = {field.text for _, example in examples for field in example.fields}
    sizes = [(len(text), len(text.encode(errors="replace"))) for text in texts]  # characters, bytes

    def estimate_size(length: int | None) -> float:
        return sum(
            num_bytes if length is None or num_characters <= length else num_bytes * length / num_characters
            for num_characters, num_bytes in sizes
        )

    fitting_indices = (
        index for index, length in enumerate(TEXT_LENGTHS) if estimate_size(length) <= MAX_BYTES
    )
    return next(fitting_indices, len(TEXT_LENGTHS) - 1)


def _pack(examples: Sequence[tuple[int, Example]], length: int | None) -> tuple[dict[str, object], int]:
    """Return the content of the JSON, and the number of shortened texts.

    Each distinct text is stored once, and fields refer to it by its index.
    """
    texts: dict[str, int] = {}
    rows, num_shortened = [], 0
    for row, example in examples:
        fields = []
        for original in example.fields:
            short = _shorten(original, length)
            num_shortened += short is not original
            text_indices = [texts.setdefault(text, len(texts)) for text in (short.name, short.text)]
            spans = [short.marks, short.attributions] if short.attributions else [short.marks]
            fields.append([*text_indices, *(spans if any(spans) else [])])
        rows.append({
            "id": str(example.id), "row": row, "gold": example.gold, "predicted": example.predicted,
            "correct": example.is_correct,
            "measure": None if example.measure is None else round(example.measure, 4),
            "fields": fields, **({"labels": example.display_labels} if example.display_labels else {}),
            **({"explained": example.explained} if example.explained else {}),
        })  # fmt: skip
    return {"rows": rows, "texts": list(texts)}, num_shortened


def _shorten(field: Field, length: int | None) -> Field:
    """Shorten a text to `length` characters; if marks would be lost, begin shortly before the first mark."""
    if length is None or len(field.text) <= length:
        return field
    start = 0
    if field.marks and field.marks[-1].end > length:
        start = max(0, field.marks[0].start - CHARACTERS_BEFORE_MARK)
    stop = start + length
    shift = (len(ELLIPSIS) if start else 0) - start

    def move(spans: list[SpanT]) -> list[SpanT]:
        return [
            span._replace(start=span.start + shift, end=min(span.end, stop) + shift)
            for span in spans
            if span.start < stop
        ]

    before = ELLIPSIS if start else ""
    after = ELLIPSIS.rstrip() if stop < len(field.text) else ""
    text = before + field.text[start:stop] + after
    return Field(field.name, text, move(field.marks), move(field.attributions))


# ---- views

MAX_BARS = 24  # in a bar chart
COMMON_KEYS = {"id", "gold", "abstained", "out_of_scope", "scope_score"}  # of all records; not input columns

FiniteNumber = Annotated[float, Meta(ge=-1e300, le=1e300)]  # excludes NaN too
Probability = Annotated[float, Meta(ge=0, le=1.001)]  # rounding may exceed 1
Index = Annotated[int, Meta(ge=0)]


class Record(TypedDict):
    """Keys that all records have."""

    id: Any


class View(ABC):
    """Examples and charts for one kind of prediction record.

    The view is chosen by the keys of a record, not by the name of the task.

    Attributes:
        schema: The keys of a record that the view reads; records may have more keys.
        predicted_keys: Keys that depend on the model. All other keys are inputs.
        measure_name: Name of `Example.measure` on the page.
        filter_names: Names of the two filters for gold and predicted labels.
    """

    schema: ClassVar[type]
    predicted_keys: ClassVar[frozenset[str]]
    measure_name: ClassVar[str] = "confidence"
    filter_names: ClassVar[tuple[str, str]] = ("gold", "predicted")

    def __init__(self, run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> None:
        self.run, self.records = run, records
        for index, record in enumerate(records):
            validate(record, self.schema, f"{run.predictions_path}:{index + 1}")
            if problem := self.find_error(record):
                raise run.make_record_error(index, problem)
        self.prepare()

    @classmethod
    @abstractmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """Return whether the view can show this record."""

    def find_error(self, record: Mapping[str, Any]) -> str | None:  # noqa: B027 (optional)
        """Return a description of an error that the schema cannot express; None if the record is valid."""

    def prepare(self) -> None:  # noqa: B027 (optional)
        """Store what the examples, the charts and the scorer share, from valid records."""

    @abstractmethod
    def build_example(self, index: int, record: Mapping[str, Any]) -> Example:
        """Return the example for a record."""

    def build_examples(self) -> list[Example]:
        """Return one example for each record, in the same order."""
        return [self.build_example(index, record) for index, record in enumerate(self.records)]

    def build_charts(self) -> list[Chart]:
        """Return charts that summarize all records."""
        return []

    def plot_reliability(
        self, confidence: np.ndarray, is_correct: np.ndarray, unit: str = "decisions"
    ) -> list[Chart]:
        """Return a reliability diagram of `[n]` predictions; none if a calibration chart has these rows."""
        if self.run.is_calibrated_on_validation:
            return []
        return [plot_reliability_diagram(compute_calibration(confidence, is_correct), unit)]

    def scorer(self) -> Scorer | None:
        """Return a scorer of resampled rows; None if scores cannot be computed from the records."""
        return None

    def build_input_fields(self, record: Mapping[str, Any]) -> list[Field]:
        """Return the input columns of a record as fields; empty values are left out."""
        return [Field(name, text) for name in self._columns if (text := format_value(record.get(name)))]

    @cached_property
    def _columns(self) -> list[str]:
        """Names of the input columns that differ between rows, or of all input columns if none differs.

        Columns that the model reads come first.
        """
        excluded = self.predicted_keys | COMMON_KEYS
        names = [name for name in self.records[0] if name not in excluded]
        varying = [
            name for name in names if len({format_value(record.get(name)) for record in self.records}) > 1
        ]
        read = [value for name, value in self.run.settings.items() if is_column_setting(name)]
        return sorted(varying or names, key=lambda name: name not in read)

    def get_column(self, name: str) -> np.ndarray:
        """Return the `[n]` values that the records have under a key."""
        return np.array([record[name] for record in self.records])


def negative_log_likelihood(probability: float) -> float:
    """Return the negative logarithm of a probability; it is finite even for probability 0."""
    return -math.log(max(probability, 1e-12))


def count_confusions(gold: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the confusion matrix `[num_classes, num_classes]`, with gold classes as rows."""
    counts = np.bincount(gold * num_classes + predicted, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def plot_f1_bars(
    names: Sequence[str], correct: np.ndarray, predicted: np.ndarray, gold: np.ndarray, unit: str
) -> Chart:
    """Plot the F1 of each label or entity type from `[n]` counts; the most frequent gold ones come first."""
    total = predicted + gold
    f1 = np.divide(2.0 * correct, total, out=np.zeros(len(names)), where=total > 0)
    order = np.argsort(-gold, kind="stable")[:MAX_BARS].tolist()
    note = "" if len(names) <= MAX_BARS else f"The {MAX_BARS} most frequent of {len(names)}."
    values = {names[index]: float(f1[index]) for index in order}
    return plot_bars(f"F1 by {unit}", values, [f"{int(gold[index]):,} gold" for index in order], note)
