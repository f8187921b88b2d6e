"""`embed`: compute vectors of texts or of one word, write the vectors to a file, and search them."""

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, get_args

import numpy as np
import torch

from bertkit.common_settings import Pooling
from bertkit.data.features import TextFeatures, build_features
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
    PoolStates,
    average_ranges,
    fingerprint_weights,
    parse_layers,
    select_pooled_tokens,
)
from bertkit.modeling.loading import (
    find_model,
    get_max_positions,
    get_num_positions,
    load_config,
    load_tokenizer,
    require_embeddings,
)
from bertkit.modeling.sentence_modules import (
    SentenceModules,
    lowers_case,
    read_default_prompt,
    read_max_length,
    read_sentence_modules,
)
from bertkit.pipeline.ensemble import refuse_ensemble
from bertkit.pipeline.load_check import report_length_errors, warn_about_padding
from bertkit.pipeline.prepare import UNK_WARNING_FRACTION
from bertkit.setting import fill_unset
from bertkit.utils import devices
from bertkit.utils.output_paths import check_output_file
from bertkit.utils.paths import expand_home
from bertkit.utils.reporting import Reporter, silence_libraries, use_reporter
from bertkit.validation import validate_settings

INDEX_SETTINGS = ("layer", "pooling", "max_length")  # their defaults for a query come from the index
POOLINGS = get_args(Pooling)  # those of --pooling
MAX_COMPARED_OCCURRENCES = 100  # first occurrences of a word that are compared


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


def embed(
    settings: Mapping[str, Any], reporter: Reporter | None = None, stdin: BinaryIO | None = None
) -> EmbedResult:
    """Embed texts, write their vectors, and search them.

    Args:
        settings: Settings of `EmbedConfig`.
        reporter: Receives progress and notes.
        stdin: Standard input; read if the settings name no texts.

    Raises:
        UserError: The caller can fix the problem; no file was written.
    """
    values = validate_settings(EmbedConfig, settings, "embed()")
    if not values.get("model"):
        raise UserError(
            "embed(): model is missing; pass a known name (minilm), a path, a run, or a Hub model"
        )
    config = EmbedConfig(**values)
    _check_settings(config)
    reporter = reporter or Reporter()
    devices.request_device(config.device)
    with silence_libraries(), use_reporter(reporter):
        index = read_index(expand_home(config.index)) if config.index else None
        return Embedder(config, index, reporter).run(stdin)


def _check_settings(config: EmbedConfig) -> None:
    """Raise `UserError` for contradictory settings or an unusable output file."""
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


