"""Read a folder of files as rows by split: with the layout of a known dataset, or based on file names."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Protocol, TypeVar

from bertkit.data.columns import require_column
from bertkit.data.readers.decoding import Decoding
from bertkit.data.readers.delimited import Dialect
from bertkit.data.readers.files import read_file
from bertkit.data.readers.text_files import read_text
from bertkit.data.registry import ColumnMapping, Layout, SplitFile
from bertkit.data.rows import Rows, Splits
from bertkit.errors import UserError, format_list

CONLL_SUFFIXES = {".conll", ".conllu", ".bio", ".iob", ".iob2", ".bioes"}
DATA_SUFFIXES = {".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".arrow", ".feather"} | CONLL_SUFFIXES
# Files that `datasets` writes next to its data files.
METADATA_FILES = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
COMPRESSED_SUFFIXES = (".gz", ".zst", ".zip")
SPLIT_KEYWORDS = {
    "train": "train", "training": "train",
    "dev": "validation", "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test",
}  # fmt: skip

T = TypeVar("T")


class NamedFile(Protocol):
    """A file on disk, on the Hub or at a URL."""

    @property
    def name(self) -> str:
        """The file name without its folders."""


# ---- the layout of a known dataset


def has_layout(folder: Path, layout: Layout) -> bool:
    """Return whether a folder contains the training file of a layout; do not read the file."""
    return _find_split_file(folder, layout["train"]) is not None


def read_layout(folder: Path, layout: Layout, encoding: str | None = None) -> tuple[Splits, list[str]]:
    """Return those splits of a layout whose files exist.

    Args:
        folder: The folder of the dataset.
        layout: The files of the splits.
        encoding: Encoding of the files, as passed by the user; it takes precedence over those of the layout.

    Returns:
        The splits, and a note if the training file has the name of another split.
    """
    paths = {}
    for split, split_file in layout.items():
        if path := _find_split_file(folder, split_file):
            paths[split] = path
    named_split = infer_split(Path(layout["train"].file))
    notes = [] if named_split in (None, "train") else [_describe_only_file([paths["train"]])]
    files = {split: replace(layout[split], encoding=encoding) for split in paths}
    return {split: _read_split_file(path, files[split]) for split, path in paths.items()}, notes


def apply_column_mapping(rows: Rows, mapping: ColumnMapping) -> Rows:
    """Filter rows and rename their columns.

    Raises:
        UserError: The filter column does not exist, or no row has its value.
    """
    for column, value in mapping.row_filter.items():
        rows = _filter_rows(rows, column, value)
    new_names = _resolve_negative_columns(mapping.columns, rows)
    columns = {new_names.get(name, name): values for name, values in rows.columns.items()}
    for column, key in mapping.nested.items():
        columns[column] = [value[key] for value in columns[column]]
    return replace(rows, columns=columns)


def _find_split_file(folder: Path, split_file: SplitFile) -> Path | None:
    """Return the path of a split's file, which may be compressed."""
    suffixes = ("",) if split_file.class_folders else ("", *COMPRESSED_SUFFIXES)
    paths = (Path(f"{folder / split_file.file}{suffix}") for suffix in suffixes)
    return next((path for path in paths if path.exists()), None)


def _describe_only_file(paths: list[Path]) -> str:
    names = format_list(path.name for path in paths)
    return f"no training file: training and validation rows both come from {names}"


def _read_split_file(path: Path, split_file: SplitFile) -> Rows:
    """Return the rows of a split; in files without a header, columns without a name are dropped."""
    if split_file.class_folders:
        return _read_class_folders(path, split_file.class_folders, split_file.encoding)
    rows = apply_column_mapping(read_file(path, split_file.dialect), split_file)
    if split_file.header and not split_file.conll:
        return rows
    return replace(rows, columns={name: rows[name] for name in rows.columns if not name.isdigit()})


def _resolve_negative_columns(columns: dict[str, str], rows: Rows) -> dict[str, str]:
    """Replace negative column numbers in a mapping; "-1" is the last column.

    Negative numbers are for files with an unknown number of columns before the tags. If a file has a single
    column, positive numbers take precedence: the column holds the words.
    """
    num_columns = sum(name.isdigit() for name in rows.columns)
    positive_numbers = {
        str(num_columns + int(name)): new_name for name, new_name in columns.items() if name[:1] == "-"
    }
    return positive_numbers | columns


def _filter_rows(rows: Rows, column: str, value: str) -> Rows:
    require_column(rows, column, f"it selects the rows with {value!r}")
    selected = rows.select(index for index, cell in enumerate(rows[column]) if cell == value)
    if len(selected) == 0:
        values = format_list(sorted({str(cell) for cell in rows[column]}))
        raise UserError(
            f"{rows.files[0]}: no row has {value!r} in column {column!r}, which contains {values}; "
            "pass the original file of the dataset"
        )
    return selected


# ---- folders without a layout


