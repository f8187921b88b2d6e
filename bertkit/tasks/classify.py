"""`classify`: single texts or pairs; binary, multi-class, multi-label and regression."""

import dataclasses
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertkit.config import DATA, MODEL, RunConfig, fill, setting
from bertkit.errors import UserError, listed
from bertkit.tasks.base import Outputs, Scores, Task

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.features import Features
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.sources import Found
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig(RunConfig):
    """The settings of `classify` beside the shared ones."""

    text_column: str | None = setting(None, "The text.", DATA, default_text="guessed")
    text_pair_column: str | None = setting(
        None, "The second text, where rows are pairs.", DATA, default_text="guessed"
    )
    label_column: str | None = setting(None, "The label.", DATA, default_text="guessed")
    problem: Literal["binary", "multi-class", "multi-label", "regression"] | None = setting(
        None, "What kind of labels they are.", DATA, default_text="seen from the labels"
    )
    positive_label: str | None = setting(
        None, "Of two labels, the one positive_f1 is about.", DATA, default_text="the second"
    )
    long: Literal["head", "tail", "head+tail", "windows"] = setting(
        "head",
        "Of a text longer than --max-length: keep its head, tail, both, or all of it in windows.",
        MODEL,
    )
    freeze: int = setting(0, "Freeze the embeddings and this many of the lowest layers.", MODEL, min=0)
    layer_decay: float | None = setting(
        None, "Factor on the learning rate for each layer further down.", min=0.0, max=1.0
    )
    class_weights: Literal["balanced"] | None = setting(
        None, "Let rare classes weigh as much as frequent ones."
    )
    label_smoothing: float = setting(0.0, "Share of the target spread over all classes.", min=0.0, max=0.99)


