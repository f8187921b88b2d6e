"""Search vectors by cosine similarity, find occurrences of a word, and read vector files as an index."""

import json
import tokenize
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import regex

from bertkit.data.readers.contents import require_file
from bertkit.data.tokenization import encode_with_offsets
from bertkit.data.unicode import UNSPACED_SCRIPTS
from bertkit.errors import UserError, format_list
from bertkit.infer.inputs import TEXT_SEPARATOR
from bertkit.infer.vector_files import (
    METADATA_KEY,
    SUFFIXES,
    VECTOR_COLUMN,
    VectorProvenance,
    get_sidecar_path,
)

T = TypeVar("T")
SEARCH_CHUNK_SIZE = 10_000  # vectors of an index that are in memory at a time
# An empty array raises EOFError; a damaged zip archive raises BadZipFile.
READ_ERRORS = (OSError, ValueError, EOFError, zipfile.BadZipFile, pa.ArrowException)
# In addition to ValueError, numpy raises these errors for a damaged array header.
HEADER_ERRORS = (SyntaxError, tokenize.TokenError, TypeError, OverflowError)
FIX_HINT = "create it with bertkit embed --output"


# ---- nearest rows


def l2_normalize(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors `[n, dimensions]` to length 1; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)


def find_nearest_rows(
    query: np.ndarray, vectors: np.ndarray, top: int, get_text: Callable[[int], str] | None
) -> list[dict[str, Any]]:
    """Return the `top` rows that are most similar to a query; the most similar row comes first.

    Rows with equal similarity keep their order.

    Args:
        query: Vector `[dimensions]`.
        vectors: `[n, dimensions]`, one for each row.
        top: Number of rows to return.
        get_text: Returns the text of a row; None if the texts are not known.
    """
    query = l2_normalize(query)
    chunk_cosines = [
        l2_normalize(vectors[start : start + SEARCH_CHUNK_SIZE]) @ query
        for start in range(0, len(vectors), SEARCH_CHUNK_SIZE)
    ]
    cosines = np.concatenate(chunk_cosines)
    hits: list[dict[str, Any]] = []
    for rank, row in enumerate(np.argsort(-cosines, kind="stable")[:top].tolist(), start=1):
        hit: dict[str, Any] = {"rank": rank, "cosine": float(cosines[row]), "row": row}
        if get_text is not None:
            hit["text"] = get_text(row)
        hits.append(hit)
    return hits


def compute_cosine_similarities(vectors: np.ndarray) -> list[list[float]]:
    """Return the `[n, n]` cosine similarities of all pairs of vectors, rounded to four digits."""
    scaled = l2_normalize(vectors)
    return np.clip(scaled @ scaled.T, -1, 1).round(4).tolist()


# ---- occurrences of a word


@dataclass(frozen=True)
class WordOccurrences:
    """Occurrences of a word in texts.

    Attributes:
        row: Index of the text, `[n]`.
        start: First character in the text, `[n]`.
        stop: End of the characters in the text, exclusive, `[n]`.
        token_spans: Start and exclusive end in the tokens of the text without special tokens, `[n, 2]`.
        token_ids: Token ids of each occurrence.
    """

    row: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    token_spans: np.ndarray
    token_ids: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.row)

    def select(self, indices: np.ndarray) -> "WordOccurrences":
        """Return the occurrences at `indices`."""
        token_ids = [self.token_ids[index] for index in indices]
        return WordOccurrences(
            self.row[indices], self.start[indices], self.stop[indices], self.token_spans[indices], token_ids
        )


def find_word_occurrences(word: str, texts: Sequence[str], tokenizer: Any) -> WordOccurrences:
    """Find every occurrence of a word or phrase, ignoring case.

    An occurrence begins and ends at word boundaries, with two exceptions. In Korean, an occurrence may end
    within a word, because particles follow without a space (`배` occurs in `배가`). In scripts without
    spaces, word boundaries are not required.
    """
    pattern = regex.compile(_build_word_pattern(word), regex.IGNORECASE)
    matches = [
        (row, match.start(), match.end())
        for row, text in enumerate(texts)
        for match in pattern.finditer(text)
    ]
    rows, start, stop = np.array(matches, np.int64).reshape(-1, 3).T
    matching_rows, text_indices = np.unique(rows, return_inverse=True)
    encoded = encode_with_offsets([texts[row] for row in matching_rows], tokenizer, cache=False)
    first, last = encoded.find_token_ranges(text_indices, start, stop)
    bounds = np.stack([first, last + 1], 1)
    token_ids = [encoded.ids.values[begin:end] for begin, end in bounds]
    spans = bounds - encoded.ids.offsets[text_indices][:, None]
    has_tokens = np.flatnonzero(first >= 0)  # some characters become no token
    return WordOccurrences(rows, start, stop, spans, token_ids).select(has_tokens)


