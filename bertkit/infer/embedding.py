"""One call of `embed`: the model, the texts, and what becomes of their vectors."""

import sys
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bertkit.config import fill_unset
from bertkit.data.features import StoredFeatures, build_features
from bertkit.data.rows import Rows
from bertkit.data.tokenization import SequenceTemplate
from bertkit.errors import UserError, format_count, format_list
from bertkit.infer.embed import EmbedConfig, EmbedResult
from bertkit.infer.inputs import TextInputs, TruncationCounter, load_texts
from bertkit.infer.search import compute_cosine_similarities, find_nearest_rows, find_word_occurrences
from bertkit.infer.vector_files import VectorProvenance, get_output_column, open_vector_file
from bertkit.infer.vector_index import VectorIndex
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
from bertkit.utils.reporting import Reporter

INDEX_SETTINGS = ("layer", "pooling", "max_length")  # what a query has from it, unless it is said
MAX_COMPARED_OCCURRENCES = 100  # occurrences of a word at most


class Embedder:
    """A model and its settings as resolved, those left open by an index; weights are read when needed.

    Raises:
        UserError: no such model or layer, a length that it cannot read, or an index of other vectors.
    """

    def __init__(self, config: EmbedConfig, index: VectorIndex | None, reporter: Reporter) -> None:
        self.index, self.reporter = index, reporter
        self.source = find_model(config.model, "MODEL")
        if index is not None:
            self._check_model(index.provenance, str(config.index))
            config = fill_unset(config, {key: getattr(index.provenance, key) for key in INDEX_SETTINGS})
        self.config = config
        self.model_config = load_config(self.source)
        if getattr(self.model_config, "is_encoder_decoder", False):
            raise UserError(f"MODEL {self.source.name}: is no encoder alone, but one with a decoder")
        self.layers = parse_layers(config.layer or "-1", self.model_config, self.source.name)
        self.tokenizer = load_tokenizer(self.source)
        self.pooling = config.pooling or self._usual_pooling()
        self.max_length = self._longest()

    def _usual_pooling(self) -> str:
        trained = read_pooling_mode(self.source)
        if trained in ("cls", "mean"):
            if not self.config.word:
                self.reporter.info(f"pooling: {trained}, what {self.source.name} was trained with")
            return trained
        if trained:
            self.reporter.warn(
                f"{self.source.name} was trained with {trained} pooling, which is not to be had"
            )
        return "cls"

    def _longest(self) -> int:
        limit = get_max_positions(self.model_config) or sys.maxsize
        wanted = self.config.max_length
        if wanted is not None and wanted > limit:
            raise UserError(f"--max-length {wanted}: {self.source.name} has {limit} positions")
        return wanted or min(self.tokenizer.model_max_length, limit)

    def run(self, stdin: BinaryIO | None) -> EmbedResult:
        """Do what the settings say, with an index or with the texts they name."""
        if index := self.index:
            self._check_settings(index.provenance)
            return self._embedded(index.vectors, self._hits(index.vectors, index.texts))
        texts = load_texts(self.config, stdin, self.reporter)
        if self.config.word:
            return self._word(self.config.word, texts)
        columns = tuple(get_output_column(name) for name in texts.columns)
        vectors = self._vectors(*self._whole(texts), texts.rows, columns)
        return self._embedded(vectors, self._hits(vectors, texts.display_texts))

    def _embedded(
        self, vectors: np.ndarray, results: list[dict[str, Any]], word: dict[str, Any] | None = None
    ) -> EmbedResult:
        figures = {
            "rows": len(vectors), "dimensions": vectors.shape[1], "dtype": "float32",
            "model": self.source.name, "layer": self.layer_name, "pooling": "word" if word else self.pooling,
            "max_length": self.max_length, "normalized": self.config.normalize,
        }  # fmt: skip
        output = Path(self.config.output).expanduser() if self.config.output else None
        return EmbedResult(vectors, figures | self.throughput, results, word, output)

    # ---- vectors

    throughput: dict[str, float] = {}

    @property
    def layer_name(self) -> str:
        """By one name: -1 and 6 are the same layer of six."""
        return CONCAT_LAST_4 if self.config.layer == CONCAT_LAST_4 else str(self.layers[0])

    @cached_property
    def encoder(self) -> Encoder:
        """With its weights."""
        return Encoder(self.source, self.model_config, self.tokenizer, self.layers, self.config.normalize)

    def _features(self, texts: Sequence[Sequence[str]]) -> StoredFeatures:
        features = build_features(texts, None, self.tokenizer, self.max_length, cache=bool(self.config.data))
        if features.unk_fraction > UNK_WARNING_RATE:
            self.reporter.warn(
                f"{self.source.name} does not know {features.unk_fraction:.0%} of the pieces of these texts"
            )
        return features

    def _whole(self, texts: TextInputs) -> tuple[StoredFeatures, np.ndarray]:
        """Features of whole texts, and the places [n, 2] that each vector is the mean of."""
        features = self._features([texts.rows[column] for column in texts.columns])
        cut = TruncationCounter()
        cut.add(features)
        cut.report(self.max_length, self.reporter)
        stop = features.sequence_lengths
        if self.pooling == "mean":
            return features, np.stack([np.zeros_like(stop), stop], 1)
        # Of a model that reads from left to right the last piece, which alone has seen the text.
        first = stop - 1 if is_causal(self.model_config) else np.zeros_like(stop)
        return features, np.stack([first, first + 1], 1)

    def _vectors(
        self, features: StoredFeatures, places: np.ndarray, rows: Rows, columns: tuple[str, ...]
    ) -> np.ndarray:
        """[n, d], in the file that is asked for, or in memory."""
        shape, fill = (len(features), self.encoder.dimension), self.encoder.encode_into
        started, size = time.perf_counter(), self.config.batch_size
        if self.config.output is None:
            vectors = np.empty(shape, np.float32)
            fill(vectors, features, places, size, self.reporter)
        else:
            with open_vector_file(
                Path(self.config.output).expanduser(), shape, rows, self._origin(columns)
            ) as vectors:
                fill(vectors, features, places, size, self.reporter)
        seconds = time.perf_counter() - started
        self.throughput = {"seconds": round(seconds, 3), "rows_per_second": round(shape[0] / seconds, 1)}
        return vectors

    def _origin(self, columns: tuple[str, ...] = ()) -> VectorProvenance:
        return VectorProvenance(
            self.source.name, fingerprint_weights(self.source), self.layer_name,
            "word" if self.config.word else self.pooling, self.max_length, self.config.word, columns,
        )  # fmt: skip

    # ---- search

    def _check_model(self, theirs: VectorProvenance, name: str) -> None:
        """Refuse vectors of another model, or of one word."""
        if theirs.word is not None:
            raise UserError(f"--index {name}: holds vectors of the word {theirs.word!r}, not of texts")
        if theirs.weights != fingerprint_weights(self.source):
            made = "other weights of that name" if theirs.model == self.source.name else theirs.model
            raise UserError(
                f"--index {name}: made with {made}, MODEL is {self.source.name}; name what it was made with"
            )

    def _check_settings(self, theirs: VectorProvenance) -> None:
        """Refuse a query whose vector would be another kind than those of the index."""
        for flag, ours in {"layer": self.layer_name, "pooling": self.pooling}.items():
            if (was := getattr(theirs, flag)) != ours:
                raise UserError(
                    f"--{flag} {ours}: --index {self.config.index} was made with {was}; leave out --{flag}"
                )

    def _hits(self, vectors: np.ndarray, texts: list[str] | None) -> list[dict[str, Any]]:
        queries = list(self.config.query)
        if not queries:
            return []
        features, places = self._whole(TextInputs(Rows.from_columns({"text": queries}, "--query"), ["text"]))
        found = np.empty((len(queries), self.encoder.dimension), np.float32)
        self.encoder.encode_into(found, features, places, self.config.batch_size, Reporter())
        return [
            {"query": query, "hits": find_nearest_rows(vector, vectors, self.config.top, texts)}
            for query, vector in zip(queries, found, strict=True)
        ]

    # ---- a word

    def _word(self, word: str, texts: TextInputs) -> EmbedResult:
        """The vector of each occurrence of a word: the mean of the pieces that share a character with it."""
        column = texts.rows[texts.columns[0]]
        found = find_word_occurrences(word, column, self.tokenizer)
        template = SequenceTemplate.from_tokenizer(self.tokenizer, pair=False)
        fits = found.token_spans[:, 1] <= self.max_length - template.num_special_tokens
        if not fits.all():
            self.reporter.info(f"{(~fits).sum():,} of its occurrences stand behind piece {self.max_length}")
        found = found.select(np.flatnonzero(fits))
        without = np.setdiff1d(np.arange(len(column)), found.row)
        if not len(found):
            there = format_count(len(column), "text")
            raise UserError(f"--word {word}: does not stand in {there}; give texts with it")
        if len(without):
            self.reporter.info(f"without {word!r}: row {format_list(without)}")
        places = {"row": found.row.tolist(), "start": found.start.tolist(), "stop": found.stop.tolist()}
        rows = Rows.from_columns({**places, "text": [column[row] for row in found.row]}, "--word")
        features = self._features([rows["text"]])
        vectors = self._vectors(
            features, found.token_spans + template.count_special_tokens_before(~0), rows, ("text",)
        )
        some = range(min(len(found), MAX_COMPARED_OCCURRENCES))
        static = np.stack([self.encoder.average_word_embeddings(found.token_ids[number]) for number in some])
        about = {
            "word": word, "occurrences": list(rows), "without": without.tolist(),
            "similarities": compute_cosine_similarities(vectors[: len(some)]), "static": compute_cosine_similarities(static),
        }  # fmt: skip
        return self._embedded(vectors, [], about)
