"""One call of `embed`: the model, the texts, and what becomes of their vectors."""

import sys
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bertkit.config import fill
from bertkit.data.features import StoredFeatures, build_features
from bertkit.data.rows import Rows
from bertkit.data.sequences import Template
from bertkit.errors import UserError, counted, listed
from bertkit.infer.embed import EmbedConfig, Embedded
from bertkit.infer.inputs import Cut, Texts, find_texts
from bertkit.infer.similar import find_word, nearest_rows, similarities
from bertkit.infer.vector_files import Origin, kept_as, written
from bertkit.infer.vector_index import Index
from bertkit.modeling.encoder import CONCAT, Encoder, layers_named, trained_pooling, weights_fingerprint
from bertkit.modeling.loading import find_model, load_config, load_tokenizer, usable_positions
from bertkit.modeling.reading import is_causal
from bertkit.prepare import MANY_UNKNOWN
from bertkit.reporter import Reporter

OF_INDEX = ("layer", "pooling", "max_length")  # what a query has from it, unless it is said
COMPARED = 100  # occurrences of a word at most


class Embedding:
    """A model and its settings as resolved, those left open by an index; weights are read when needed.

    Raises:
        UserError: no such model or layer, a length that it cannot read, or an index of other vectors.
    """

    def __init__(self, config: EmbedConfig, index: Index | None, reporter: Reporter) -> None:
        self.index, self.reporter = index, reporter
        self.source = find_model(config.model, "MODEL")
        if index is not None:
            self._check_model(index.origin, str(config.index))
            config = fill(config, {key: getattr(index.origin, key) for key in OF_INDEX})
        self.config = config
        self.model_config = load_config(self.source)
        if getattr(self.model_config, "is_encoder_decoder", False):
            raise UserError(f"MODEL {self.source.name}: is no encoder alone, but one with a decoder")
        self.layers = layers_named(config.layer or "-1", self.model_config, self.source.name)
        self.tokenizer = load_tokenizer(self.source)
        self.pooling = config.pooling or self._usual_pooling()
        self.max_length = self._longest()

    def _usual_pooling(self) -> str:
        trained = trained_pooling(self.source)
        if trained in ("cls", "mean"):
            if not self.config.word:
                self.reporter.say(f"pooling: {trained}, what {self.source.name} was trained with")
            return trained
        if trained:
            self.reporter.warn(
                f"{self.source.name} was trained with {trained} pooling, which is not to be had"
            )
        return "cls"

    def _longest(self) -> int:
        limit = usable_positions(self.model_config) or sys.maxsize
        wanted = self.config.max_length
        if wanted is not None and wanted > limit:
            raise UserError(f"--max-length {wanted}: {self.source.name} has {limit} positions")
        return wanted or min(self.tokenizer.model_max_length, limit)

    def run(self, piped: BinaryIO | None) -> Embedded:
        """Do what the settings say, with an index or with the texts they name."""
        if index := self.index:
            self._check_settings(index.origin)
            return self._embedded(index.vectors, self._hits(index.vectors, index.texts))
        texts = find_texts(self.config, piped, self.reporter)
        if self.config.word:
            return self._word(self.config.word, texts)
        columns = tuple(kept_as(name) for name in texts.columns)
        vectors = self._vectors(*self._whole(texts), texts.rows, columns)
        return self._embedded(vectors, self._hits(vectors, texts.shown))

    def _embedded(
        self, vectors: np.ndarray, results: list[dict[str, Any]], word: dict[str, Any] | None = None
    ) -> Embedded:
        figures = {
            "rows": len(vectors), "dimensions": vectors.shape[1], "dtype": "float32",
            "model": self.source.name, "layer": self.layer, "pooling": "word" if word else self.pooling,
            "max_length": self.max_length, "normalized": self.config.normalize,
        }  # fmt: skip
        output = Path(self.config.output).expanduser() if self.config.output else None
        return Embedded(vectors, figures | self.speed, results, word, output)

    # ---- vectors

    speed: dict[str, float] = {}

    @property
    def layer(self) -> str:
        """By one name: -1 and 6 are the same layer of six."""
        return CONCAT if self.config.layer == CONCAT else str(self.layers[0])

    @cached_property
    def encoder(self) -> Encoder:
        """With its weights."""
        return Encoder(self.source, self.model_config, self.tokenizer, self.layers, self.config.normalize)

    def _features(self, texts: Sequence[Sequence[str]]) -> StoredFeatures:
        features = build_features(texts, None, self.tokenizer, self.max_length, cache=bool(self.config.data))
        if features.unknown > MANY_UNKNOWN:
            self.reporter.warn(
                f"{self.source.name} does not know {features.unknown:.0%} of the pieces of these texts"
            )
        return features

    def _whole(self, texts: Texts) -> tuple[StoredFeatures, np.ndarray]:
        """Features of whole texts, and the places [n, 2] that each vector is the mean of."""
        features = self._features([texts.rows[column] for column in texts.columns])
        cut = Cut()
        cut.add(features)
        cut.tell(self.max_length, self.reporter)
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
        shape, fill = (len(features), self.encoder.width), self.encoder.fill
        started, size = time.perf_counter(), self.config.batch_size
        if self.config.output is None:
            vectors = np.empty(shape, np.float32)
            fill(vectors, features, places, size, self.reporter)
        else:
            with written(
                Path(self.config.output).expanduser(), shape, rows, self._origin(columns)
            ) as vectors:
                fill(vectors, features, places, size, self.reporter)
        seconds = time.perf_counter() - started
        self.speed = {"seconds": round(seconds, 3), "rows_per_second": round(shape[0] / seconds, 1)}
        return vectors

    def _origin(self, columns: tuple[str, ...] = ()) -> Origin:
        return Origin(
            self.source.name, weights_fingerprint(self.source), self.layer,
            "word" if self.config.word else self.pooling, self.max_length, self.config.word, columns,
        )  # fmt: skip

    # ---- search

    def _check_model(self, theirs: Origin, name: str) -> None:
        """Refuse vectors of another model, or of one word."""
        if theirs.word is not None:
            raise UserError(f"--index {name}: holds vectors of the word {theirs.word!r}, not of texts")
        if theirs.weights != weights_fingerprint(self.source):
            made = "other weights of that name" if theirs.model == self.source.name else theirs.model
            raise UserError(
                f"--index {name}: made with {made}, MODEL is {self.source.name}; name what it was made with"
            )

    def _check_settings(self, theirs: Origin) -> None:
        """Refuse a query whose vector would be another kind than those of the index."""
        for flag, ours in {"layer": self.layer, "pooling": self.pooling}.items():
            if (was := getattr(theirs, flag)) != ours:
                raise UserError(
                    f"--{flag} {ours}: --index {self.config.index} was made with {was}; leave out --{flag}"
                )

    def _hits(self, vectors: np.ndarray, texts: list[str] | None) -> list[dict[str, Any]]:
        queries = list(self.config.query)
        if not queries:
            return []
        features, places = self._whole(Texts(Rows.of({"text": queries}, "--query"), ["text"]))
        found = np.empty((len(queries), self.encoder.width), np.float32)
        self.encoder.fill(found, features, places, self.config.batch_size, Reporter())
        return [
            {"query": query, "hits": nearest_rows(vector, vectors, self.config.top, texts)}
            for query, vector in zip(queries, found, strict=True)
        ]

    # ---- a word

    def _word(self, word: str, texts: Texts) -> Embedded:
        """The vector of each occurrence of a word: the mean of the pieces that share a character with it."""
        column = texts.rows[texts.columns[0]]
        found = find_word(word, column, self.tokenizer)
        template = Template.of(self.tokenizer, pair=False)
        fits = found.pieces[:, 1] <= self.max_length - template.special
        if not fits.all():
            self.reporter.say(f"{(~fits).sum():,} of its occurrences stand behind piece {self.max_length}")
        found = found.select(np.flatnonzero(fits))
        without = np.setdiff1d(np.arange(len(column)), found.row)
        if not len(found):
            there = counted(len(column), "text")
            raise UserError(f"--word {word}: does not stand in {there}; give texts with it")
        if len(without):
            self.reporter.say(f"without {word!r}: row {listed(without)}")
        places = {"row": found.row.tolist(), "start": found.start.tolist(), "stop": found.stop.tolist()}
        rows = Rows.of({**places, "text": [column[row] for row in found.row]}, "--word")
        features = self._features([rows["text"]])
        vectors = self._vectors(features, found.pieces + template.before(~0), rows, ("text",))
        some = range(min(len(found), COMPARED))
        static = np.stack([self.encoder.static(found.ids[number]) for number in some])
        about = {
            "word": word, "occurrences": list(rows), "without": without.tolist(),
            "similarities": similarities(vectors[: len(some)]), "static": similarities(static),
        }  # fmt: skip
        return self._embedded(vectors, [], about)
