"""A folder of files to rows by split: as a known set is distributed, or by the files' names."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Protocol, TypeVar

from bertkit.data.columns import require_column
from bertkit.data.readers.files import Dialect, read_file
from bertkit.data.registry import ColumnMapping, Layout, SplitFile
from bertkit.data.rows import Rows, Splits
from bertkit.errors import UserError, format_list

CONLL_SUFFIXES = {".conll", ".conllu", ".bio", ".iob", ".iob2", ".bioes"}
DATA_SUFFIXES = {".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet"} | CONLL_SUFFIXES
COMPRESSED_SUFFIXES = (".gz", ".zst", ".zip")
SPLIT_KEYWORDS = {
    "train": "train", "training": "train",
    "dev": "validation", "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test",
}  # fmt: skip


T = TypeVar("T")


class NamedFile(Protocol):
    """A file, wherever it lies."""

    @property
    def name(self) -> str:
        """Without its folders."""


def has_layout(folder: Path, layout: Layout) -> bool:
    """Whether the training file of a known layout is in the folder; nothing is read."""
    return _there(folder, layout["train"]) is not None


def read_layout(folder: Path, layout: Layout) -> tuple[Splits, list[str]]:
    """The splits of a known layout whose files are there, and a note where the training rows are by name
    those of another split.
    """
    there = {split: path for split, part in layout.items() if (path := _there(folder, part))}
    named = infer_split(Path(layout["train"].file))
    notes = [] if named in (None, "train") else [_all_there_is([there["train"]])]
    return {split: _read(path, layout[split]) for split, path in there.items()}, notes


def apply_column_mapping(rows: Rows, mapping: ColumnMapping) -> Rows:
    """The rows that a form keeps, their columns by the names used here.

    Raises:
        UserError: the column that picks rows is not there, or picks none.
    """
    for column, wanted in mapping.row_filter.items():
        rows = _only(rows, column, wanted)
    here = _from_the_end(mapping.columns, rows)
    columns = {here.get(name, name): values for name, values in rows.columns.items()}
    for column, key in mapping.nested.items():
        columns[column] = [value[key] for value in columns[column]]
    return replace(rows, columns=columns)


def _there(folder: Path, part: SplitFile) -> Path | None:
    """The file of one split, as it is called or with the name of a compression behind that."""
    suffixes = ("",) if part.class_folders else ("", *COMPRESSED_SUFFIXES)
    paths = (Path(f"{folder / part.file}{suffix}") for suffix in suffixes)
    return next((path for path in paths if path.exists()), None)


def _all_there_is(paths: list[Path]) -> str:
    names = format_list(path.name for path in paths)
    return f"{names} is all there is: training and validation rows are both taken from it"


def _read(path: Path, part: SplitFile) -> Rows:
    if part.class_folders:
        return _class_folders(path, part.class_folders)
    rows = apply_column_mapping(read_file(path, part.dialect), part)
    without_names = part.conll or not part.header
    unnamed = [name for name in rows.columns if without_names and name.isdigit()]
    return replace(rows, columns={name: rows[name] for name in rows.columns if name not in unnamed})


def _from_the_end(columns: dict[str, str], rows: Rows) -> dict[str, str]:
    """The same names, and those of "-1" by the number of the last column: further ones stand before the
    tags in some files, and where there is nothing else the tokens stay the tokens.
    """
    size = sum(name.isdigit() for name in rows.columns)
    last = {str(size + int(name)): here for name, here in columns.items() if name[:1] == "-"}
    return last | columns


def _only(rows: Rows, column: str, wanted: str) -> Rows:
    require_column(rows, column, f"it tells which rows are {wanted!r}")
    kept = rows.select(index for index, value in enumerate(rows[column]) if value == wanted)
    if len(kept) == 0:
        there = format_list(sorted({str(value) for value in rows[column]}))
        raise UserError(f"{rows.files[0]}: no row has {wanted!r} in column {column!r}; there are {there}")
    return kept


def read_folder(
    folder: Path, dialect: Dialect | None = None, fallback_train_split: str | None = None
) -> tuple[Splits, list[str]]:
    """The splits of any folder, and notes on files left out.

    Files are sorted into splits by the words of their names (`train-00000-of-00001.parquet`,
    `sst2/validation.csv`); a folder whose subfolders hold .txt files, not a word a line, is one class
    each; a folder without such words is all training rows. Where none is a training file, the rows of the
    split `instead` are the training rows.
    """
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and is_data_file(p.relative_to(folder))]
    if not paths:
        raise UserError(
            f"{folder}: no data files in this folder ({format_list([*sorted(DATA_SUFFIXES), *COMPRESSED_SUFFIXES])})"
        )
    texts = dialect is None or not dialect.conll
    if texts and all(path.suffix == ".txt" and path.parent != folder for path in paths):
        return _text_tree(folder, paths), []
    by_split, unsorted = group_by_split({path: path.relative_to(folder) for path in paths})
    if not by_split:
        return {"train": _read_all(unsorted, dialect)}, []
    notes = describe_unassigned_files(unsorted)
    if "train" not in by_split and fallback_train_split in by_split:
        by_split["train"] = by_split.pop(fallback_train_split)
        notes.append(_all_there_is(by_split["train"]))
    if "train" not in by_split:
        raise UserError(f"{folder}: no training file among {format_list(p.name for p in paths)}")
    return {split: _read_all(files, dialect) for split, files in by_split.items()}, notes


def group_by_split(names: Mapping[T, PurePath]) -> tuple[dict[str, list[T]], list[T]]:
    """The files of each split by their names in a folder, and those whose names speak of none."""
    by_split: dict[str, list[T]] = defaultdict(list)
    unsorted: list[T] = []
    for file, name in names.items():
        split = infer_split(name)
        (unsorted if split is None else by_split[split]).append(file)
    return by_split, unsorted


def describe_unassigned_files(unassigned: Iterable[NamedFile]) -> list[str]:
    """A note on files that belong to no split, if there are any."""
    names = [file.name for file in unassigned]
    return [f"left out, not named after a split: {format_list(names)}"] if names else []


def infer_split(path: PurePath) -> str | None:
    """The split that a file's name, or else the folder it is in, speaks of."""
    for part in (path.name, *(parent.name for parent in path.parents)):
        words = re.split(r"[^a-z]+", part.lower())
        for word in words:
            if word in SPLIT_KEYWORDS:
                return SPLIT_KEYWORDS[word] + ("_mismatched" if "mismatched" in words else "")
    return None


