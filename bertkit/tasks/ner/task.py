"""`ner`: predict a tag for each word; scores count entities."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from bertkit.data.columns import find_column
from bertkit.data.features import Features
from bertkit.data.sources import LoadedDataset
from bertkit.data.split import SplitKeys
from bertkit.data.table import Rows, Splits, replace_values
from bertkit.errors import UserError, format_list
from bertkit.models.heads import TAGGER_HEAD, TOKEN_HEAD, match_labels, set_labels, verify_label_order
from bertkit.models.loading import ModelSource, load_model
from bertkit.models.losses import CrossEntropy, Loss
from bertkit.settings.declaration import list_settings
from bertkit.stats.baseline_models import predict_frequent_tag
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import (
    InputSchema,
    Outputs,
    Task,
    TaskState,
    TransformersPipeline,
    get_weights,
    remove_fitted_confidence,
)
from bertkit.tasks.ner.checks import find_lost_entities, require_predictable
from bertkit.tasks.ner.config import NER, NerConfig
from bertkit.tasks.ner.features import build_word_features
from bertkit.tasks.ner.predictions import NerEvaluation, count_by_sentence, make_sentence_scorer
from bertkit.tasks.ner.rows import (
    DOCUMENT_COLUMNS,
    SentenceRows,
    add_document_positions,
    check_types,
    collect_types,
    find_passed_column,
    find_types,
    get_document_keys,
    match_split_columns,
    normalize_sentences,
    parse_split,
    resolve_columns,
)
from bertkit.tasks.ner.tags import (
    Scheme,
    TagSet,
    build_iob2_labels,
    compute_sentence_offsets,
    from_iob2,
    to_iob2,
)


class NerState(TaskState):
    """What a run of `ner` finds."""

    best_metric = ("f1", 1)
    scheme: Scheme  # of the training rows
    types: list[str]
    outside_fraction: float  # of the training words; unknown in a finished run
    tags: TagSet  # in the order of the model's outputs; unknown until `configure_model`

    @property
    def labels(self) -> list[str]:
        return self.types


class Ner(Task):
    """Named entity recognition: each word is tagged by its first token (Devlin et al. 2018, 5.3).

    Internally, tags are in IOB2, and each sentence gets the most probable legal sequence of tags.
    Entities are delimited as in conlleval. Predictions are written in the scheme of the data.
    """

    definition = NER
    label_setting = "tag_column"
    state_class = NerState
    state: NerState
    uses_windows = True

    @property
    def pipeline(self) -> TransformersPipeline:
        return TransformersPipeline(
            task="token-classification", init_kwargs={"aggregation_strategy": "first"},
            caveat="cannot load the head of this model" if self._uses_tagger_class else None,
        )  # fmt: skip

    @property
    def _uses_tagger_class(self) -> bool:
        """Whether the model is bertkit's `Tagger`, for `--features` and for BiLSTM heads."""
        return self.config.features is not None or self.config.head == "bilstm"

    @property
    def input_schema(self) -> InputSchema:
        return InputSchema(
            text_columns=("tokens",),
            gold_columns=frozenset([self.config.tag_column]),
            hidden_columns=frozenset(["tokens", "text", "tags", "iob2", "context"]),
            columns_by_flag={"text": self.config.token_column},
            group_columns=tuple(DOCUMENT_COLUMNS) if self.config.context == "document" else (),
            column_kinds={"tokens": "words"},
            label_key="word",
        )

    # ---- rows

    def parse_dataset(self, dataset: LoadedDataset) -> LoadedDataset:
        train = dataset.splits["train"]
        columns = resolve_columns(train, self.config.token_column, self.config.tag_column)
        self.resolve(token_column=columns[0], tag_column=columns[1])
        parsed, notes = dict(dataset.splits), list(dataset.notes)
        scheme: Scheme | None = None
        for name in sorted(parsed, key=lambda name: name != "train"):  # "train" first: it decides the scheme
            parsed[name], split_scheme, split_notes = parse_split(parsed[name], name, columns, scheme)
            scheme = scheme or split_scheme
            if scheme is None:
                raise UserError(f"{train.files[0]}: no tags in column {columns[1]!r} to learn from")
            notes += split_notes
        splits = {name: self._add_context(rows) for name, rows in parsed.items()}
        tag_counts = Counter(chain.from_iterable(splits["train"]["iob2"]))
        self.state = NerState(
            scheme=scheme, types=collect_types(splits["train"], columns[1]),
            outside_fraction=tag_counts["O"] / tag_counts.total(),
        )  # fmt: skip
        return dataclasses.replace(dataset, splits=splits, notes=notes)

    def _add_context(self, rows: Rows) -> Rows:
        """Add the position of each sentence in its document, with `--context document`."""
        return add_document_positions(rows) if self.config.context == "document" else rows

    def parse_rows(self, rows: Rows, split: str = "", require_labels: bool = False) -> tuple[Rows, list[str]]:
        columns = (self.config.token_column, self.config.tag_column)
        if require_labels:
            rows, scheme, notes = parse_split(rows, split, columns, self.state.scheme)
            if scheme is None:
                raise UserError(f"{rows.files[0]}: no tags in column {columns[1]!r} to score against")
            check_types(rows, self.state.types)
            return self._add_context(rows), notes
        if isinstance(rows, SentenceRows):
            return rows, []
        token_column, _ = match_split_columns(rows, columns)
        rows = normalize_sentences(rows, token_column, tag_column=None)
        # Without a document column, each sentence is a document.
        return (self._add_context(rows) if find_column(rows, *DOCUMENT_COLUMNS) else rows), []

    def map_columns(self, rows: Rows, named: Mapping[str, Any]) -> None:
        if not named:
            return
        found = {"tag_column": self.config.tag_column}
        if "token_column" not in named:
            tokens, tags = match_split_columns(rows, (self.config.token_column, self.config.tag_column))
            found = {"token_column": tokens, "tag_column": tags or self.config.tag_column}
        for name, column in named.items():
            found[name] = find_passed_column(rows, column, "--" + name.replace("_", "-"))
        self.resolve(**found)

    def make_split_keys(self, rows: Rows) -> SplitKeys:
        """Return keys that identify a sentence by its words, and stratify by the presence of entities.

        With `--context document`, a document stays in one split: the model reads its other sentences too.
        """
        sentences = rows.hash_columns(["tokens"])
        classes = frozenset(find_types(rows)) if "iob2" in rows.columns else frozenset()
        documents = get_document_keys(rows) if self.config.context == "document" else None
        if documents is not None and len(np.unique(documents)) > 1:
            return SplitKeys(
                sentences, documents, np.zeros(len(rows), int), group_unit="document", classes=classes
            )
        tags = rows.columns.get("iob2", [()] * len(rows))
        has_entity = np.array([any(tag != "O" for tag in sentence_tags) for sentence_tags in tags])
        return SplitKeys(identity=sentences, group=sentences, stratum=has_entity, classes=classes)

    def validate_splits(self, splits: Splits) -> None:
        for name, rows in splits.items():
            if "iob2" in rows.columns:
                check_types(rows, self.state.types)
            elif name == "validation":
                raise UserError(
                    f"{rows.files[0]}: no tags in column {self.config.tag_column!r} to score against"
                )

    def get_labels(self, rows: Rows) -> list[Any]:
        return list(rows["iob2"])

    def replace_labels(self, rows: Rows, labels: Mapping[int, Any]) -> Rows:
        check_types(rows.select(list(labels)).with_column("iob2", list(labels.values())), self.state.types)
        iob2 = to_iob2(list(labels.values()), Scheme())
        tags = from_iob2(iob2, self.state.scheme)
        for name, values in (("iob2", iob2), ("tags", tags)):
            written = replace_values(rows[name], dict(zip(labels, values, strict=True)))
            rows = rows.with_column(name, written)
        return rows

    # ---- model

    def describe(self) -> str:
        columns = [self.config.token_column, self.config.tag_column]
        token_column, tag_column = (f"column {name}" if name.isdecimal() else name for name in columns)
        return (
            f"{token_column} tagged by {tag_column} in {self.state.scheme}, types "
            f"{format_list(self.state.types)}; {self.state.outside_fraction:.1%} of the training words are O"
        )

    def configure_model(self, model_config: Any, source: ModelSource) -> Any:
        from bertkit.models.tagger import select_layers

        defaults = NerConfig()
        for name in list_settings(NerConfig, "encoder") if self.config.features else ():
            value = getattr(self.config, name)
            if value != getattr(defaults, name):
                flag = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
                raise UserError(f"{flag}: --features freezes the whole encoder; omit one of the two")
        select_layers(model_config, self.config.features)  # raises an error if there are too few layers
        labels = build_iob2_labels(self.state.types)
        head = TAGGER_HEAD if self._uses_tagger_class else TOKEN_HEAD
        if not self.config.new_head:
            self.state.has_new_head, labels = match_labels(model_config, labels, source.name, head)
        self.state.tags = TagSet(labels)
        model_config.tag_scheme = dataclasses.asdict(self.state.scheme)
        remove_fitted_confidence(model_config)
        return set_labels(model_config, labels)

    def load_state(self, model_config: Any) -> None:
        super().load_state(model_config)
        tags = TagSet([model_config.id2label[index] for index in range(model_config.num_labels)])
        self.state.tags, self.state.types = tags, tags.types
        self.state.scheme = Scheme(**model_config.tag_scheme)

    def featurize(self, rows: Rows, tokenizer: Any, training: bool = False) -> Features:
        labels = self.state.tags.encode(rows["iob2"]) if "iob2" in rows.columns else None
        context = rows["context"] if self.config.context == "document" else None
        features = build_word_features(
            rows["tokens"], rows["text"], labels, tokenizer, self.config.max_length, context,  # type: ignore[arg-type]
            cache=self.use_cache,
        )  # fmt: skip
        if labels is None:
            return features
        lost = find_lost_entities(rows, features.prediction_index)
        if training:
            require_predictable(lost)
        return dataclasses.replace(features, warnings=lost.describe())

    def build_model(self, model_config: Any, source: ModelSource) -> Any:
        from transformers import AutoModelForTokenClassification

        from bertkit.models.tagger import load_tagger

        if self._uses_tagger_class:
            return load_tagger(
                source, model_config, self.config.features, self.config.head, self.state.has_new_head
            )
        return load_model(AutoModelForTokenClassification, source, model_config, self.state.has_new_head)

    def verify_label_order(self, predict_sample: Callable[[], Outputs]) -> None:
        gold, predicted = self.evaluate(predict_sample()).compare_entity_types()
        if len(gold):
            type_names = [*self.state.types, "O"]
            verify_label_order(gold, predicted, type_names, str(self.config.model), "words in entities")

    def make_loss(self, features: Features) -> Loss:
        return CrossEntropy()

    # ---- results

    def evaluate(self, outputs: Outputs) -> NerEvaluation:
        return NerEvaluation(outputs, self.state.tags, self.state.scheme, self.state.fitted_confidence)

    def fit_baselines(self, train: Rows, rows: Rows) -> dict[str, Scorer]:
        """Return `majority`, and `frequent_tag`, the most frequent tag of the word in training.

        The majority baseline predicts O for every word.
        """
        tags = self.state.tags
        train_tags, gold = tags.encode(train["iob2"]), tags.encode(rows["iob2"])
        train_words, words = (list(chain.from_iterable(part["tokens"])) for part in (train, rows))
        weights = get_weights(self, train)
        if weights is not None:
            weights = np.repeat(weights, np.diff(compute_sentence_offsets(train["tokens"])))
        tag = predict_frequent_tag(train_words, train_tags, words, tags.outside_id, weights)
        predictions = {"majority": np.full(len(gold), tags.outside_id), "frequent_tag": tag}
        offsets = compute_sentence_offsets(rows["tokens"])
        return {
            name: make_sentence_scorer(*count_by_sentence(gold, predicted, offsets, tags))
            for name, predicted in predictions.items()
        }
