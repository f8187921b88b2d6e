"""Files of vectors, read again to be searched: vectors, their texts, and what they were made with."""

import json
import tokenize
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open

from bertkit.data.readers.contents import require_file
from bertkit.errors import UserError, format_list
from bertkit.infer.vector_files import (
    METADATA_KEY,
    SUFFIXES,
    TENSOR_NAME,
    VECTOR_COLUMN,
    VectorProvenance,
    get_sidecar_path,
)

T = TypeVar("T")
# EOFError of an empty array, BadZipFile of one that begins as a zip archive.
READ_ERRORS = (OSError, ValueError, EOFError, zipfile.BadZipFile, SafetensorError, pa.ArrowException)
# What numpy lets out of its reading of a header, which is Python text to it, beside ValueError.
HEADER_ERRORS = (SyntaxError, tokenize.TokenError, TypeError, OverflowError)
FIX_HINT = "make it with bertkit embed --output"


@dataclass(frozen=True)
class VectorIndex:
    """Vectors [n, d] from a file, with the text of each where the file has them."""

    vectors: np.ndarray
    texts: list[str] | None
    provenance: VectorProvenance


@dataclass(frozen=True)
class VectorFormat:
    """How a kind of file is read: what it says of itself (None: nothing), then vectors and texts."""

    read_metadata: Callable[[Path], str | None]
    read_content: Callable[[Path, VectorProvenance], tuple[Any, list[list[Any]]]]


def read_index(path: Path) -> VectorIndex:
    """A file that `bertkit embed` wrote.

    Raises:
        UserError: no such file, another kind of file, or one that does not say what it was made with.
    """
    require_file(path, f"--index {path}")
    if path.suffix not in SUFFIXES:
        raise UserError(f"--index {path}: must end in {format_list(SUFFIXES)}")
    kind = FORMATS[path.suffix]
    origin = _origin(path, _read(path, kind.read_metadata, path))
    vectors, texts = _read(path, kind.read_content, path, origin)
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
        held = f"{vectors.dtype} of shape {list(vectors.shape)}"
        raise UserError(f"--index {path}: holds no vectors, one a row, but {held}; {FIX_HINT}")
    return VectorIndex(
        vectors, [" | ".join(map(str, row)) for row in zip(*texts, strict=True)] or None, origin
    )


def _read(path: Path, read: Callable[..., T], *of: Any) -> T:
    try:
        return read(*of)
    except READ_ERRORS as error:
        raise UserError(
            f"--index {path}: cannot be read ({(str(error) or 'empty').splitlines()[0]})"
        ) from error


def _origin(path: Path, about: str | None) -> VectorProvenance:
    """What a file says of itself, every key of the kind that it should be."""
    try:
        said = json.loads(about or "null")
    except (ValueError, RecursionError):
        said = None
    hints = get_type_hints(VectorProvenance)
    if isinstance(said, dict) and isinstance(said.get("texts", []), list):
        said["texts"] = tuple(said.get("texts", ()))
        kinds = {name: tuple if name == "texts" else hint for name, hint in hints.items()}
        if said.keys() == kinds.keys() and all(isinstance(said[name], kinds[name]) for name in kinds):
            return VectorProvenance(**said)
    raise UserError(f"--index {path}: does not say what it was made with; {FIX_HINT}")


# ---- kinds of files


def _about_array(path: Path) -> str | None:
    about = get_sidecar_path(path)
    return about.read_text("utf-8") if about.is_file() else None


def _array(path: Path, _: VectorProvenance) -> tuple[Any, list[list[Any]]]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False), []
    except HEADER_ERRORS as error:
        raise ValueError("its header is not that of an array") from error


def _about_table(path: Path) -> str | None:
    about = (pq.read_schema(path).metadata or {}).get(METADATA_KEY.encode())
    return None if about is None else about.decode()


def _table(path: Path, origin: VectorProvenance) -> tuple[Any, list[list[Any]]]:
    table = pq.read_table(path)
    column = table.column(VECTOR_COLUMN).combine_chunks() if VECTOR_COLUMN in table.column_names else None
    if not isinstance(column, pa.FixedSizeListArray) or column.null_count:
        raise ValueError(f"its column {VECTOR_COLUMN!r} holds no vectors")
    texts = [table.column(name).to_pylist() for name in origin.texts if name in table.column_names]
    return column.flatten().to_numpy().reshape(len(table), -1), texts


def _about_tensors(path: Path) -> str | None:
    with safe_open(path, "np") as file:
        return (file.metadata() or {}).get(METADATA_KEY)


def _tensors(path: Path, _: VectorProvenance) -> tuple[Any, list[list[Any]]]:
    with safe_open(path, "np") as file:
        return file.get_tensor(TENSOR_NAME), []


FORMATS = {
    ".npy": VectorFormat(_about_array, _array),
    ".parquet": VectorFormat(_about_table, _table),
    ".safetensors": VectorFormat(_about_tensors, _tensors),
}
