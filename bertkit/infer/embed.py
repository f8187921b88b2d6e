"""`embed`: compute vectors of texts or of one word, write them to a file, and search them."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bertkit.config import fill_unset
from bertkit.data.features import StoredFeatures, build_features
from bertkit.data.rows import Rows
from bertkit.data.tokenization import SequenceTemplate
from bertkit.errors import UserError, format_count, format_list
from bertkit.infer.configs import EmbedConfig
from bertkit.infer.inputs import TextInputs, TruncationCounter, load_texts
from bertkit.infer.search import (
    VectorIndex,
    compute_cosine_similarities,
    find_nearest_rows,
    find_word_occurrences,
    read_index,
)
from bertkit.infer.vector_files import SUFFIXES, VectorProvenance, get_output_column, open_vector_file
from bertkit.modeling.encoder import (
    CONCAT_LAST_4,
    Encoder,
    fingerprint_weights,
    parse_layers,
    read_pooling_mode,
)
from bertkit.modeling.loading import find_model, get_max_positions, load_config, load_tokenizer
from bertkit.modeling.pooling import is_causal
from bertkit.pipeline.prepare import UNK_WARNING_RATE
from bertkit.utils.output_paths import check_output_file
from bertkit.utils.reporting import Reporter, silence_libraries
from bertkit.validation import validate_settings

INDEX_SETTINGS = ("layer", "pooling", "max_length")  # a query takes them from the index unless they are set
MAX_COMPARED_OCCURRENCES = 100  # of a word


@dataclass(frozen=True)
class EmbedResult:
    """Vectors, and the results of a search.

    Attributes:
        vectors: Float32 `[n, dimensions]` in the order of the rows or of the occurrences of the word;
            memory-mapped if they were read from or written to a file.
        metadata: `rows`, `dimensions`, `model`, `layer`, `pooling`, ...
        results: The `hits` of each query.
        word_comparison: The `occurrences` of the word, the `similarities` of the first of them, and those of
            their `static` word embeddings.
        output: The file that was written.
    """

    vectors: np.ndarray
    metadata: dict[str, Any]
    results: list[dict[str, Any]]
    word_comparison: dict[str, Any] | None
    output: Path | None


def embed(
    settings: Mapping[str, Any], reporter: Reporter | None = None, stdin: BinaryIO | None = None
) -> EmbedResult:
    """Embed texts, write their vectors, and search them.

    Args:
        settings: Settings of `EmbedConfig`.
        reporter: Receives progress and notes.
        stdin: Standard input, read if no other texts are named.

    Raises:
        UserError: A problem that the caller can fix, in one line; no file is written then.
    """
    values = validate_settings(EmbedConfig, settings, "embed()")
    if not values.get("model"):
        raise UserError(
            "embed(): model is missing; pass a known name (minilm), a path, a run, or a Hub model"
        )
    config = EmbedConfig(**values)
    _check_settings(config)
    with silence_libraries():
        index = read_index(Path(config.index).expanduser()) if config.index else None
        return Embedder(config, index, reporter or Reporter()).run(stdin)


def _check_settings(config: EmbedConfig) -> None:
    """Refuse contradictory settings and an unusable output file before any work."""
    if config.index:
        for name in ("data", "text", "word", "output"):
            if getattr(config, name):
                raise UserError(
                    f"--{name}: cannot be combined with --index, which holds the vectors; pass one of them"
                )
        if not config.query:
            raise UserError("--index: nothing to search for; pass --query TEXT")
    if config.word is not None and not config.word.strip():
        raise UserError("--word: is empty; pass a word")
    if config.word and (config.query or config.text_pair_column):
        other = "--query" if config.query else "--text-pair-column"
        raise UserError(f"--word: {other} applies to whole texts; pass one of them")
    if config.output:
        check_output_file(Path(config.output).expanduser(), config.overwrite, suffixes=SUFFIXES)


class Embedder:
    """A model with its resolved settings; the weights are loaded at first use.

    Settings that are not set are taken from the index, if there is one.

    Raises:
        UserError: The model or layer does not exist, `max_length` exceeds the model's positions, or the index
            was written with another model.
    """

    def __init__(self, config: EmbedConfig, index: VectorIndex | None, reporter: Reporter) -> None:
        self.index, self.reporter = index, reporter
        self.source = find_model(config.model, "MODEL")
        if index is not None:
            self._check_index_model(index.provenance, str(config.index))
            config = fill_unset(config, {key: getattr(index.provenance, key) for key in INDEX_SETTINGS})
        self.config = config
        self.model_config = load_config(self.source)
        if getattr(self.model_config, "is_encoder_decoder", False):
            raise UserError(f"MODEL {self.source.name}: has a decoder; use an encoder-only model")
        self.layers = parse_layers(config.layer or "-1", self.model_config, self.source.name)
        self.tokenizer = load_tokenizer(self.source)
        self.pooling = config.pooling or self._default_pooling()
        self.max_length = self._resolve_max_length()
        self.throughput: dict[str, float] = {}

    def _default_pooling(self) -> str:
        pooling = read_pooling_mode(self.source)
        if pooling in ("cls", "mean"):
            if not self.config.word:
                self.reporter.info(f"pooling: {pooling}, as {self.source.name} was trained")
            return pooling
        if pooling:
            self.reporter.warn(
                f"{self.source.name}: was trained with {pooling} pooling, which is not supported; using cls"
            )
        return "cls"

    def _resolve_max_length(self) -> int:
        limit = get_max_positions(self.model_config) or sys.maxsize
        max_length = self.config.max_length
        if max_length is not None and max_length > limit:
            raise UserError(
                f"--max-length {max_length}: exceeds the {limit} positions of {self.source.name}; "
                "use a smaller value"
            )
        return max_length or min(self.tokenizer.model_max_length, limit)

    def run(self, stdin: BinaryIO | None) -> EmbedResult:
        """Search the index, or embed the texts that the settings name."""
        if self.index:
            self._check_index_settings(self.index.provenance)
            hits = self._search(self.index.vectors, self.index.texts)
            return self._build_result(self.index.vectors, hits)
        texts = load_texts(self.config, stdin, self.reporter)
        if self.config.word:
            return self._embed_word(self.config.word, texts)
        columns = tuple(get_output_column(name) for name in texts.columns)
        features, spans = self._featurize_texts(texts)
        vectors = self._compute_vectors(features, spans, texts.rows, columns)
        return self._build_result(vectors, self._search(vectors, texts.display_texts))

    def _build_result(
        self,
        vectors: np.ndarray,
        results: list[dict[str, Any]],
        word_comparison: dict[str, Any] | None = None,
    ) -> EmbedResult:
        metadata = {
            "rows": len(vectors), "dimensions": vectors.shape[1], "dtype": "float32",
            "model": self.source.name, "layer": self.layer_name,
            "pooling": "word" if word_comparison else self.pooling,
            "max_length": self.max_length, "normalized": self.config.normalize,
        }  # fmt: skip
        output = Path(self.config.output).expanduser() if self.config.output else None
        return EmbedResult(vectors, metadata | self.throughput, results, word_comparison, output)

    # ---- vectors

    @property
    def layer_name(self) -> str:
        """One name for each layer: -1 and 6 are the same layer of a model with six layers."""
        return CONCAT_LAST_4 if self.config.layer == CONCAT_LAST_4 else str(self.layers[0])

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder with its weights."""
        return Encoder(self.source, self.model_config, self.tokenizer, self.layers, self.config.normalize)

    def _featurize(self, texts: Sequence[Sequence[str]]) -> StoredFeatures:
        features = build_features(texts, None, self.tokenizer, self.max_length, cache=bool(self.config.data))
        if features.unk_fraction > UNK_WARNING_RATE:
            self.reporter.warn(
                f"{features.unk_fraction:.0%} of the tokens of these texts are [UNK] in {self.source.name}"
            )
        return features

    def _featurize_texts(self, texts: TextInputs) -> tuple[StoredFeatures, np.ndarray]:
        """Return the features of whole texts, and the token spans `[n, 2]` that their vectors average."""
        features = self._featurize([texts.rows[column] for column in texts.columns])
        truncation = TruncationCounter()
        truncation.add(features)
        truncation.report(self.max_length, self.reporter)
        stop = features.sequence_lengths
        if self.pooling == "mean":
            return features, np.stack([np.zeros_like(stop), stop], 1)
        # Only the last token of a causal model attends to the whole text.
        first = stop - 1 if is_causal(self.model_config) else np.zeros_like(stop)
        return features, np.stack([first, first + 1], 1)

    def _compute_vectors(
        self, features: StoredFeatures, spans: np.ndarray, rows: Rows, columns: tuple[str, ...]
    ) -> np.ndarray:
        """Return vectors `[n, dimensions]`, in the output file or in memory."""
        shape = (len(features), self.encoder.dimension)
        encode, batch_size = self.encoder.encode_into, self.config.batch_size
        started = time.perf_counter()
        if self.config.output is None:
            vectors = np.empty(shape, np.float32)
            encode(vectors, features, spans, batch_size, self.reporter)
        else:
            path = Path(self.config.output).expanduser()
            with open_vector_file(path, shape, rows, self._build_provenance(columns)) as vectors:
                encode(vectors, features, spans, batch_size, self.reporter)
        seconds = time.perf_counter() - started
        self.throughput = {"seconds": round(seconds, 3), "rows_per_second": round(shape[0] / seconds, 1)}
        return vectors

    def _build_provenance(self, columns: tuple[str, ...] = ()) -> VectorProvenance:
        return VectorProvenance(
            self.source.name, fingerprint_weights(self.source), self.layer_name,
            "word" if self.config.word else self.pooling, self.max_length, self.config.word, columns,
        )  # fmt: skip

    # ---- search

    def _check_index_model(self, provenance: VectorProvenance, path: str) -> None:
        """Refuse vectors of another model, or of one word."""
        if provenance.word is not None:
            raise UserError(
                f"--index {path}: holds vectors of the word {provenance.word!r}, not of texts; "
                "use a file of text vectors"
            )
        if provenance.weights != fingerprint_weights(self.source):
            model = provenance.model
            if model == self.source.name:
                model = f"other weights named {model}"
            raise UserError(
                f"--index {path}: was created with {model}, but MODEL is {self.source.name}; "
                "pass the model of the index"
            )

    def _check_index_settings(self, provenance: VectorProvenance) -> None:
        """Refuse query settings that differ from those of the index."""
        for flag, value in {"layer": self.layer_name, "pooling": self.pooling}.items():
            indexed = getattr(provenance, flag)
            if indexed != value:
                raise UserError(
                    f"--{flag} {value}: --index {self.config.index} was created with {indexed}; "
                    f"remove --{flag}"
                )

    def _search(self, vectors: np.ndarray, texts: list[str] | None) -> list[dict[str, Any]]:
        queries = list(self.config.query)
        if not queries:
            return []
        query_rows = Rows.from_columns({"text": queries}, "--query")
        features, spans = self._featurize_texts(TextInputs(query_rows, ["text"]))
        query_vectors = np.empty((len(queries), self.encoder.dimension), np.float32)
        self.encoder.encode_into(query_vectors, features, spans, self.config.batch_size, Reporter())
        return [
            {"query": query, "hits": find_nearest_rows(vector, vectors, self.config.top, texts)}
            for query, vector in zip(queries, query_vectors, strict=True)
        ]

    # ---- a word

    def _embed_word(self, word: str, texts: TextInputs) -> EmbedResult:
        """Embed each occurrence of a word: the mean of the tokens that share a character with it."""
        column = texts.rows[texts.columns[0]]
        occurrences = find_word_occurrences(word, column, self.tokenizer)
        template = SequenceTemplate.from_tokenizer(self.tokenizer, pair=False)
        fits = occurrences.token_spans[:, 1] <= self.max_length - template.num_special_tokens
        if not fits.all():
            self.reporter.info(
                f"{format_count(int((~fits).sum()), 'occurrence')} skipped: after token {self.max_length}"
            )
        occurrences = occurrences.select(np.flatnonzero(fits))
        rows_without = np.setdiff1d(np.arange(len(column)), occurrences.row)
        if not len(occurrences):
            raise UserError(
                f"--word {word}: does not occur in {format_count(len(column), 'text')}; "
                "pass texts that contain it"
            )
        if len(rows_without):
            self.reporter.info(f"rows without {word!r}: {format_list(rows_without)}")
        columns = {
            "row": occurrences.row.tolist(),
            "start": occurrences.start.tolist(),
            "stop": occurrences.stop.tolist(),
            "text": [column[row] for row in occurrences.row],
        }
        rows = Rows.from_columns(columns, "--word")
        features = self._featurize([rows["text"]])
        spans = occurrences.token_spans + template.count_special_tokens_before(~0)
        vectors = self._compute_vectors(features, spans, rows, ("text",))
        compared = range(min(len(occurrences), MAX_COMPARED_OCCURRENCES))
        static = np.stack(
            [self.encoder.average_word_embeddings(occurrences.token_ids[index]) for index in compared]
        )
        comparison = {
            "word": word, "occurrences": list(rows), "without": rows_without.tolist(),
            "similarities": compute_cosine_similarities(vectors[: len(compared)]),
            "static": compute_cosine_similarities(static),
        }  # fmt: skip
        return self._build_result(vectors, [], comparison)