def read_folder(
    folder: Path, dialect: Dialect | None = None, fallback_train_split: str | None = None
) -> tuple[Splits, list[str]]:
    """Return the splits of a folder without a known layout.

    Files are assigned to splits by words in their paths (`train-00000-of-00001.parquet`, `test/a.csv`). If no
    path contains such a word, all rows are training rows. If all files are .txt files in subfolders, the
    subfolders are classes, except for CoNLL files.

    Args:
        folder: The folder; its subfolders are searched too.
        dialect: How to read text files.
        fallback_train_split: The split to train on if there is no training file.

    Returns:
        The splits, and notes on the choice of files.

    Raises:
        UserError: There are no data files, or none of them is for training.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    paths = [path for path in paths if is_data_file(path.relative_to(folder))]
    if not paths:
        suffixes = format_list([*sorted(DATA_SUFFIXES), *COMPRESSED_SUFFIXES])
        raise UserError(f"{folder}: no data files in this folder ({suffixes}); pass another folder or a file")
    is_conll = dialect is not None and dialect.conll
    if not is_conll and all(path.suffix == ".txt" and path.parent != folder for path in paths):
        return _read_text_tree(folder, paths, dialect.encoding if dialect else None), []
    by_split, unassigned = group_by_split({path: path.relative_to(folder) for path in paths})
    if not by_split:
        return {"train": _read_all(unassigned, dialect)}, []
    notes = describe_unassigned_files(unassigned)
    if "train" not in by_split and fallback_train_split in by_split:
        by_split["train"] = by_split.pop(fallback_train_split)
        notes.append(_describe_only_file(by_split["train"]))
    if "train" not in by_split:
        names = format_list(path.name for path in paths)
        raise UserError(f"{folder}: no training file among {names}; rename one, or pass the file itself")
    return {split: _read_all(files, dialect) for split, files in by_split.items()}, notes


def group_by_split(names: Mapping[T, PurePath]) -> tuple[dict[str, list[T]], list[T]]:
    """Group files by the split that their names contain.

    Args:
        names: Path in the folder, by file.

    Returns:
        The files of each split, and the files whose names contain no split.
    """
    by_split: dict[str, list[T]] = defaultdict(list)
    unassigned: list[T] = []
    for file, name in names.items():
        split = infer_split(name)
        (unassigned if split is None else by_split[split]).append(file)
    return by_split, unassigned


def describe_unassigned_files(unassigned: Iterable[NamedFile]) -> list[str]:
    """Return a note on the files without a split; an empty list if there are none."""
    names = [file.name for file in unassigned]
    return [f"left out, not named after a split: {format_list(names)}"] if names else []


def infer_split(path: PurePath) -> str | None:
    """Return the split in the name of a file or of the closest folder; None if no name contains one."""
    for part in (path.name, *(parent.name for parent in path.parents)):
        words = re.split(r"[^a-z]+", part.lower())
        for word in words:
            if word in SPLIT_KEYWORDS:
                return SPLIT_KEYWORDS[word] + ("_mismatched" if "mismatched" in words else "")
    return None


def is_data_file(path: PurePath) -> bool:
    """Return whether a path has the suffix of a data file; hidden files and descriptions have no data."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED_SUFFIXES]
    is_hidden = any(part.startswith(".") for part in path.parts)
    has_data_suffix = bool(suffixes) and suffixes[-1] in DATA_SUFFIXES
    is_description = path.stem.lower() == "readme" or path.name in METADATA_FILES
    return not is_hidden and has_data_suffix and not is_description


def _read_all(paths: list[Path], dialect: Dialect | None) -> Rows:
    return Rows.concatenate([read_file(path, dialect) for path in paths])


def _read_text_tree(folder: Path, paths: list[Path], encoding: str | None) -> Splits:
    """Return the splits of `{train,test}/{pos,neg}/*.txt`, or the training rows of `{pos,neg}/*.txt`."""
    roots = sorted({path.relative_to(folder).parts[0] for path in paths})
    splits = {root: SPLIT_KEYWORDS[root.lower()] for root in roots if root.lower() in SPLIT_KEYWORDS}
    if not splits:
        return {"train": _read_class_folders(folder, {root: root for root in roots}, encoding)}
    rows_by_split = {}
    for root, split in splits.items():
        classes = {path.name: path.name for path in sorted((folder / root).iterdir()) if path.is_dir()}
        rows_by_split[split] = _read_class_folders(folder / root, classes, encoding)
    return rows_by_split


def _read_class_folders(folder: Path, classes: dict[str, str], encoding: str | None) -> Rows:
    """Return one row per .txt file.

    Args:
        folder: The folder that contains the class folders.
        classes: Label by name of the class folder.
        encoding: Encoding of the files, as passed by the user.
    """
    decoding = Decoding(encoding)
    parts = [
        Rows.from_columns({"text": ["".join(read_text(path, decoding))], "label": [label]}, str(path))
        for name, label in classes.items()
        for path in sorted((folder / name).glob("*.txt"))
    ]
    if not parts:
        raise UserError(f"{folder}: no .txt files in {format_list(classes)}; put one text into each file")
    return Rows.concatenate(parts)
