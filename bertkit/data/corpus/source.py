"""Find the files that `--data` names for tasks on running text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from bertkit.data.column_types import as_column
from bertkit.data.columns import DOCUMENT_COLUMNS, guess_column
from bertkit.data.layouts import describe_unassigned_files, group_by_split, is_data_file
from bertkit.data.loading import SAMPLES_DIR, load_dataset, parse_hub_name, resolve_hub_dataset
from bertkit.data.objects import choose_dataset_name, select_split, splits_from_object
from bertkit.data.readers.delimited import Dialect
from bertkit.data.readers.files import read_file
from bertkit.data.readers.saved_datasets import is_saved_dataset, open_saved_dataset
from bertkit.data.readers.text_files import InputFile, RowTable, is_url, list_files, list_remote_files
from bertkit.data.registry import DatasetSpec, find_dataset_spec
from bertkit.data_objects import DataObject, DataSource
from bertkit.errors import UserError, format_list
from bertkit.hub.client import HubUnreachable, find_cached_snapshot
from bertkit.hub.files import list_hub_files
from bertkit.utils.cache import get_or_create
from bertkit.utils.files import write_jsonl
from bertkit.utils.paths import expand_home

SAMPLE_TEXT_DIR = SAMPLES_DIR / "text"
ARROW_SUFFIXES = (".arrow", ".feather")
SplitFiles = dict[str, tuple[InputFile, ...]]


@dataclass(frozen=True)
class TextSource:
    """The text files of a dataset.

    Attributes:
        name: Name for the run directory.
        location: Where the files were found, for the console.
        splits: Files of each split; there is always a "train" split.
        column: Column of the texts in files of rows; None to guess it for each file.
        notes: Notes on how files were assigned to splits.
        encoding: Encoding of the files, as passed by the user; None for UTF-8 or that of a byte order mark.
            The files of the sample and of the cache are always UTF-8.
    """

    name: str
    location: str
    splits: SplitFiles
    column: str | None = None
    notes: list[str] = field(default_factory=list)
    encoding: str | None = None

    @property
    def files(self) -> tuple[InputFile, ...]:
        """Files of the training split."""
        return self.splits["train"]


def find_text(
    data: DataSource,
    data_dir: str | None = None,
    column: str | None = None,
    *,
    encoding: str | None = None,
    flag: str = "--data",
) -> TextSource:
    """Return the text files that `--data` or a similar flag names, or the rows of an object.

    An existing path takes precedence over a dataset name. The files of a directory, URL or Hub dataset are
    assigned to splits by their names, as for other tasks. If a known dataset has no text files, its texts are
    written to files in the cache.

    Args:
        data: Value of the flag, or an object with rows.
        data_dir: Directory that holds the original dataset files.
        column: Column of the texts in files of rows; None to guess it.
        encoding: Encoding of the files, as passed by the user.
        flag: Name of the flag. For flags other than `--data`, all files form one split.

    Raises:
        UserError: The files do not exist, or cannot be downloaded.
    """
    if isinstance(data, DataObject):
        return _find_object_text(data, flag.lstrip("-"), column, flag)
    data = str(data)
    if is_saved_dataset(expand_home(data)):
        return _find_object_text(open_saved_dataset(expand_home(data)), data, column, flag)
    if data == "sample":
        files = tuple(list_files(str(SAMPLE_TEXT_DIR)))
        return TextSource("sample", "the sample shipped with bertkit", {"train": files})
    if is_url(data):
        source = _find_remote_text(data, column, flag)
    elif expand_home(data).exists() or not (find_dataset_spec(data) or parse_hub_name(data)):
        source = _find_local_text(data, column, flag)
    elif hub := resolve_hub_dataset(data, data_dir):
        source = _find_hub_text(data, *hub, column)
    else:
        return _find_known_text(data, data_dir, column, encoding)
    return replace(source, encoding=encoding)


def _find_object_text(data: DataObject, name: str, column: str | None, flag: str) -> TextSource:
    """Return the rows of an object in place of files; `name` is its name in errors."""
    splits, notes = splits_from_object(data, name, accepts_streams=True)
    if flag != "--data":
        splits = {"train": select_split(splits, flag.lstrip("-"), name)}
    if "train" not in splits:
        raise UserError(
            f"{name}: no training split among {format_list(splits)}; rename one of them to 'train'"
        )
    tables: SplitFiles = {split: (RowTable(rows, rows.files[0]),) for split, rows in splits.items()}
    run_name = choose_dataset_name(data, Path(name).name)
    location = name if Path(name).exists() else str(data)
    return TextSource(run_name, location, tables, column, notes)


def _open_table(path: Path) -> InputFile:
    """Return the rows of an Arrow or Feather file, and other files unchanged."""
    return RowTable(read_file(path), path.name) if path.suffix in ARROW_SUFFIXES else path


def _find_local_text(data: str, column: str | None, flag: str) -> TextSource:
    path = expand_home(data)
    is_directory = path.is_dir()
    names = {
        _open_table(file): file.relative_to(path) if is_directory else PurePath()
        for file in list_files(data, flag)
    }
    splits, notes = _assign_splits(names if flag == "--data" else dict.fromkeys(names, PurePath()))
    return TextSource(_derive_name(path), data, splits, column, notes)


def _find_remote_text(data: str, column: str | None, flag: str) -> TextSource:
    names = {file: PurePosixPath(file.name) for file in list_remote_files(data)}
    splits, notes = _assign_splits(names if flag == "--data" else dict.fromkeys(names, PurePath()))
    name = _derive_name(Path(data.partition("://")[2]).with_suffix(""))
    return TextSource(name, data, splits, column, notes)


def _derive_name(path: Path) -> str:
    """Return a name for the run directory.

    For a file or directory it is the file name without its extension. For a pattern it is the beginning,
    without wildcards, of the last path component that has one: `news` for `news-*.txt`, `texts` for
    `texts/[ab]*.txt`.
    """
    if path.exists():
        return path.stem.strip(".") or path.resolve().stem
    beginnings = (re.split(r"[*?[]", part)[0].strip("-_. ") for part in reversed(path.absolute().parts))
    return next((name for name in beginnings if name.strip("/")), "text")


def _assign_splits(
    names: Mapping[Any, PurePath], train_name: str | None = None
) -> tuple[SplitFiles, list[str]]:
    """Return the files of each split, and notes.

    A file name such as the title of a book may contain "test" or "train" by chance. File names therefore
    determine splits only if there is a training file and at least half of the files are named after a split.
    Otherwise all files are training text.

    Args:
        names: File name, relative to its directory, of each file.
        train_name: Split to train on if no file is named after training.
    """
    splits, unassigned = group_by_split(names)
    if "train" not in splits and train_name in splits:
        splits["train"] = splits.pop(train_name)
    if "train" in splits and 2 * len(unassigned) <= len(names):
        return {split: tuple(files) for split, files in splits.items()}, describe_unassigned_files(unassigned)
    if not splits:
        return {"train": tuple(names)}, []
    reason = (
        "most files are not named after a split" if "train" in splits else "no file is named after training"
    )
    other_splits = format_list(file.name for files in splits.values() for file in files)
    note = f"{reason}: all {len(names):,} files are training text, including {other_splits}"
    return {"train": tuple(names)}, [note]


def _find_known_text(data: str, data_dir: str | None, column: str | None, encoding: str | None) -> TextSource:
    dataset = load_dataset(data, "classify", data_dir, Dialect(encoding=encoding))
    train = dataset.splits["train"]
    column = column or dataset.defaults.get("text_column") or guess_column(train, DOCUMENT_COLUMNS, "text")
    splits: SplitFiles = {
        split: (_write_texts(f"{dataset.name}-{split}", rows[column]),)
        for split, rows in dataset.splits.items()
        if column in rows.columns
    }
    return TextSource(dataset.name, dataset.source, splits, "text", dataset.notes)


def _write_texts(name: str, texts: Sequence[str]) -> Path:
    """Write the texts to a file of rows in the cache."""
    digest = blake2b(name.encode() + as_column(texts).hashes.tobytes(), digest_size=16).hexdigest()

    def write(folder: Path) -> None:
        write_jsonl(folder / f"{name}.jsonl", ({"text": text} for text in texts))

    folder = get_or_create("texts", digest, write)
    if folder is None:
        raise UserError(
            f"--data {name}: cannot write to the cache; set BERTKIT_CACHE_DIR to a writable directory"
        )
    return folder / f"{name}.jsonl"


# ---- Hub


def _find_hub_text(
    data: str, spec: DatasetSpec | None, hub: dict[str, Any], column: str | None
) -> TextSource:
    """Return the text files of a Hub dataset; if the Hub is unreachable, use the Hugging Face cache."""
    names, location = _list_hub_names(data, spec, hub)
    names = {file: name for file, name in names.items() if is_data_file(name)}
    _require_configuration(data, names)
    splits, notes = _assign_splits(names, hub.get("train"))
    name = spec.run_name if spec else data.split("/", 1)[-1].replace(":", "-").replace("/", "-")
    return TextSource(name, location, splits, column or _hub_text_column(spec, hub), notes)


def _list_hub_names(
    data: str, spec: DatasetSpec | None, hub: dict[str, Any]
) -> tuple[dict[Any, PurePath], str]:
    """Return the name of each file, and a description of where the files are.

    Names are relative to the directory of the configuration.
    """
    revision, config = hub.get("revision"), hub.get("config")
    try:
        hint = spec.describe_download() if spec else ""
        files = list_hub_files(hub["id"], revision, config, flag=f"--data {data}", alternative=hint)
    except HubUnreachable:
        folder = find_cached_snapshot(hub["id"], "dataset", revision, config)
        if folder is None:
            raise
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {path: path.relative_to(folder) for path in paths}, f"Hugging Face cache: {hub['id']}"
    names: dict[Any, PurePath] = {file: PurePosixPath(file.path).relative_to(config or "") for file in files}
    return names, f"Hub: {hub['id']}, commit {files[0].commit[:7]}"


def _require_configuration(data: str, names: Mapping[Any, PurePath]) -> None:
    """Raise a `UserError` if a dataset has several configurations and the user has not chosen one."""
    directories = sorted({name.parts[0] for name in names.values() if len(name.parts) > 1})
    splits, configurations = group_by_split({name: PurePath(name) for name in directories})
    if len(configurations) > 1 and not splits:
        example = f"--data {data}{'/' if ':' in data else ':'}{configurations[0]}"
        raise UserError(
            f"--data {data}: has several configurations ({format_list(configurations)}); pass one, for "
            f"example {example}"
        )


def _hub_text_column(spec: DatasetSpec | None, hub: dict[str, Any]) -> str | None:
    """Return the text column of a known dataset, as named in the files on the Hub."""
    defaults = {**spec.defaults, **hub.get("defaults", {})} if spec else {}
    column = defaults.get("text_column")
    return next((name for name, local_name in hub.get("columns", {}).items() if local_name == column), column)
