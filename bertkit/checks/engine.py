"""The data check: read the data as in training, and collect statistics and findings.

Training stops at the first invalid row, whereas the check reports all invalid rows. The check calls the
same methods of the task as training, so both apply the same rules. If an error message names a row, the
check leaves the row out and calls the method again.
"""

import copy
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertkit.checks import checks_class, generic
from bertkit.checks.base import MAX_LOCATIONS, Finding, Level, TaskChecks
from bertkit.checks.config import make_check_config
from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import Rows, Splits
from bertkit.data.unicode import measure_scripts
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.pipeline.loaded_data import create_task, select_dataset_defaults
from bertkit.pipeline.prepare import describe_untrained_positions
from bertkit.pipeline.settings import resolve_settings
from bertkit.pipeline.splitting import split_and_sample
from bertkit.setting import fill_unset
from bertkit.tasks import TASKS, task_spec
from bertkit.tasks.base import Task
from bertkit.utils.reporting import Reporter, silence_libraries, use_reporter

LEVELS: tuple[Level, ...] = ("error", "warning", "note")
MAX_PASSES = 20  # `Task.parse_dataset` stops at the first invalid row; each one costs a pass over all data
CHUNK_SIZE = 256  # rows are validated one by one only in chunks with an error
ROW_LOCATION = re.compile(r"(?P<file>.+?): (row|line) (?P<number>\d+)")
VALUE_PATTERN = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
FIX_FIRST = "fix this first: training stops here"