def is_data_file(path: PurePath) -> bool:
    """Whether a name is that of a data file."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED_SUFFIXES]
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and bool(suffixes) and suffixes[-1] in DATA_SUFFIXES and path.stem.lower() != "readme"


def _read_all(paths: list[Path], dialect: Dialect | None) -> Rows:
    return Rows.concatenate([read_file(path, dialect) for path in paths])


def _text_tree(folder: Path, paths: list[Path]) -> Splits:
    """`{train,test}/{pos,neg}/*.txt`, or `{pos,neg}/*.txt` with no splits."""
    roots = {path.relative_to(folder).parts[0] for path in paths}
    splits = {root: SPLIT_KEYWORDS[root.lower()] for root in sorted(roots) if root.lower() in SPLIT_KEYWORDS}
    if not splits:
        return {"train": _class_folders(folder, {root: root for root in sorted(roots)})}
    return {
        split: _class_folders(
            folder / root, {p.name: p.name for p in sorted((folder / root).iterdir()) if p.is_dir()}
        )
        for root, split in splits.items()
    }


def _class_folders(folder: Path, classes: dict[str, str]) -> Rows:
    parts = [
        Rows.from_columns({"text": [_text(path)], "label": [label]}, str(path))
        for name, label in classes.items()
        for path in sorted((folder / name).glob("*.txt"))
    ]
    if not parts:
        raise UserError(f"{folder}: no .txt files in {format_list(classes)}")
    return Rows.concatenate(parts)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 (offset {error.start})") from error