class Embedder:
    """A model with resolved settings, whose weights are loaded at first use.

    The index, if there is one, provides the defaults of `INDEX_SETTINGS`.

    Raises:
        UserError: The model or layer does not exist, `max_length` exceeds the model's positions, or the index
            was written with another model.
    """

    def __init__(self, config: EmbedConfig, index: VectorIndex | None, reporter: Reporter) -> None:
        self.index, self.reporter = index, reporter
        refuse_ensemble(expand_home(config.model))
        self.source = find_model(config.model, "MODEL")
        if index is not None:
            self._check_index_model(index.provenance, str(config.index))
            config = fill_unset(config, {name: getattr(index.provenance, name) for name in INDEX_SETTINGS})
        self.config = config
        self.model_config = load_config(self.source)
        if getattr(self.model_config, "is_encoder_decoder", False):
            raise UserError(f"MODEL {self.source.name}: has a decoder; use an encoder-only model")
        self.layers = parse_layers(config.layer or "-1", self.model_config, self.source.name)
        self.tokenizer = load_tokenizer(self.source)
        require_embeddings(self.source, self.model_config, self.tokenizer)
        self.modules = self._choose_modules()
        self.normalize = self.modules.normalize if config.normalize is None else config.normalize
        self.max_length = self._resolve_max_length()
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
            self.reporter.warn(
                f"--layer {self.config.layer}: {name} applies {layers} to its last layer only, so the "
                "vectors are those before it; omit --layer to apply it"
            )
            modules = dataclasses.replace(modules, linear_layers=())
        self.reporter.info(f"pooling: {modules.name}, with which {name} was trained")
        if prompt := read_default_prompt(self.source):
            self.reporter.warn(
                f"{name}: was trained with {prompt!r} before each text, which bertkit does not add; add it "
                "to the texts"
            )
        if lowers_case(self.source) and self.tokenizer.tokenize("A") != self.tokenizer.tokenize("a"):
            self.reporter.warn(
                f"{name}: was trained with lower-cased texts, but its tokenizer does not lower-case; pass "
                "texts in lower case"
            )
        return modules

    def _resolve_max_length(self) -> int:
        max_positions = get_max_positions(self.model_config) or sys.maxsize
        max_length = self.config.max_length
        if max_length is not None and max_length > max_positions:
            raise UserError(
                f"--max-length {max_length}: exceeds the {max_positions} positions of {self.source.name}; "
                "use a smaller value"
            )
        if max_length is not None:
            return max_length
        limits = [get_num_positions(self.model_config), read_max_length(self.source)]
        return min(sys.maxsize, self.tokenizer.model_max_length, *filter(None, limits))

    def run(self, stdin: BinaryIO | None) -> EmbedResult:
        """Search the index, or embed texts and search their vectors."""
        if self.index:
            self._check_index_settings(self.index.provenance)
            get_text = self.index.texts.__getitem__ if self.index.texts else None
            hits = self._search(self.index.vectors, get_text)
            return self._build_result(self.index.vectors, hits)
        texts = load_texts(self.config, stdin, self.reporter)
        if self.config.word:
            return self._embed_word(self.config.word, texts)
        columns = tuple(get_output_column(name) for name in texts.columns)
        features, pool = self._featurize_texts(texts)
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
        devices.report_device(self.reporter)
        encoder = Encoder(
            self.source, self.model_config, self.tokenizer.pad_token_id, self.layers, self.normalize
        )
        if self.config.batch_size > 1:
            warn_about_padding(encoder.model, self.tokenizer, self.max_length, self.reporter)
        return encoder

    def _featurize(self, texts: Sequence[Sequence[str]]) -> TextFeatures:
        features = build_features(texts, None, self.tokenizer, self.max_length, cache=bool(self.config.data))
        if features.unk_fraction > UNK_WARNING_FRACTION:
            self.reporter.warn(
                f"{features.unk_fraction:.0%} of the tokens of these texts are [UNK] for {self.source.name}"
            )
        return features

    def _featurize_texts(self, texts: TextInputs) -> tuple[TextFeatures, PoolStates]:
        """Return the features of texts, and how their hidden states become vectors."""
        features = self._featurize([texts.rows[column] for column in texts.columns])
        truncation = TruncationCounter()
        truncation.add(features)
        truncation.report(self.max_length, self.reporter)
        lengths = features.sequence_lengths
        if self.modules.name in POOLINGS:
            spans = select_pooled_tokens(self.modules.name, lengths, self.model_config)
            return features, average_ranges(spans)

        def pool(states: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
            return self.modules.compute(states, torch.from_numpy(lengths[rows]).to(states.device))

        return features, pool

    @property
    def _dimension(self) -> int:
        """Size of a vector of a text."""
        return self.modules.get_dimension(self.encoder.dimension)

    def _compute_vectors(
        self, features: TextFeatures, pool: PoolStates, rows: Rows, columns: tuple[str, ...]
    ) -> np.ndarray:
        """Compute vectors `[n, dimensions]` in the output file, or in memory if there is no output file."""
        shape = (len(features), self._dimension)
        batch_size = self.config.batch_size
        started = time.perf_counter()
        if self.config.output is None:
            vectors = np.empty(shape, np.float32)
            with report_length_errors(self.encoder.model, features):
                self.encoder.encode_into(vectors, features, pool, batch_size, self.reporter)
        else:
            path = expand_home(self.config.output)
            with (
                report_length_errors(self.encoder.model, features),
                open_vector_file(path, shape, rows, self._build_provenance(columns)) as vectors,
            ):
                self.encoder.encode_into(vectors, features, pool, batch_size, self.reporter)
        seconds = time.perf_counter() - started
        self.throughput = {"seconds": round(seconds, 3), "rows_per_second": round(len(features) / seconds, 1)}
        return vectors

    def _build_provenance(self, columns: tuple[str, ...] = ()) -> VectorProvenance:
        return VectorProvenance(
            self.source.name, fingerprint_weights(self.source), self.layer_name,
            "word" if self.config.word else self.modules.name, self.max_length, self.config.word, columns,
        )  # fmt: skip

    # ---- search

    def _check_index_model(self, provenance: VectorProvenance, path: str) -> None:
        """Raise `UserError` for an index of another model or of one word."""
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

    def _check_index_settings(self, provenance: VectorProvenance) -> None:
        """Raise `UserError` if a setting of the query differs from the index."""
        for name, value in {"layer": self.layer_name, "pooling": self.modules.name}.items():
            index_value = getattr(provenance, name)
            if index_value != value:
                raise UserError(
                    f"--{name} {value}: --index {self.config.index} was created with {index_value}; "
                    f"remove --{name}"
                )

    def _search(self, vectors: np.ndarray, get_text: Callable[[int], str] | None) -> list[dict[str, Any]]:
        """Return the nearest rows of each query, with their texts if there are texts."""
        queries = list(self.config.query)
        if not queries:
            return []
        query_rows = Rows.from_columns({"text": queries}, "--query")
        features, pool = self._featurize_texts(TextInputs(query_rows, ["text"]))
        query_vectors = np.empty((len(queries), self._dimension), np.float32)
        with report_length_errors(self.encoder.model, features):
            self.encoder.encode_into(query_vectors, features, pool, self.config.batch_size, Reporter())
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
            self.reporter.info(
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
            self.reporter.info(f"rows without {word!r}: {format_list(rows_without_word)}")
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
