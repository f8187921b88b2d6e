"""Files of vectors, as `embed --index` reads them."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from packaging.version import Version

from malformed.case import HTML, LFS_POINTER, Case, expect_error, expect_rows, replace_byte

METADATA = {
    "model": "tiny", "weights": "0", "layer": "-1", "pooling": "cls", "max_length": 16, "word": None,
    "texts": ["text"],
}  # fmt: skip
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4)
VECTOR_TYPE = pa.list_(pa.float32(), 4)
# pyarrow 19 cannot read such a file; newer versions can, and bertkit refuses the column.
NULL_VECTOR_PROBLEM = "lists to be of size" if Version(pa.__version__) < Version("20") else "vectors"


def make_parquet(about: object, **columns: object) -> bytes:
    """Return a Parquet file with metadata `about`."""
    metadata = about if isinstance(about, str) else json.dumps(about)
    columns = {"text": ["a", "b", "c"], "embedding": pa.array(list(VECTORS), VECTOR_TYPE)} | columns
    file = io.BytesIO()
    made = pa.table({name: values for name, values in columns.items() if values is not None})
    pq.write_table(made.replace_schema_metadata({"bertkit": metadata}), file)
    return file.getvalue()


def make_npy(values: object, **how: object) -> bytes:
    """Return a .npy file."""
    file = io.BytesIO()
    np.save(file, values, **how)
    return file.getvalue()


def make_npy_with_header(header: str) -> bytes:
    """A .npy file with a header of one's own."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + VECTORS.tobytes()


# Each makes numpy raise an error of another kind.
BAD_NPY_HEADERS = {
    "open": "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  {",
    "of a type that cannot be parsed": "{'descr': ',<f4', 'fortran_order': False, 'shape': (3, 4), }",
    "of two kinds of keys": "{'descr': '<f4', 'fortran_order': False, b'shape': (3, 4), }",
    "of fewer than no rows": "{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 4), }",
}
SIDECAR_JSON = json.dumps(METADATA | {"texts": []})
PARQUET = make_parquet(METADATA)
BAD_METADATA = {
    "no JSON": "{",
    "a list": [1],
    "a number": 5,
    "an empty object": {},
    "an object of other keys": {**METADATA, "more": 1},
    "an object that lacks a key": {key: value for key, value in METADATA.items() if key != "layer"},
    "texts that are a number": {**METADATA, "texts": 5},
    "a model that is a list": {**METADATA, "model": ["a"]},
    "a length that is a text": {**METADATA, "max_length": "16"},
    "nested too deeply": "[" * 100_000,
}
FILES = {
    "Parquet": expect_rows(PARQUET, 3, "a.parquet"),
    "Parquet cut short": expect_error(PARQUET[:-20], "cannot be read", name="a.parquet"),
    "Parquet of nothing": expect_error(b"", "cannot be read", name="a.parquet"),
    "Parquet that is a page": expect_error(HTML, "cannot be read", name="a.parquet"),
    "Parquet without vectors": expect_error(make_parquet(METADATA, embedding=None), "cannot be read", name="a.parquet"),
    "Parquet with texts for vectors": expect_error(make_parquet(METADATA, embedding=["a", "b", "c"]), "vectors", name="a.parquet"),
    "Parquet with vectors of unlike length": expect_error(make_parquet(METADATA, embedding=[[1.0], [1.0, 2.0], [3.0]]), "vectors", name="a.parquet"),
    "Parquet with a vector that is null": expect_error(make_parquet(METADATA, embedding=pa.array([None, *VECTORS[1:]], VECTOR_TYPE)), NULL_VECTOR_PROBLEM, name="a.parquet"),
    "Parquet with numbers for texts": expect_rows(make_parquet(METADATA, text=[1, 2, 3]), 3, "a.parquet"),
    "Parquet without its texts": expect_rows(make_parquet(METADATA, text=None), 3, "a.parquet"),
    "Parquet of another program": expect_error(make_parquet("null"), "created with", name="a.parquet"),
    "an array": Case(make_npy(VECTORS), num_rows=3, name="a.npy", sidecar=SIDECAR_JSON),
    "an array of one number": expect_error(make_npy(np.float32(1)), "vectors", name="a.npy", sidecar=SIDECAR_JSON),
    "an array with a note that is a list": expect_error(make_npy(VECTORS), "created with", name="a.npy", sidecar="[1]"),
    "an array without a note": expect_error(make_npy(VECTORS), "created with", name="a.npy"),
    "an array of objects": expect_error(make_npy(np.array([{}], object), allow_pickle=True), "cannot be read", name="a.npy", sidecar=SIDECAR_JSON),
    "an array cut short": expect_error(make_npy(VECTORS)[:-4], "cannot be read", name="a.npy", sidecar=SIDECAR_JSON),
    "an array with a broken header": expect_error(replace_byte(make_npy(VECTORS), 12, 0), "cannot be read", name="a.npy", sidecar=SIDECAR_JSON),
    **{f"an array with a header {what}": expect_error(make_npy_with_header(header), "cannot be read", name="a.npy", sidecar=SIDECAR_JSON) for what, header in BAD_NPY_HEADERS.items()},
    "an array of nothing": expect_error(b"", "cannot be read", name="a.npy", sidecar=SIDECAR_JSON),
    "an array that is a pointer": expect_error(LFS_POINTER, "cannot be read", name="a.npy", sidecar=SIDECAR_JSON),
    "an array that is text": expect_error("1 2 3\n", "cannot be read", name="a.npy", sidecar=SIDECAR_JSON),
    "an array that is a zip": expect_error(b"PK\x03\x04" + b"\0" * 30, name="a.npy", sidecar=SIDECAR_JSON),
    "safetensors": expect_error("{}", "must end in", name="a.safetensors"),
    "another ending": expect_error("1 2 3\n", "must end in", name="a.txt"),
} | {
    f"parquet metadata with {what}": expect_error(make_parquet(about), "created with", name="a.parquet")
    for what, about in BAD_METADATA.items()
} | {
    f"npy metadata with {what}": expect_error(
        make_npy(VECTORS), "created with", name="a.npy",
        sidecar=about if isinstance(about, str) else json.dumps(about),
    )
    for what, about in BAD_METADATA.items()
}  # fmt: skip

CASES: dict[str, Case] = FILES
