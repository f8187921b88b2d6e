"""`classify` and `nli`: predict a label, a set of labels or a number for a text or a pair of texts."""

import copy
import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from bertkit.data.columns import (
    guess_label_column,
    guess_pair_columns,
    guess_text_columns,
    require_column,
    require_texts,
)
from bertkit.data.features import Features, LabeledRows, TextFeatures, build_features
from bertkit.data.labels import (
    drop_unlabeled_rows,
    find_separator,
    has_labels,
    infer_label_type,
    join_label_columns,
    map_label_ids,
    normalize_label,
    order_labels,
    parse_label_set,
)
from bertkit.data.sources import LoadedDataset
from bertkit.data.split import SplitKeys, sample_rows
from bertkit.data.table import Rows, Splits, replace_values
from bertkit.data.weights_and_soft_labels import (
    TrainingLabels,
    collect_names,
    describe_soft_labels,
    encode_soft_labels,
    name_soft_label_column,
    name_soft_label_ids,
    split_soft_labels,
)
from bertkit.errors import UserError, format_count, format_list, suggest_similar
from bertkit.models.loading import ModelSource
from bertkit.settings.declaration import Pooling, get_column_settings, get_flag, get_settings, select_unset
from bertkit.stats.baseline_models import predict_majority, predict_tfidf
from bertkit.stats.calibration import Decisions
from bertkit.stats.linear_probe import LINEAR_PROBE, MAX_PROBE_ROWS, LinearProbe, fit_linear_probe
from bertkit.stats.metric_modules import DecodedPredictions
from bertkit.stats.scope_score import compute_negative_energy
from bertkit.stats.scores import Scores, sigmoid
from bertkit.stats.significance import Scorer, average_values
from bertkit.tasks.base import (
    NOT_FITTED,
    FittedConfidence,
    InputSchema,
    LabelEvaluation,
    Outputs,
    ScoreDetail,
    Task,
    TaskState,
    TransformersPipeline,
    get_weights,
    make_label_scorer,
    remove_fitted_confidence,
)
from bertkit.tasks.out_of_scope import (
    load_out_of_scope,
    remove_texts_in_scope,
    require_classes_of_texts,
    select_texts,
    separate_out_of_scope,
)
from bertkit.tasks.text.config import (
    CLASSIFY,
    FITTED_HEAD_METHODS,
    LINEAR_TEXT_METHODS,
    NLI,
    ClassifyConfig,
)
from bertkit.tasks.text.label_types import (
    LabelType,
    MultiLabel,
    Regression,
    SingleLabel,
    infer_positive_label,
)
from bertkit.tasks.text.relations import (
    EXAMPLE_TEXT,
    collect_types,
    describe_lost_markers,
    list_markers,
    mark_rows,
)
from bertkit.utils.files import expand_home

if TYPE_CHECKING:  # linear models of texts predict without torch
    import torch

    from bertkit.models.encoder import FrozenEncoder
    from bertkit.models.losses import Loss

THRESHOLDS_KEY = "bertkit_thresholds"  # in config.json: thresholds that `calibrate` fitted, by label


class SequenceEvaluation(LabelEvaluation):
    """Predicted labels and their probabilities."""

    def __init__(
        self, outputs: Outputs, label_type: LabelType, fitted: FittedConfidence = NOT_FITTED
    ) -> None:
        super().__init__(outputs, fitted)
        self.label_type = label_type

    @cached_property
    def predicted(self) -> np.ndarray:
        return self.label_type.predict(self.outputs.logits)

    def score(self, gold: np.ndarray, predicted: np.ndarray) -> Scores:
        return self.label_type.score(gold, predicted)

    @property
    def has_classes(self) -> bool:
        return bool(self.label_type.labels)

    @property
    def calibration_method(self) -> Literal["temperature", "output layer", "answers"] | None:
        return "output layer" if self.has_sets else super().calibration_method

    def make_decisions(self) -> Decisions:
        make_decisions = Decisions.from_classes if self.has_sets else Decisions.from_label_sets
        features = self.outputs.features
        return make_decisions(self.outputs.logits, features.labels, features.targets)

    @property
    def has_sets(self) -> bool:
        return isinstance(self.label_type, SingleLabel)

    def decode_set(self, is_member: np.ndarray) -> list[str]:
        return [label for label, is_in in zip(self.label_type.labels, is_member, strict=True) if is_in]

    def decode(self) -> DecodedPredictions:
        return DecodedPredictions(self.predicted.tolist(), self.gold.tolist(), self.label_type.labels)

    def make_examples(self) -> DecodedPredictions:
        labels = self.label_type.make_example_labels().tolist()
        return DecodedPredictions(labels, labels, self.label_type.labels)

    def list_scores(self) -> list[str]:
        labels = self.label_type.make_example_labels()
        return [*self.label_type.score(labels, labels), *self.confidence_score_names]

    def iter_predictions(self, score_detail: ScoreDetail) -> Iterator[dict[str, Any]]:
        """Yield `gold`, `predicted` and, except for regression, `probabilities` by label.

        If the gold labels have probabilities, these are `gold_probabilities`. With `score_detail="compact"`,
        only the probabilities of the predicted labels are included.
        """
        gold, decode_label = self.outputs.features.labels, self.label_type.decode_label
        targets = None if gold is None else self.outputs.features.targets
        probabilities = self.label_type.compute_probabilities(self.outputs.logits)
        for index, encoded_label in enumerate(self.predicted):
            predicted = decode_label(encoded_label)
            record = {"gold": None if gold is None else decode_label(gold[index]), "predicted": predicted}
            if targets is not None:
                # of float32: 0.7 is 0.699999988
                values = [round(value, 6) for value in targets[index].tolist()]
                record["gold_probabilities"] = dict(zip(self.label_type.labels, values, strict=True))
            if probabilities is not None:
                by_label = dict(zip(self.label_type.labels, probabilities[index].tolist(), strict=True))
                if score_detail == "compact":
                    predicted_labels = predicted if isinstance(predicted, list) else [predicted]
                    by_label = {label: by_label[label] for label in predicted_labels}
                record["probabilities"] = by_label
            yield record


