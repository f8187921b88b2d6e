"""The base class of tasks that classify a text or a pair of texts: `classify` and `nli`."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from bertkit.config import RunConfig
from bertkit.errors import UserError, format_count, format_list
from bertkit.setting import fill_unset, get_column_settings, get_flag, get_settings
from bertkit.tasks.base import Scores, Task, TransformersPipeline
from bertkit.tasks.confidence import FittedConfidence, remove_fitted_confidence
from bertkit.tasks.evaluation import Outputs
from bertkit.tasks.input_schema import InputSchema
from bertkit.tasks.label_type import LabelType
from bertkit.tasks.label_types import SingleLabel
from bertkit.tasks.sequence_predictions import SequenceEvaluation

if TYPE_CHECKING:
    import numpy as np
    import torch

    from bertkit.data.features import Features, TextFeatures
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.split import SplitKeys
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss

SEQUENCE_PIPELINE = TransformersPipeline(
    task="text-classification", init_kwargs={"top_k": None}, call_kwargs={"truncation": True}
)
THRESHOLDS_KEY = "bertkit_thresholds"  # in config.json: thresholds that `calibrate` fitted, by label
TEXT_FLAGS = ("text", "text_pair")  # flags of `bertkit predict`
MIN_CLASS_LIMIT = 20  # more classes are accepted only with at least two training rows per class


class SequenceTask(Task):
    """A task with one prediction for each text or pair of texts.

    The labels have the order of the model's head if that head is kept. Otherwise they have the order that
    the dataset registry states, or are sorted if it states none.

    Attributes:
        text_settings: Names of the settings for the columns of the first and the second text.
        label_type: Kind of the labels, and their names; set by `parse_dataset` or `load_state`.
    """

    text_settings: ClassVar[tuple[str, str]]
    label_type: LabelType

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        if self.config.long_texts == "windows":
            self.spec = dataclasses.replace(self.spec, uses_windows=True, sequence_grouping="document")
        if self.config.head == "bilstm":
            self._set_caveat("ignores the BiLSTM of this model")
        elif self.config.pooling == "mean":
            self._set_caveat("classifies by [CLS], but this model was trained with `--pooling mean`")

    def _set_caveat(self, caveat: str) -> None:
        """Set why `transformers.pipeline` makes other predictions; see `TransformersPipeline.caveat`."""
        pipeline = dataclasses.replace(self.spec.pipeline, caveat=caveat)
        self.spec = dataclasses.replace(self.spec, pipeline=pipeline)

    @property
    def labels(self) -> list[str]:
        """The labels in the order of the model's outputs; empty for regression."""
        return self.label_type.labels

    @property
    def input_schema(self) -> InputSchema:
        """The columns of one or two texts and of the label."""
        columns = tuple(column for name in self.text_settings if (column := getattr(self.config, name)))
        return InputSchema(
            text_columns=columns,
            gold_columns=frozenset([self.config.label_column]),
            hidden_columns=frozenset([self.config.label_column]),
            columns_by_flag=dict(zip(TEXT_FLAGS, columns, strict=False)),
            label_key=self.label_type.label_key if hasattr(self, "label_type") else None,
        )

    # ---- rows

    def _resolve_columns(self, train: "Rows") -> None:
        """Check that the columns named by the user exist, and guess the other columns."""
        from bertkit.data.columns import guess_label_column, require_column

        for name in (*self.text_settings, "label_column"):
            if column := getattr(self.config, name):
                require_column(train, column, self._get_flag(name))
        self._guess_texts(train)
        if self.config.label_column is None:
            self.config = fill_unset(self.config, {"label_column": guess_label_column(train)})
        self._check_different_columns()

    def _check_different_columns(self) -> None:
        settings: dict[str, str] = {}
        for name, column in get_column_settings(self.config).items():
            if column in settings:
                raise UserError(
                    f"{self._get_flag(name)} {column}: is already the column of "
                    f"{self._get_flag(settings[column])}; name another column"
                )
            if column is not None:
                settings[column] = name

    def _get_flag(self, name: str) -> str:
        """Return the flag of a setting."""
        return get_flag(name, get_settings(type(self.config))[name].metadata)

    @abstractmethod
    def _guess_texts(self, train: "Rows") -> None:
        """Guess the text columns that the user did not name.

        Raises:
            UserError: No column looks like a text.
        """

    def _drop_unlabeled(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Return the dataset without unlabeled rows, and add a note on their number."""
        from bertkit.data.labels import drop_unlabeled_rows

        splits, notes = drop_unlabeled_rows(dataset.splits, self.config.label_column)
        return dataclasses.replace(dataset, splits=splits, notes=[*dataset.notes, *notes])

    def _set_best_metric(self, dataset_metric: str | None) -> None:
        """Select checkpoints by the metric of the dataset, or else by that of the label type."""
        metric = dataset_metric or self.label_type.default_metric
        self.spec = dataclasses.replace(self.spec, best_metric=(metric, 1))

    def _check_class_count(self, train: "Rows", num_classes: int) -> None:
        """Refuse a label column with fewer than two classes, or with too many different values."""
        column = f"{train.files[0]}: column {self.config.label_column!r}"
        if num_classes < 2:
            labels = f"only the class {self.labels[0]!r}" if self.labels else "no labels"
            raise UserError(f"{column} has {labels}; training needs at least two classes")
        max_classes = max(MIN_CLASS_LIMIT, len(train) // 2)
        if isinstance(self.label_type, SingleLabel) and num_classes > max_classes:
            raise UserError(
                f"{column} has {num_classes:,} different labels in {len(train):,} rows; "
                "name the column of the labels with --label-column"
            )

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """Return keys that identify a row by its texts, and stratify rows by label."""
        import numpy as np

        from bertkit.data.split import SplitKeys

        texts = rows.hash_columns(self.input_schema.text_columns)
        has_strata = bool(self.labels) and self.config.label_column in rows.columns
        strata = rows.hash_columns([self.config.label_column]) if has_strata else np.zeros(len(rows), int)
        return SplitKeys(
            texts, texts, strata, classes=self._find_classes(rows) if has_strata else frozenset()
        )

    def _find_classes(self, rows: "Rows") -> frozenset[str]:
        """Return the labels that occur in these rows."""
        _, values = rows.factorize(self.config.label_column)
        cells = {self.label_type.parse_label(value) for value in values} - {None}
        return frozenset(
            str(label) for cell in cells for label in (cell if isinstance(cell, tuple) else [cell])
        )

    def validate_splits(self, splits: "Splits") -> None:
        """Check that texts are strings and that labels are known."""
        import numpy as np

        from bertkit.data.columns import require_column

        for name, rows in splits.items():
            self._check_texts(rows)
            is_required = name in ("train", "validation")
            if is_required:
                require_column(rows, self.config.label_column, f"the {name} split needs it")
            targets = self.encode_labels(rows, required=is_required)
            if name == "train" and targets is not None and len(np.unique(targets, axis=0)) < 2:
                size = format_count(len(rows), "row")
                raise UserError(f"only one label in the {size} to train on; use more rows")

    def parse_rows(
        self, rows: "Rows", split: str = "", require_labels: bool = False
    ) -> tuple["Rows", list[str]]:
        """Return the rows with labels as names.

        If labels are required, unlabeled rows are left out. Otherwise only the texts are checked.
        """
        from bertkit.data.columns import require_column
        from bertkit.data.labels import drop_unlabeled_rows

        if not require_labels:
            self._check_texts(rows)
            return rows, []
        column = self.config.label_column
        require_column(rows, column, "the label")
        labeled, notes = drop_unlabeled_rows({"train": rows}, column)
        self._check_texts(labeled["train"])
        parsed = self._map_label_ids(labeled["train"])
        self.encode_labels(parsed, required=True)
        return parsed, [note.replace("train", split) for note in notes]

    def _check_texts(self, rows: "Rows") -> None:
        """Check that the text columns exist and hold strings."""
        from bertkit.data.columns import require_column, require_texts

        columns = list(self.input_schema.text_columns)
        for column, role in zip(columns, ("the text", "the second text"), strict=False):
            require_column(rows, column, role)
        require_texts(rows, columns)

    def _map_label_ids(self, rows: "Rows") -> "Rows":
        """Return the rows with label ids replaced by label names; `Nli` overrides this."""
        return rows

    def map_columns(self, rows: "Rows", named: Mapping[str, Any]) -> None:
        """Guess the columns of texts and label if these rows lack the columns of training.

        If the text columns cannot be guessed, the settings keep the columns of training. A later error then
        names the columns of training.
        """
        from bertkit.data.columns import guess_label_column

        training_config, columns = self.config, self.input_schema.text_columns
        if not set(columns) <= set(rows.columns):
            with suppress(UserError):
                self.config = dataclasses.replace(training_config, **dict.fromkeys(self.text_settings))
                self._guess_texts(rows)
            guessed = self.input_schema.text_columns
            if len(guessed) != len(columns) or not set(guessed) <= set(rows.columns):
                self.config = training_config
        with suppress(UserError):
            if training_config.label_column not in rows.columns:
                self.config = dataclasses.replace(self.config, label_column=guess_label_column(rows))
        super().map_columns(rows, named)
        if named:
            self._check_different_columns()

    def encode_labels(self, rows: "Rows", required: bool = False) -> "np.ndarray | None":
        """Return the labels as numbers, [rows] or [rows, labels]; None if the rows have no labels.

        Args:
            rows: Parsed rows.
            required: Whether rows without labels are an error.

        Raises:
            UserError: A label is missing or unknown.
        """
        from bertkit.data.labels import has_labels

        column = self.config.label_column
        if not required and not has_labels(rows, column):
            return None
        return self.label_type.encode_labels(rows, column)

    def get_labels(self, rows: "Rows") -> list[Any]:
        """Return names of labels, lists of names, or numbers."""
        encoded = self.encode_labels(rows, required=True)
        assert encoded is not None
        return [self.label_type.decode_label(label) for label in encoded]

    def replace_labels(self, rows: "Rows", labels: Mapping[int, Any]) -> "Rows":
        """Return the rows with other labels, written like those of the label column."""
        from bertkit.data.column_types import replace_values

        column = self.config.label_column
        cells = self.label_type.format_cells(list(labels.values()), rows.factorize(column)[1])
        return rows.with_column(column, replace_values(rows[column], dict(zip(labels, cells, strict=True))))

    # ---- model

    def describe(self) -> str:
        """Return the names of the columns and the classes."""
        classes = f", classes {format_list(self.labels)}" if self.labels else ""
        return f"{' + '.join(self.input_schema.text_columns)} by {self.config.label_column}{classes}"

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Keep the head and the label order of a model that was trained on the same labels.

        Raises:
            UserError: The model was trained on other labels.
        """
        from bertkit.modeling.heads import match_labels, set_labels
        from bertkit.modeling.pooling import is_causal

        if is_causal(model_config) and self.spec.pipeline.caveat is None:
            self._set_caveat(
                "classifies by [CLS], which in this left-to-right model does not depend on the text"
            )
        if not self.config.new_head and self._has_matching_head(model_config):
            self.has_new_head, self.label_type.labels = match_labels(
                model_config, self.labels, source.name, self._head_kind
            )
        vars(model_config).pop(THRESHOLDS_KEY, None)  # fitted for the model that this run starts from
        remove_fitted_confidence(model_config)
        model_config.problem_type = self.label_type.problem_type
        return set_labels(model_config, self.labels or ["score"])

    def _has_matching_head(self, model_config: Any) -> bool:
        """Return whether the head of a checkpoint has the type and the pooling of this task."""
        from bertkit.modeling.heads import has_head_type

        return has_head_type(model_config, self.config.head, self.config.pooling)

    @property
    def _head_kind(self) -> str:
        """The kind of head that training can start from; see `bertkit.modeling.heads.has_head`."""
        from bertkit.modeling.heads import SEQUENCE_HEAD

        return SEQUENCE_HEAD

    def load_state(self, model_config: Any) -> None:
        """Restore the labels in the order of the model's outputs, and their thresholds."""
        self.label_type = self._load_label_type(model_config)
        self.label_type.thresholds = getattr(model_config, THRESHOLDS_KEY, None) or {}
        self.has_new_head = False
        self.fitted_confidence = FittedConfidence.load(model_config)

    @abstractmethod
    def _load_label_type(self, model_config: Any) -> LabelType:
        """Return the kind of the labels, and their names, from the model config of a finished run."""

    def featurize(self, rows: "Rows", tokenizer: Any, training: bool = False) -> "TextFeatures":
        """Tokenize the texts, and shorten or split long texts according to `--long-texts`."""
        from bertkit.data.features import build_features

        labels = self.encode_labels(rows)
        features = build_features(
            [rows[column] for column in self.input_schema.text_columns], labels, tokenizer,
            self.config.max_length, self.config.long_texts, cache=self.use_cache,
        )  # fmt: skip
        if not training or labels is None:
            return features
        self.label_type.observe_training_labels(labels)
        is_weighted = self.config.class_weights is not None
        warnings = self.label_type.describe_class_weights(labels) if is_weighted else []
        return dataclasses.replace(features, warnings=warnings)

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Return an `AutoModelForSequenceClassification`, possibly with another pooling or a BiLSTM."""
        from transformers import AutoModelForSequenceClassification

        from bertkit.modeling.pooling import load_with_pooling

        model = load_with_pooling(
            AutoModelForSequenceClassification, source, model_config, self.has_new_head, self.config.head,
            self.config.pooling,
        )  # fmt: skip
        if self.has_new_head:
            self.label_type.initialize_head(model)
        return model

    def combine_logits(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Average probabilities or numbers, by the kind of the labels."""
        from bertkit.modeling.ensemble import AVERAGES_BY_PROBLEM, average_probabilities

        return AVERAGES_BY_PROBLEM.get(self.label_type.problem_type, average_probabilities)(logits)

    def verify_label_order(self, predict_sample: Callable[[], Outputs]) -> None:
        """Refuse a head whose labels are evidently in the wrong order; only for single labels."""
        from bertkit.modeling.heads import verify_label_order

        if isinstance(self.label_type, SingleLabel):
            evaluation = self.evaluate(predict_sample())
            verify_label_order(evaluation.gold, evaluation.predicted, self.labels, str(self.config.model))

    def make_loss(self, features: "Features") -> "Loss":
        """Return the loss for the kind of the labels."""
        assert features.labels is not None
        balanced = self.config.class_weights == "balanced"
        return self.label_type.make_loss(features.labels, balanced, self.config.label_smoothing)

    # ---- results

    def evaluate(self, outputs: Outputs) -> SequenceEvaluation:
        """Return the predicted labels."""
        return SequenceEvaluation(outputs, self.label_type, self.fitted_confidence)

    def score_baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """Score two baselines: `majority`, and `tfidf` (or `hypothesis_only` for `nli`)."""
        from bertkit.tasks.sequence_baselines import score_text_baselines

        return score_text_baselines(self, train, rows)

    def get_tfidf_baseline(self) -> tuple[str, list[str]]:
        """Return the name of the TF-IDF baseline, and the text columns that it reads."""
        return "tfidf", list(self.input_schema.text_columns)
