"""The data check: it reads the data as training would, counts it, and collects findings.

Training stops at the first invalid row; the check counts all of them. It calls the task itself, so
that no rule and no message is written twice. An error names its file and row; the check leaves that
row out and calls the task again.
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
from bertkit.config import fill_unset
from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import Rows, Splits
from bertkit.data.unicode import measure_scripts
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.pipeline.prepare import create_task, select_dataset_defaults, split_and_sample
from bertkit.pipeline.settings import resolve_settings
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.base import Task
from bertkit.utils.reporting import Reporter, silence_libraries

LEVELS: tuple[Level, ...] = ("error", "warning", "note")
MAX_PASSES = 20  # rows left out where each of them takes another pass over all of the data
CHUNK_SIZE = 256  # rows validated at once
ROW_LOCATION = re.compile(r"(?P<file>.+?): (row|line) (?P<number>\d+)")
VALUE_PATTERN = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
FIX_FIRST = "fix this first: training stops here"


@dataclass
class CheckReport:
    """The result of a check.

    Attributes:
        task: the name of the task.
        data: `name` and `source` of the data.
        model: the model whose tokenizer was used, if any.
        max_length: `--max-length` with this model.
        summary: what would be learned; "" if the columns could not be found.
        splits: for each split its `rows`, `labels`, `scripts`, and in tokens `lengths`, `over`, `unknown`.
        findings: the findings, errors first.
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
        """Return what `--json` prints."""
        counts = {f"{level}s": self.count(level) for level in LEVELS}
        return dataclasses.asdict(self) | counts


def check(task_name: str, settings: Mapping[str, Any], reporter: Reporter | None = None) -> CheckReport:
    """Check the data on which a task would be trained with these settings; nothing is written.

    Raises:
        UserError: the data cannot be loaded, or a setting is invalid.
    """
    reporter = reporter or Reporter()
    if task_name not in TASKS:
        hint = suggest_similar(task_name, TASKS)
        raise UserError(f"check: no task {task_name!r}{hint}; the tasks are {format_list(TASKS)}")
    with silence_libraries():
        config_class = make_check_config(task_class(task_name).spec.config)
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
    """Return the splits with training, validation and test rows first."""
    usual = [name for name in ("train", "validation", "test") if name in splits]
    return {name: splits[name] for name in [*usual, *splits]}


def _to_findings(notes: Iterable[str]) -> list[Finding]:
    return [Finding("note", "reading", note) for note in notes]


