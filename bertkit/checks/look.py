"""The look at the data: what training would read, counted, and what is wrong with it."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bertkit.checks import pieces, refusals, rows
from bertkit.checks.config import check_config
from bertkit.config import fill
from bertkit.data.findings import Finding, Level
from bertkit.data.rows import Rows, Splits
from bertkit.data.scripts import scripts
from bertkit.data.sources import Found
from bertkit.errors import UserError, listed, nearest
from bertkit.prepare import defaults_of, parted, settings, task_of
from bertkit.quiet import quiet_libraries
from bertkit.reporter import Reporter
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.base import Task

LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass
class Checked:
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


def check(task_name: str, given: Mapping[str, Any], reporter: Reporter | None = None) -> Checked:
    """Look at the data that `task_name` would be trained on with these settings; nothing is written.

    Raises:
        UserError: there is no data to look at: not found, or no file of that kind.
    """
    reporter = reporter or Reporter()
    if task_name not in TASKS:
        raise UserError(f"check: no task {task_name!r}{nearest(task_name, TASKS)}; there are {listed(TASKS)}")
    with quiet_libraries():
        config, _ = settings("check", check_config(task_class(task_name).Config), given, None)
        task = task_of(task_name, config)
        found = task.survey(reporter)
        task.config = fill(task.config, defaults_of(found, type(task)))
        found = dataclasses.replace(found, splits=_in_order(found.splits))
        seen = Checked(task.name, {"name": found.name, "source": found.source})
        seen.findings += _notes(found.notes)
        _look(seen, task, found, (config.model is not None, config.max_length), reporter)
    seen.findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return seen


def _in_order(splits: Splits) -> Splits:
    """Training, validation and test rows first, whatever order the files have."""
    usual = [name for name in ("train", "validation", "test") if name in splits]
    return {name: splits[name] for name in [*usual, *splits]}


def _look(
    seen: Checked, task: Task, found: Found, given: tuple[bool, int | None], reporter: Reporter
) -> None:
    """Look at rows, splits and pieces, as far as there is something to go on with."""
    refused = refusals.Refusals()
    task, found, read = refusals.columns(task, found, refused)
    if read is None:
        seen.findings += refused.findings()
        seen.splits = {name: {"rows": len(part)} for name, part in found.splits.items()}
        return
    good = refusals.values(task, read.splits, refused)
    seen.findings += refused.findings()
    seen.summary = task.summary()
    good = {name: part for name, part in good.items() if len(part)}
    if "train" not in good:
        return
    notes = read.notes[len(found.notes) :]
    trying = _Trying(seen)
    trying(lambda: task.check(good))
    good = {name: task.readable(part) for name, part in good.items()}
    seen.findings += task.findings(found, dataclasses.replace(read, splits=good), notes)
    seen.findings += _of_rows(task, good)
    splits, notes = trying(lambda: parted(task, good)) or (good, [])
    seen.findings += _notes(note for note in notes if "evaluated on" not in note)
    seen.splits = {name: _figures(task, part) for name, part in _in_order(splits).items()}
    seen.findings += rows.balance({name: figures["labels"] for name, figures in seen.splits.items()})
    seen.findings += rows.written_otherwise({name: part["scripts"] for name, part in seen.splits.items()})
    trying(lambda: _look_at_pieces(seen, task, splits, given, reporter))


@dataclass(frozen=True)
class _Trying:
    """Calls what may refuse, and takes that down as an error."""

    seen: Checked

    def __call__(self, what: Callable[[], Any]) -> Any:
        try:
            return what()
        except UserError as error:
            if str(error) not in (finding.message for finding in self.seen.findings):
                self.seen.findings.append(Finding("error", "refused", str(error), "training stops here"))
            return None


def _notes(notes: Iterable[str]) -> list[Finding]:
    return [Finding("note", "reading", note) for note in notes]


def _of_rows(task: Task, splits: Splits) -> Iterator[Finding]:
    looked = [rows.Split.of(name, part, task) for name, part in splits.items()]
    for split in looked:
        yield from rows.blank(split.name, split.rows, task.texts(split.rows))
        yield from rows.repeated(split)
    yield from rows.overlap(looked)


def _figures(task: Task, part: Rows) -> dict[str, Any]:
    texts = (text for column in task.texts(part) for text in column)
    return {"rows": len(part), "labels": task.balance(part), "scripts": scripts(texts)}


def _look_at_pieces(
    seen: Checked, task: Task, splits: Splits, given: tuple[bool, int | None], reporter: Reporter
) -> None:
    """With the tokenizer of the model that training would take; of the model nothing else is loaded.

    Args:
        given: whether the user named the model, and the length he named.
    """
    try:
        source = task.tokenizer_source(given[0], reporter)
    except UserError as error:
        level: Level = "error" if given[0] else "note"
        seen.findings.append(Finding(level, "no-model", str(error), "the texts were not cut into pieces"))
        return
    if source is None:
        return
    reader = pieces.Reader.of(task, source, *given)
    seen.model, seen.max_length = reader.name, task.config.max_length
    for name, part in splits.items():
        counts = task.count_pieces(part, reader.tokenizer)
        seen.splits[name] |= pieces.figures(task, counts)
        seen.findings += pieces.unknown(name, part, counts, reader)
        seen.findings += pieces.over(name, part, counts, task, reader)
        seen.findings += task.findings_in_pieces(name, part, reader.tokenizer)