@dataclass
class CheckReport:
    """The result of a data check.

    Attributes:
        task: Name of the task.
        data: The `name` and the `source` of the data.
        model: Name of the model that provided the tokenizer; None if the texts were not tokenized.
        max_length: Maximum sequence length in tokens; None if the texts were not tokenized.
        summary: The result of `Task.describe`; empty if the data cannot be parsed.
        splits: Statistics by split. `rows` is the number of rows, `labels` the number of rows by label, and
            `scripts` the fraction of letters by script. `lengths` are statistics in tokens. `over` is the
            fraction of rows over the maximum length, and `unknown` the fraction of tokens that are [UNK].
        findings: The findings, sorted by level.
    """

    task: str
    data: dict[str, str]
    model: str | None = None
    max_length: int | None = None
    summary: str = ""
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def count(self, level: Level) -> int:
        """Return the number of findings of this level."""
        return sum(finding.level == level for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that `--json` prints."""
        counts = {f"{level}s": self.count(level) for level in LEVELS}
        return dataclasses.asdict(self) | counts


def check(task_name: str, settings: Mapping[str, Any], reporter: Reporter | None = None) -> CheckReport:
    """Check the data for training a task, without writing anything.

    Args:
        task_name: Name of the task.
        settings: Settings of the task that differ from their defaults.
        reporter: Receives progress and messages.

    Raises:
        UserError: The data cannot be loaded, or a setting is invalid.
    """
    reporter = reporter or Reporter()
    if task_name not in TASKS:
        hint = suggest_similar(task_name, TASKS)
        raise UserError(f"check: no task {task_name!r}{hint}; the tasks are {format_list(TASKS)}")
    with silence_libraries(), use_reporter(reporter):
        config_class = make_check_config(task_spec(task_name).config)
        config, _ = resolve_settings("check", config_class, settings, None, Reporter())
        task = create_task(task_name, config)
        checks = checks_class(task_name)(task)
        dataset = checks.load_examples(reporter)
        task.config = fill_unset(task.config, select_dataset_defaults(dataset, type(task)))
        dataset = dataclasses.replace(dataset, splits=_sort_splits(dataset.splits))
        report = CheckReport(task_name, {"name": dataset.name, "source": dataset.source})
        report.findings += _to_findings(dataset.notes)
        _DataCheck(report, checks, config.model is not None, config.max_length).run(dataset)
    report.findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return report


def _sort_splits(splits: Splits) -> Splits:
    """Return the splits in the order training, validation, test, other splits."""
    standard_names = [name for name in ("train", "validation", "test") if name in splits]
    return {name: splits[name] for name in [*standard_names, *splits]}


def _to_findings(notes: Iterable[str]) -> list[Finding]:
    """Convert the notes from reading the data to findings."""
    return [Finding("note", "reading", note) for note in notes]


class _WarningCollector(Reporter):
    """A reporter that adds warnings about the model to the findings."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings

    def warn(self, message: str) -> None:
        """Add a finding."""
        self._findings.append(Finding("warning", "model", message))


@dataclass
class _DataCheck:
    """A data check that adds its results to a report.

    Attributes:
        report: The report.
        checks: The checks of the task.
        is_model_requested: Whether the user named a model.
        requested_length: Value of `--max-length`, if the user passed the flag.
    """

    report: CheckReport
    checks: TaskChecks
    is_model_requested: bool
    requested_length: int | None

    @property
    def task(self) -> Task:
        """The task whose data is checked."""
        return self.checks.task

    def run(self, dataset: LoadedDataset) -> None:
        """Leave out invalid rows, and check the valid rows if the data can be parsed."""
        collector = ErrorCollector()
        self.checks.task, dataset, parsed = parse_valid_rows(self.task, dataset, collector)
        valid = drop_invalid_rows(self.task, parsed.splits, collector) if parsed else {}
        self.report.findings += collector.to_findings()
        if parsed is None:
            self.report.splits = {name: {"rows": len(rows)} for name, rows in dataset.splits.items()}
            return
        self.report.summary = self.task.describe()
        if len(valid["train"]):
            self._check_valid_rows(dataset, dataclasses.replace(parsed, splits=valid))

    def _check_valid_rows(self, dataset: LoadedDataset, parsed: LoadedDataset) -> None:
        """Check the rows of each split, then the splits as training would sample them."""
        task, findings = self.task, self.report.findings
        valid = {name: rows for name, rows in parsed.splits.items() if len(rows)}
        self._collect_error(lambda: task.validate_splits(valid))
        valid = {name: task.parse_rows(rows)[0] for name, rows in valid.items()}
        notes = parsed.notes[len(dataset.notes) :]
        findings += self.checks.check_rows(dataset, dataclasses.replace(parsed, splits=valid), notes)
        self._compare_rows(valid)
        splits = valid
        # If a split has no valid row, splitting would hold out rows in place of that split.
        if len(valid) == len(parsed.splits):
            result = self._collect_error(lambda: split_and_sample(task, valid))
            if result is not None:
                splits, split_notes = result
                findings += _to_findings(split_notes)
        splits = _sort_splits(splits)
        self._count_rows(splits)
        self._collect_error(lambda: self._check_tokens(splits))

    def _compare_rows(self, splits: Splits) -> None:
        """Find empty texts, duplicates, and overlap between splits."""
        checked_splits = [
            generic.CheckedSplit.from_checks(name, rows, self.checks) for name, rows in splits.items()
        ]
        for split in checked_splits:
            self.report.findings += generic.find_empty_texts(split, self.checks.extract_texts(split.rows))
            self.report.findings += generic.find_duplicates(split)
        self.report.findings += generic.find_overlap(checked_splits)

    def _count_rows(self, splits: Splits) -> None:
        """Add the numbers of rows and labels and the scripts of each split to the report."""
        for name, rows in splits.items():
            texts = (text for column in self.checks.extract_texts(rows) for text in column)
            self.report.splits[name] = {
                "rows": len(rows),
                "labels": self.checks.count_labels(rows),
                "scripts": measure_scripts(texts),
            }
        labels = {name: statistics["labels"] for name, statistics in self.report.splits.items()}
        scripts = {name: statistics["scripts"] for name, statistics in self.report.splits.items()}
        self.report.findings += self.checks.check_balance(labels)
        self.report.findings += generic.find_script_mismatch(scripts)

    def _check_tokens(self, splits: Splits) -> None:
        """Tokenize the texts as in training, without loading the weights of the model."""
        report, task = self.report, self.task
        try:
            warning_collector = _WarningCollector(report.findings)
            source = self.checks.resolve_tokenizer(self.is_model_requested, warning_collector)
        except UserError as error:
            is_requested = self.is_model_requested or getattr(task.config, "tokenizer", None)
            level: Level = "error" if is_requested else "note"
            report.findings.append(Finding(level, "no-model", str(error), "the texts were not tokenized"))
            return
        if source is None:
            return
        info = generic.TokenizerInfo.load(task, source, self.is_model_requested, self.requested_length)
        report.model, report.max_length = info.name, task.config.max_length
        if problem := describe_untrained_positions(task, info.name, info.trained_length):
            report.findings.append(Finding("warning", "untrained-positions", *problem))
        report.findings += generic.find_missing_embeddings(info)
        for name, rows in splits.items():
            counts = self.checks.count_tokens(rows, info.tokenizer)
            report.splits[name] |= generic.summarize_lengths(task, counts)
            report.findings += generic.find_unk_tokens(name, rows, counts, info)
            report.findings += generic.find_long_rows(name, rows, counts, task, info)
            report.findings += self.checks.check_tokens(name, rows, info.tokenizer)

    def _collect_error(self, step: Callable[[], Any]) -> Any:
        """Return the result of a function, or None if the function raises a `UserError`.

        The error becomes a finding, unless there is a finding with the same message.
        """
        try:
            return step()
        except UserError as error:
            if str(error) not in (finding.message for finding in self.report.findings):
                self.report.findings.append(Finding("error", "refused", str(error), FIX_FIRST))
            return None


# ---- invalid rows


@dataclass
class ErrorCollector:
    """The errors of invalid rows.

    Attributes:
        errors: The messages, in the order of the rows.
        is_complete: Whether all rows were checked.
    """

    errors: list[str] = field(default_factory=list)
    is_complete: bool = True

    def to_findings(self) -> Iterator[Finding]:
        """Yield one finding for each kind of error, with the message of the first such error.

        Errors of one kind differ only in their rows and in quoted values and numbers.
        """
        kinds: dict[str, list[str]] = {}
        for error in self.errors:
            kind = VALUE_PATTERN.sub("_", ROW_LOCATION.sub("", error, count=1))
            kinds.setdefault(kind, []).append(error)
        for errors in kinds.values():
            locations = [match[0] for error in errors[:MAX_LOCATIONS] if (match := ROW_LOCATION.match(error))]
            suffix = f" ({len(errors):,} rows have this error)" if len(errors) > 1 else ""
            yield Finding("error", "refused", errors[0] + suffix, FIX_FIRST, len(errors), locations)
        if not self.is_complete:
            yield Finding("note", "not-all", "there may be more of these errors: later rows were not read")


def locate_error(error: UserError, splits: Splits) -> tuple[str, int] | None:
    """Return the split and the index of the row that an error names; None if the error names no row."""
    match = ROW_LOCATION.match(str(error))
    if match is None:
        return None
    for name, rows in splits.items():
        index = _find_row(rows, match["file"], int(match["number"]))
        if index is not None:
            return name, index
    return None


def _find_row(rows: Rows, file: str, number: int) -> int | None:
    """Return the index of the row with this row number, or of the row that contains this line.

    Args:
        rows: The rows to search.
        file: File of the row.
        number: Number of the row or line, as error messages state it.
    """
    file_indices = [index for index, name in enumerate(rows.files) if name == file]
    candidates = np.flatnonzero(np.isin(rows.file_index, file_indices))
    numbers = rows.row_numbers[candidates]
    # In a file with line numbers, a row extends from its line to the line of the next row.
    is_match = numbers <= number if file in rows.line_numbered_files else numbers == number
    matches = candidates[is_match]
    return int(matches[-1]) if len(matches) else None


def parse_valid_rows(
    task: Task, dataset: LoadedDataset, collector: ErrorCollector
) -> tuple[Task, LoadedDataset, LoadedDataset | None]:
    """Parse a dataset without the rows that `Task.parse_dataset` refuses.

    Returns:
        A copy of the task that knows its columns, the dataset without the refused rows, and the parsed
        dataset. The parsed dataset is None if no row causes the error, if a split has no rows left, or
        after `MAX_PASSES`.
    """
    for _ in range(MAX_PASSES):
        attempt = copy.copy(task)
        try:
            return attempt, dataset, attempt.parse_dataset(dataset)
        except UserError as error:
            collector.errors.append(str(error))
            location = locate_error(error, dataset.splits)
            if location is None:
                return task, dataset, None
            dataset = _drop_row(dataset, *location)
            if not len(dataset.splits[location[0]]):
                return task, dataset, None
    collector.is_complete = False
    return task, dataset, None


def _drop_row(dataset: LoadedDataset, split: str, index: int) -> LoadedDataset:
    rows = dataset.splits[split]
    kept = rows.select(kept_index for kept_index in range(len(rows)) if kept_index != index)
    return dataclasses.replace(dataset, splits={**dataset.splits, split: kept})


def drop_invalid_rows(task: Task, splits: Splits, collector: ErrorCollector) -> Splits:
    """Return the rows that pass `Task.parse_rows` and `Task.validate_splits`, by split."""
    valid = {}
    for name, rows in splits.items():

        def validate(part: Rows, split: str = name) -> None:
            task.validate_splits({split: task.parse_rows(part)[0]})

        invalid = _find_invalid_rows(validate, rows, collector)
        valid[name] = rows
        if invalid:
            valid[name] = rows.select(index for index in range(len(rows)) if index not in invalid)
    return valid


def _find_invalid_rows(validate: Callable[[Rows], None], rows: Rows, collector: ErrorCollector) -> set[int]:
    """Return the indices of the rows that are invalid by themselves, and collect the errors."""
    if _get_row_error(validate, rows) is None:
        return set()
    invalid = set()
    for start in range(0, len(rows), CHUNK_SIZE):
        chunk = range(start, min(start + CHUNK_SIZE, len(rows)))
        if _get_row_error(validate, rows.select(chunk)) is None:
            continue
        for index in chunk:
            message = _get_row_error(validate, rows.select([index]))
            if message is not None:
                collector.errors.append(message)
                invalid.add(index)
    return invalid


def _get_row_error(validate: Callable[[Rows], None], rows: Rows) -> str | None:
    """Return the message of an error that names one of these rows; None for other errors."""
    try:
        validate(rows)
    except UserError as error:
        return str(error) if locate_error(error, {"": rows}) is not None else None
    return None
