"""Damaged files of every layout: the other rows are read as before, or the reading is refused or explained.

The files are those of `cases/files`. A damage changes at most a few rows. Three endings are right: a
`UserError` of one line; the rows of the undamaged file except those that the damage touches; or another
reading, which a note reports.
"""

import copy
import csv
import io
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cases.run import CASES

from bertkit.errors import UserError
from bertkit.run.load_data import load_data
from bertkit.tasks import task_class
from bertkit.tasks.text.task import SequenceTask
from bertkit.utils.reporting import Reporter, use_reporter

MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True)
class File:
    """A file of `cases/files`.

    Attributes:
        task: The task that reads it, with the settings that it needs.
        delimiter: The delimiter of a table or of the columns of words.
        record_depth: Depth of the records in a JSON document; 1 for a list of records and JSON lines.
        is_conll: Whether its lines are words.
    """

    name: str
    task: str
    settings: tuple[tuple[str, str], ...] = ()
    delimiter: str = ""
    record_depth: int = 0
    is_conll: bool = False

    @property
    def path(self) -> Path:
        return CASES / "files" / self.name


def _name_columns(**settings: str) -> tuple[tuple[str, str], ...]:
    return tuple(settings.items())


FILES = [
    File("08-label-studio/export.json", "ner", record_depth=1),
    File("08-label-studio/export_min.json", "ner", record_depth=1),
    File("08-label-studio/export.csv", "ner", delimiter=","),
    File("09-prodigy/ner.jsonl", "ner", record_depth=1),
    File("09-prodigy/textcat.jsonl", "classify", record_depth=1),
    File("10-spans-other-keys/doccano_relation.jsonl", "ner", record_depth=1),
    File("15-one-label-lists/doccano.jsonl", "classify", record_depth=1),
    File("10-spans-other-keys/cluener.json", "ner", record_depth=1),
    File("10-spans-other-keys/stockmark.json", "ner", record_depth=1),
    File("10-spans-other-keys/spacy_train.json", "ner", record_depth=1),
    File("10-spans-other-keys/ner_annotator.json", "ner", record_depth=2),
    File("13-swag-choices-object/hf_arc.jsonl", "swag", record_depth=1),
    File("13-swag-choices-object/arc.jsonl", "swag", record_depth=1),
    File("14-qa-offset-minus-one/cmrc_like.json", "qa", record_depth=2),
    File("14-qa-offset-minus-one/simpletransformers.json", "qa", record_depth=1),
    File("16-json-containers/pandas_default.json", "classify", record_depth=2),
    File("16-json-containers/splits.json", "classify", record_depth=2),
    File("16-json-containers/clinc.json", "classify", record_depth=2),
    File("06-conllu-misc-as-tags/plain.conllu", "ner", delimiter="\t", is_conll=True),
    File("06-conllu-misc-as-tags/ranges.conllu", "ner", delimiter="\t", is_conll=True),
    File("07-conll2012/a.gold_conll", "ner", delimiter="   ", is_conll=True),
    File("23-webanno-and-header-line/webanno.tsv", "ner", delimiter="\t", is_conll=True),
    File("23-webanno-and-header-line/header_io.tsv", "ner", delimiter="\t", is_conll=True),
    File("11-ner-csv/ner_dataset.csv", "ner", delimiter=","),
    File("11-ner-csv/lists.csv", "ner", delimiter=","),
    File("11-ner-csv/spaced.csv", "ner", delimiter=","),
    File("17-fasttext/train.txt", "classify"),
    File("17-fasttext/multi.txt", "classify"),
    File("01-list-cells-multi-label/python_list.csv", "classify", delimiter=","),
    File("01-list-cells-multi-label/comma_names.csv", "classify", delimiter=","),
    File("04-no-header/sms.tsv", "classify", delimiter="\t"),
    File("22-other-csv-dialects/sep.csv", "classify", delimiter=";"),
    File("22-other-csv-dialects/pipe.csv", "classify", delimiter="|"),
    File("22-other-csv-dialects/singlequote.csv", "classify", delimiter=";"),
    File("18-numbers-as-classes/many.csv", "classify", delimiter=";"),
    File(
        "05-kaggle-spam-empty-names/spam.csv",
        "classify",
        _name_columns(text_column="v2", label_column="v1"),
        ",",
    ),
]


