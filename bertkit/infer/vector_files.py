"""Write vectors with their provenance to .npy, .parquet and .safetensors files."""

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
from bertkit.errors import UserError, format_list
from bertkit.modeling.frozen_vectors import allocate_memmap
from bertkit.utils.files import write_text

SUFFIXES = (".npy", ".parquet", ".safetensors")
METADATA_KEY, TENSOR_NAME, VECTOR_COLUMN = "bertkit", "embeddings", "embedding"
ROW_GROUP_SIZE = 10_000  # rows of Parquet written at a time


@dataclass(frozen=True)
class VectorProvenance:
    """Model and settings that vectors were computed with; a query must use the same.

    Attributes:
        model: Name of the model.
        weights: Fingerprint of its weights.
        layer: Number of the layer, where 0 is the embedding layer; or concat-last-4.
        word: The word whose vectors these are; None for vectors of whole texts.
        texts: Columns of the file that hold the texts.
    """

    model: str
    weights: str
    layer: str
    pooling: str
    max_length: int
    word: str | None = None
    texts: tuple[str, ...] = ()


def get_sidecar_path(path: Path) -> Path:
    """Return the path of the metadata of a .npy file, which itself holds only numbers: `vectors.npy.json`."""
    return path.with_name(path.name + ".json")


def check_output(path: Path, overwrite: bool) -> None:
    """Refuse an output file that cannot be written or exists. Raises `UserError`."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"--output {path}: must end in {format_list(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: directory {path.parent} does not exist; create it first")
    if path.is_dir():
        raise UserError(f"--output {path}: is a directory; pass the path of a file in it")
    if path.exists() and not overwrite:
        raise UserError(f"--output {path}: already exists; pass --overwrite to replace it")


def get_output_column(column: str) -> str:
    """Return the name of an input column in the file; a clashing name becomes `input_NAME`."""
    return f"input_{column}" if column == VECTOR_COLUMN else column


def build_arrow_table(rows: Rows) -> Any:
    """Convert rows to an Arrow table for Parquet.

    Raises:
        UserError: A column holds values of several types.
    """
    import pyarrow as pa

    columns = {}
    for name, values in rows.columns.items():
        try:
            columns[get_output_column(name)] = pa.array(values)
        except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
            raise UserError(
                f"{rows.files[0]}: column {name!r} cannot be stored in Parquet "
                f"({str(error).splitlines()[0]}); write a .npy file"
            ) from error
    return pa.table(columns)


@contextmanager
def open_vector_file(
    path: Path, shape: tuple[int, int], rows: Rows, provenance: VectorProvenance
) -> Iterator[np.ndarray]:
    """Yield memory-mapped fp32 vectors `[n, dimensions]` to fill in, then write the file atomically.

    Raises:
        UserError: The file cannot be written (full disk, no permission); no partial file remains.
    """
    table = build_arrow_table(rows) if path.suffix == ".parquet" else None
    temp_dir = None
    try:
        temp_dir = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        vectors = allocate_memmap(temp_dir / "vectors.npy", shape, np.float32)
        yield vectors
        _save(temp_dir, path, vectors, table, rows, provenance)
    except OSError as error:
        raise UserError(
            f"--output {path}: cannot write ({error.strerror}); free disk space or pass another path"
        ) from error
    finally:
        if temp_dir is not None:
            shutil.rmtree(temp_dir, ignore_errors=True)


def _save(
    temp_dir: Path, path: Path, vectors: np.ndarray, table: Any, rows: Rows, provenance: VectorProvenance
) -> None:
    temp_file = temp_dir / "vectors.npy"
    if path.suffix == ".npy":
        vectors.flush()  # type: ignore[attr-defined]
        write_text(get_sidecar_path(path), json.dumps(asdict(provenance), ensure_ascii=False) + "\n")
    else:
        temp_file = temp_dir / "vectors"
        if table is not None:
            _write_parquet(temp_file, vectors, table, provenance)
        else:
            _write_safetensors(temp_file, vectors, rows, provenance)
    temp_file.chmod(0o644)
    temp_file.replace(path)


def _write_parquet(path: Path, vectors: np.ndarray, table: Any, provenance: VectorProvenance) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    vector_type = pa.list_(pa.float32(), vectors.shape[1])
    schema = table.schema.append(pa.field(VECTOR_COLUMN, vector_type)).with_metadata(
        {METADATA_KEY: json.dumps(asdict(provenance))}
    )
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, len(vectors), ROW_GROUP_SIZE):
            chunk = vectors[start : start + ROW_GROUP_SIZE]
            column = pa.FixedSizeListArray.from_arrays(pa.array(chunk.reshape(-1)), type=vector_type)
            field = pa.field(VECTOR_COLUMN, vector_type)
            group = table.slice(start, ROW_GROUP_SIZE).append_column(field, column)
            writer.write_table(group.cast(schema))


def _write_safetensors(path: Path, vectors: np.ndarray, rows: Rows, provenance: VectorProvenance) -> None:
    from safetensors.numpy import save_file

    tensors = {TENSOR_NAME: vectors}
    ids = rows.columns.get("id", [None])
    if all(type(value) is int for value in ids):
        tensors["ids"] = np.array(ids, np.int64)
    save_file(tensors, path, {METADATA_KEY: json.dumps(asdict(replace(provenance, texts=())))})
