"""The base class of tasks that classify a text or a pair of texts: `classify` and `nli`."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from bertkit.data.columns import (
    detect_separator,
    drop_unlabeled_rows,
    guess_label_column,
    guess_pair_columns,
    guess_text_columns,
    has_labels,
    infer_label_type,
    map_label_ids,
    normalize_label,
    order_labels,
    parse_label_set,
    require_column,
    require_texts,
)
from bertkit.data.features import build_features
from bertkit.data.split import SplitKeys
from bertkit.data.table import replace_values
from bertkit.errors import UserError, format_count, format_list
from bertkit.models.forward import AVERAGES_BY_PROBLEM, average_probabilities
from bertkit.models.heads import (
    SEQUENCE_HEAD,
    VECTOR_HEAD,
    has_head_type,
    is_causal,
    load_with_pooling,
    match_labels,
    set_labels,
    verify_label_order,
)
from bertkit.settings.run_settings import RunConfig
from bertkit.settings.setting import fill_unset, get_column_settings, get_flag, get_settings
from bertkit.tasks.base import FittedConfidence, InputSchema, Scores, Task, remove_fitted_confidence
from bertkit.tasks.evaluation import Outputs
from bertkit.tasks.text.baselines import score_text_baselines
from bertkit.tasks.text.config import CLASSIFY, NLI, ClassifyConfig
from bertkit.tasks.text.fitted_head import METHODS
from bertkit.tasks.text.labels import LabelType, MultiLabel, Regression, SingleLabel, infer_positive_label
from bertkit.tasks.text.predictions import SequenceEvaluation
from bertkit.tasks.text.relations import (
    EXAMPLE_TEXT,
    collect_types,
    describe_lost_markers,
    list_markers,
    mark_rows,
)
from bertkit.tasks.training_method import TrainingMethod

if TYPE_CHECKING:
    from bertkit.data.features import Features, TextFeatures
    from bertkit.data.sources import LoadedDataset
    from bertkit.data.split import SplitKeys
    from bertkit.data.table import Rows, Splits
    from bertkit.models.loading import ModelSource
    from bertkit.models.losses import Loss
    from bertkit.settings.setting import Pooling


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

    def split_keys(self, rows: "Rows") -> SplitKeys:
        """Return keys that identify a row by its texts, and stratify rows by label."""
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

    def encode_labels(self, rows: "Rows", required: bool = False) -> np.ndarray | None:
        """Return the labels as numbers, [rows] or [rows, labels]; None if the rows have no labels.

        Args:
            rows: Parsed rows.
            required: Whether rows without labels are an error.

        Raises:
            UserError: A label is missing or unknown.
        """
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
        return has_head_type(model_config, self.config.head, self.config.pooling)

    @property
    def _head_kind(self) -> str:
        """The kind of head that training can start from; see `bertkit.models.heads.has_head`."""
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

        model = load_with_pooling(
            AutoModelForSequenceClassification, source, model_config, self.has_new_head, self.config.head,
            self.config.pooling,
        )  # fmt: skip
        if self.has_new_head:
            self.label_type.initialize_head(model)
        return model

    def combine_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Average probabilities or numbers, by the kind of the labels."""
        return AVERAGES_BY_PROBLEM.get(self.label_type.problem_type, average_probabilities)(logits)

    def verify_label_order(self, predict_sample: Callable[[], Outputs]) -> None:
        """Refuse a head whose labels are evidently in the wrong order; only for single labels."""
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
        return score_text_baselines(self, train, rows)

    def get_tfidf_baseline(self) -> tuple[str, list[str]]:
        """Return the name of the TF-IDF baseline, and the text columns that it reads."""
        return "tfidf", list(self.input_schema.text_columns)


SEPARATOR_KEY = "label_separator"  # attribute of the model's config
ENTITY_TYPES_KEY = "bertkit_entity_types"  # the same: types of the subjects, types of the objects
VECTOR_CAVEAT = "has no class for the head of this model"
CONTRASTIVE_HYPERPARAMETERS = {"epochs": 1.0, "batch_size": 16}  # those of SetFit