# ---- damage


@dataclass(frozen=True)
class Damage:
    """A damaged file.

    Attributes:
        max_missing: How many rows of the undamaged file it may touch.
        max_extra: How many rows may replace them.
        removes_rows: Whether it removes rows or joins two of them, which leaves no trace in some formats.
    """

    name: str
    content: bytes
    max_missing: int = 1
    max_extra: int = 1
    removes_rows: bool = False


def damage_file(file: File, seed: int = 0) -> Iterator[Damage]:
    """Yield damaged variants of a file."""
    rng, content = random.Random(f"{file.name} {seed}"), file.path.read_bytes()
    yield from damage_bytes(content, rng)
    if content.count(b"\n") > 2:
        yield from damage_lines(content, rng)
    if file.record_depth:
        yield from damage_values(file, content, rng)
    if file.delimiter:
        yield from damage_cells(file, content.decode(), rng)


def damage_bytes(content: bytes, rng: random.Random) -> Iterator[Damage]:
    for position in rng.sample(range(len(content)), 4):
        yield Damage(
            f"byte {position} dropped", content[:position] + content[position + 1 :], 2, 2,
            removes_rows=content[position : position + 1] == b"\n",
        )  # fmt: skip
    marks = [position for position, byte in enumerate(content) if byte in b"]})\"'"]
    for position in rng.sample(marks, min(3, len(marks))):
        mark = content[position : position + 1].decode()
        yield Damage(f"{mark} at {position} dropped", content[:position] + content[position + 1 :], 2, 2)
    for _ in range(2):
        length = rng.randrange(len(content) // 3, len(content))
        yield Damage(f"truncated to {length} bytes", content[:length], len(content), 1, removes_rows=True)
    if b"\r" not in content and b"\n" in content:
        yield Damage("CRLF", content.replace(b"\n", b"\r\n"), 0, 0)


def damage_lines(content: bytes, rng: random.Random) -> Iterator[Damage]:
    lines = content.splitlines(keepends=True)
    for index in [0, *rng.sample(range(1, len(lines)), 2)]:
        before, line, after = b"".join(lines[:index]), lines[index], b"".join(lines[index + 1 :])
        yield Damage(f"line {index + 1} dropped", before + after, 2, 2, removes_rows=True)
        yield Damage(f"line {index + 1} twice", before + line + line + after, 1, 2)
        yield Damage(f"blank line before line {index + 1}", before + b"\n" + line + after, 1, 2)
        yield Damage(f"comment before line {index + 1}", before + b"# checked\n" + line + after, 1, 2)


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a JSON document."""
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from list_paths(value[key], (*path, key))


def damage_values(file: File, content: bytes, rng: random.Random) -> Iterator[Damage]:
    """Remove or replace single values within records."""
    is_lines = content.startswith(b"{") and content.count(b"\n{") > 0
    document = [json.loads(line) for line in content.splitlines()] if is_lines else json.loads(content)
    by_kind: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for path in list_paths(document):
        if len(path) >= file.record_depth:  # the same place in other records is of the same kind
            kind = tuple(key if isinstance(key, str) and key.isidentifier() else "#" for key in path)
            by_kind.setdefault(kind, []).append(path)
    for paths in by_kind.values():
        replacements: list[Any] = [rng.choice([7, "x", [7], {"a": 1}, True]), rng.choice([None, "", []])]
        for value in [*replacements, KeyError]:
            path = rng.choice(paths)
            damaged = copy.deepcopy(document)
            parent = damaged
            for key in path[:-1]:
                parent = parent[key]
            if value is KeyError:
                del parent[path[-1]]
            else:
                parent[path[-1]] = value
            text = "".join(json.dumps(r) + "\n" for r in damaged) if is_lines else json.dumps(damaged)
            name = "removed" if value is KeyError else f"= {json.dumps(value)}"
            # Articles without paragraphs, and paragraphs without questions, have no rows.
            # NER Annotator writes null for a text that was skipped.
            is_container = len(path) == file.record_depth or "paragraphs" in path[-2:] or "qas" in path[-2:]
            is_skipped = path[:-1] == ("annotations",) and value is None
            yield Damage(
                f"{'.'.join(map(str, path))} {name}", text.encode(),
                removes_rows=is_skipped or (is_container and value in (KeyError, [])),
            )  # fmt: skip


def damage_cells(file: File, text: str, rng: random.Random) -> Iterator[Damage]:
    """Change single cells, and swap columns."""
    lines = text.splitlines()
    if file.is_conll:
        rows = [line.split(file.delimiter) for line in lines]
    else:
        quote = "'" if "singlequote" in file.name else '"'
        rows = list(csv.reader(lines, delimiter=file.delimiter, quotechar=quote))

    def join(rows: list[list[str]]) -> bytes:
        if file.is_conll or file.delimiter == "\t":
            return "".join(file.delimiter.join(row) + "\n" for row in rows).encode()
        output = io.StringIO()
        writer = csv.writer(output, delimiter=file.delimiter, quotechar=quote, lineterminator="\n")
        writer.writerows(rows)
        return output.getvalue().encode()

    width = max(map(len, rows))
    wide = [index for index, row in enumerate(rows) if len(row) == width and index > 0]
    num_rows = 2 if file.is_conll or "ner_dataset" in file.name else 1  # a sentence may be joined to another
    for column in range(width):
        for value in ("", rng.choice(["7", "[]", "_", "null", '"'])):
            index = rng.choice(wide)
            damaged = copy.deepcopy(rows)
            damaged[index][column] = value
            yield Damage(f"row {index + 1}, cell {column} = {value!r}", join(damaged), num_rows, 2)
    for index in rng.sample(wide, 2):
        first, second = rng.sample(range(width), 2)
        damaged = copy.deepcopy(rows)
        damaged[index][first], damaged[index][second] = damaged[index][second], damaged[index][first]
        name = f"row {index + 1}, cells {first} and {second} swapped"
        yield Damage(name, join(damaged), num_rows, 2)
        other = rng.choice([mark for mark in ";,|\t " if mark != file.delimiter.strip(" ")])
        damaged_lines = [*lines]
        damaged_lines[index] = other.join(rows[index])
        content = "".join(line + "\n" for line in damaged_lines).encode()
        yield Damage(f"row {index + 1} delimited by {other!r}", content, num_rows, 2)
    if not file.is_conll:
        yield Damage("columns reversed", join([row[::-1] for row in rows]), 0, 0)


# ---- readings


class Notes(Reporter):
    """A reporter that keeps what is reported."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def info(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.notes.append(message)


@dataclass(frozen=True)
class Reading:
    """How a file is read.

    Attributes:
        columns: The settings of columns that are read. The names of the columns may differ, such as without a
            header: if another column were read, the rows would differ.
        kind: The kind of the labels. It is the same for two and for more classes.
        rows: The texts and the gold of each row.
        labels: The labels of each row.
        classes: The classes of the task.
        notes: What is reported, without its numbers.
    """

    columns: frozenset[str]
    kind: str
    rows: Counter[Any]
    labels_by_row: dict[Any, frozenset[str]]
    classes: frozenset[str]
    notes: frozenset[str]


COLUMN_SETTINGS = (
    "text_column", "text_pair_column", "label_column", "token_column", "tag_column", "question_column",
    "context_column", "answers_column", "start_column", "ending_columns",
)  # fmt: skip


def read(path: Path, file: File) -> Reading:
    """Read a file as a run does, before a model is loaded."""
    definition = task_class(file.task).definition
    with use_reporter(reporter := Notes()):
        data = load_data(file.task, definition.config(data=str(path), **dict(file.settings)))
        data.task.validate_splits(data.splits)
    config = data.task.config
    rows: Counter[Any] = Counter()
    labels: dict[Any, frozenset[str]] = {}
    for split, table in data.splits.items():
        for row in table:
            key, names = extract_row(data.task, row)
            rows[split, key] += 1
            labels[split, key] = names
    kind = getattr(config, "problem", None) or getattr(config, "squad", None)
    kind = kind or str(getattr(data.task.state, "scheme", ""))
    # Columns that are not read do not explain why the others are read.
    notes = [note for note in [*reporter.notes, *data.dataset.notes] if "columns not read" not in note]
    return Reading(
        frozenset(name for name in COLUMN_SETTINGS if getattr(config, name, None)),
        "classes" if kind in ("binary", "multi-class") else kind,
        rows,
        labels,
        frozenset(map(str, getattr(data.task.state, "labels", None) or [])),
        frozenset(re.sub(r"\d+", "#", note.replace(str(path), "FILE")) for note in notes),
    )


def extract_row(task: Any, row: dict[str, Any]) -> tuple[Any, frozenset[str]]:
    """Return the texts and the gold of a row, and its labels."""
    if "iob2" in row:
        return (repr(row["tokens"]), repr(row["iob2"])), frozenset(tag[2:] for tag in row["iob2"])
    if "answers" in row and "question" in row:
        return repr([row["context"], row["question"], row["answers"]]), frozenset()
    schema = task.input_schema
    label = row.get(task.config.label_column)
    parsed = task.label_type.parse_label(label) if isinstance(task, SequenceTask) else label
    names = frozenset(map(str, parsed if isinstance(parsed, tuple) else [parsed]))
    return repr([*(row[name] for name in schema.text_columns), parsed]), names


@cache
def read_undamaged(file: File) -> Reading:
    return read(file.path, file)


def find_problem(damage: Damage, before: Reading, after: Reading) -> str | None:
    """Return why a reading is wrong; None for the rows as before, and for another reading with a note."""
    missing, extra = before.rows - after.rows, after.rows - before.rows
    touched = {name for row in missing for name in before.labels_by_row[row]}
    touched |= {name for row in extra for name in after.labels_by_row[row]}
    problems = []
    if before.columns != after.columns:
        problems.append(f"other columns: {sorted(before.columns ^ after.columns)}")
    if before.kind != after.kind:
        problems.append(f"{after.kind} in place of {before.kind}")
    if not before.classes ^ after.classes <= touched:
        problems.append(f"other classes: {sorted(before.classes ^ after.classes)}")
    if missing.total() > damage.max_missing or extra.total() > damage.max_extra:
        problems.append(f"{missing.total()} rows are missing, {extra.total()} are new")
    if missing.total() > extra.total() and not damage.removes_rows:
        problems.append(f"{missing.total() - extra.total()} rows are lost")
    if problems and not after.notes - before.notes:
        examples = f"missing {list(missing)[:2]}, new {list(extra)[:2]}"
        return f"{'; '.join(problems)}, without a note; {examples[:600]}; notes {sorted(after.notes)}"
    return None


# ---- tests

MAX_VARIANTS = 12  # of each file; all of them take half a minute


def choose_variants(file: File) -> list[Damage]:
    """Return some of the variants of a file."""
    variants = list(damage_file(file))
    return random.Random(file.name).sample(variants, min(MAX_VARIANTS, len(variants)))


VARIANTS = {
    f"{file.name}: {damage.name}": (file, damage) for file in FILES for damage in choose_variants(file)
}


def test_enough_files_are_damaged():
    assert len(VARIANTS) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_a_damaged_file_is_refused_or_its_other_rows_are_read(name, tmp_path):
    file, damage = VARIANTS[name]
    path = tmp_path / file.path.name
    path.write_bytes(damage.content)
    try:
        after = read(path, file)
    except UserError as error:
        message = str(error)
        assert ("\n" not in message, len(message) < MAX_MESSAGE_CHARS) == (True, True), message
        return
    assert find_problem(damage, read_undamaged(file), after) is None
