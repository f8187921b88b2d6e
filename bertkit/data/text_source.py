"""What `--data` names where running text is wanted: files, a pattern of files, or a known set's texts."""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from bertkit.cache import cached
from bertkit.data.columns import guess
from bertkit.data.known import find_known
from bertkit.data.sources import SAMPLES, find
from bertkit.data.text_files import files_of
from bertkit.data.text_rows import COLUMNS
from bertkit.errors import UserError
from bertkit.files import write_jsonl

SAMPLE = SAMPLES / "text"


@dataclass(frozen=True)
class TextSource:
    """Text found: what the run directory is called after, where it was found, and the files it lies in."""

    name: str
    where: str
    files: tuple[Path, ...]


def find_text(data: str, data_dir: str | None = None, column: str | None = None) -> TextSource:
    """The files that `--data` names; the texts of a known set or one on the Hub are put into one.

    An existing path goes before a name.

    Args:
        column: of the texts in a known set, where it is not the usual one.

    Raises:
        UserError: nothing is found.
    """
    if data == "sample":
        return TextSource("sample", "the sample shipped with bertkit", tuple(files_of(str(SAMPLE))))
    path = Path(data).expanduser()
    named = find_known(data) is not None or (data.count("/") == 1 and not path.suffix and "*" not in data)
    if path.exists() or not named:
        return TextSource(path.stem.strip("*") or path.parent.name, data, tuple(files_of(data)))
    found = find(data, "classify", data_dir)
    rows = found.splits["train"]
    column = column or found.defaults.get("text_column") or guess(rows, COLUMNS, "text")
    return TextSource(found.name, found.source, (_written(found.name, rows[column]),))


def _written(name: str, texts: list[str]) -> Path:
    """The texts as a file of rows, kept in the cache."""
    digest = blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def write(folder: Path) -> None:
        write_jsonl(folder / f"{name}.jsonl", ({"text": text} for text in texts))

    folder = cached("texts", digest, write)
    if folder is None:
        raise UserError(f"--data {name}: BERTKIT_CACHE_DIR cannot be written; name a folder that can")
    return folder / f"{name}.jsonl"
