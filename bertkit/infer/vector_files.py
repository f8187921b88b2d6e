"""Write vectors with their provenance to .npy and .parquet files."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.column_types import iter_chunks
from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.modeling.frozen_vectors import allocate_memmap
from bertkit.utils.files import replace_path, write_text

SUFFIXES = (".npy", ".parquet")
METADATA_KEY = "bertkit"  # in Parquet files
VECTOR_COLUMN = "embedding"  # in Parquet files
ROW_GROUP_SIZE = 10_000  # rows that are written to Parquet at a time


@dataclass(frozen=True)
class VectorProvenance:
    """The model and the settings that vectors were computed with; a query must use the same.

    Attributes:
        model: Name of the model.
        weights: Fingerprint of the model's weights.
        layer: Index of the layer (0 is the embedding layer), or `concat-last-4`.
        pooling: `cls`, `mean`, or `word` for vectors of one word.
        max_length: Maximum sequence length in tokens.
        word: The word that was embedded; None for vectors of whole texts.
        texts: Names of the text columns in the file.
    """

    model: str
    weights: str
    layer: str
    pooling: str
    max_length: int
    word: str | None = None
    texts: tuple[str, ...] = ()


def get_sidecar_path(path: Path) -> Path:
    """Return the path of the file with the provenance of a .npy file, such as `vectors.npy.json`."""
    return path.with_name(path.name + ".json")


def get_output_column(column: str) -> str:
    """Return the name of an input column in the file; a name that clashes becomes `input_NAME`."""
    return f"input_{column}" if column == VECTOR_COLUMN else column


def infer_arrow_schema(rows: Rows) -> Any:
    """Return the Arrow schema of rows for Parquet.

    Raises:
        UserError: A column cannot be stored, for example because its values have several types.
    """
    import pyarrow as pa

    fields = []
    for name, values in rows.columns.items():
        column = get_output_column(name)
        try:
            schemas = [pa.schema([(column, pa.array(chunk).type)]) for chunk in iter_chunks(values)]
            schema = pa.unify_schemas(
                schemas or [pa.schema([(column, pa.null())])], promote_options="permissive"
            )
        except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
            raise UserError(
                f"{rows.files[0]}: column {name!r} cannot be stored in Parquet "
                f"({str(error).splitlines()[0]}); write a .npy file"
            ) from error
        fields.append(schema.field(0))
    return pa.schema(fields)


@contextmanager
def open_vector_file(
    path: Path, shape: tuple[int, int], rows: Rows, provenance: VectorProvenance
) -> Iterator[np.ndarray]:
    """Yield a memory-mapped fp32 array `[n, dimensions]` to fill in, then write the file atomically.

    Raises:
        UserError: The file cannot be written, for example because the disk is full; no partial file remains.
    """
    schema = infer_arrow_schema(rows) if path.suffix == ".parquet" else None
    temp_dir = None
    try:
        temp_dir = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        vectors = allocate_memmap(temp_dir / "vectors.npy", shape, np.float32)
        yield vectors
        _save(temp_dir, path, vectors, schema, rows, provenance)
    except OSError as error:
        raise UserError(
            f"--output {path}: cannot write ({error.strerror}); free disk space or pass another path"
        ) from error
    finally:
        if temp_dir is not None:
            shutil.rmtree(temp_dir, ignore_errors=True)


def _save(
    temp_dir: Path, path: Path, vectors: np.ndarray, schema: Any, rows: Rows, provenance: VectorProvenance
) -> None:
    temp_file = temp_dir / "vectors.npy"
    if path.suffix == ".npy":
        vectors.flush()  # type: ignore[attr-defined]
        write_text(get_sidecar_path(path), json.dumps(asdict(provenance), ensure_ascii=False) + "\n")
    else:
        temp_file = temp_dir / "vectors"
        _write_parquet(temp_file, vectors, schema, rows, provenance)
    temp_file.chmod(0o644)
    replace_path(temp_file, path)


def _write_parquet(
    path: Path, vectors: np.ndarray, schema: Any, rows: Rows, provenance: VectorProvenance
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    vector_type = pa.list_(pa.float32(), vectors.shape[1])
    full_schema = schema.append(pa.field(VECTOR_COLUMN, vector_type)).with_metadata(
        {METADATA_KEY: json.dumps(asdict(provenance))}
    )
    start = 0
    with pq.ParquetWriter(path, full_schema, use_dictionary=False) as writer:
        for chunk in rows.iter_chunks(ROW_GROUP_SIZE):
            columns = zip(chunk.columns.values(), schema.types, strict=True)
            arrays = [pa.array(values, column_type) for values, column_type in columns]
            values = pa.array(vectors[start : start + len(chunk)].reshape(-1))
            arrays.append(pa.FixedSizeListArray.from_arrays(values, type=vector_type))
            writer.write_table(pa.table(arrays, schema=full_schema))
            start += len(chunk)
