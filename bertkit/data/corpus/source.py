"""What `--data` names where running text is wanted: files, on disk or on the Hub, or a known set's texts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from bertkit.data.columns import DOCUMENT_COLUMNS, guess_column
from bertkit.data.layouts import describe_unassigned_files, group_by_split, is_data_file
from bertkit.data.loading import SAMPLES_DIR, load_dataset, parse_hub_name, resolve_hub_dataset
from bertkit.data.readers.text_files import TextFile, is_url, list_files, list_remote_files
from bertkit.data.registry import DatasetSpec, find_dataset_spec
from bertkit.errors import UserError, format_list
from bertkit.hub.client import HubUnreachable, find_cached_snapshot
from bertkit.hub.files import list_hub_files
from bertkit.utils.cache import get_or_create
from bertkit.utils.files import write_jsonl

SAMPLE_FOLDER = SAMPLES_DIR / "text"


@dataclass(frozen=True)
class TextSource:
    """Text found.

    Attributes:
        name: what the run directory is called after.
        where: it was found, for people.
        splits: the files of each split; there is always "train".
        column: of the texts in files of rows; None: guessed file by file.
        notes: on what the files' names say of splits.
    """

    name: str
    location: str
    splits: dict[str, tuple[TextFile, ...]]
    column: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def files(self) -> tuple[TextFile, ...]:
        """Those of the training text."""
        return self.splits["train"]


def find_text(
    data: str, data_dir: str | None = None, column: str | None = None, *, flag: str = "--data"
) -> TextSource:
    """The files that `--data` names; the texts of a known set that is no set of files are put into one.

    An existing path goes before a name. The files of a folder, or of a set on the Hub, are sorted into
    splits by their names, as those of other tasks are.

    Args:
        column: of the texts in files of rows.
        flag: what names it; what is named by another than `--data` is all of one split.

    Raises:
        UserError: nothing is found, or it cannot be had.
    """
    if data == "sample":
        return TextSource(
            "sample", "the sample shipped with bertkit", {"train": tuple(list_files(str(SAMPLE_FOLDER)))}
        )
    if is_url(data):
        return _from_elsewhere(data, column, flag)
    path = Path(data).expanduser()
    if path.exists() or not (find_dataset_spec(data) or parse_hub_name(data)):
        files = {
            file: file.relative_to(path) if path.is_dir() else PurePath() for file in list_files(data, flag)
        }
        splits, notes = _by_split(files if flag == "--data" else dict.fromkeys(files, PurePath()))
        return TextSource(_called(path), data, splits, column, notes)
    hub = resolve_hub_dataset(data, data_dir)
    return _from_hub(data, *hub, column) if hub else _from_known(data, data_dir, column)


def _from_elsewhere(data: str, column: str | None, flag: str) -> TextSource:
    names = {file: PurePosixPath(file.name) for file in list_remote_files(data)}
    splits, notes = _by_split(names if flag == "--data" else dict.fromkeys(names, PurePath()))
    return TextSource(_called(Path(data.partition("://")[2]).with_suffix("")), data, splits, column, notes)


def _called(path: Path) -> str:
    """A file's or folder's name without its ending; of a pattern what its last part begins with, or the parts
    before it: `news` of `news-*.txt`, `texts` of `texts/[ab]*.txt`.
    """
    if path.exists():
        return path.stem.strip(".") or path.resolve().stem
    begun = (re.split(r"[*?[]", part)[0].strip("-_. ") for part in reversed(path.absolute().parts))
    return next((name for name in begun if name.strip("/")), "text")


def _by_split(
    names: Mapping[Any, PurePath], instead: str | None = None
) -> tuple[dict[str, tuple[TextFile, ...]], list[str]]:
    """The files of each split, and notes.

    Titles of books speak of tests and trains too: names are believed where one is that of a training file
    and at least half of them are of a split. Else all is training text.
    """
    found, rest = group_by_split(names)
    if "train" not in found and instead in found:
        found["train"] = found.pop(instead)
    if "train" in found and 2 * len(rest) <= len(names):
        return {split: tuple(files) for split, files in found.items()}, describe_unassigned_files(rest)
    there = format_list(file.name for files in found.values() for file in files)
    why = "most files are named after no split" if "train" in found else "no file is named after training"
    note = f"{why}: all {len(names):,} are training text, {there} as well"
    return {"train": tuple(names)}, [note] if there else []


def _from_known(data: str, data_dir: str | None, column: str | None) -> TextSource:
    found = load_dataset(data, "classify", data_dir)
    train = found.splits["train"]
    column = column or found.defaults.get("text_column") or guess_column(train, DOCUMENT_COLUMNS, "text")
    splits: dict[str, tuple[TextFile, ...]] = {
        split: (_written(f"{found.name}-{split}", rows[column]),)
        for split, rows in found.splits.items()
        if column in rows.columns
    }
    return TextSource(found.name, found.source, splits, "text", found.notes)


def _written(name: str, texts: list[str]) -> Path:
    """The texts as a file of rows, kept in the cache."""
    digest = blake2b("\0".join([name, *texts]).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def write(folder: Path) -> None:
        write_jsonl(folder / f"{name}.jsonl", ({"text": text} for text in texts))

    folder = get_or_create("texts", digest, write)
    if folder is None:
        raise UserError(f"--data {name}: BERTKIT_CACHE_DIR cannot be written; name a folder that can")
    return folder / f"{name}.jsonl"


# ---- on the Hub


def _from_hub(data: str, known: DatasetSpec | None, hub: dict[str, Any], column: str | None) -> TextSource:
    """The files of a set on the Hub; where it cannot be reached, those in the Hugging Face cache."""
    where = (hub["id"], hub.get("revision"), hub.get("config"))
    part = hub.get("config") or ""
    try:
        files = list_hub_files(
            *where, flag=f"--data {data}", alternative=known.download_hint if known else ""
        )
        names: dict[Any, PurePath] = {file: PurePosixPath(file.path).relative_to(part) for file in files}
        place = f"Hub: {hub['id']}, commit {files[0].commit[:7]}"
    except HubUnreachable:
        folder = find_cached_snapshot(hub["id"], "dataset", *where[1:])
        if folder is None:
            raise
        names = {path: path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()}
        place = f"Hugging Face cache: {hub['id']}"
    names = {file: name for file, name in names.items() if is_data_file(name)}
    _require_one(data, names)
    splits, notes = _by_split(names, hub.get("train"))
    name = known.run_name if known else data.split("/", 1)[-1].replace(":", "-").replace("/", "-")
    return TextSource(name, place, splits, column or _column(known, hub), notes)


def _require_one(data: str, names: Mapping[Any, PurePath]) -> None:
    """Raise a `UserError` where the folders of a set are configurations, of which one must be chosen."""
    tops = sorted({name.parts[0] for name in names.values() if len(name.parts) > 1})
    found, rest = group_by_split({top: PurePath(top) for top in tops})
    if len(rest) > 1 and not found:
        some = f"--data {data}{'/' if ':' in data else ':'}{rest[0]}"
        raise UserError(
            f"--data {data}: has several parts ({format_list(rest)}); choose one, {some} for example"
        )


def _column(known: DatasetSpec | None, hub: dict[str, Any]) -> str | None:
    """The column of a known set's texts, as the Hub's files call it."""
    here = {**known.defaults, **hub.get("defaults", {})}.get("text_column") if known else None
    return next((there for there, name in hub.get("columns", {}).items() if name == here), here)