class Classify(SequenceTask):
    """Classification or regression of single texts or pairs."""

    spec = CLASSIFY
    text_settings = ("text_column", "text_pair_column")
    entity_types: list[list[str]]  # of the subjects and of the objects, in a run with entity columns

    def __init__(self, config: ClassifyConfig) -> None:
        super().__init__(config)
        if self._has_fitted_head:
            self._set_caveat(VECTOR_CAVEAT)
        if config.method == "contrastive":
            self.spec = dataclasses.replace(
                self.spec, default_hyperparameters=CONTRASTIVE_HYPERPARAMETERS,
                training_phrase="trained on pairs of rows for",
            )  # fmt: skip
        if config.method == "linear-probe":
            phrase = "with a linear layer on its vectors, fitted for"
            self.spec = dataclasses.replace(self.spec, trains_encoder=False, training_phrase=phrase)

    @property
    def _has_fitted_head(self) -> bool:
        """Whether the head is fitted to the vectors of texts, and not trained with the encoder."""
        return bool(self.config.method != "finetune")

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Find the columns, and infer the kind of the labels and their names."""
        self._check_method()
        self._resolve_columns(dataset.splits["train"])
        if self._entity_columns:
            self._find_entity_types(dataset.splits["train"])
        class_names = dataset.get_class_names(self.config.label_column)
        if class_names:  # then "-", -1 and null mark missing labels
            dataset = self._drop_unlabeled(dataset)
        train = dataset.splits["train"]
        if self.config.problem is None:
            problem, note = infer_label_type(train[self.config.label_column])
            self.config = dataclasses.replace(self.config, problem=problem)
            dataset = dataclasses.replace(dataset, notes=[*dataset.notes, *filter(None, [note])])
        self._infer_labels(train, dataset.labels, class_names)
        self._set_best_metric(dataset.best_metric)
        return dataset

    @property
    def _entity_columns(self) -> list[str]:
        """The columns of the two entities of a relation; empty for other texts."""
        return [column for column in (self.config.subject_column, self.config.object_column) if column]

    @property
    def input_schema(self) -> InputSchema:
        """The columns of texts, label and entities."""
        schema, columns = super().input_schema, tuple(self._entity_columns)
        return (
            dataclasses.replace(schema, span_columns=columns, example_text=EXAMPLE_TEXT)
            if columns
            else schema
        )

    def _find_entity_types(self, train: "Rows") -> None:
        """Check the settings of entities, and set `entity_types`.

        Raises:
            UserError: A column does not exist, or another setting does not apply to entities.
        """
        columns = self._entity_columns
        if len(columns) < 2:
            raise UserError(
                f"column {columns[0]!r}: a relation has two entities; pass both --subject-column and "
                "--object-column"
            )
        if self._has_fitted_head:
            raise UserError(
                f"--method {self.config.method}: does not support --subject-column and --object-column; "
                "omit it"
            )
        if self.config.long_texts == "windows":
            raise UserError(
                "--long-texts windows: a window may leave out the marker of an entity; use another value"
            )
        for name in ("subject_column", "object_column"):
            require_column(train, getattr(self.config, name), self._get_flag(name))
        self._set_entity_types(collect_types(train, columns))

    def _set_entity_types(self, types: list[list[str]]) -> None:
        """Set the known types of entities, and their markers as new tokens."""
        self.entity_types, self.new_tokens = types, list_markers(types)
        pipeline = dataclasses.replace(self.spec.pipeline, example_input=EXAMPLE_TEXT)
        self.spec = dataclasses.replace(self.spec, pipeline=pipeline)

    def parse_rows(
        self, rows: "Rows", split: str = "", require_labels: bool = False
    ) -> tuple["Rows", list[str]]:
        """Return the rows, with markers around the entities in the texts."""
        parsed, notes = super().parse_rows(rows, split, require_labels)
        if self._entity_columns:
            parsed = mark_rows(parsed, self.config.text_column, self._entity_columns, self.entity_types)
        return parsed, notes

    def _guess_texts(self, train: "Rows") -> None:
        if self.config.text_column is None:
            columns = dict(zip(self.text_settings, guess_text_columns(train), strict=True))
            self.config = fill_unset(self.config, columns)

    def _infer_labels(self, train: "Rows", known_labels: list[str], class_names: list[str]) -> None:
        """Set `label_type` from the labels of the training rows.

        Args:
            train: The training rows.
            known_labels: The labels in the order of the dataset registry; empty if it does not list them.
            class_names: The order of the labels if they are not known; may be empty.
        """
        problem = self.config.problem
        if problem == "regression":
            if self.config.method == "contrastive":
                raise UserError(
                    f"--method {self.config.method}: needs classes, but regression has none; omit it"
                )
            self.label_type = Regression([])
            return
        _, values = train.factorize(self.config.label_column)
        separator = detect_separator(values) if problem == "multi-label" else None
        train_labels = self._collect_labels(values, separator)
        is_known = known_labels and train_labels <= set(known_labels)
        labels = known_labels if is_known else order_labels(train_labels, class_names)
        self.label_type = MultiLabel(labels) if problem == "multi-label" else SingleLabel(labels)
        self._check_labels(train, len(train_labels))
        if isinstance(self.label_type, MultiLabel):
            self.label_type.separator = separator
        elif isinstance(self.label_type, SingleLabel):
            default_positive = infer_positive_label(labels) if problem == "binary" else None
            self.config = fill_unset(self.config, {"positive_label": default_positive})
            self.label_type.positive_label = self.config.positive_label

    def _collect_labels(self, values: list[Any], separator: str | None) -> set[str]:
        """Return the different labels in a column."""
        if self.config.problem == "multi-label":
            return {label for value in values for label in parse_label_set(value, separator) or []}
        return {label for label in map(normalize_label, values) if label is not None}

    def _check_labels(self, train: "Rows", num_classes: int) -> None:
        """Check the number of classes, `--problem binary` and `--positive-label`."""
        self._check_class_count(train, num_classes)
        if self.config.problem == "binary" and len(self.labels) != 2:
            raise UserError(
                f"{train.files[0]}: column {self.config.label_column!r} has {len(self.labels)} classes; "
                "--problem binary needs two"
            )
        positive = self.config.positive_label
        if positive is not None and positive not in self.labels:
            raise UserError(f"--positive-label {positive}: the labels are {format_list(self.labels)}")

    def validate_splits(self, splits: "Splits") -> None:
        """Check that the flags apply to the kind of the labels, and check the values of all splits."""
        config = self.config
        if config.problem == "regression" and (config.class_weights or config.label_smoothing):
            flag = "--class-weights" if config.class_weights else "--label-smoothing"
            raise UserError(f"{flag}: regression has no classes; omit the flag")
        super().validate_splits(splits)

    def _check_method(self) -> None:
        """Check that the other settings apply to `--method`."""
        method, defaults = self.config.method, ClassifyConfig()
        for name, reason in self.config.list_ineffective_settings().items():
            value = getattr(self.config, name)
            if value not in (getattr(defaults, name), []):
                raise UserError(f"{self._get_flag(name)} {value}: {reason}; omit it")
        if self.config.bf16 and not self.spec.trains_encoder:
            raise UserError(f"--bf16: with --method {method}, the encoder is not trained; omit it")
        if self.config.long_texts == "windows" and method == "contrastive":
            raise UserError(
                f"--long-texts windows: --method {method} reads one sequence per text; use another value"
            )

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Configure the labels, and save label separator and entity types in the model's config."""
        for key in (SEPARATOR_KEY, ENTITY_TYPES_KEY):
            vars(model_config).pop(key, None)  # set by an earlier run
        if self._entity_columns:
            setattr(model_config, ENTITY_TYPES_KEY, self.entity_types)
        if isinstance(self.label_type, MultiLabel):
            setattr(model_config, SEPARATOR_KEY, self.label_type.separator)
        if self._has_fitted_head and self.spec.trains_encoder:
            from bertkit.models.own_models import read_vector_pooling

            read_vector_pooling(source, model_config)  # refuses other models before weights are loaded
        return super().configure_model(model_config, source)

    def load_state(self, model_config: Any) -> None:
        """Restore labels and entity types."""
        super().load_state(model_config)
        if self._entity_columns:
            self._set_entity_types(getattr(model_config, ENTITY_TYPES_KEY))

    def describe(self) -> str:
        """Return the problem, the names of the columns, the classes and the positive class, if any."""
        summary = f"{self.config.problem} of {super().describe()}"
        positive = getattr(self.label_type, "positive_label", None)
        return summary if positive is None else f"{summary}; positive class: {positive}"

    def featurize(self, rows: "Rows", tokenizer: Any, training: bool = False) -> "TextFeatures":
        """Tokenize the texts; the features of training texts have a warning if entities are truncated."""
        features = super().featurize(rows, tokenizer, training)
        if not training or not self._entity_columns:
            return features

        lost = describe_lost_markers(features, tokenizer.convert_tokens_to_ids(list(self.new_tokens)))
        return dataclasses.replace(features, warnings=[*features.warnings, *lost])

    def _load_label_type(self, model_config: Any) -> LabelType:
        if self.config.problem == "regression":
            return Regression([])
        labels = [model_config.id2label[index] for index in range(model_config.num_labels)]
        if self.config.problem == "multi-label":
            multi_label = MultiLabel(labels)
            multi_label.separator = getattr(model_config, SEPARATOR_KEY, None)
            return multi_label
        single_label = SingleLabel(labels)
        single_label.positive_label = self.config.positive_label
        return single_label

    # ---- a head that is fitted to vectors

    @property
    def _head_kind(self) -> str:
        return VECTOR_HEAD if self._has_fitted_head else super()._head_kind

    def _has_matching_head(self, model_config: Any) -> bool:
        return self._has_fitted_head or super()._has_matching_head(model_config)

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Return a `VectorClassifier` for a head that is fitted to vectors."""
        if not self._has_fitted_head:
            return super().build_model(model_config, source)
        from bertkit.models.own_models import load_vector_classifier, read_vector_pooling

        if self.has_new_head and not self.spec.trains_encoder:
            pooling: Pooling = "mean"  # until the head is fitted, which chooses the pooling
        else:
            pooling = read_vector_pooling(source, model_config)
        return load_vector_classifier(source, model_config, self.has_new_head, pooling)

    @property
    def training_method(self) -> TrainingMethod:
        """That of `--method`."""
        return METHODS[self.config.method](self) if self._has_fitted_head else super().training_method


STANDARD_LABELS = [
    "entailment",
    "neutral",
    "contradiction",
]  # in the order of the ids in SNLI, MNLI, XNLI and ANLI


class InferenceLabel(SingleLabel):
    """The label of a pair, scored by accuracy and macro F1."""

    def score(self, gold: np.ndarray, predicted: np.ndarray) -> Scores:
        """Return `accuracy` and macro `f1`."""
        scores = super().score(gold, predicted)
        return {name: scores[name] for name in ("accuracy", "f1")}


class Nli(SequenceTask):
    """Natural language inference; pairs with the same premise stay in the same split."""

    spec = NLI
    text_settings = ("premise_column", "hypothesis_column")

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Find premise, hypothesis and label, drop unlabeled rows, and collect the labels."""
        self._resolve_columns(dataset.splits["train"])
        dataset = self._name_label_ids(self._drop_unlabeled(dataset))
        train = dataset.splits["train"]
        found = {label for value in train[self.config.label_column] if (label := normalize_label(value))}
        class_names = dataset.get_class_names(self.config.label_column)
        labels = dataset.labels if found <= set(dataset.labels) else order_labels(found, class_names)
        self.label_type = InferenceLabel(labels)
        self._check_class_count(train, len(found))
        self._set_best_metric(dataset.best_metric)
        return dataset

    def _guess_texts(self, train: "Rows") -> None:
        if all(getattr(self.config, name) for name in self.text_settings):
            return
        pair = guess_pair_columns(train)
        if pair is None:
            raise UserError(
                f"{train.files[0]}: no two of the columns {format_list(train.columns)} look like premise "
                "and hypothesis; name them with --premise-column and --hypothesis-column"
            )
        self.config = fill_unset(self.config, dict(zip(self.text_settings, pair, strict=True)))

    def _name_label_ids(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Replace the ids 0, 1 and 2 by the standard label names if the training labels are these ids."""
        column = self.config.label_column
        if {normalize_label(value) for value in dataset.splits["train"][column]} != {"0", "1", "2"}:
            return dataset
        note = (
            "labels 0, 1, 2 are read as entailment, neutral, contradiction; "
            "if they mean something else, write the names in the file"
        )
        named = dataclasses.replace(
            dataset,
            labels=STANDARD_LABELS,
            defaults={**dataset.defaults, "label_column": column},
            notes=[*dataset.notes, note],
        )
        labeled = {name: rows for name, rows in dataset.splits.items() if has_labels(rows, column)}
        return named.add_splits(labeled)

    def split_keys(self, rows: "Rows") -> SplitKeys:
        """Return keys that keep all pairs with the same premise in the same split.

        The label of one pair would otherwise help to predict the labels of the others.
        """
        keys = super().split_keys(rows)
        return dataclasses.replace(keys, group=rows.hash_columns(self.input_schema.text_columns[:1]))

    def get_tfidf_baseline(self) -> tuple[str, list[str]]:
        """Return a baseline that reads only the hypotheses."""
        return "hypothesis_only", list(self.input_schema.text_columns[1:])

    def _map_label_ids(self, rows: "Rows") -> "Rows":
        """Replace the ids 0, 1 and 2 by the standard names if the model predicts these names."""
        column = self.config.label_column
        ids = {str(index) for index in range(len(STANDARD_LABELS))}
        distinct = set(map(normalize_label, rows.factorize(column)[1]))
        if set(self.labels) != set(STANDARD_LABELS) or not distinct <= ids:
            return rows
        return rows.map_column(column, partial(map_label_ids, names=STANDARD_LABELS))

    def _load_label_type(self, model_config: Any) -> LabelType:
        return InferenceLabel([model_config.id2label[index] for index in range(model_config.num_labels)])
