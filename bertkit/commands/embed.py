"""`embed`: write vectors of texts or of a word in its contexts, and search them.

A file of vectors records the model and the settings that a query must use, so that it can be searched later.
"""

import dataclasses
import json
import sys
import time
import tokenize
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import regex
import torch
import typer
from rich.table import Table

from bertkit.commands.configs import EmbedConfig
from bertkit.commands.inputs import TEXT_SEPARATOR, TextInputs, TruncationCounter, load_texts
from bertkit.data.features import LongTextStrategy, TextFeatures, build_features
from bertkit.data.language import UNSPACED_SCRIPTS
from bertkit.data.readers.text_files import require_file
from bertkit.data.table import Rows, iter_chunks
from bertkit.data.tokens import SequenceTemplate, encode_with_offsets
from bertkit.errors import UserError, format_count, format_list
from bertkit.models import loading
from bertkit.models.encoder import CONCAT_LAST_4, Encoder, allocate_memmap, fingerprint_weights, parse_layers
from bertkit.models.load_check import report_length_errors, warn_about_padding
from bertkit.models.pooling import (
    PoolStates,
    SentenceModules,
    average_ranges,
    lowers_case,
    read_default_prompt,
    read_max_length,
    read_sentence_modules,
    select_pooled_tokens,
)
from bertkit.run.prepare import UNK_WARNING_FRACTION
from bertkit.run_directory import RunDir
from bertkit.settings.declaration import Pooling, fill_unset
from bertkit.settings.validation import validate_settings
from bertkit.utils import devices, distributed
from bertkit.utils.console import get_piped_stdin, out_console, print_json, to_plain_text
from bertkit.utils.files import check_output_file, expand_home, replace_file, write_text
from bertkit.utils.reporting import report_info, report_warning, silence_libraries, silence_reports

SUFFIXES = (".npy", ".parquet")
SIDECAR_SUFFIX = ".json"  # of the file with the provenance of a .npy file, such as `vectors.npy.json`
METADATA_KEY = "bertkit"  # of the provenance in Parquet files
VECTOR_COLUMN = "embedding"  # in Parquet files
RENAMED_COLUMNS = {VECTOR_COLUMN: f"input_{VECTOR_COLUMN}"}  # input columns whose name is taken
ROW_GROUP_SIZE = 10_000  # rows that are written to Parquet at a time
SEARCH_CHUNK_SIZE = 10_000  # vectors of an index that are in memory at a time
# An empty array raises EOFError; a damaged zip archive raises BadZipFile.
READ_ERRORS = (OSError, ValueError, EOFError, zipfile.BadZipFile, pa.ArrowException)
# In addition to ValueError, numpy raises these errors for a damaged array header.
HEADER_ERRORS = (SyntaxError, tokenize.TokenError, TypeError, OverflowError)
FIX_HINT = "create it with bertkit embed --output"
INDEX_SETTINGS = ("layer", "pooling", "max_length")  # their defaults for a query come from the index
POOLINGS = get_args(Pooling)  # those of --pooling
MAX_COMPARED_OCCURRENCES = 100  # first occurrences of a word that are compared


class VectorProvenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model and the settings that vectors were computed with; a query must use the same."""

    model: str
    weights: str  # their fingerprint
    layer: str  # an index (0 is the embedding layer), or `concat-last-4`
    pooling: str  # `cls`, `mean`, or `word` for vectors of one word
    max_length: int  # in tokens
    word: str | None  # that was embedded; None for vectors of whole texts
    texts: tuple[str, ...]  # names of the text columns in the file


@dataclass(frozen=True)
class VectorIndex:
    """Content of a vector file: `[n, dimensions]` vectors, and the text of each if the file has texts."""

    vectors: np.ndarray
    texts: list[str] | None
    provenance: VectorProvenance


@dataclass(frozen=True)
class EmbedResult:
    """Vectors, and the results of a search.

    Attributes:
        vectors: `[n, dimensions]` in fp32, one for each row or for each occurrence of the word. The array is
            memory-mapped if it was read from a file or written to one.
        metadata: The keys `rows`, `dimensions`, `model`, `layer`, `pooling` and more.
        results: Each `query` with its `hits`.
        word_comparison: The `occurrences` of the word. For the first occurrences, also the `similarities` of
            the vectors and of the `static` word embeddings. None without a word.
        output: The file that was written, if any.
    """

    vectors: np.ndarray
    metadata: dict[str, Any]
    results: list[dict[str, Any]]
    word_comparison: dict[str, Any] | None
    output: Path | None


def embed(settings: Mapping[str, Any], stdin: BinaryIO | None = None) -> EmbedResult:
    """Embed texts, write their vectors, and search them.

    Standard input is read if the settings name no texts. If an error is raised, no file was written.
    """
    values = validate_settings(EmbedConfig, settings, "embed()")
    if not values.get("model"):
        raise UserError(
            "embed(): model is missing; pass a known name (minilm), a path, a run, or a Hub model"
        )
    config = EmbedConfig(**values)
    if config.index:
        for name in ("data", "text", "word", "output"):
            if getattr(config, name):
                raise UserError(
                    f"--{name}: cannot be combined with --index, which provides the vectors; pass one of them"
                )
        if not config.query:
            raise UserError("--index: requires a query; pass --query TEXT")
    if config.word is not None and not config.word.strip():
        raise UserError("--word: is empty; pass a word")
    if config.word and (config.query or config.text_pair_column):
        other = "--query" if config.query else "--text-pair-column"
        raise UserError(
            f"--word: cannot be combined with {other}, which applies to whole texts; pass one of them"
        )
    if config.output:
        check_output_file(expand_home(config.output), config.overwrite, suffixes=SUFFIXES)
    distributed.require_launcher(config.nproc)
    if config.nproc > 1 and not (config.data or config.text or config.index):
        raise UserError(f"--nproc {config.nproc}: several processes cannot read standard input; pass --data")
    devices.request_device(config.device)
    reports = nullcontext() if distributed.is_main_process() else silence_reports()
    with reports, silence_libraries(), distributed.use_process_group():
        index = read_index(expand_home(config.index)) if config.index else None
        return Embedder(config, index).run(stdin)


class Embedder:
    """A model with resolved settings, whose weights are loaded at first use.

    With several ranks, only the main process has the vectors of all rows.

    The index, if there is one, provides the defaults of `INDEX_SETTINGS`.
    """

    def __init__(self, config: EmbedConfig, index: VectorIndex | None) -> None:
        self.index = index
        RunDir(expand_home(config.model)).refuse_ensemble()
        self.source = loading.find_model(config.model, "MODEL")
        if index is not None:
            self._check_index_model(index.provenance, str(config.index))
            config = fill_unset(config, {name: getattr(index.provenance, name) for name in INDEX_SETTINGS})
        self.config = config
        self.model_config = loading.load_config(self.source)
        if getattr(self.model_config, "is_encoder_decoder", False):
            raise UserError(f"MODEL {self.source.name}: has a decoder; use an encoder-only model")
        self.layers = parse_layers(config.layer or "-1", self.model_config, self.source.name)
        self.tokenizer = loading.load_tokenizer(self.source)
        loading.require_embeddings(self.source, self.model_config, self.tokenizer)
        self.modules = self._choose_modules()
        self.normalize = self.modules.normalize if config.normalize is None else config.normalize
        max_positions = loading.get_max_positions(self.model_config) or sys.maxsize
        if config.max_length is not None and config.max_length > max_positions:
            raise UserError(
                f"--max-length {config.max_length}: exceeds the {max_positions} positions of "
                f"{self.source.name}; use a smaller value"
            )
        limits = [loading.get_num_positions(self.model_config), read_max_length(self.source)]
        default_length = min(sys.maxsize, self.tokenizer.model_max_length, *filter(None, limits))
        self.max_length = default_length if config.max_length is None else config.max_length
        self.throughput: dict[str, float] = {}

    def _choose_modules(self) -> SentenceModules:
        """Return how hidden states become vectors: as in the training of the model, unless the user chose.

        The index may name the modules of the model, which --pooling cannot.
        """
        requested, name = self.config.pooling, self.source.name
        if requested in POOLINGS or self.config.word:
            return SentenceModules((requested or "cls",))
        modules = read_sentence_modules(self.source, self.model_config)
        if modules is None:
            return SentenceModules()
        if modules.linear_layers and self.layers != [self.model_config.num_hidden_layers]:
            layers = format_list(layer.name for layer in modules.linear_layers)
            report_warning(
                f"--layer {self.config.layer}: {name} applies {layers} to its last layer only, so the "
                "vectors are those before it; omit --layer to apply it"
            )
            modules = dataclasses.replace(modules, linear_layers=())
        report_info(f"pooling: {modules.name}, with which {name} was trained")
        if prompt := read_default_prompt(self.source):
            report_warning(
                f"{name}: was trained with {prompt!r} before each text, which bertkit does not add; add it "
                "to the texts"
            )
        if lowers_case(self.source) and self.tokenizer.tokenize("A") != self.tokenizer.tokenize("a"):
            report_warning(
                f"{name}: was trained with lower-cased texts, but its tokenizer does not lower-case; pass "
                "texts in lower case"
            )
        return modules

    def run(self, stdin: BinaryIO | None) -> EmbedResult:
        """Search the index, or embed texts and search their vectors."""
        if self.index:
            for name, value in {"layer": self.layer_name, "pooling": self.modules.name}.items():
                index_value = getattr(self.index.provenance, name)
                if index_value != value:
                    raise UserError(
                        f"--{name} {value}: --index {self.config.index} was created with {index_value}; "
                        f"remove --{name}"
                    )
            get_text = self.index.texts.__getitem__ if self.index.texts else None
            hits = self._search(self.index.vectors, get_text)
            return self._build_result(self.index.vectors, hits)
        texts = load_texts(self.config, stdin)
        if self.config.word:
            return self._embed_word(self.config.word, texts)
        features, pool = self._featurize_texts(texts)
        columns = tuple(RENAMED_COLUMNS.get(name, name) for name in texts.columns)
        vectors = self._compute_vectors(features, pool, texts.rows, columns)
        return self._build_result(vectors, self._search(vectors, texts.get_display_text))

    def _build_result(
        self,
        vectors: np.ndarray,
        results: list[dict[str, Any]],
        word_comparison: dict[str, Any] | None = None,
    ) -> EmbedResult:
        metadata = {
            "rows": len(vectors), "dimensions": vectors.shape[1], "dtype": "float32",
            "model": self.source.name, "layer": self.layer_name,
            "pooling": "word" if word_comparison else self.modules.name,
            "max_length": self.max_length, "normalized": self.normalize,
        }  # fmt: skip
        output = expand_home(self.config.output) if self.config.output else None
        return EmbedResult(vectors, metadata | self.throughput, results, word_comparison, output)

    # ---- vectors

    @property
    def layer_name(self) -> str:
        """Unique name of the layer: -1 becomes 6 in a model with six layers."""
        return CONCAT_LAST_4 if self.config.layer == CONCAT_LAST_4 else str(self.layers[0])

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder with its weights, loaded at first use."""
        devices.report_device()
        encoder = Encoder.load(
            self.source, self.model_config, self.tokenizer.pad_token_id, self.layers, self.normalize
        )
        if self.config.batch_size > 1:
            warn_about_padding(encoder.model, self.tokenizer, self.max_length)
        return encoder

    def _featurize(
        self, texts: Sequence[Sequence[str]], long_texts: LongTextStrategy = "head"
    ) -> TextFeatures:
        features = distributed.main_process_first(  # which fills the cache
            build_features, texts, None, self.tokenizer, self.max_length, long_texts,
            cache=bool(self.config.data),
        )  # fmt: skip
        if features.unk_fraction > UNK_WARNING_FRACTION:
            report_warning(
                f"{features.unk_fraction:.0%} of the tokens of these texts are [UNK] for {self.source.name}"
            )
        return features

    def _featurize_texts(self, texts: TextInputs) -> tuple[TextFeatures, PoolStates]:
        """Return the features of texts, and how their hidden states become vectors."""
        # A run with `--long-texts tail` saves the side that it truncates, as other tokenizers do.
        long_texts: LongTextStrategy = "tail" if self.tokenizer.truncation_side == "left" else "head"
        features = self._featurize([texts.rows[column] for column in texts.columns], long_texts)
        truncation = TruncationCounter()
        truncation.add(features)
        truncation.report(self.max_length)
        lengths = features.sequence_lengths
        if self.modules.name in POOLINGS:
            spans = select_pooled_tokens(self.modules.name, lengths, self.model_config)
            return features, average_ranges(spans)

        def pool(states: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
            return self.modules.compute(states, torch.from_numpy(lengths[rows]).to(states.device))

        return features, pool

    def _compute_vectors(
        self, features: TextFeatures, pool: PoolStates, rows: Rows, columns: tuple[str, ...]
    ) -> np.ndarray:
        """Compute vectors `[n, dimensions]` in the output file, or in memory if there is no output file."""
        shape = (len(features), self.modules.get_dimension(self.encoder.dimension))
        started = time.perf_counter()
        target: AbstractContextManager[np.ndarray]
        if self.config.output is None or not distributed.is_main_process():
            target = nullcontext(np.zeros(shape, np.float32))
        else:
            provenance = VectorProvenance(
                self.source.name, fingerprint_weights(self.source), self.layer_name,
                "word" if self.config.word else self.modules.name, self.max_length, self.config.word, columns,
            )  # fmt: skip
            target = open_vector_file(expand_home(self.config.output), shape, rows, provenance)
        with report_length_errors(self.encoder.model, features), target as vectors:
            self.encoder.encode_into(vectors, features, pool, self.config.batch_size, is_shared=True)
        seconds = time.perf_counter() - started
        self.throughput = {"seconds": round(seconds, 3), "rows_per_second": round(len(features) / seconds, 1)}
        return vectors

    # ---- search

    def _check_index_model(self, provenance: VectorProvenance, path: str) -> None:
        """Refuse an index of another model or of one word."""
        if provenance.word is not None:
            raise UserError(
                f"--index {path}: has vectors of the word {provenance.word!r}, not of texts; "
                "use a file of text vectors"
            )
        if provenance.weights != fingerprint_weights(self.source):
            index_model = provenance.model
            if index_model == self.source.name:
                index_model = f"another model with the name {index_model}"
            raise UserError(
                f"--index {path}: was created with {index_model}, but MODEL is {self.source.name}; "
                "pass the model of the index"
            )

    def _search(self, vectors: np.ndarray, get_text: Callable[[int], str] | None) -> list[dict[str, Any]]:
        """Return the nearest rows of each query, with their texts if there are texts."""
        queries = list(self.config.query)
        if not queries:
            return []
        query_rows = Rows.from_columns({"text": queries}, "--query")
        features, pool = self._featurize_texts(TextInputs(query_rows, ["text"]))
        dimension = self.modules.get_dimension(self.encoder.dimension)
        query_vectors = np.empty((len(queries), dimension), np.float32)
        with report_length_errors(self.encoder.model, features), silence_reports():
            self.encoder.encode_into(query_vectors, features, pool, self.config.batch_size)
        return [
            {"query": query, "hits": find_nearest_rows(vector, vectors, self.config.top, get_text)}
            for query, vector in zip(queries, query_vectors, strict=True)
        ]

    # ---- a word

    def _embed_word(self, word: str, texts: TextInputs) -> EmbedResult:
        """Embed each occurrence of a word as the mean of all tokens that share a character with it."""
        column = texts.rows[texts.columns[0]]
        occurrences = find_word_occurrences(word, column, self.tokenizer)
        template = SequenceTemplate.from_tokenizer(self.tokenizer, pair=False)
        fits = occurrences.token_spans[:, 1] <= self.max_length - template.num_special_tokens
        if not fits.all():
            report_info(
                f"skipped {format_count(int((~fits).sum()), 'occurrence')} after token {self.max_length}"
            )
        occurrences = occurrences.select(np.flatnonzero(fits))
        rows_without_word = np.setdiff1d(np.arange(len(column)), occurrences.row)
        if not len(occurrences):
            raise UserError(
                f"--word {word}: does not occur in {format_count(len(column), 'text')}; "
                "pass texts that contain it"
            )
        if len(rows_without_word):
            report_info(f"rows without {word!r}: {format_list(rows_without_word)}")
        columns = {
            "row": occurrences.row.tolist(),
            "start": occurrences.start.tolist(),
            "stop": occurrences.stop.tolist(),
            "text": [column[row] for row in occurrences.row],
        }
        rows = Rows.from_columns(columns, "--word")
        features = self._featurize([rows["text"]])
        text_slot = ~0  # the first text in the template
        spans = occurrences.token_spans + template.count_special_tokens_before(text_slot)
        vectors = self._compute_vectors(features, average_ranges(spans), rows, ("text",))
        compared_ids = occurrences.token_ids[:MAX_COMPARED_OCCURRENCES]
        static_vectors = np.stack([self.encoder.average_word_embeddings(ids) for ids in compared_ids])
        comparison = {
            "word": word, "occurrences": list(rows), "without": rows_without_word.tolist(),
            "similarities": compute_cosine_similarities(vectors[: len(compared_ids)]),
            "static": compute_cosine_similarities(static_vectors),
        }  # fmt: skip
        return self._build_result(vectors, [], comparison)


# ---- files of vectors


def infer_arrow_schema(rows: Rows) -> Any:
    """Return the Arrow schema of rows for Parquet."""
    fields = []
    for name, values in rows.columns.items():
        column = RENAMED_COLUMNS.get(name, name)
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
    """Yield a memory-mapped fp32 array `[n, dimensions]` to fill in, then write the file atomically."""
    schema = infer_arrow_schema(rows) if path.suffix == ".parquet" else None
    metadata = json.dumps(msgspec.structs.asdict(provenance), ensure_ascii=schema is not None)
    try:
        with replace_file(path) as staged:
            vectors = allocate_memmap(staged.with_suffix(".npy"), shape, np.float32)
            yield vectors
            if schema is None:
                vectors.flush()  # type: ignore[attr-defined]
                write_text(path.with_name(path.name + SIDECAR_SUFFIX), metadata + "\n")
                return
            vector_type = pa.list_(pa.float32(), shape[1])
            full_schema = schema.append(pa.field(VECTOR_COLUMN, vector_type))
            full_schema = full_schema.with_metadata({METADATA_KEY: metadata})
            start = 0
            with pq.ParquetWriter(staged, full_schema, use_dictionary=False) as writer:
                for chunk in rows.iter_chunks(ROW_GROUP_SIZE):
                    columns = zip(chunk.columns.values(), schema.types, strict=True)
                    arrays = [pa.array(values, column_type) for values, column_type in columns]
                    values = pa.array(vectors[start : start + len(chunk)].reshape(-1))
                    arrays.append(pa.FixedSizeListArray.from_arrays(values, type=vector_type))
                    writer.write_table(pa.table(arrays, schema=full_schema))
                    start += len(chunk)
    except OSError as error:
        raise UserError(
            f"--output {path}: cannot write ({error.strerror}); free disk space or pass another path"
        ) from error


def read_index(path: Path) -> VectorIndex:
    """Read a vector file, which must record the model of its vectors, as a search index."""
    require_file(path, f"--index {path}")
    if path.suffix not in SUFFIXES:
        raise UserError(f"--index {path}: must end in {format_list(SUFFIXES)}")
    columns: list[list[Any]] = []
    vectors: Any
    try:
        if path.suffix == ".npy":
            sidecar = path.with_name(path.name + SIDECAR_SUFFIX)
            metadata = sidecar.read_bytes() if sidecar.is_file() else b""
        else:
            metadata = (pq.read_schema(path).metadata or {}).get(METADATA_KEY.encode(), b"")
        try:
            provenance = msgspec.json.decode(metadata, type=VectorProvenance)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(
                f"--index {path}: does not record the model it was created with; {FIX_HINT}"
            ) from error
        if path.suffix == ".npy":
            try:
                # np.load would leave a damaged file open.
                vectors = np.lib.format.open_memmap(path, mode="r")
            except HEADER_ERRORS as error:
                raise ValueError("its header does not describe an array") from error
        else:
            table = pq.read_table(path)
            names = [name for name in (VECTOR_COLUMN, *provenance.texts) if name in table.column_names]
            column = table.column(VECTOR_COLUMN).combine_chunks() if VECTOR_COLUMN in names else None
            if not isinstance(column, pa.FixedSizeListArray) or column.null_count:
                raise ValueError(f"its column {VECTOR_COLUMN!r} does not contain vectors")
            columns = [table.column(name).to_pylist() for name in names if name != VECTOR_COLUMN]
            vectors = column.flatten().to_numpy().reshape(len(table), -1)
    except READ_ERRORS as error:
        reason = (str(error) or "it is empty").splitlines()[0]
        raise UserError(f"--index {path}: cannot be read ({reason}); {FIX_HINT}") from error
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
        raise UserError(
            f"--index {path}: expected vectors, one per row, found {vectors.dtype} of shape "
            f"{list(vectors.shape)}; {FIX_HINT}"
        )
    texts = [TEXT_SEPARATOR.join(map(str, row)) for row in zip(*columns, strict=True)]
    return VectorIndex(vectors, texts or None, provenance)


# ---- nearest rows


def l2_normalize(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors `[n, dimensions]` to length 1; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)


def find_nearest_rows(
    query: np.ndarray, vectors: np.ndarray, top: int, get_text: Callable[[int], str] | None
) -> list[dict[str, Any]]:
    """Return the `top` rows that are most similar to a query; the most similar row comes first.

    Rows with equal similarity keep their order. The query is `[dimensions]`, and the vectors of the rows are
    `[n, dimensions]`.
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
    before = r"(?<!\w)" if regex.match(rf"[\w--[{UNSPACED_SCRIPTS}]]", word, regex.V1) else ""
    after = r"(?!\w)" if regex.match(rf"[\w--[{UNSPACED_SCRIPTS}\p{{Hangul}}]]", word[-1], regex.V1) else ""
    pattern = regex.compile(before + regex.escape(word, special_only=True) + after, regex.IGNORECASE)
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


# ---- command line

RESULT_SETTINGS = {"output", "query", "word", "index"}  # the command requires one of them
MAX_OCCURRENCES = 12  # rows and columns of the printed matrix; --json prints more
# Widths in characters: the limits of the text column, and all other columns of the table of hits.
MIN_TEXT_WIDTH, MAX_TEXT_WIDTH, NUMBERS_WIDTH = 20, 100, 36


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    if not RESULT_SETTINGS & settings.keys():
        raise UserError("--output is missing; pass a file for the vectors (.npy, .parquet)")
    result = embed(settings, get_piped_stdin())
    if not distributed.is_main_process():
        return
    metadata = result.metadata
    if as_json:
        output = {"output": str(result.output)} if result.output else {}
        hits = {"results": result.results} if result.results else {}
        print_json({**output, **metadata, **hits, **(result.word_comparison or {})})
        return
    for query_result in result.results:
        _print_hits(query_result)
    if result.word_comparison:
        _print_word_comparison(result.word_comparison)
    if result.output:
        typer.echo(
            f"{result.output}: {format_count(metadata['rows'], 'vector')} with {metadata['dimensions']:,} "
            f"dimensions ({metadata['dtype']}), {metadata['model']}, layer {metadata['layer']}, "
            f"{metadata['pooling']}; {metadata['rows_per_second']:,.0f} rows/s"
        )


def _print_hits(query_result: Mapping[str, Any]) -> None:
    """Print the rows that are most similar to a query. Queries and texts are shortened to one line."""
    hits = query_result["hits"]
    width = min(MAX_TEXT_WIDTH, max(MIN_TEXT_WIDTH, out_console.width - NUMBERS_WIDTH))
    title = to_plain_text(" ".join(query_result["query"].split()))
    title.truncate(width + NUMBERS_WIDTH, overflow="ellipsis")
    table = Table(title=title, title_justify="left")
    for heading in ("rank", "cosine", "row"):
        table.add_column(heading, justify="right")
    if "text" in hits[0]:
        table.add_column("text", no_wrap=True, max_width=width)
    for hit in hits:
        texts = [" ".join(hit["text"].split())] if "text" in hit else []
        table.add_row(str(hit["rank"]), f"{hit['cosine']:.3f}", str(hit["row"]), *map(to_plain_text, texts))
    out_console.print(table)


def _print_word_comparison(comparison: Mapping[str, Any]) -> None:
    """Print the cosine similarities of the vectors of a word, and those of its static embeddings."""
    occurrences = comparison["occurrences"][:MAX_OCCURRENCES]
    title = to_plain_text(f"{comparison['word']}: cosine similarities of its vectors")
    table = Table(title=title, title_justify="left")
    table.add_column("row", justify="right")
    table.add_column("text", no_wrap=True, overflow="ellipsis", max_width=60)
    for occurrence in occurrences:
        table.add_column(str(occurrence["row"]), justify="right")
    for occurrence, cosines in zip(occurrences, comparison["similarities"], strict=False):
        text = to_plain_text(occurrence["text"])
        text.stylize("bold", occurrence["start"], occurrence["stop"])
        cells = (f"{cosine:.2f}" for cosine in cosines[:MAX_OCCURRENCES])
        table.add_row(str(occurrence["row"]), text, *cells)
    out_console.print(table)
    if len(comparison["occurrences"]) > MAX_OCCURRENCES:
        out_console.print(f"first {MAX_OCCURRENCES} of {len(comparison['occurrences']):,} occurrences")
    static = [cosine for cosines in comparison["static"] for cosine in cosines]
    low, high = f"{min(static):.2f}", f"{max(static):.2f}"
    cosines = high if low == high else f"{low} to {high}"
    out_console.print(f"cosine similarities of the static word embeddings, without context: {cosines}")
