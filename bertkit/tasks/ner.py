"""`ner`: a tag for each word, scored by entities."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertkit.config import DATA, MODEL, RunConfig, setting
from bertkit.errors import UserError, format_list
from bertkit.tasks.base import InputSchema, Pipeline, Scores, Task, TaskSpec
from bertkit.tasks.evaluation import Outputs
from bertkit.tasks.ner_predictions import NerEvaluation, score_baselines

if TYPE_CHECKING:
    from bertkit.data.features import Features
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.ner.schemes import Scheme
    from bertkit.data.ner.tags import TagSet
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.split import SplitKeys
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss
    from bertkit.utils.reporting import Reporter

FROZEN_DEFAULTS = {"learning_rate": 1e-3, "epochs": 10.0}  # a new head on frozen vectors starts from scratch
FeatureLayers = Literal["last", "second-to-last", "sum-last-4", "concat-last-4", "sum-all", "embeddings"]


@dataclass(frozen=True, kw_only=True)
class NerConfig(RunConfig):
    """The settings of `ner` beside the shared ones."""

    token_column: str | None = setting(
        None, "Column of the words, or of the text: its name, or its number from 0.", DATA,
        default_text="guessed",
    )  # fmt: skip
    tag_column: str | None = setting(
        None, "Column of the tags, or of the spans in the text: its name or number.", DATA,
        default_text="guessed",
    )  # fmt: skip
    context: Literal["sentence", "document"] = setting(
        "sentence",
        "Context of a sentence: nothing, or as much of its document as --max-length leaves room for.",
        MODEL,
    )
    features: FeatureLayers | None = setting(
        None,
        "Freeze the encoder and train a head on these layers; their vectors are computed once.",
        MODEL,
        default_text="none: the encoder is fine-tuned",
    )


class Ner(Task):
    """Word tagging by the first token of each word, with the best legal sequence of tags.

    See Devlin et al. 2018, 5.3. Internally, tags are IOB2 whatever the data's scheme, and entities are
    what conlleval finds. Predictions are written in the scheme of the data.

    Attributes:
        scheme: the tagging scheme of the training rows; set by `parse_dataset` or `load_state`.
        types: the entity types; set by `parse_dataset` or `load_state`.
        tags: the tags in the order of the model's outputs; set by `configure_model` or `load_state`.
        outside_fraction: the fraction of the training words outside of entities.
    """

    spec = TaskSpec(
        name="ner",
        help="Fine-tune on named entities, or any tags of words.",
        config=NerConfig,
        pipeline=Pipeline(task="token-classification", init_kwargs={"aggregation_strategy": "first"}),
        best_metric=("f1", 1),
        reads_word_lines=True,
        uses_windows=True,
    )
    scheme: "Scheme"
    types: list[str]
    tags: "TagSet"
    outside_fraction: float

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        if self.config.features is not None:
            self.spec = dataclasses.replace(self.spec, default_hyperparameters=FROZEN_DEFAULTS)
        if self._is_tagger:
            pipeline = dataclasses.replace(self.spec.pipeline, caveat="has no equivalent")
            self.spec = dataclasses.replace(self.spec, pipeline=pipeline)

    @property
    def _is_tagger(self) -> bool:
        """Whether the model is bertkit's own: on several layers, or with a BiLSTM."""
        return self.config.features is not None or self.config.head == "bilstm"

    @property
    def inputs(self) -> InputSchema:
        """Words or a text, and tags; with `--context document` also the document."""
        from bertkit.data.ner.documents import DOCUMENT_COLUMNS

        return InputSchema(
            text_columns=("tokens",),
            gold_columns=frozenset([self.config.tag_column]),
            dropped_columns=frozenset(["tokens", "text", "tags", "iob2", "context"]),
            flags={"text": self.config.token_column},
            group_columns=tuple(DOCUMENT_COLUMNS) if self.config.context == "document" else (),
        )

    # ---- rows

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Convert words and tags to one form, infer the scheme of the tags, and note illegal tags."""
        from bertkit.data.ner import rows as ner_rows
        from bertkit.data.ner.rows import resolve_columns

        train = dataset.splits["train"]
        columns = resolve_columns(train, self.config.token_column, self.config.tag_column)
        self.config = dataclasses.replace(self.config, token_column=columns[0], tag_column=columns[1])
        rows, scheme, notes = ner_rows.parse_split(train, "train", columns, None)
        if scheme is None:
            raise UserError(f"{train.files[0]}: no tags in column {columns[1]!r} to learn from")
        parsed, notes = {"train": rows}, [*dataset.notes, *notes]
        for name in dataset.splits:
            if name != "train":  # parsed after the training split, whose scheme they need
                parsed[name], _, split_notes = ner_rows.parse_split(
                    dataset.splits[name], name, columns, scheme
                )
                notes += split_notes
        splits = {name: self._add_context(parsed[name]) for name in dataset.splits}
        self.scheme, self.types = scheme, ner_rows.collect_types(splits["train"], columns[1])
        tags = [tag for sentence in splits["train"]["iob2"] for tag in sentence]
        self.outside_fraction = tags.count("O") / len(tags)
        return dataclasses.replace(dataset, splits=splits, notes=notes)

    def _add_context(self, rows: "Rows") -> "Rows":
        """Add each sentence's position in its document if the model reads documents."""
        from bertkit.data.ner.documents import add_document_positions

        return add_document_positions(rows) if self.config.context == "document" else rows

    def parse_rows(
        self, rows: "Rows", split: str = "", require_labels: bool = False
    ) -> tuple["Rows", list[str]]:
        """Convert words, and if labels are required tags, to one form."""
        from bertkit.data.ner import rows as ner_rows
        from bertkit.data.ner.documents import find_document_column
        from bertkit.data.ner.rows import match_split_columns

        columns = (self.config.token_column, self.config.tag_column)
        if require_labels:
            rows, scheme, notes = ner_rows.parse_split(rows, split, columns, self.scheme)
            if scheme is None:
                raise UserError(f"{rows.files[0]}: no tags in column {columns[1]!r} to score against")
            ner_rows.check_types(rows, self.types)
            return self._add_context(rows), notes
        if ner_rows.is_normalized(rows):
            return rows, []
        column, _ = match_split_columns(rows, columns)
        rows = ner_rows.normalize_sentences(rows, column, None)
        return (self._add_context(rows) if find_document_column(rows) else rows), []

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """Identify a sentence by its words, and stratify by whether it has an entity."""
        from bertkit.data.split import SplitKeys

        words = [tuple(sentence) for sentence in rows["tokens"]]
        tags = rows.columns.get("iob2", [()] * len(rows))
        return SplitKeys(words, words, [any(tag != "O" for tag in sentence) for sentence in tags])

    def validate_splits(self, splits: "Splits") -> None:
        """Check that the validation split has tags, and that all types occur in training."""
        from bertkit.data.ner.rows import check_types

        for name, rows in splits.items():
            if "iob2" in rows.columns:
                check_types(rows, self.types)
            elif name == "validation":
                raise UserError(
                    f"{rows.files[0]}: no tags in column {self.config.tag_column!r} to score against"
                )

    # ---- model

    def describe(self) -> str:
        """Name the columns, the scheme and the types, and how many words are outside of entities."""
        columns = [self.config.token_column, self.config.tag_column]
        words, tags = (f"column {name}" if name.isdecimal() else name for name in columns)
        return (
            f"{words} tagged by {tags} in {self.scheme}, types {format_list(self.types)}; "
            f"{self.outside_fraction:.1%} of the training words are O"
        )

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Keep the model's own order of tags if its tags are the same; refuse other tags."""
        from bertkit.data.ner.tags import TagSet, build_iob2_labels
        from bertkit.modeling.heads import TAGGER_HEAD, TOKEN_HEAD, match_labels, set_labels
        from bertkit.modeling.tagger import select_layers

        self._check_frozen()
        select_layers(model_config, self.config.features)  # raises if the model has too few layers
        labels, head = build_iob2_labels(self.types), TAGGER_HEAD if self._is_tagger else TOKEN_HEAD
        if not self.config.new_head:
            self.has_new_head, labels = match_labels(model_config, labels, source.name, head)
        self.tags = TagSet(labels)
        model_config.tag_scheme = dataclasses.asdict(self.scheme)
        return set_labels(model_config, labels)

    def _check_frozen(self) -> None:
        """Refuse settings of layers that `--features` freezes."""
        for flag, value in (("--freeze", self.config.freeze), ("--layer-decay", self.config.layer_decay)):
            if self.config.features and value:
                raise UserError(f"{flag} {value}: --features freezes the whole encoder; omit one of the two")

    def load_state(self, model_config: Any) -> None:
        """Restore the tags in the order of the model's outputs, and the scheme."""
        from bertkit.data.ner.schemes import Scheme
        from bertkit.data.ner.tags import TagSet

        self.tags = TagSet([model_config.id2label[index] for index in range(model_config.num_labels)])
        self.scheme, self.types = Scheme(**model_config.tag_scheme), self.tags.types
        self.has_new_head = False

    def featurize(self, rows: "Rows", tokenizer: Any, training: bool = False) -> "Features":
        """Split sentences into windows; each word is decided in one of them."""
        from bertkit.data.ner.features import build_word_features

        return build_word_features(
            rows["tokens"], rows["text"], self.tags.encode(rows["iob2"]) if "iob2" in rows.columns else None,
            tokenizer, self.config.max_length, rows["context"] if self.config.context == "document" else None,
            cache=self.use_cache,
        )  # fmt: skip

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Load `AutoModelForTokenClassification`, or a `Tagger` on some layers or with a BiLSTM."""
        from transformers import AutoModelForTokenClassification

        from bertkit.modeling.loading import load_model
        from bertkit.modeling.tagger import load_tagger

        if self._is_tagger:
            return load_tagger(
                source, model_config, self.config.features, self.config.head, self.has_new_head
            )
        return load_model(AutoModelForTokenClassification, source, model_config, self.has_new_head)

    def precompute_features(
        self, model: Any, features: Any, collator: Any, reporter: "Reporter"
    ) -> "Features":
        """Return features that hold the vectors of a frozen encoder."""
        from bertkit.modeling.frozen_vectors import VectorFeatures, compute_vectors

        if self.config.features is None:
            return features
        batch_size = self.config.eval_batch_size
        return VectorFeatures(features, compute_vectors(model, features, collator, batch_size, reporter))

    def verify_label_order(self, score_sample: Callable[[], Outputs]) -> None:
        """Refuse a head whose entity types are wrong under its label names and right under others."""
        from bertkit.modeling.heads import verify_label_order

        gold, predicted = self.evaluate(score_sample()).compare_entity_types()
        if len(gold):
            names = [*self.types, "O"]
            verify_label_order(gold, predicted, names, str(self.config.model), "words in entities")

    def loss(self, features: "Features") -> "Loss":
        """Return cross-entropy over the words."""
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy()

    # ---- results

    def evaluate(self, outputs: Outputs) -> NerEvaluation:
        """Decode the best legal sequence of tags of each sentence."""
        return NerEvaluation(outputs, self.tags, self.scheme)

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """Score O for every word (`majority`), and each word's most frequent tag (`frequent_tag`)."""
        return score_baselines(train, rows, self.tags)