class SequenceState(TaskState):
    """What a run of `classify` or `nli` finds."""

    label_type: LabelType
    entity_types: list[list[str]]  # of the subjects and of the objects, in a run with entity columns
    caveat: str | None = None  # why `transformers.pipeline()` predicts differently, unless a setting does

    def average(self, states: "list[SequenceState]") -> None:  # type: ignore[override]
        super().average(states)
        self.label_type.thresholds = average_values([state.label_type.thresholds for state in states])


class SequenceTask(Task):
    """A task with one prediction for each text or pair of texts.

    The labels have the order of the model's head if that head is kept. Otherwise they have the order that
    the dataset registry states, or are sorted if it states none.

    Attributes:
        text_settings: Names of the settings for the columns of the first and the second text.
    """

    state_class = SequenceState
    text_settings: ClassVar[tuple[str, ...]]
    state: SequenceState

    @property
    def label_type(self) -> LabelType:
        return self.state.label_type

    @property
    def labels(self) -> list[str]:
        """The labels in the order of the model's outputs; empty for regression."""
        return self.label_type.labels

    @property
    def _problem(self) -> str | None:
        """The kind of labels; None if it is not known yet."""
        return None

    @property
    def _has_fitted_head(self) -> bool:
        """Whether the head is fitted to the vectors of texts, and not trained with the encoder."""
        return False

    @property
    def uses_windows(self) -> bool:
        return bool(self.config.long_texts == "windows")

    @property
    def sequence_grouping(self) -> Literal["document"] | None:
        return "document" if self.uses_windows else None

    @property
    def pipeline(self) -> TransformersPipeline:
        caveat = self.state.caveat
        if self.config.head == "bilstm":
            caveat = "ignores the BiLSTM of this model"
        elif self.config.pooling == "mean":
            caveat = "classifies by [CLS], but this model was trained with `--pooling mean`"
        return TransformersPipeline(
            task="text-classification", init_kwargs={"top_k": None}, call_kwargs={"truncation": True},
            caveat=caveat,
        )  # fmt: skip

    @property
    def input_schema(self) -> InputSchema:
        columns = tuple(column for name in self.text_settings if (column := getattr(self.config, name)))
        return InputSchema(
            text_columns=columns,
            gold_columns=frozenset([self.config.label_column]),
            hidden_columns=frozenset(
                [
                    self.config.label_column,
                    name_soft_label_column(self.config.label_column or ""),
                ]
            ),
            columns_by_flag=dict(zip(("text", "text_pair"), columns, strict=False)),
            label_key=self.label_type.label_key if self.label_type else None,
        )

    # ---- rows

    def _resolve_columns(self, train: Rows) -> None:
        """Check that the columns named by the user exist, and guess the other columns."""
        for name in (*self.text_settings, "label_column"):
            if column := getattr(self.config, name):
                require_column(train, column, self._get_flag(name))
        self._guess_texts(train)
        if self.config.label_column is None:
            self.resolve(label_column=guess_label_column(train))
        self._check_different_columns()

    def _check_different_columns(self) -> None:
        """Check that no column has two roles."""
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
        return get_flag(name, get_settings(type(self.config))[name].metadata)

    @abstractmethod
    def _guess_texts(self, train: Rows) -> None:
        """Guess the text columns that the user did not name; raise `UserError` if none looks like a text."""

    def _split_soft_labels(self, rows: Rows) -> Rows:
        """Return the rows with the probabilities of labels in a column of their own."""
        if self._problem == "regression":
            return rows
        return split_soft_labels(rows, self.config.label_column, self._problem == "multi-label")

    def _split_all_soft_labels(self, dataset: LoadedDataset) -> LoadedDataset:
        """Do the same in all splits, with a note on the probabilities."""
        splits = {name: self._split_soft_labels(rows) for name, rows in dataset.splits.items()}
        column, are_sets = self.config.label_column, self._problem == "multi-label"
        notes = describe_soft_labels(splits["train"], column, are_sets)
        return dataclasses.replace(dataset, splits=splits, notes=[*dataset.notes, *notes])

    def _drop_unlabeled(self, dataset: LoadedDataset) -> LoadedDataset:
        """Return the dataset without unlabeled rows, with a note on their number."""
        splits, notes = drop_unlabeled_rows(dataset.splits, self.config.label_column)
        return dataclasses.replace(dataset, splits=splits, notes=[*dataset.notes, *notes])

    def _set_labels(self, label_type: LabelType, dataset: LoadedDataset, num_classes: int) -> None:
        """Store the kind of the labels and the metric that selects checkpoints; refuse implausible labels."""
        self.state.label_type = label_type
        self.state.best_metric = (dataset.best_metric or label_type.default_metric, 1)
        train = dataset.splits["train"]
        column = f"{train.files[0]}: column {self.config.label_column!r}"
        if num_classes < 2:
            labels = f"only the class {self.labels[0]!r}" if self.labels else "no labels"
            raise UserError(f"{column} has {labels}; training needs at least two classes")
        max_classes = max(20, len(train) // 2)  # beyond 20, at least two training rows per class
        if isinstance(self.label_type, SingleLabel) and num_classes > max_classes:
            raise UserError(
                f"{column} has {num_classes:,} different labels in {len(train):,} rows; "
                "name the column of the labels with --label-column"
            )

    def make_split_keys(self, rows: Rows) -> SplitKeys:
        texts = rows.hash_columns(self.input_schema.text_columns)
        column = self.config.label_column
        if not self.labels or column not in rows.columns:
            return SplitKeys(texts, texts, np.zeros(len(rows), int), classes=frozenset())
        cells = {self.label_type.parse_label(value) for value in rows.factorize(column)[1]} - {None}
        classes = {str(label) for cell in cells for label in (cell if isinstance(cell, tuple) else [cell])}
        return SplitKeys(texts, texts, rows.hash_columns([column]), classes=frozenset(classes))

    def validate_splits(self, splits: Splits) -> None:
        for name, rows in splits.items():
            self._check_texts(rows)
            is_required = name in ("train", "validation")
            if is_required:
                require_column(rows, self.config.label_column, f"the {name} split needs it")
            targets = self.encode_labels(rows, required=is_required)
            if name == "train" and targets is not None and len(np.unique(targets, axis=0)) < 2:
                size = format_count(len(rows), "row")
                raise UserError(f"only one label in the {size} to train on; use more rows")

    def parse_rows(self, rows: Rows, split: str = "", require_labels: bool = False) -> tuple[Rows, list[str]]:
        """Return the rows with labels as names; if labels are required, without unlabeled rows."""
        if not require_labels:
            self._check_texts(rows)
            return rows, []
        column = self.config.label_column
        rows = self._split_soft_labels(join_label_columns(rows, column))
        require_column(rows, column, "the label")
        labels = self.labels or ["-1"]  # a number may be -1
        labeled, notes = drop_unlabeled_rows({"train": rows}, column, labels)
        self._check_texts(labeled["train"])
        parsed = self._map_label_ids(labeled["train"])
        self.encode_labels(parsed, required=True)
        return parsed, [note.replace("train", split) for note in notes]

    def _check_texts(self, rows: Rows) -> None:
        """Check that the text columns exist and hold strings."""
        columns = list(self.input_schema.text_columns)
        for column, role in zip(columns, ("the text", "the second text"), strict=False):
            require_column(rows, column, role)
        require_texts(rows, columns)

    def _map_label_ids(self, rows: Rows) -> Rows:
        """Return the rows with label ids replaced by label names; `Nli` overrides this."""
        return rows

    def map_columns(self, rows: Rows, named: Mapping[str, Any]) -> None:
        """Guess the columns that these rows lack; if a guess fails, a later error names those of training."""
        columns = self.input_schema.text_columns
        trained = {name: getattr(self.config, name) for name in self.text_settings}
        if not set(columns) <= set(rows.columns):
            with suppress(UserError):
                self.resolve(**dict.fromkeys(self.text_settings))
                self._guess_texts(rows)
            guessed = self.input_schema.text_columns
            if len(guessed) != len(columns) or not set(guessed) <= set(rows.columns):
                self.resolve(**trained)
        if self.config.label_column not in rows.columns:
            with suppress(UserError):
                self.resolve(label_column=guess_label_column(rows))
        super().map_columns(rows, named)
        if named:
            self._check_different_columns()

    def encode_labels(self, rows: Rows, required: bool = False) -> np.ndarray | None:
        """Return the labels of parsed rows as numbers, [rows] or [rows, labels]; None if they have none.

        With `required`, rows without labels are an error.
        """
        column = self.config.label_column
        if not required and not has_labels(rows, column):
            return None
        return self.label_type.encode_labels(rows, column)

    def encode_soft_labels(self, rows: Rows, labels: np.ndarray) -> np.ndarray | None:
        """Return [n, classes] the probabilities of labels, given the encoded labels; None without any."""
        if not self.labels:
            return None
        return encode_soft_labels(rows, self.config.label_column, labels, self.labels)

    def get_training_labels(self, rows: Rows) -> TrainingLabels:
        """Return the labels of training rows with their weights and probabilities."""
        labels = self.label_type.encode_labels(rows, self.config.label_column)
        return TrainingLabels(labels, get_weights(self, rows), self.encode_soft_labels(rows, labels))

    def get_labels(self, rows: Rows) -> list[Any]:
        encoded = self.label_type.encode_labels(rows, self.config.label_column)
        return [self.label_type.decode_label(label) for label in encoded]

    def replace_labels(self, rows: Rows, labels: Mapping[int, Any]) -> Rows:
        column = self.config.label_column
        cells = self.label_type.format_cells(list(labels.values()), rows.factorize(column)[1])
        soft_label_column = name_soft_label_column(column)
        if soft_label_column in rows.columns:  # the new labels are hard
            probabilities = replace_values(rows[soft_label_column], dict.fromkeys(labels))
            rows = rows.with_column(soft_label_column, probabilities)
        return rows.with_column(column, replace_values(rows[column], dict(zip(labels, cells, strict=True))))

    # ---- model

    def describe(self) -> str:
        classes = f", classes {format_list(self.labels)}" if self.labels else ""
        texts, labels = (
            " + ".join(self.input_schema.text_columns),
            ", ".join(self.config.label_column.split(",")),
        )
        return f"{texts} by {labels}{classes}"

    def configure_model(self, model_config: Any, source: ModelSource) -> Any:
        from bertkit.models.heads import SEQUENCE_HEAD, VECTOR_HEAD, has_head_type, match_labels, set_labels
        from bertkit.models.pooling import is_causal

        if is_causal(model_config):
            self.state.caveat = (
                "classifies by [CLS], which in this left-to-right model does not depend on the text"
            )
        if not self.config.new_head and (
            self._has_fitted_head or has_head_type(model_config, self.config.head, self.config.pooling)
        ):
            head = VECTOR_HEAD if self._has_fitted_head else SEQUENCE_HEAD
            self.state.has_new_head, self.label_type.labels = match_labels(
                model_config, self.labels, source.name, head
            )
        vars(model_config).pop(THRESHOLDS_KEY, None)  # fitted for the model that this run starts from
        remove_fitted_confidence(model_config)
        model_config.problem_type = self.label_type.problem_type
        return set_labels(model_config, self.labels or ["score"])

    def load_state(self, model_config: Any) -> None:
        super().load_state(model_config)
        labels = [model_config.id2label[index] for index in range(model_config.num_labels)]
        self.state.label_type = self._make_label_type(labels, model_config)
        self.label_type.thresholds = getattr(model_config, THRESHOLDS_KEY, None) or {}
        self.state.best_metric = (self.label_type.default_metric, 1)

    @abstractmethod
    def _make_label_type(self, labels: list[str], model_config: Any) -> LabelType:
        """Return the kind of the labels of a finished run."""

    def encode_rows(self, rows: Rows) -> LabeledRows:
        """Return what the evaluation of a linear model of texts reads of the rows."""
        labels = self.encode_labels(rows)
        targets = None if labels is None else self.encode_soft_labels(rows, labels)
        return LabeledRows(len(rows), labels, targets)

    def featurize(self, rows: Rows, tokenizer: Any, training: bool = False) -> TextFeatures:
        labels = self.encode_labels(rows)
        features = build_features(
            [rows[column] for column in self.input_schema.text_columns], labels, tokenizer,
            self.config.max_length, self.config.long_texts, cache=self.use_cache,
        )  # fmt: skip
        if labels is not None:
            features = dataclasses.replace(features, targets=self.encode_soft_labels(rows, labels))
        if not training or labels is None:
            return features
        if isinstance(self.label_type, Regression):
            self.label_type.training_mean = float(labels.mean())
        if self.config.class_weights is not None and isinstance(self.label_type, MultiLabel):
            names = [label for label, column in zip(self.labels, labels.T, strict=True) if column.all()]
            problem = "--class-weights balanced: labels that every training row has get the weight 1"
            features = dataclasses.replace(
                features, warnings=[f"{problem}: {format_list(names)}"] if names else []
            )
        return features

    def build_model(self, model_config: Any, source: ModelSource) -> Any:
        from transformers import AutoModelForSequenceClassification

        from bertkit.models.heads import load_with_pooling, set_output_bias

        model = load_with_pooling(
            AutoModelForSequenceClassification, source, model_config, self.state.has_new_head,
            self.config.head, self.config.pooling,
        )  # fmt: skip
        mean = self.label_type.training_mean if isinstance(self.label_type, Regression) else None
        if self.state.has_new_head and mean is not None:
            # With a bias of 0, training would first have to move the outputs to the range of the labels.
            set_output_bias(model, mean)
        return model

    def combine_logits(self, logits: "torch.Tensor") -> "torch.Tensor":
        from bertkit.models.forward import AVERAGES_BY_PROBLEM, average_probabilities

        logits = logits[..., : self._num_outputs]  # the scores of the members differ in scale
        return AVERAGES_BY_PROBLEM.get(self.label_type.problem_type, average_probabilities)(logits)

    def verify_label_order(self, predict_sample: Callable[[], Outputs]) -> None:
        if isinstance(self.label_type, SingleLabel):
            from bertkit.models.heads import verify_label_order

            evaluation = self.evaluate(predict_sample())
            verify_label_order(evaluation.gold, evaluation.predicted, self.labels, str(self.config.model))

    def make_loss(self, features: Features) -> "Loss":
        weights = None
        if self.config.class_weights == "balanced":
            from bertkit.models.losses import compute_class_weights
            from bertkit.utils import devices

            assert features.labels is not None
            # On the device, to which a CUDA graph could not copy them.
            labels = TrainingLabels(features.labels, features.weights, features.targets)
            weights = compute_class_weights(labels, len(self.labels)).to(devices.get_device())
        return self.label_type.make_loss(weights, self.config.label_smoothing)

    # ---- results

    def evaluate(self, outputs: Outputs) -> SequenceEvaluation:
        size, fitted = self._num_outputs, self.state.fitted_confidence
        if len(outputs.logits) and outputs.logits.shape[1] < size:
            raise UserError(
                f"the model has {format_count(outputs.logits.shape[1], 'output')} for {size} labels: it is "
                "that of another run; export the run again"
            )
        logits, scope_logits = outputs.logits[:, :size], outputs.logits[:, size:]
        evaluation = SequenceEvaluation(dataclasses.replace(outputs, logits=logits), self.label_type, fitted)
        if fitted.scope_weights is not None and scope_logits.shape[1]:
            energy = fitted.scope_weights[-2] * compute_negative_energy(logits)
            evaluation.scope_score = sigmoid(scope_logits[:, 0] + energy)
        return evaluation

    @property
    def _num_outputs(self) -> int:
        """The number of outputs without the part of the score that a text is in scope, which may follow."""
        return max(len(self.labels), 1)

    def fit_baselines(self, train: Rows, rows: Rows) -> dict[str, Scorer]:
        labels = self.get_training_labels(train)
        gold = self.label_type.encode_labels(rows, self.config.label_column)
        name, columns = self.get_tfidf_baseline()
        texts = [[part[column] for column in columns] for part in (train, rows)]
        predicted = predict_tfidf(texts[0], labels, texts[1], self.config.seed)
        predictions = {"majority": predict_majority(labels, len(gold)), name: predicted}
        score = self.label_type.score
        return {name: make_label_scorer(score, gold, predicted) for name, predicted in predictions.items()}

    def get_tfidf_baseline(self) -> tuple[str, list[str]]:
        """Return the name of the TF-IDF baseline, and the text columns that it reads."""
        return "tfidf", list(self.input_schema.text_columns)


SEPARATOR_KEY = "label_separator"  # attribute of the model's config
ENTITY_TYPES_KEY = "bertkit_entity_types"  # the same: types of the subjects, types of the objects
TRAINING_PHRASES = {
    "contrastive": "trained on pairs of rows for",
    "linear-probe": "with a linear layer on its vectors, fitted for",
    **dict.fromkeys(LINEAR_TEXT_METHODS, "fitted for"),
}


class Classify(SequenceTask):
    """Classification or regression of single texts or pairs."""

    definition = CLASSIFY
    text_settings = ("text_column", "text_pair_column")

    @property
    def _problem(self) -> str | None:
        return self.config.problem

    @property
    def _has_fitted_head(self) -> bool:
        return self.config.method in FITTED_HEAD_METHODS

    @property
    def pipeline(self) -> TransformersPipeline:
        pipeline = super().pipeline
        if self._has_fitted_head:
            pipeline = dataclasses.replace(pipeline, caveat="has no class for the head of this model")
        if self.config.method in LINEAR_TEXT_METHODS:
            pipeline = dataclasses.replace(pipeline, caveat="cannot load this model, which has no encoder")
        return dataclasses.replace(pipeline, example_input=self.input_schema.example_text)

    @property
    def training_phrase(self) -> str:
        return TRAINING_PHRASES.get(self.config.method, super().training_phrase)

    @property
    def _entity_columns(self) -> list[str]:
        """The columns of the two entities of a relation; empty for other texts."""
        return [column for column in (self.config.subject_column, self.config.object_column) if column]

    @property
    def input_schema(self) -> InputSchema:
        schema, columns = super().input_schema, tuple(self._entity_columns)
        schema = dataclasses.replace(schema, out_of_scope_label=self._out_of_scope_label)
        if not self.config.text_pair_column:
            schema = dataclasses.replace(schema, further_text_flag="--text-pair-column")
        if not columns:
            return schema
        return dataclasses.replace(schema, span_columns=columns, example_text=EXAMPLE_TEXT)

    # ---- rows

    def parse_dataset(self, dataset: LoadedDataset) -> LoadedDataset:
        self.state = SequenceState()
        self._check_method()
        if column := self.config.label_column:
            splits = {name: join_label_columns(rows, column) for name, rows in dataset.splits.items()}
            dataset = dataclasses.replace(dataset, splits=splits)
        self._resolve_columns(dataset.splits["train"])
        dataset = self._split_all_soft_labels(dataset)
        if self._entity_columns:
            self._check_entity_settings(dataset.splits["train"])
            types = collect_types(dataset.splits["train"], self._entity_columns)
            self.state.entity_types, self.state.new_tokens = types, list_markers(types)
        class_names = dataset.get_class_names(self.config.label_column)
        outside: Splits = {}
        if (label := self._out_of_scope_label) is not None:
            parts = {name: separate_out_of_scope(self, rows) for name, rows in dataset.splits.items()}
            outside = {name: rows for name, (_, rows) in parts.items() if rows is not None}
            splits = {name: rows for name, (rows, _) in parts.items() if len(rows) or name == "train"}
            class_names = [name for name in class_names if name != label]
            labels = [name for name in dataset.labels if name != label]
            dataset = dataclasses.replace(dataset, splits=splits, labels=labels)
        if class_names:  # then "-", -1 and null mark missing labels
            dataset = self._drop_unlabeled(dataset)
        if self.config.problem is None:
            train, column = dataset.splits["train"], self.config.label_column
            problem, note = infer_label_type(train[column])
            if names := collect_names(train, column):
                names |= set(filter(None, map(normalize_label, train.factorize(column)[1])))
                problem, note = "binary" if len(names) == 2 else "multi-class", ""
            self.resolve(problem=problem)
            dataset = dataclasses.replace(dataset, notes=[*dataset.notes, *filter(None, [note])])
        self._infer_labels(dataset, class_names)
        if value := self.config.out_of_scope:
            dataset = self._find_texts_out_of_scope(dataset, outside, value)
        return dataset

    @property
    def _out_of_scope_label(self) -> str | None:
        """The label of texts out of scope; None without `--out-of-scope`, or if it is no label."""
        value = self.config.out_of_scope
        return None if value in (None, "sample") or expand_home(value).exists() else value

    def _find_texts_out_of_scope(
        self, dataset: LoadedDataset, outside: Mapping[str, Rows], value: str
    ) -> LoadedDataset:
        """Return the dataset with the texts of `--out-of-scope`, the rows of a label or those of a file.

        `outside` are the rows with the label by split, which the dataset has not any more.
        """
        require_classes_of_texts(self)
        if self._out_of_scope_label is None:
            texts = {"train": load_out_of_scope(self, value, self.config)}
        elif not outside.keys() - {"test"}:
            hint = suggest_similar(value, self.labels) or f"; the labels are {format_list(self.labels)}"
            raise UserError(
                f"--out-of-scope {value}: neither a file nor a label of column {self.config.label_column!r}"
                f"{hint}"
            )
        else:
            texts = {name: select_texts(self, rows) for name, rows in outside.items()}
        fitted = Rows.concatenate([rows for name, rows in texts.items() if name != "test"])
        texts["train"] = remove_texts_in_scope(self, fitted, dataset.splits.values(), value)
        texts.pop("validation", None)
        note = f"{format_count(len(texts['train']), 'text')} of no class (--out-of-scope {value})"
        return dataclasses.replace(dataset, out_of_scope=texts, notes=[*dataset.notes, note])

    def _check_method(self) -> None:
        """Check that the other settings apply to `--method`."""
        method, defaults = self.config.method, ClassifyConfig()
        for name, reason in self.config.list_ineffective_settings().items():
            value = getattr(self.config, name)
            if value not in (getattr(defaults, name), []):
                raise UserError(f"{self._get_flag(name)} {value}: {reason}; omit it")
        if self.config.bf16 and method == "linear-probe":
            raise UserError(f"--bf16: with --method {method}, the encoder is not trained; omit it")

    def _check_entity_settings(self, train: Rows) -> None:
        """Check that both columns of entities exist, and that the other settings apply to entities."""
        columns = self._entity_columns
        if len(columns) < 2:
            raise UserError(
                f"column {columns[0]!r}: a relation has two entities; pass both --subject-column and "
                "--object-column"
            )
        if self.config.long_texts == "windows":
            raise UserError(
                "--long-texts windows: a window may leave out the marker of an entity; use another value"
            )
        for name, column in zip(("subject_column", "object_column"), columns, strict=True):
            require_column(train, column, self._get_flag(name))

    def parse_rows(self, rows: Rows, split: str = "", require_labels: bool = False) -> tuple[Rows, list[str]]:
        parsed, notes = super().parse_rows(rows, split, require_labels)
        if self._entity_columns:
            types = self.state.entity_types
            parsed = mark_rows(parsed, self.config.text_column, self._entity_columns, types)
        return parsed, notes

    def _guess_texts(self, train: Rows) -> None:
        if self.config.text_column is None:
            needs_label = self.config.label_column is None
            columns = dict(zip(self.text_settings, guess_text_columns(train, needs_label), strict=True))
            self.resolve(**select_unset(self.config, columns))

    def _infer_labels(self, dataset: LoadedDataset, class_names: list[str]) -> None:
        """Find the kind of the labels and their names in the training rows.

        The labels have the order of the dataset registry if it lists them, or else that of `class_names`.
        """
        train, problem, column = dataset.splits["train"], self.config.problem, self.config.label_column
        if problem == "regression":
            if self.config.method == "contrastive":
                raise UserError(
                    f"--method {self.config.method}: needs classes, but regression has none; omit it"
                )
            self.state.label_type = Regression([])
            self.state.best_metric = (dataset.best_metric or Regression.default_metric, 1)
            return
        _, values = train.factorize(column)
        texts = list(filter(None, map(normalize_label, values)))
        separator = find_separator(texts, is_requested=True) if problem == "multi-label" else None
        if problem == "multi-label":
            found = {label for value in values for label in parse_label_set(value, separator) or []}
        else:
            found = {label for label in map(normalize_label, values) if label is not None}
        found |= collect_names(train, column)
        is_known = dataset.labels and found <= set(dataset.labels)
        labels = dataset.labels if is_known else order_labels(found, class_names)
        label_type = MultiLabel(labels, separator) if problem == "multi-label" else SingleLabel(labels)
        self._set_labels(label_type, dataset, len(found))
        if problem == "binary" and len(labels) != 2:
            raise UserError(
                f"{train.files[0]}: column {column!r} has {len(labels)} classes; --problem binary needs two"
            )
        positive = self.config.positive_label
        if positive is not None and positive not in labels:
            raise UserError(f"--positive-label {positive}: the labels are {format_list(labels)}")
        if isinstance(label_type, SingleLabel):
            if problem == "binary" and positive is None:
                self.resolve(positive_label=infer_positive_label(labels))
            label_type.positive_label = self.config.positive_label

    def validate_splits(self, splits: Splits) -> None:
        config = self.config
        if config.problem == "regression" and (config.class_weights or config.label_smoothing):
            flag = "--class-weights" if config.class_weights else "--label-smoothing"
            raise UserError(f"{flag}: regression has no classes; omit the flag")
        super().validate_splits(splits)

    # ---- model

    def configure_model(self, model_config: Any, source: ModelSource) -> Any:
        for key in (SEPARATOR_KEY, ENTITY_TYPES_KEY):
            vars(model_config).pop(key, None)  # set by an earlier run
        if self._entity_columns:
            setattr(model_config, ENTITY_TYPES_KEY, self.state.entity_types)
        if isinstance(self.label_type, MultiLabel):
            setattr(model_config, SEPARATOR_KEY, self.label_type.separator)
        if self.config.method == "contrastive":
            from bertkit.models.vector_classifier import read_vector_pooling

            read_vector_pooling(source, model_config)  # refuses other models before weights are loaded
        return super().configure_model(model_config, source)

    def load_state(self, model_config: Any) -> None:
        super().load_state(model_config)
        if self._entity_columns:
            types = getattr(model_config, ENTITY_TYPES_KEY)
            self.state.entity_types, self.state.new_tokens = types, list_markers(types)

    def _make_label_type(self, labels: list[str], model_config: Any) -> LabelType:
        if self.config.problem == "regression":
            return Regression([])
        if self.config.problem == "multi-label":
            return MultiLabel(labels, getattr(model_config, SEPARATOR_KEY, None))
        return SingleLabel(labels, self.config.positive_label)

    def describe(self) -> str:
        summary = f"{self.config.problem} of {super().describe()}"
        positive = getattr(self.label_type, "positive_label", None)
        return summary if positive is None else f"{summary}; positive class: {positive}"

    def featurize(self, rows: Rows, tokenizer: Any, training: bool = False) -> TextFeatures:
        features = super().featurize(rows, tokenizer, training)
        if not training or not self._entity_columns:
            return features
        marker_ids = tokenizer.convert_tokens_to_ids(list(self.state.new_tokens))
        lost = describe_lost_markers(features, marker_ids)
        return dataclasses.replace(features, warnings=[*features.warnings, *lost])

    def build_model(self, model_config: Any, source: ModelSource) -> Any:
        if not self._has_fitted_head:
            return super().build_model(model_config, source)
        from bertkit.models.vector_classifier import load_vector_classifier, read_vector_pooling

        has_new_head = self.state.has_new_head
        if has_new_head and self.config.method == "linear-probe":
            pooling: Pooling = "mean"  # until the head is fitted, which chooses the pooling
        else:
            pooling = read_vector_pooling(source, model_config)
        return load_vector_classifier(source, model_config, has_new_head, pooling)


# In the order of the ids in SNLI, MNLI, XNLI and ANLI.
STANDARD_LABELS = ["entailment", "neutral", "contradiction"]


class InferenceLabel(SingleLabel):
    """The label of a pair, scored by accuracy and macro F1."""

    def score(self, gold: np.ndarray, predicted: np.ndarray) -> Scores:
        scores = super().score(gold, predicted)
        return {name: scores[name] for name in ("accuracy", "f1")}


class Nli(SequenceTask):
    """Natural language inference; pairs with the same premise stay in the same split."""

    definition = NLI
    text_settings = ("premise_column", "hypothesis_column")

    def parse_dataset(self, dataset: LoadedDataset) -> LoadedDataset:
        self.state = SequenceState()
        self._resolve_columns(dataset.splits["train"])
        dataset = self._name_label_ids(self._drop_unlabeled(self._split_all_soft_labels(dataset)))
        train, column = dataset.splits["train"], self.config.label_column
        found = {label for value in train[column] if (label := normalize_label(value))}
        found |= collect_names(train, column)
        class_names = dataset.get_class_names(self.config.label_column)
        labels = dataset.labels if found <= set(dataset.labels) else order_labels(found, class_names)
        self._set_labels(InferenceLabel(labels), dataset, len(found))
        return dataset

    def _guess_texts(self, train: Rows) -> None:
        if all(getattr(self.config, name) for name in self.text_settings):
            return
        pair = guess_pair_columns(train)
        if pair is None:
            raise UserError(
                f"{train.files[0]}: no two of the columns {format_list(train.columns)} look like premise "
                "and hypothesis; name them with --premise-column and --hypothesis-column"
            )
        self.resolve(**select_unset(self.config, dict(zip(self.text_settings, pair, strict=True))))

    def _name_label_ids(self, dataset: LoadedDataset) -> LoadedDataset:
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
        labeled = {
            name: name_soft_label_ids(rows, column, STANDARD_LABELS)
            for name, rows in dataset.splits.items()
            if has_labels(rows, column)
        }
        return named.add_splits(labeled)

    def make_split_keys(self, rows: Rows) -> SplitKeys:
        # All pairs with the same premise stay in one split: their labels help to predict each other.
        keys = super().make_split_keys(rows)
        return dataclasses.replace(keys, group=rows.hash_columns(self.input_schema.text_columns[:1]))

    def get_tfidf_baseline(self) -> tuple[str, list[str]]:
        return "hypothesis_only", list(self.input_schema.text_columns[1:])

    def _map_label_ids(self, rows: Rows) -> Rows:
        column = self.config.label_column
        ids = {str(index) for index in range(len(STANDARD_LABELS))}
        distinct = set(map(normalize_label, rows.factorize(column)[1]))
        if set(self.labels) != set(STANDARD_LABELS) or not distinct <= ids:
            return rows
        named = name_soft_label_ids(rows, column, STANDARD_LABELS)
        return named.map_column(column, partial(map_label_ids, names=STANDARD_LABELS))

    def _make_label_type(self, labels: list[str], model_config: Any) -> LabelType:
        return InferenceLabel(labels)


# ---- linear layers on the vectors of texts


def fit_linear_probe_baseline(
    task: SequenceTask, encoder: "FrozenEncoder", tokenizer: Any, train: Rows, rows: Rows
) -> dict[str, Scorer]:
    """Return the scorer of the baseline `linear_probe` on `rows`."""
    sample = sample_rows(train, MAX_PROBE_ROWS, task.config.seed)
    parts = [sample, rows]
    vectors = [encoder.compute_vectors(task.featurize(part, tokenizer)) for part in parts]
    return {LINEAR_PROBE: predict_by_probe(task, vectors, parts)}


def predict_by_probe(task: SequenceTask, vectors: Sequence[np.ndarray], parts: Sequence[Rows]) -> Scorer:
    """Return the scorer of a linear layer on vectors [n, poolings, hidden_size] of two parts of the rows.

    The layer is fitted to the first part, and predicts the second one.
    """
    gold = task.label_type.encode_labels(parts[1], task.config.label_column)
    groups = task.split_keys(parts[0]).column_group
    probe = fit_probe(task, vectors[0], task.get_training_labels(parts[0]), groups=groups)
    return _make_logits_scorer(task, gold, probe.compute_logits(vectors[1]))


def fit_probe(
    task: SequenceTask,
    vectors: np.ndarray,
    train: TrainingLabels,
    balanced: bool = False,
    groups: np.ndarray | None = None,
) -> LinearProbe:
    """Fit a linear layer to vectors [n, poolings, hidden_size] of the texts of training rows.

    `groups` are the `column_group` of their keys, which cross-validation keeps together.
    """

    def score(gold: np.ndarray, logits: np.ndarray) -> float:
        return _make_logits_scorer(task, gold, logits).score_all()[task.label_type.default_metric]

    return fit_linear_probe(vectors, train, len(task.labels) or 1, score, task.config.seed, balanced, groups)


def _make_logits_scorer(task: SequenceTask, gold: np.ndarray, logits: np.ndarray) -> Scorer:
    """Return a scorer of logits without thresholds, which are fitted to the probabilities of a run."""
    label_type = copy.copy(task.label_type)
    label_type.thresholds = {}
    return make_label_scorer(label_type.score, gold, label_type.predict(logits))