class Classify(Task):
    """Labels are numbered by the known order of the data set, else sorted, else as the model has them."""

    name = "classify"
    help = "Fine-tune a classifier or a regressor on single texts or pairs."
    Config = ClassifyConfig

    labels: list[str]
    separator: str | None = None
    new_head: bool = True

    # ---- rows

    def columns(self, found: "Found") -> list[Hashable]:
        """Text, pair and label columns, the kind of labels and their names."""
        from bertkit.data import columns as guess
        from bertkit.data.labels import infer_problem, separator_of

        train = found.splits["train"]
        config = self.config
        for name in ("text_column", "text_pair_column", "label_column"):
            if getattr(config, name):
                guess.require(train, getattr(config, name), "--" + name.replace("_", "-"))
        if config.text_column is None:
            text, pair = guess.guess_texts(train)
            config = fill(config, {"text_column": text, "text_pair_column": pair})
        config = fill(config, {"label_column": None if config.label_column else guess.guess_label(train)})
        values = train[config.label_column]
        self.config = config = fill(config, {"problem": infer_problem(values)})
        self.separator = separator_of(values) if config.problem == "multi-label" else None
        self.text_columns = [c for c in (config.text_column, config.text_pair_column) if c]
        self._name_labels(train, found.labels)
        self.best = (found.best or self._default_best, 1)
        return [str(value) for value in values] if self.labels else [0] * len(train)

    @property
    def _default_best(self) -> str:
        return {"regression": "pearson", "multi-label": "micro_f1"}.get(self.config.problem, "accuracy")

    def _name_labels(self, train: "Rows", known: list[str]) -> None:
        from bertkit.data.labels import label_set, label_text, sorted_names

        values, problem = train[self.config.label_column], self.config.problem
        if problem == "regression":
            self.labels = []
            return
        if problem == "multi-label":
            found = {name for value in values for name in label_set(value, self.separator) or []}
        else:
            found = {text for text in map(label_text, values) if text is not None}
        self.labels = known if known and found <= set(known) else sorted_names(list(found))
        self._check_labels(train, len(found))

    def _check_labels(self, train: "Rows", found: int) -> None:
        column, problem = f"{train.files[0]}: column {self.config.label_column!r}", self.config.problem
        if found < 2:
            only = f"only the class {self.labels[0]!r}" if self.labels else "no labels"
            raise UserError(f"{column} has {only}; training needs at least two")
        if problem != "multi-label" and found > max(20, len(train) // 2):
            raise UserError(
                f"{column} has {found:,} different labels in {len(train):,} rows; is it the label?"
            )
        if problem == "binary" and len(self.labels) != 2:
            raise UserError(f"{column} has {len(self.labels)} classes; --problem binary needs two")
        positive = self.config.positive_label
        if positive is not None and positive not in self.labels:
            raise UserError(f"--positive-label {positive}: the labels are {listed(self.labels)}")
        if problem == "binary" and positive is None:
            self.config = dataclasses.replace(self.config, positive_label=self.labels[1])

    def check(self, splits: "Splits") -> None:
        """Texts are texts, labels are known, numbers are numbers, in every split."""
        import numpy as np

        from bertkit.data.columns import require

        config = self.config
        if config.problem == "regression" and (config.class_weights or config.label_smoothing):
            flag = "--class-weights" if config.class_weights else "--label-smoothing"
            raise UserError(f"{flag}: regression has no classes")
        for name, rows in splits.items():
            self.require_texts(rows)
            if name in ("train", "validation"):
                require(rows, config.label_column, f"the {name} split needs it")
            targets = self._targets(rows, required=name in ("train", "validation"))
            if name == "train" and targets is not None and len(np.unique(targets, axis=0)) < 2:
                raise UserError(f"all {len(rows):,} rows to train on have the same label; take more of them")

    def require_texts(self, rows: "Rows") -> None:
        """Every row has its text, or both of them."""
        from bertkit.data.columns import require, require_texts

        for column in self.text_columns:
            require(rows, column, "the text" if column == self.config.text_column else "the second text")
        require_texts(rows, self.text_columns)

    def summary(self) -> str:
        """The kind of problem and its classes."""
        classes = f", classes {listed(self.labels)}" if self.labels else ""
        texts = " + ".join(self.text_columns)
        return f"{self.config.problem} of {texts} by {self.config.label_column}{classes}"

    def _targets(self, rows: "Rows", required: bool = False) -> "np.ndarray | None":
        """[n] int, [n, classes] int or [n] float; None where the split has no labels."""
        from bertkit.data.labels import class_numbers, class_sets, has_labels, numbers_of

        column = self.config.label_column
        if not required and not has_labels(rows, column):
            return None
        if self.config.problem == "regression":
            return numbers_of(rows, column)
        if self.config.problem == "multi-label":
            return class_sets(rows, column, self.labels, self.separator)
        return class_numbers(rows, column, self.labels)

    # ---- model

    def adopt(self, model_config: Any, source: "ModelSource") -> Any:
        """Take the model's own label order where its labels are ours; refuse where they are others."""
        from bertkit.modeling.heads import SEQUENCE_KINDS, match_labels

        self.new_head, self.labels = match_labels(model_config, self.labels, source.name)
        names = self.labels or ["score"]
        model_config.num_labels = len(names)
        model_config.id2label = dict(enumerate(names))
        model_config.label2id = {name: number for number, name in enumerate(names)}
        model_config.problem_type = SEQUENCE_KINDS[self.config.problem]
        return model_config

    def restore(self, model_config: Any) -> None:
        """Label names, their order and the columns, as trained."""
        names = [model_config.id2label[number] for number in range(model_config.num_labels)]
        self.labels = [] if self.config.problem == "regression" else names
        self.text_columns = [c for c in (self.config.text_column, self.config.text_pair_column) if c]
        self.new_head = False

    def prepare(self, rows: "Rows", tokenizer: Any) -> "Features":
        """Special pieces around one text or two, cut as `--long` says."""
        from bertkit.data.features import build_features

        return build_features(
            [rows[column] for column in self.text_columns], self._targets(rows), tokenizer,
            self.config.max_length, self.config.long, cache=not self.config.dry_run,
        )  # fmt: skip

    def collator(self, tokenizer: Any, model: Any) -> Callable[..., Any]:
        """Padding, and the document of each window."""
        from bertkit.data.features import Pad
        from bertkit.modeling.loading import takes_token_type_ids

        left = tokenizer.padding_side == "left"
        windows = self.config.long == "windows"
        return Pad(tokenizer.pad_token_id, left, takes_token_type_ids(model), windows)

    def model(self, model_config: Any, source: "ModelSource") -> Any:
        """`AutoModelForSequenceClassification`, its lowest layers frozen where asked."""
        from transformers import AutoModelForSequenceClassification

        from bertkit.modeling.layers import freeze
        from bertkit.modeling.loading import load_model

        model = load_model(AutoModelForSequenceClassification, source, model_config, self.new_head)
        freeze(model, self.config.freeze)
        return model

    def loss(self, train: "Features") -> "Loss":
        """Cross-entropy, binary cross-entropy or squared error."""
        from bertkit.modeling.heads import balanced_weights
        from bertkit.modeling.losses import BinaryCrossEntropy, CrossEntropy, SquaredError

        if self.config.problem == "regression":
            return SquaredError()
        assert train.labels is not None
        balanced = self.config.class_weights == "balanced"
        weights = balanced_weights(train.labels, len(self.labels)) if balanced else None
        kind = BinaryCrossEntropy if self.config.problem == "multi-label" else CrossEntropy
        return kind(weights, self.config.label_smoothing)

    # ---- results

    def _score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        from bertkit.metrics.classification import multi_label, regression, single_label

        if self.config.problem == "regression":
            return regression(gold, predicted)
        if self.config.problem == "multi-label":
            return multi_label(gold, predicted)
        positive = self.config.positive_label
        number = self.labels.index(positive) if positive is not None else None
        return single_label(gold, predicted, len(self.labels), number)

    def _predicted(self, logits: "np.ndarray") -> "np.ndarray":
        if self.config.problem == "regression":
            return logits[:, 0]
        if self.config.problem == "multi-label":
            return (logits > 0).astype("int64")  # a probability above one half
        return logits.argmax(-1)

    def metrics(self, outputs: Outputs) -> Scores:
        """Scores by kind: see `bertkit.metrics.classification`."""
        assert outputs.features.labels is not None
        return self._score(outputs.features.labels, self._predicted(outputs.logits))

    def intervals(self, outputs: Outputs) -> dict[str, list[float]]:
        """Bootstrap over the rows; Wilson's for the accuracy."""
        from bertkit.metrics.intervals import intervals

        gold, predicted = outputs.features.labels, self._predicted(outputs.logits)
        assert gold is not None
        return intervals(lambda rows: self._score(gold[rows], predicted[rows]), len(gold), self.config.seed)

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """`majority` and `tfidf`."""
        from bertkit.metrics.baselines import majority, tfidf

        labels, gold = self._targets(train), self._targets(rows)
        assert labels is not None
        assert gold is not None
        texts = [[part[column] for column in self.text_columns] for part in (train, rows)]
        [words] = tfidf(texts[0], labels, texts[1:], self.config.seed)
        return {
            "majority": self._score(gold, majority(labels, len(gold))),
            "tfidf": self._score(gold, words),
        }

    def decode(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """`gold`, `predicted` and `probabilities`; of regression, numbers."""
        from bertkit.metrics.probabilities import sigmoid, softmax

        gold, logits = outputs.features.labels, outputs.logits
        predicted = self._predicted(logits)
        kind = self.config.problem
        probabilities = sigmoid(logits) if kind == "multi-label" else softmax(logits)
        for index in range(len(logits)):
            record = {
                "gold": None if gold is None else self._readable(gold[index]),
                "predicted": self._readable(predicted[index]),
            }
            if kind != "regression":
                named = zip(self.labels, probabilities[index].tolist(), strict=True)
                record["probabilities"] = dict(named)
            yield record

    def _readable(self, value: Any) -> Any:
        if self.config.problem == "regression":
            return float(value)
        if self.config.problem == "multi-label":
            return [name for name, there in zip(self.labels, value, strict=True) if there]
        return self.labels[int(value)]