def _build_word_pattern(word: str) -> str:
    body = regex.escape(word, special_only=True)
    before = r"(?<!\w)" if regex.match(rf"[\w--[{UNSPACED_SCRIPTS}]]", word, regex.V1) else ""
    after = r"(?!\w)" if regex.match(rf"[\w--[{UNSPACED_SCRIPTS}\p{{Hangul}}]]", word[-1], regex.V1) else ""
    return f"{before}{body}{after}"


# ---- vector files as an index


@dataclass(frozen=True)
class VectorIndex:
    """Content of a vector file.

    Attributes:
        vectors: `[n, dimensions]`.
        texts: Text of each vector; None if the file has no texts.
        provenance: Model and settings of the vectors.
    """

    vectors: np.ndarray
    texts: list[str] | None
    provenance: VectorProvenance


def read_index(path: Path) -> VectorIndex:
    """Read a vector file as a search index.

    Raises:
        UserError: The file does not exist, cannot be read, or has no provenance.
    """
    require_file(path, f"--index {path}")
    if path.suffix not in SUFFIXES:
        raise UserError(f"--index {path}: must end in {format_list(SUFFIXES)}")
    read_metadata, read_content = FORMATS[path.suffix]
    provenance = _parse_provenance(path, _read(path, read_metadata, path))
    vectors, text_columns = _read(path, read_content, path, provenance)
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
        raise UserError(
            f"--index {path}: expected vectors, one per row, found {vectors.dtype} of shape "
            f"{list(vectors.shape)}; {FIX_HINT}"
        )
    texts = [TEXT_SEPARATOR.join(map(str, row)) for row in zip(*text_columns, strict=True)]
    return VectorIndex(vectors, texts or None, provenance)


def _read(path: Path, read: Callable[..., T], *args: Any) -> T:
    try:
        return read(*args)
    except READ_ERRORS as error:
        reason = (str(error) or "it is empty").splitlines()[0]
        raise UserError(f"--index {path}: cannot be read ({reason}); {FIX_HINT}") from error


def _parse_provenance(path: Path, text: str | None) -> VectorProvenance:
    """Parse the provenance of a file. Raises `UserError` if a key is missing or has an unexpected type."""
    try:
        metadata = json.loads(text or "null")
    except (ValueError, RecursionError):
        metadata = None
    if isinstance(metadata, dict) and isinstance(metadata.get("texts", []), list):
        metadata["texts"] = tuple(metadata.get("texts", ()))
        types = get_type_hints(VectorProvenance) | {"texts": tuple}
        if metadata.keys() == types.keys() and all(isinstance(metadata[key], types[key]) for key in types):
            return VectorProvenance(**metadata)
    raise UserError(f"--index {path}: does not record the model it was created with; {FIX_HINT}")


def _read_npy_metadata(path: Path) -> str | None:
    sidecar = get_sidecar_path(path)
    return sidecar.read_text("utf-8") if sidecar.is_file() else None


def _read_npy(path: Path, _: VectorProvenance) -> tuple[Any, list[list[Any]]]:
    try:
        # np.load would leave a damaged file open.
        return np.lib.format.open_memmap(path, mode="r"), []
    except HEADER_ERRORS as error:
        raise ValueError("its header does not describe an array") from error


def _read_parquet_metadata(path: Path) -> str | None:
    metadata = (pq.read_schema(path).metadata or {}).get(METADATA_KEY.encode())
    return None if metadata is None else metadata.decode()


def _read_parquet(path: Path, provenance: VectorProvenance) -> tuple[Any, list[list[Any]]]:
    table = pq.read_table(path)
    column = table.column(VECTOR_COLUMN).combine_chunks() if VECTOR_COLUMN in table.column_names else None
    if not isinstance(column, pa.FixedSizeListArray) or column.null_count:
        raise ValueError(f"its column {VECTOR_COLUMN!r} does not contain vectors")
    texts = [table.column(name).to_pylist() for name in provenance.texts if name in table.column_names]
    return column.flatten().to_numpy().reshape(len(table), -1), texts


# By suffix: how to read the provenance as JSON (None if there is none), and the vectors and text columns.
FORMATS = {
    ".npy": (_read_npy_metadata, _read_npy),
    ".parquet": (_read_parquet_metadata, _read_parquet),
}
