"""`classify`: predict one label, several labels or a number for a text or a pair of texts."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertkit.errors import UserError, format_list
from bertkit.setting import DATA, fill_unset, setting
from bertkit.tasks.base import TaskSpec
from bertkit.tasks.input_schema import InputSchema
from bertkit.tasks.label_type import LabelType
from bertkit.tasks.label_types import MultiLabel, Regression, SingleLabel
from bertkit.tasks.sequence import SEQUENCE_PIPELINE, SequenceTask
from bertkit.tasks.sequence_config import SequenceConfig
from bertkit.tasks.training_method import TrainingMethod

if TYPE_CHECKING:
    from bertkit.common_settings import Pooling
    from bertkit.data.features import TextFeatures
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows, Splits
    from bertkit.modeling.loading import ModelSource

SEPARATOR_KEY = "label_separator"  # attribute of the model's config
ENTITY_TYPES_KEY = "bertkit_entity_types"  # the same: types of the subjects, types of the objects
VECTOR_CAVEAT = "has no class for the head of this model"
# Settings without effect on a head that is fitted to vectors, and the reason.
FITTED_HEAD_CONFLICTS = {
    "head": "the head is fitted to one vector per text",
    "label_smoothing": "the head is fitted by logistic regression",
    "pooling": "the method chooses the pooling",
}
# Settings without effect if the encoder is not trained.
ENCODER_TRAINING_SETTINGS = (
    "epochs", "max_steps", "batch_size", "tokens_per_batch", "learning_rate", "layer_decay", "warmup",
    "weight_decay", "lr_scheduler", "gradient_accumulation_steps", "gradient_checkpointing", "fp16",
    "compile", "pack", "attention_dropout", "optim", "early_stopping", "save_steps", "set", "freeze",
    "lora",
)  # fmt: skip
CONTRASTIVE_HYPERPARAMETERS = {"epochs": 1.0, "batch_size": 16}  # those of SetFit


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig(SequenceConfig):
    """The settings of `classify`."""

    text_column: str | None = setting(None, "Column of the text.", DATA, default_text="guessed")
    text_pair_column: str | None = setting(
        None, "Column of the second text, for pairs.", DATA, default_text="guessed"
    )
    subject_column: str | None = setting(
        None, "Column of the first entity of a relation; its characters are marked in the text.", DATA
    )
    object_column: str | None = setting(None, "Column of the second entity of a relation.", DATA)
    problem: Literal["binary", "multi-class", "multi-label", "regression"] | None = setting(
        None, "Kind of labels.", DATA, default_text="inferred from the labels"
    )
    method: Literal["finetune", "contrastive", "linear-probe"] = setting(
        "finetune",
        "Fine-tune encoder and head; or, for few rows, train on pairs of rows, then fit the head; or only "
        "fit the head.",
    )
    positive_label: str | None = setting(
        None, "Label that positive_f1 scores if there are two labels.", DATA,
        default_text="inferred from the names of the labels",
    )  # fmt: skip

    def list_ineffective_settings(self) -> dict[str, str]:
        """Return the settings that have no effect with `method`, each with the reason."""
        reasons: dict[str, str] = {}
        if self.method != "finetune":
            reasons |= FITTED_HEAD_CONFLICTS
        if self.method == "linear-probe":
            reasons |= dict.fromkeys(ENCODER_TRAINING_SETTINGS, "the encoder is not trained")
            reasons["num_layers"] = "the head reads the vectors of the last layer"
        return {name: f"with --method {self.method}, {reason}" for name, reason in reasons.items()}


SPEC = TaskSpec(
    name="classify",
    help="Fine-tune a classifier or a regressor on single texts or pairs.",
    config=ClassifyConfig,
    pipeline=SEQUENCE_PIPELINE,
)


class Classify(SequenceTask):
    """Classification or regression of single texts or pairs."""

    spec = SPEC
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
        from bertkit.data.labels import infer_label_type

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
        from bertkit.data.entity_markers import EXAMPLE_TEXT

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
        from bertkit.data.columns import require_column
        from bertkit.data.entity_markers import collect_types

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
        from bertkit.data.entity_markers import EXAMPLE_TEXT, list_markers

        self.entity_types, self.new_tokens = types, list_markers(types)
        pipeline = dataclasses.replace(self.spec.pipeline, example_input=EXAMPLE_TEXT)
        self.spec = dataclasses.replace(self.spec, pipeline=pipeline)

    def parse_rows(
        self, rows: "Rows", split: str = "", require_labels: bool = False
    ) -> tuple["Rows", list[str]]:
        """Return the rows, with markers around the entities in the texts."""
        parsed, notes = super().parse_rows(rows, split, require_labels)
        if self._entity_columns:
            from bertkit.data.entity_markers import mark_rows

            parsed = mark_rows(parsed, self.config.text_column, self._entity_columns, self.entity_types)
        return parsed, notes

    def _guess_texts(self, train: "Rows") -> None:
        from bertkit.data.columns import guess_text_columns

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
        from bertkit.data.labels import detect_separator, order_labels
        from bertkit.data.positive_label import infer_positive_label

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
        from bertkit.data.labels import normalize_label, parse_label_set

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
            from bertkit.modeling.vector_classifier import read_vector_pooling

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
        from bertkit.data.entity_markers import describe_lost_markers

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
        from bertkit.modeling.heads import VECTOR_HEAD

        return VECTOR_HEAD if self._has_fitted_head else super()._head_kind

    def _has_matching_head(self, model_config: Any) -> bool:
        return self._has_fitted_head or super()._has_matching_head(model_config)

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Return a `VectorClassifier` for a head that is fitted to vectors."""
        if not self._has_fitted_head:
            return super().build_model(model_config, source)
        from bertkit.modeling.vector_classifier import load_vector_classifier, read_vector_pooling

        if self.has_new_head and not self.spec.trains_encoder:
            pooling: Pooling = "mean"  # until the head is fitted, which chooses the pooling
        else:
            pooling = read_vector_pooling(source, model_config)
        return load_vector_classifier(source, model_config, self.has_new_head, pooling)

    @property
    def training_method(self) -> TrainingMethod:
        """That of `--method`."""
        from bertkit.tasks.fitted_head import METHODS

        return METHODS[self.config.method](self) if self._has_fitted_head else super().training_method
