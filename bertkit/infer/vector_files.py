"""Files of vectors, written with what they were made with: .npy, .parquet and .safetensors."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.modeling.frozen_vectors import allocate_memmap
from bertkit.utils.files import write_text

SUFFIXES = (".npy", ".parquet", ".safetensors")
METADATA_KEY, TENSOR_NAME, VECTOR_COLUMN = "bertkit", "embeddings", "embedding"
ROW_GROUP_SIZE = 10_000  # rows of Parquet written at a time


@dataclass(frozen=True)
class VectorProvenance:
    """What vectors were made with: what a query must be made with too.

    Attributes:
        model, weights: its name, and the fingerprint of its weights.
        layer: its number, 0 the embeddings, or concat-last-4.
        word: the one word whose vectors they are; None of whole texts.
        texts: the columns of the texts, where the file has them.
    """

    model: str
    weights: str
    layer: str
    pooling: str
    max_length: int
    word: str | None = None
    texts: tuple[str, ...] = ()


def get_sidecar_path(path: Path) -> Path:
    """What is known of a .npy file, which holds numbers alone: `vectors.npy.json`."""
    return path.with_name(path.name + ".json")


def get_output_column(column: str) -> str:
    """The name of an input column in a file: one that clashes becomes `input_NAME`, as in predictions."""
    return f"input_{column}" if column == VECTOR_COLUMN else column


def build_arrow_table(rows: Rows) -> Any:
    """The rows as an Arrow table, for Parquet. Raises `UserError` where a column holds several kinds."""
    import pyarrow as pa

    columns = {}
    for name, values in rows.columns.items():
        try:
            columns[get_output_column(name)] = pa.array(values)
        except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
            raise UserError(
                f"{rows.files[0]}: column {name!r} cannot be kept in Parquet ({str(error).splitlines()[0]}); "
                "write a .npy file"
            ) from error
    return pa.table(columns)


@contextmanager
def open_vector_file(
    path: Path, shape: tuple[int, int], rows: Rows, provenance: VectorProvenance
) -> Iterator[np.ndarray]:
    """Vectors [n, d] in fp32, memory-mapped, to be filled within; then the file takes its name, whole.

    Raises:
        UserError: it cannot be written (a full disk, no right to); nothing is left behind.
    """
    table = build_arrow_table(rows) if path.suffix == ".parquet" else None
    aside = None
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        vectors = allocate_memmap(aside / "vectors.npy", shape, np.float32)
        yield vectors
        _save(aside, path, vectors, table, rows, provenance)
    except OSError as error:
        raise UserError(f"--output {path}: cannot be written ({error.strerror})") from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def _save(
    aside: Path, path: Path, vectors: np.ndarray, table: Any, rows: Rows, origin: VectorProvenance
) -> None:
    made = aside / "vectors.npy"
    if path.suffix == ".npy":
        vectors.flush()  # type: ignore[attr-defined]
        write_text(get_sidecar_path(path), json.dumps(asdict(origin), ensure_ascii=False) + "\n")
    else:
        made = aside / "vectors"
        if table is not None:
            _write_parquet(made, vectors, table, origin)
        else:
            _write_safetensors(made, vectors, rows, origin)
    made.chmod(0o644)
    made.replace(path)


def _write_parquet(path: Path, vectors: np.ndarray, table: Any, origin: VectorProvenance) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = pa.list_(pa.float32(), vectors.shape[1])
    schema = table.schema.append(pa.field(VECTOR_COLUMN, kind)).with_metadata(
        {METADATA_KEY: json.dumps(asdict(origin))}
    )
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, len(vectors), ROW_GROUP_SIZE):
            part = vectors[start : start + ROW_GROUP_SIZE]
            column = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), type=kind)
            group = table.slice(start, ROW_GROUP_SIZE).append_column(pa.field(VECTOR_COLUMN, kind), column)
            writer.write_table(group.cast(schema))


def _write_safetensors(path: Path, vectors: np.ndarray, rows: Rows, origin: VectorProvenance) -> None:
    from safetensors.numpy import save_file

    tensors = {TENSOR_NAME: vectors}
    ids = rows.columns.get("id", [None])
    if all(type(value) is int for value in ids):
        tensors["ids"] = np.array(ids, np.int64)
    save_file(tensors, path, {METADATA_KEY: json.dumps(asdict(replace(origin, texts=())))})
