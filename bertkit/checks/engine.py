"""The look at the data: what training would read, counted, and what is wrong with it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bertkit.checks import generic, refusals, tokens
from bertkit.checks.config import make_check_config
from bertkit.checks.findings import Finding, Level
from bertkit.config import fill_unset
from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import Splits
from bertkit.data.unicode import measure_scripts
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.pipeline.prepare import create_task, select_dataset_defaults, split_and_sample
from bertkit.pipeline.settings import resolve_settings
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.base import Task
from bertkit.utils.reporting import Reporter, silence_libraries

LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass
class CheckReport:
    """What was seen.

    Attributes:
        data: `name` and `source`.
        model: whose tokenizer was used; None: of none.
        summary: what is to be learned; "" where columns could not be found.
        splits: of each its `rows`, `labels`, `scripts`, and in pieces `lengths`, `over` and `unknown`.
        findings: errors first.
    """

    task: str
    data: dict[str, str]
    model: str | None = None
    max_length: int | None = None
    summary: str = ""
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def count(self, level: Level) -> int:
        """How many findings are of this level."""
        return sum(finding.level == level for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        counts = {f"{level}s": self.count(level) for level in LEVELS}
        return dataclasses.asdict(self) | counts


def check(task_name: str, given: Mapping[str, Any], reporter: Reporter | None = None) -> CheckReport:
    """Look at the data that `task_name` would be trained on with these settings; nothing is written.

    Raises:
        UserError: there is no data to look at: not found, or no file of that kind.
    """
    reporter = reporter or Reporter()
    if task_name not in TASKS:
        raise UserError(
            f"check: no task {task_name!r}{suggest_similar(task_name, TASKS)}; there are {format_list(TASKS)}"
        )
    with silence_libraries():
        config, _ = resolve_settings(
            "check", make_check_config(task_class(task_name).Config), given, None, Reporter()
        )
        task = create_task(task_name, config)
        found = task.load_examples(reporter)
        task.config = fill_unset(task.config, select_dataset_defaults(found, type(task)))
        found = dataclasses.replace(found, splits=_in_order(found.splits))
        seen = CheckReport(task.name, {"name": found.name, "source": found.source})
        seen.findings += _notes(found.notes)
        _Look(seen, task, config.model is not None, config.max_length).at(found)
    seen.findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return seen


def _in_order(splits: Splits) -> Splits:
    """Training, validation and test rows first, whatever order the files have."""
    usual = [name for name in ("train", "validation", "test") if name in splits]
    return {name: splits[name] for name in [*usual, *splits]}


def _notes(notes: Iterable[str]) -> list[Finding]:
    return [Finding("note", "reading", note) for note in notes]


class _Heard(Reporter):
    """Takes what would be warned of down as a finding."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings

    def warn(self, message: str) -> None:
        """Of the model, say."""
        self._findings.append(Finding("warning", "model", message))


@dataclass
class _Look:
    """The steps of a look, each as far as there is something to go on with.

    Attributes:
        seen: what is found is added to it.
        model_given, length_given: whether the user named a model, and the `--max-length` that he named.
    """

    seen: CheckReport
    task: Task
    model_given: bool
    length_given: int | None

    def at(self, found: LoadedDataset) -> None:
        """Columns, then values, then all that is left of the rows."""
        refused = refusals.ErrorCollector()
        self.task, found, read = refusals.parse_valid_rows(self.task, found, refused)
        values = refusals.drop_invalid_rows(self.task, read.splits, refused) if read else {}
        self.seen.findings += refused.to_findings()
        if read is None:
            self.seen.splits = {name: {"rows": len(rows)} for name, rows in found.splits.items()}
            return
        self.seen.summary = self.task.describe()
        if len(values["train"]):
            self._at_rows(found, dataclasses.replace(read, splits=values))

    def _at_rows(self, found: LoadedDataset, read: LoadedDataset) -> None:
        """Rows by themselves and beside each other, then the splits as training would have them."""
        seen, task = self.seen, self.task
        good = {name: rows for name, rows in read.splits.items() if len(rows)}
        self._try(lambda: task.validate_splits(good))
        good = {name: task.normalize_rows(rows) for name, rows in good.items()}
        notes = read.notes[len(found.notes) :]
        seen.findings += task.check_rows(found, dataclasses.replace(read, splits=good), notes)
        self._beside_each_other(good)
        whole = len(good) == len(read.splits)  # else a share would be set aside in place of what is refused
        splits, notes = (whole and self._try(lambda: split_and_sample(task, good))) or (good, [])
        seen.findings += _notes(notes)
        self._count(_in_order(splits))
        self._try(lambda: self._at_pieces(splits))

    def _beside_each_other(self, splits: Splits) -> None:
        looked = [generic.CheckedSplit.from_task(name, part, self.task) for name, part in splits.items()]
        for split in looked:
            self.seen.findings += generic.find_empty_texts(split, self.task.extract_texts(split.rows))
            self.seen.findings += generic.find_duplicates(split)
        self.seen.findings += generic.find_overlap(looked)

    def _count(self, splits: Splits) -> None:
        """Rows, labels and scripts of each split."""
        figures: dict[str, dict[str, Any]] = {}
        for name, part in splits.items():
            texts = (text for column in self.task.extract_texts(part) for text in column)
            figures[name] = {
                "rows": len(part),
                "labels": self.task.count_labels(part),
                "scripts": measure_scripts(texts),
            }
        self.seen.splits = figures
        self.seen.findings += self.task.check_balance(
            {name: some["labels"] for name, some in figures.items()}
        )
        self.seen.findings += generic.find_script_mismatch(
            {name: some["scripts"] for name, some in figures.items()}
        )

    def _at_pieces(self, splits: Splits) -> None:
        """With the tokenizer of the model that training would take; of the model nothing else is loaded."""
        seen, task = self.seen, self.task
        try:
            source = task.resolve_tokenizer(self.model_given, _Heard(seen.findings))
        except UserError as error:
            named = self.model_given or getattr(task.config, "tokenizer", None)
            level: Level = "error" if named else "note"
            seen.findings.append(Finding(level, "no-model", str(error), "the texts were not cut into pieces"))
            return
        if source is None:
            return
        reader = tokens.TokenizerInfo.load(task, source, self.model_given, self.length_given)
        seen.model, seen.max_length = reader.name, task.config.max_length
        for name, part in splits.items():
            counts = task.count_tokens(part, reader.tokenizer)
            seen.splits[name] |= tokens.summarize_lengths(task, counts)
            seen.findings += tokens.find_unk_tokens(name, part, counts, reader)
            seen.findings += tokens.find_long_rows(name, part, counts, task, reader)
            seen.findings += task.check_tokens(name, part, reader.tokenizer)

    def _try(self, what: Callable[[], Any]) -> Any:
        """Take a refusal down as an error, once; None then."""
        try:
            return what()
        except UserError as error:
            if str(error) not in (finding.message for finding in self.seen.findings):
                self.seen.findings.append(Finding("error", "refused", str(error), refusals.FIX_FIRST))
            return None
