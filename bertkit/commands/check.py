"""`check`: find problems of the data for training a task, without writing anything.

The checks here are those of all tasks: invalid rows, empty texts, duplicates, overlap, scripts, lengths and
[UNK] tokens.
"""

import copy
import dataclasses
import re
import shlex
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table
from rich.text import Text

from bertkit.commands.configs import make_check_config
from bertkit.data.groups_and_times import GROUP_FLAG, find_obvious_groups, hash_groups
from bertkit.data.language import measure_scripts
from bertkit.data.sources import LoadedDataset
from bertkit.data.split import SplitKeys, make_folds
from bertkit.data.table import Rows, Splits, number_groups
from bertkit.data.tokens import TokenCounts
from bertkit.errors import UserError, format_count, format_list, suggest_similar
from bertkit.models import loading
from bertkit.run.load_data import create_task, parse_dataset, select_dataset_defaults, split_and_sample
from bertkit.run.prepare import (
    UNK_ERROR_FRACTION,
    UNK_WARNING_FRACTION,
    describe_untrained_positions,
    resolve_max_length,
)
from bertkit.run.resolve_settings import resolve_settings
from bertkit.settings.declaration import select_unset
from bertkit.stats.baseline_models import TFIDF_BASELINES
from bertkit.tasks import list_tasks, task_definition
from bertkit.tasks.base import Task, list_read_columns
from bertkit.tasks.checks import MAX_LOCATIONS, Finding, Level, TaskChecks, format_fraction, locate_rows
from bertkit.tasks.ner.tags import OUTSIDE
from bertkit.utils.console import out_console, print_json, to_plain_text
from bertkit.utils.reporting import Reporter, silence_libraries, silence_reports, use_reporter
from bertkit.utils.text import replace_control_characters

