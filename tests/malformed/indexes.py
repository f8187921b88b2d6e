"""Files of vectors, as `embed --index` reads them."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from malformed.case import HTML, POINTER, Case, changed, legal, refused

ORIGIN = {
    "model": "tiny", "weights": "0", "layer": "-1", "pooling": "cls", "max_length": 16, "word": None,
    "texts": ["text"],
}  # fmt: skip
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4)
KIND = pa.list_(pa.float32(), 4)


def table(about: object, **columns: object) -> bytes:
    """A Parquet file; `about` is what it says it was made with."""
    said = about if isinstance(about, str) else json.dumps(about)
    columns = {"text": ["a", "b", "c"], "embedding": pa.array(list(VECTORS), KIND)} | columns
    file = io.BytesIO()
    made = pa.table({name: values for name, values in columns.items() if values is not None})
    pq.write_table(made.replace_schema_metadata({"bertkit": said}), file)
    return file.getvalue()


def tensors(about: object, **arrays: np.ndarray) -> bytes:
    """A file of safetensors."""
    said = about if isinstance(about, str) else json.dumps(about)
    return save({"embeddings": VECTORS} | arrays, {"bertkit": said})


def of_header(header: bytes, more: bytes = b"") -> bytes:
    """A file of safetensors with a header of one's own."""
    return len(header).to_bytes(8, "little") + header + more


def array(values: object, **how: object) -> bytes:
    """A .npy file."""
    file = io.BytesIO()
    np.save(file, values, **how)
    return file.getvalue()


def of_array(header: str) -> bytes:
    """A .npy file with a header of one's own."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + VECTORS.tobytes()


# Each makes numpy raise an error of another kind.
HEADERS = {
    "open": "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  {",
    "of a type that is no syntax": "{'descr': ',<f4', 'fortran_order': False, 'shape': (3, 4), }",
    "of two kinds of keys": "{'descr': '<f4', 'fortran_order': False, b'shape': (3, 4), }",
    "of fewer than no rows": "{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 4), }",
}
NOTE = json.dumps(ORIGIN | {"texts": []})
PARQUET, TENSORS = table(ORIGIN), tensors({**ORIGIN, "texts": []})
ABOUT = {
    "no JSON": "{",
    "a list": [1],
    "a number": 5,
    "an empty object": {},
    "an object of other keys": {**ORIGIN, "more": 1},
    "an object that lacks a key": {key: value for key, value in ORIGIN.items() if key != "layer"},
    "texts that are a number": {**ORIGIN, "texts": 5},
    "a model that is a list": {**ORIGIN, "model": ["a"]},
    "a length that is a text": {**ORIGIN, "max_length": "16"},
    "nested too deeply": "[" * 100_000,
}
FILES = {
    "Parquet": legal(PARQUET, 3, "a.parquet"),
    "Parquet cut short": refused(PARQUET[:-20], "cannot be read", name="a.parquet"),
    "Parquet of nothing": refused(b"", "cannot be read", name="a.parquet"),
    "Parquet that is a page": refused(HTML, "cannot be read", name="a.parquet"),
    "Parquet without vectors": refused(table(ORIGIN, embedding=None), "cannot be read", name="a.parquet"),
    "Parquet with texts for vectors": refused(table(ORIGIN, embedding=["a", "b", "c"]), "vectors", name="a.parquet"),
    "Parquet with vectors of unlike length": refused(table(ORIGIN, embedding=[[1.0], [1.0, 2.0], [3.0]]), "vectors", name="a.parquet"),
    "Parquet with a vector that is null": refused(table(ORIGIN, embedding=pa.array([None, *VECTORS[1:]], KIND)), "vectors", name="a.parquet"),
    "Parquet with numbers for texts": legal(table(ORIGIN, text=[1, 2, 3]), 3, "a.parquet"),
    "Parquet without its texts": legal(table(ORIGIN, text=None), 3, "a.parquet"),
    "Parquet of another program": refused(table("null"), "made with", name="a.parquet"),
    "safetensors": legal(TENSORS, 3, "a.safetensors"),
    "safetensors cut short": refused(TENSORS[:-5], "cannot be read", name="a.safetensors"),
    "safetensors of nothing": refused(b"", "cannot be read", name="a.safetensors"),
    "safetensors with a header beyond the file": refused(changed(TENSORS, 3, 255), "cannot be read", name="a.safetensors"),
    "safetensors with a header that is no JSON": refused(of_header(b"{{{{{{{{"), "cannot be read", name="a.safetensors"),
    "safetensors with an empty header": refused(of_header(b"{}      "), "made with", name="a.safetensors"),
    "safetensors that are a pointer": refused(POINTER, "cannot be read", name="a.safetensors"),
    "safetensors of another name": refused(save({"other": VECTORS}, {"bertkit": json.dumps(ORIGIN)}), "cannot be read", name="a.safetensors"),
    "safetensors without a note": refused(save({"embeddings": VECTORS}), "made with", name="a.safetensors"),
    "safetensors of one dimension": refused(tensors(ORIGIN, embeddings=VECTORS[0]), "vectors", name="a.safetensors"),
    "safetensors of whole numbers": refused(tensors(ORIGIN, embeddings=VECTORS.astype(np.int32)), "vectors", name="a.safetensors"),
    "an array": Case(array(VECTORS), rows=3, name="a.npy", beside=NOTE),
    "an array of one number": refused(array(np.float32(1)), "vectors", name="a.npy", beside=NOTE),
    "an array with a note that is none": refused(array(VECTORS), "made with", name="a.npy", beside="[1]"),
    "an array without a note": refused(array(VECTORS), "made with", name="a.npy"),
    "an array of objects": refused(array(np.array([{}], object), allow_pickle=True), "cannot be read", name="a.npy", beside=NOTE),
    "an array cut short": refused(array(VECTORS)[:-4], "cannot be read", name="a.npy", beside=NOTE),
    "an array with a broken header": refused(changed(array(VECTORS), 12, 0), "cannot be read", name="a.npy", beside=NOTE),
    **{f"an array with a header {what}": refused(of_array(header), "cannot be read", name="a.npy", beside=NOTE) for what, header in HEADERS.items()},
    "an array of nothing": refused(b"", "cannot be read", name="a.npy", beside=NOTE),
    "an array that is text": refused("1 2 3\n", "cannot be read", name="a.npy", beside=NOTE),
    "an array that is a zip": refused(b"PK\x03\x04" + b"\0" * 30, name="a.npy", beside=NOTE),
    "another ending": refused("1 2 3\n", "must end in", name="a.txt"),
} | {
    f"{kind} said to be made with {what}": refused(make(about), "made with", name=f"a.{kind}")
    for kind, make in (("parquet", table), ("safetensors", tensors))
    for what, about in ABOUT.items()
}  # fmt: skip

CASES: dict[str, Case] = FILES