class _WarningCollector(Reporter):
    """A reporter that turns warnings about the model into findings."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings

    def warn(self, message: str) -> None:
        """Add a finding."""
        self._findings.append(Finding("warning", "model", message))


@dataclass
class _DataCheck:
    """The steps of a check, each as far as the earlier ones succeeded.

    Attributes:
        report: receives the results.
        checks: the checks of the task.
        is_model_explicit: whether the user named a model.
        requested_length: the user's `--max-length`.
    """

    report: CheckReport
    checks: TaskChecks
    is_model_explicit: bool
    requested_length: int | None

    @property
    def task(self) -> Task:
        """The task."""
        return self.checks.task

    def run(self, dataset: LoadedDataset) -> None:
        """Check columns, then values, then the valid rows."""
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
        """Check single rows and pairs of rows, then the splits that training would use."""
        task, findings = self.task, self.report.findings
        valid = {name: rows for name, rows in parsed.splits.items() if len(rows)}
        self._collect_error(lambda: task.validate_splits(valid))
        valid = {name: task.parse_rows(rows)[0] for name, rows in valid.items()}
        notes = parsed.notes[len(dataset.notes) :]
        findings += self.checks.check_rows(dataset, dataclasses.replace(parsed, splits=valid), notes)
        self._compare_rows(valid)
        splits, split_notes = valid, []
        if len(valid) == len(parsed.splits):  # else rows would be held out in place of a refused split
            result = self._collect_error(lambda: split_and_sample(task, valid))
            splits, split_notes = result or (valid, [])
        findings += _to_findings(split_notes)
        splits = _sort_splits(splits)
        self._count_rows(splits)
        self._collect_error(lambda: self._check_tokens(splits))

    def _compare_rows(self, splits: Splits) -> None:
        """Find empty texts, duplicates and overlap."""
        split_checks = [
            generic.CheckedSplit.from_checks(name, rows, self.checks) for name, rows in splits.items()
        ]
        for split in split_checks:
            self.report.findings += generic.find_empty_texts(split, self.checks.extract_texts(split.rows))
            self.report.findings += generic.find_duplicates(split)
        self.report.findings += generic.find_overlap(split_checks)

    def _count_rows(self, splits: Splits) -> None:
        """Count rows, labels and scripts of each split."""
        for name, rows in splits.items():
            texts = (text for column in self.checks.extract_texts(rows) for text in column)
            self.report.splits[name] = {
                "rows": len(rows),
                "labels": self.checks.count_labels(rows),
                "scripts": measure_scripts(texts),
            }
        summaries = self.report.splits.items()
        self.report.findings += self.checks.check_balance({name: s["labels"] for name, s in summaries})
        self.report.findings += generic.find_script_mismatch({name: s["scripts"] for name, s in summaries})

    def _check_tokens(self, splits: Splits) -> None:
        """Tokenize as training would; the weights of the model are not loaded."""
        report, task = self.report, self.task
        try:
            warnings = _WarningCollector(report.findings)
            source = self.checks.resolve_tokenizer(self.is_model_explicit, warnings)
        except UserError as error:
            is_explicit = self.is_model_explicit or getattr(task.config, "tokenizer", None)
            level: Level = "error" if is_explicit else "note"
            report.findings.append(Finding(level, "no-model", str(error), "the texts were not tokenized"))
            return
        if source is None:
            return
        info = generic.TokenizerInfo.load(task, source, self.is_model_explicit, self.requested_length)
        report.model, report.max_length = info.name, task.config.max_length
        for name, rows in splits.items():
            counts = self.checks.count_tokens(rows, info.tokenizer)
            report.splits[name] |= generic.summarize_lengths(task, counts)
            report.findings += generic.find_unk_tokens(name, rows, counts, info)
            report.findings += generic.find_long_rows(name, rows, counts, task, info)
            report.findings += self.checks.check_tokens(name, rows, info.tokenizer)

    def _collect_error(self, step: Callable[[], Any]) -> Any:
        """Return the result of a step; if it fails, add its error unless it is known, and return None."""
        try:
            return step()
        except UserError as error:
            if str(error) not in (finding.message for finding in self.report.findings):
                self.report.findings.append(Finding("error", "refused", str(error), FIX_FIRST))
            return None


# ---- invalid rows


@dataclass
class ErrorCollector:
    """The errors in single rows, in their order.

    Attributes:
        errors: the messages.
        is_complete: whether all rows were read.
    """

    errors: list[str] = field(default_factory=list)
    is_complete: bool = True

    def to_findings(self) -> Iterator[Finding]:
        """Yield one finding for errors that differ only in place and values, worded as the first one."""
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
    """Return the split and the index of the row that an error names; None if it names none of these."""
    match = ROW_LOCATION.match(str(error))
    if match is None:
        return None
    for name, rows in splits.items():
        index = _find_row(rows, match["file"], int(match["number"]))
        if index is not None:
            return name, index
    return None


def _find_row(rows: Rows, file: str, number: int) -> int | None:
    """Return the row with this number; if rows are numbered by line, the row that contains the line."""
    file_indices = [index for index, name in enumerate(rows.files) if name == file]
    candidates = np.flatnonzero(np.isin(rows.file_index, file_indices))
    numbers = rows.row_numbers[candidates]
    is_match = numbers <= number if file in rows.line_numbered_files else numbers == number
    matches = candidates[is_match]
    return int(matches[-1]) if len(matches) else None


def parse_valid_rows(
    task: Task, dataset: LoadedDataset, collector: ErrorCollector
) -> tuple[Task, LoadedDataset, LoadedDataset | None]:
    """Parse a dataset without the rows that the task refuses.

    Returns:
        The task, which knows its columns then; the rows it did not refuse; and the same rows parsed.
        The latter is None if the task refuses something other than a row.
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
    others = rows.select(other for other in range(len(rows)) if other != index)
    return dataclasses.replace(dataset, splits={**dataset.splits, split: others})


def drop_invalid_rows(task: Task, splits: Splits, collector: ErrorCollector) -> Splits:
    """Return the rows of each split whose values the task accepts."""
    valid = {}
    for name, rows in splits.items():

        def validate(part: Rows, name: str = name) -> None:
            task.validate_splits({name: task.parse_rows(part)[0]})

        invalid = _find_invalid_rows(validate, rows, collector)
        valid[name] = rows
        if invalid:
            valid[name] = rows.select(index for index in range(len(rows)) if index not in invalid)
    return valid


def _find_invalid_rows(validate: Callable[[Rows], None], rows: Rows, collector: ErrorCollector) -> set[int]:
    """Return the rows that are refused one by one, and collect their errors."""
    if _get_row_error(validate, rows) is None:
        return set()
    invalid = set()
    for start in range(0, len(rows), CHUNK_SIZE):
        chunk = range(start, min(start + CHUNK_SIZE, len(rows)))
        if _get_row_error(validate, rows.select(chunk)) is None:
            continue
        for index in chunk:
            error = _get_row_error(validate, rows.select([index]))
            if error is not None:
                collector.errors.append(error)
                invalid.add(index)
    return invalid


def _get_row_error(validate: Callable[[Rows], None], rows: Rows) -> str | None:
    """Return the error in one of these rows; an error in all of them together does not count."""
    try:
        validate(rows)
    except UserError as error:
        return str(error) if locate_error(error, {"": rows}) is not None else None
    return None