# Above these fractions of the rows, the finding is a warning instead of a note.
MAX_DUPLICATE_FRACTION = 0.01
MAX_TRUNCATED_FRACTION = 0.05
MAX_LABEL_CHARS = 40  # longer labels are shortened in locations
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
        return sum(finding.level == level for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that `--json` prints."""
        counts = {f"{level}s": self.count(level) for level in LEVELS}
        return dataclasses.asdict(self) | counts


def check(task_name: str, settings: Mapping[str, Any]) -> CheckReport:
    """Check the data for training a task. The settings are those that differ from their defaults."""
    if task_name not in (tasks := list_tasks()):
        hint = suggest_similar(task_name, tasks)
        raise UserError(f"check: no task {task_name!r}{hint}; the tasks are {format_list(tasks)}")
    with silence_libraries():
        config_class = make_check_config(task_definition(task_name).config)
        with silence_reports():
            config, _ = resolve_settings("check", config_class, settings, None)
        task = create_task(task_name, config)
        checks = task.definition.load_checks()(task)
        dataset = checks.load_examples()
        task.resolve(**select_unset(task.config, select_dataset_defaults(dataset, type(task))))
        dataset = dataclasses.replace(dataset, splits=_sort_splits(dataset.splits))
        report = CheckReport(task_name, {"name": dataset.name, "source": dataset.source})
        report.findings += [Finding("note", "reading", note) for note in dataset.notes]
        _DataCheck(report, checks, config.model is not None, config.max_length).run(dataset)
    report.findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return report


def _sort_splits(splits: Splits) -> Splits:
    """Return the splits in the order training, validation, test, other splits."""
    standard_names = [name for name in ("train", "validation", "test") if name in splits]
    return {name: splits[name] for name in [*standard_names, *splits]}


class _WarningCollector(Reporter):
    """A reporter that adds warnings about the model to the findings."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings

    def warn(self, message: str) -> None:
        self._findings.append(Finding("warning", "model", message))


@dataclass
class _DataCheck:
    """A data check that adds its results to a report."""

    report: CheckReport
    checks: TaskChecks
    is_model_requested: bool
    requested_length: int | None  # value of `--max-length`, if the user passed the flag

    def run(self, dataset: LoadedDataset) -> None:
        """Leave out invalid rows, and check the valid rows if the data can be parsed."""
        collector = ErrorCollector()
        self.checks.task, dataset, parsed = parse_valid_rows(self.checks.task, dataset, collector)
        valid = drop_invalid_rows(self.checks.task, parsed.splits, collector) if parsed else {}
        self.report.findings += collector.to_findings()
        if parsed is None:
            self.report.splits = {name: {"rows": len(rows)} for name, rows in dataset.splits.items()}
            return
        self.report.summary = self.checks.task.describe()
        if len(valid["train"]):
            self._check_valid_rows(dataset, dataclasses.replace(parsed, splits=valid))

    def _check_valid_rows(self, dataset: LoadedDataset, parsed: LoadedDataset) -> None:
        """Check the rows of each split, then the splits as training would sample them."""
        report, checks, task = self.report, self.checks, self.checks.task
        valid = {name: rows for name, rows in parsed.splits.items() if len(rows)}
        self._collect_error(lambda: task.validate_splits(valid))
        valid = {name: task.parse_rows(rows)[0] for name, rows in valid.items()}
        notes = parsed.notes[len(dataset.notes) :]
        report.findings += checks.check_rows(dataset, dataclasses.replace(parsed, splits=valid), notes)
        checked_splits = [CheckedSplit(name, rows, checks) for name, rows in valid.items()]
        for split in checked_splits:
            report.findings += find_empty_texts(split, checks.extract_texts(split.rows))
            report.findings += find_duplicates(split)
        report.findings += find_overlap(checked_splits)
        report.findings += find_group_gap(task, valid["train"])
        splits = valid
        # If a split has no valid row, splitting would hold out rows in place of that split.
        if len(valid) == len(parsed.splits):
            result = self._collect_error(lambda: split_and_sample(task, valid))
            if result is not None:
                splits, split_notes = result
                report.findings += [Finding("note", "reading", note) for note in split_notes]
        splits = _sort_splits(splits)
        for name, rows in splits.items():
            texts = (text for column in checks.extract_texts(rows) for text in column)
            report.splits[name] = {
                "rows": len(rows),
                "labels": checks.count_labels(rows),
                "scripts": measure_scripts(texts),
            }
        labels = {name: statistics["labels"] for name, statistics in report.splits.items()}
        scripts = {name: statistics["scripts"] for name, statistics in report.splits.items()}
        report.findings += checks.check_balance(labels)
        report.findings += find_script_mismatch(scripts)
        self._collect_error(lambda: self._check_tokens(splits))

    def _check_tokens(self, splits: Splits) -> None:
        """Tokenize the texts as in training, without loading the weights of the model."""
        report, task = self.report, self.checks.task
        try:
            with use_reporter(_WarningCollector(report.findings)):
                source = self.checks.resolve_tokenizer(self.is_model_requested)
        except UserError as error:
            is_requested = self.is_model_requested or getattr(task.config, "tokenizer", None)
            level: Level = "error" if is_requested else "note"
            report.findings.append(Finding(level, "no-model", str(error), "the texts were not tokenized"))
            return
        if source is None:
            return
        has_config = (source.folder / "config.json").exists()  # a folder may hold only a tokenizer
        config = loading.load_config(source) if has_config else None
        tokenizer = loading.load_tokenizer(source)
        loading.require_token_types(source, config, tokenizer)
        num_token_ids = loading.count_token_ids(tokenizer)
        loading.add_tokens(tokenizer, task.state.new_tokens)
        is_new_model = getattr(task.config, "tokenizer", None) is not None
        trained_length = None if is_new_model else loading.get_trained_length(config, tokenizer)
        max_length = resolve_max_length(task, source, config, self.requested_length, trained_length)
        task.resolve(max_length=max_length)
        report.model, report.max_length = source.name, max_length
        if problem := describe_untrained_positions(task, source.name, trained_length):
            report.findings.append(Finding("warning", "untrained-positions", *problem))
        num_embeddings = getattr(config, "vocab_size", None)
        if num_embeddings is not None and num_token_ids > num_embeddings:
            report.findings.append(Finding(
                "note", "embeddings",
                f"the tokenizer of {source.name} has {num_token_ids:,} token ids, but its weights only "
                f"{num_embeddings:,} embeddings",
                "training adds the others; if you did not add tokens, check whether the files belong "
                "together",
            ))  # fmt: skip
        max_positions = loading.get_max_positions(config)
        for name, rows in splits.items():
            counts = self.checks.count_tokens(rows, tokenizer)
            if not task.definition.resamples_examples:
                lengths = counts.lengths
                median, percentile_95 = np.percentile(lengths, [50, 95], method="nearest").tolist()
                report.splits[name] |= {
                    "lengths": {
                        "median": int(median),
                        "95%": int(percentile_95),
                        "longest": int(lengths.max()),
                    },
                    "over": float((lengths > max_length).mean()),
                }
            report.splits[name]["unknown"] = counts.unk_fraction
            report.findings += find_unk_tokens(name, rows, counts, source.name, self.is_model_requested)
            report.findings += find_long_rows(name, rows, counts, task, max_positions)
            report.findings += self.checks.check_tokens(name, rows, tokenizer)

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
    """The errors of invalid rows."""

    errors: list[str] = field(default_factory=list)  # the messages, in the order of the rows
    is_complete: bool = True  # whether all rows were checked

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
    file, number = match["file"], int(match["number"])
    for name, rows in splits.items():
        file_indices = [index for index, row_file in enumerate(rows.files) if row_file == file]
        candidates = np.flatnonzero(np.isin(rows.file_index, file_indices))
        numbers = rows.row_numbers[candidates]
        # In a file with line numbers, a row extends from its line to the line of the next row.
        is_match = numbers <= number if file in rows.line_numbered_files else numbers == number
        if is_match.any():
            return name, int(candidates[is_match][-1])
    return None


def parse_valid_rows(
    task: Task, dataset: LoadedDataset, collector: ErrorCollector
) -> tuple[Task, LoadedDataset, LoadedDataset | None]:
    """Parse a dataset without the rows that `Task.parse_dataset` refuses.

    Returns a copy of the task that knows its columns, the dataset without the refused rows, and the parsed
    dataset. That is None if no row causes the error, if a split has no rows left, or after `MAX_PASSES`.
    """
    for _ in range(MAX_PASSES):
        attempt = copy.copy(task)
        try:
            return attempt, dataset, parse_dataset(attempt, dataset)
        except UserError as error:
            collector.errors.append(str(error))
            location = locate_error(error, dataset.splits)
            if location is None:
                return task, dataset, None
            split, index = location
            rows = dataset.splits[split]
            kept = rows.select(other for other in range(len(rows)) if other != index)
            dataset = dataclasses.replace(dataset, splits={**dataset.splits, split: kept})
            if not len(kept):
                return task, dataset, None
    collector.is_complete = False
    return task, dataset, None


def drop_invalid_rows(task: Task, splits: Splits, collector: ErrorCollector) -> Splits:
    """Return the rows that `Task.parse_rows` and `Task.validate_splits` accept; collect the errors."""
    valid = {}
    for name, rows in splits.items():

        def find_error(part: Rows, split: str = name) -> str | None:
            """Return the message of an error that names one of these rows; None for other errors."""
            try:
                task.validate_splits({split: task.parse_rows(part)[0]})
            except UserError as error:
                return str(error) if locate_error(error, {"": part}) is not None else None
            return None

        invalid = set()
        for start in range(0, len(rows), CHUNK_SIZE) if find_error(rows) is not None else ():
            chunk = range(start, min(start + CHUNK_SIZE, len(rows)))
            if find_error(rows.select(chunk)) is None:
                continue
            for index in chunk:
                message = find_error(rows.select([index]))
                if message is not None:
                    collector.errors.append(message)
                    invalid.add(index)
        valid[name] = rows
        if invalid:
            valid[name] = rows.select(index for index in range(len(rows)) if index not in invalid)
    return valid


# ---- rows


@dataclass(frozen=True)
class CheckedSplit:
    """A split with the keys and labels by which rows are compared."""

    name: str
    rows: Rows
    checks: TaskChecks

    @cached_property
    def identity(self) -> np.ndarray:
        """[n] key of each row; equal examples have equal keys."""
        return self.checks.task.split_keys(self.rows).identity

    def format_fraction(self, indices: Sequence[int]) -> str:
        """Format the number of these rows, such as `3 of 60 (5.0%) train rows`."""
        return (
            f"{format_fraction(len(indices), len(self.rows))} {self.name} {self.checks.task.definition.unit}s"
        )


def find_empty_texts(split: CheckedSplit, texts: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Find rows in which a text is empty or only white space; training does not refuse these rows."""
    row_texts = zip(*texts, strict=True)
    empty = [index for index, values in enumerate(row_texts) if not all(map(str.strip, values))]
    if empty:
        fix = "remove them, or fill in the text"
        if len(texts) > 1:
            fix = "remove them, fill in the text, or keep them if the other text is enough"
        yield Finding(
            "warning", "empty", f"{split.format_fraction(empty)} have an empty text",
            f"{fix}; training and evaluation use them unchanged", len(empty), locate_rows(split.rows, empty),
        )  # fmt: skip


def find_duplicates(split: CheckedSplit) -> Iterator[Finding]:
    """Find copies of earlier rows, and copies with another label than the earlier row."""
    groups, first = number_groups(split.identity)
    first_index = first[groups]  # of the rows with the same key
    copies = np.flatnonzero(first_index != np.arange(len(groups))).tolist()
    rows, gold = split.rows, split.checks.extract_gold(split.rows)
    if copies:
        originals = first_index[copies].tolist()
        yield Finding(
            "warning" if len(copies) > MAX_DUPLICATE_FRACTION * len(rows) else "note", "duplicates",
            f"{split.format_fraction(copies)} are copies of an earlier one",
            "remove them, since copies count more than once; keep short texts that are equal by chance",
            len(copies), _locate_pairs(rows, copies, originals),
        )  # fmt: skip
    if not gold:
        return
    conflicts = [index for index in copies if gold[index] != gold[first_index[index]]]
    if conflicts:
        originals = first_index[conflicts].tolist()
        level, fix = split.checks.conflict_severity
        yield Finding(
            level, "conflicts", f"{split.format_fraction(conflicts)} are copies with another label", fix,
            len(conflicts), _locate_pairs(rows, conflicts, originals, gold),
        )  # fmt: skip


def _locate_pairs(
    rows: Rows, copies: Sequence[int], originals: Sequence[int], gold: Sequence[Hashable] | None = None
) -> list[str]:
    """Return locations such as `train.csv: row 9 copies row 3` for the first few pairs, with their labels."""
    locations = []
    for copy_location, original_location, duplicate, original in zip(
        locate_rows(rows, copies), locate_rows(rows, originals), copies, originals, strict=False
    ):
        if rows.file_index[duplicate] == rows.file_index[original]:
            file = rows.files[rows.file_index[original]]
            original_location = original_location.removeprefix(f"{file}: ")
        if gold:
            copy_location += f" ({_shorten_label(gold[duplicate])})"
            original_location += f" ({_shorten_label(gold[original])})"
        locations.append(f"{copy_location} copies {original_location}")
    return locations


def _shorten_label(label: Hashable) -> str:
    """Format a label in at most `MAX_LABEL_CHARS` characters; of tags, only those other than O."""
    if isinstance(label, tuple):  # the tags of a sentence, or a label set
        label = " ".join(str(part) for part in label if part != OUTSIDE) or OUTSIDE
    text = f"{label:g}" if isinstance(label, float) else str(label)
    return text if len(text) <= MAX_LABEL_CHARS else f"{text[: MAX_LABEL_CHARS - 3]}..."


def find_overlap(splits: Sequence[CheckedSplit]) -> Iterator[Finding]:
    """Find examples that occur in two splits."""
    for earlier, later in combinations(splits, 2):
        shared = np.flatnonzero(np.isin(later.identity, earlier.identity)).tolist()
        if shared:
            yield Finding(
                "warning", "overlap",
                f"{later.format_fraction(shared)} are also in the {earlier.name} split",
                "check how the splits were made; scores on examples seen before say little", len(shared),
                locate_rows(later.rows, shared),
            )  # fmt: skip


def find_script_mismatch(scripts: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    """Find splits with another main script than the training texts, from fractions in descending order."""
    main_scripts = {name: next(iter(fractions), "") for name, fractions in scripts.items()}
    train_script = main_scripts.get("train")
    for name, script in main_scripts.items():
        if train_script is not None and script != train_script:
            yield Finding(
                "warning", "script",
                f"the {name} texts are mostly {script}, the training texts {train_script}",
                "check whether the files belong together", 0,
            )  # fmt: skip


MAX_GAP_ROWS = 5_000  # of whole groups, on which the scores of random and of grouped folds are compared
GAP_FOLDS = 5


def find_group_gap(task: Task, train: Rows) -> Iterator[Finding]:
    """Compare the scores of TF-IDF on random rows and on rows of other groups, in cross-validation.

    The groups are those of `--group-column`, or of a column with a usual name. The difference is a warning if
    it is larger than two standard errors of its mean over the folds.
    """
    column = task.config.group_column or find_obvious_groups(train, list_read_columns(task))
    if column is None or task.definition.labeled_unit not in ("text", "ending"):  # which TF-IDF predicts
        return
    groups, _ = number_groups(hash_groups(train, column))
    sizes, seed = np.bincount(groups), task.config.seed
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[: max(GAP_FOLDS, int((np.cumsum(sizes[order]) <= MAX_GAP_ROWS).sum()))]
    rows = train.select(np.flatnonzero(np.isin(groups, order)))
    random_keys = task.make_split_keys(rows)
    grouped_keys = random_keys.add_group_column(rows, column)
    if min(len(np.unique(keys.group)) for keys in (random_keys, grouped_keys)) < GAP_FOLDS:
        return
    random_scores = _score_folds(task, rows, random_keys)
    grouped_scores = _score_folds(task, rows, grouped_keys)
    if not (random_scores and grouped_scores):
        return
    gap = random_scores.mean - grouped_scores.mean
    error = np.sqrt((random_scores.variance + grouped_scores.variance) / GAP_FOLDS)
    fix = ""
    if task.config.group_column is None:
        fix = f"pass {GROUP_FLAG} {shlex.quote(column)} to keep each {column} in one split"
    yield Finding(
        "warning" if fix and gap > 2 * error else "note", "groups",
        f"{random_scores.name} has {random_scores.metric} {random_scores.mean:.3f} on random rows and "
        f"{grouped_scores.mean:.3f} on rows of another {column}: a difference of {gap:.3f}, with a standard "
        f"error of {error:.3f} ({GAP_FOLDS} folds of {format_count(len(rows), 'training row')})",
        fix, len(rows),
    )  # fmt: skip


class _FoldScores(NamedTuple):
    """The scores of a baseline on several folds."""

    name: str
    metric: str
    scores: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def variance(self) -> float:
        return float(np.var(self.scores, ddof=1))


def _score_folds(task: Task, rows: Rows, keys: SplitKeys) -> _FoldScores | None:
    """Return the scores of the TF-IDF baseline of the task, or None if a fold leaves only one class."""
    scores, metric, name = [], task.state.best_metric[0], ""
    for train_index, test_index in make_folds(keys, GAP_FOLDS, task.config.seed):
        train, test = rows.select(train_index), rows.select(test_index)
        try:
            task.validate_splits({"train": train, "validation": test})
            baselines = task.fit_baselines(train, test)
        except UserError:
            return None
        name = next(each for each in TFIDF_BASELINES if each in baselines)
        fold_scores = baselines[name].score_all()
        metric = metric if metric in fold_scores else next(iter(fold_scores))
        scores.append(fold_scores[metric])
    return _FoldScores(name, metric, scores)


# ---- tokens


def find_long_rows(
    name: str, rows: Rows, counts: TokenCounts, task: Task, max_positions: int | None
) -> Iterator[Finding]:
    """Find rows that are longer than `--max-length`, except if examples are sampled to fit."""
    limit, longest = task.config.max_length, int(counts.lengths.max())
    long = (counts.lengths > limit).nonzero()[0]
    if task.definition.resamples_examples or not len(long):
        return
    message = f"{format_fraction(len(long), len(rows))} {name} rows are longer than {limit} tokens and are"
    locations = locate_rows(rows, long)
    if task.uses_windows:
        yield Finding("note", "windows", f"{message} split into windows", "", len(long), locations)
        return
    if max_positions and longest > max_positions:
        fixes = [f"--max-length {max_positions} is the maximum"]
    else:
        fixes = [f"--max-length {longest} avoids truncation"]
    if task.config.long_texts is not None:
        fixes.append("--long-texts windows reads the whole texts")
    level: Level = "warning" if len(long) > MAX_TRUNCATED_FRACTION * len(rows) else "note"
    yield Finding(level, "truncated", f"{message} truncated", "; ".join(fixes), len(long), locations)


def find_unk_tokens(
    name: str, rows: Rows, counts: TokenCounts, model: str, is_model_requested: bool
) -> Iterator[Finding]:
    """Report a high fraction of [UNK] tokens.

    As in training, a very high fraction is an error, unless the user chose the model.
    """
    if counts.unk_fraction <= UNK_WARNING_FRACTION:
        return
    is_error = name == "train" and counts.unk_fraction > UNK_ERROR_FRACTION and not is_model_requested
    by_fraction = np.argsort(-counts.unk_counts / counts.lengths, kind="stable")  # highest first
    yield Finding(
        "error" if is_error else "warning", "unknown",
        f"{counts.unk_fraction:.0%} of the tokens of the {name} texts are [UNK] for {model}",
        "name a model for their language with --model", int((counts.unk_counts > 0).sum()),
        locate_rows(rows, by_fraction),
    )  # fmt: skip


# ---- command line


MAX_LABELS = 12  # rows of the table of labels
MAX_BAR_WIDTH = 20  # characters
MIN_SCRIPT_FRACTION = 0.0005  # smaller fractions are rounded to 0.0%
LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def run_command(task_name: str, settings: dict[str, Any], as_json: bool) -> None:
    is_strict = settings.pop("strict", False)
    report = check(task_name, settings)
    errors, warnings = report.count("error"), report.count("warning")
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report)
    if errors:
        raise UserError(
            f"{format_count(errors, 'error')} in the data: training would stop; fix the errors listed above"
        )
    if is_strict and warnings:
        raise UserError(
            f"{format_count(warnings, 'warning')} in the data: --strict treats warnings as errors; "
            "fix those listed above or omit --strict"
        )


def _print_report(report: CheckReport) -> None:
    """Print a table of splits, a table of labels, and the findings."""
    source = f"{report.data['name']} from {report.data['source']}"
    out_console.print(source, markup=False, soft_wrap=True, style="bold")
    if report.summary:
        out_console.print(report.summary, markup=False, soft_wrap=True)
    out_console.print(_build_split_table(report))
    label_counts = {
        name: statistics["labels"] for name, statistics in report.splits.items() if statistics.get("labels")
    }
    if label_counts:
        out_console.print(_build_label_table(label_counts))
    for finding in report.findings:
        _print_finding(finding)
    level_counts = [format_count(count, level) for level in LEVELS if (count := report.count(level))]
    out_console.print(", ".join(level_counts) or "no problems found")


def _build_split_table(report: CheckReport) -> Table:
    """Build a table of the rows, token lengths, [UNK] tokens and scripts of each split.

    Columns without any value are left out.
    """
    rows = []
    for statistics in report.splits.values():
        lengths = statistics.get("lengths", {})
        scripts = ", ".join(  # such as `Latin 99.8%, Greek 0.2%`, or `Latin 100%`
            f"{name} {fraction:.1%}" if fraction < 1 - MIN_SCRIPT_FRACTION else f"{name} {fraction:.0%}"
            for name, fraction in statistics.get("scripts", {}).items()
            if fraction >= MIN_SCRIPT_FRACTION
        )
        rows.append(
            {
                f"{task_definition(report.task).unit}s": f"{statistics['rows']:,}",
                **{name: f"{lengths[name]:,}" if lengths else "" for name in ("median", "95%", "longest")},
                f"over {report.max_length}": f"{statistics['over']:.1%}" if "over" in statistics else "",
                "[UNK]": f"{statistics['unknown']:.1%}" if "unknown" in statistics else "",
                "script": scripts,
            }
        )
    headings = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    table = Table()
    table.add_column(to_plain_text(f"in tokens of {report.model}" if report.model else ""))
    for heading in headings:
        # As plain text, because [UNK] looks like markup.
        table.add_column(to_plain_text(heading), justify="left" if heading == "script" else "right")
    for name, row in zip(report.splits, rows, strict=True):
        table.add_row(name, *(row[heading] for heading in headings))
    return table


def _build_label_table(counts: Mapping[str, Mapping[str, int]]) -> Table:
    """Build a table with the count and the fraction of each label, and with bars for the first split."""
    labels = list(dict.fromkeys(label for split_counts in counts.values() for label in split_counts))
    table = Table("label", "")
    for split in counts:
        table.add_column(split, justify="right")
    first_split = next(iter(counts.values()))
    max_count = max(first_split.values())
    for label in labels[:MAX_LABELS]:
        width = max(1, round(MAX_BAR_WIDTH * first_split.get(label, 0) / max_count))
        bar = Text("█" * width if label in first_split else "", "cyan")
        cells = [
            f"{split_counts.get(label, 0):,} ({split_counts.get(label, 0) / sum(split_counts.values()):.1%})"
            for split_counts in counts.values()
        ]
        table.add_row(to_plain_text(label), bar, *cells)
    if len(labels) > MAX_LABELS:
        table.add_row(f"... and {len(labels) - MAX_LABELS:,} more", "")
    return table


def _print_finding(finding: Finding) -> None:
    """Print the message, the fix, and the rows if the message lacks them, as `train.csv: row 3, row 9`."""
    line = Text(finding.level, LEVEL_STYLES[finding.level])
    line.append(f"  {replace_control_characters(finding.message)}", "default")
    out_console.print(line, soft_wrap=True)
    if any(row not in finding.message for row in finding.rows):
        parts, previous_file = [], None
        for location in finding.rows:  # each file is named once, without its directory
            file, separator, row = location.partition(": ")
            parts.append(row if file == previous_file else f"{Path(file).name}{separator}{row}")
            previous_file = file
        num_omitted = finding.count - len(finding.rows)
        suffix = f", and {num_omitted:,} more" if num_omitted > 0 else ""
        rows_line = f"    {', '.join(parts)}{suffix}"
        out_console.print(rows_line, markup=False, soft_wrap=True, style="dim")
    if finding.fix:
        out_console.print(f"    {finding.fix}", markup=False, soft_wrap=True)
