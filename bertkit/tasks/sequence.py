"""What `classify` and `nli` share: one decision about a text or a pair."""

import dataclasses
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bertkit.config import DATA, MODEL, RunConfig, fill_unset, get_flag, get_settings, setting
from bertkit.errors import UserError, format_count, format_list
from bertkit.tasks.base import Outputs, Pipeline, Scores, Task
from bertkit.tasks.label_types import LabelType, MultiLabel, Regression, SingleLabel

if TYPE_CHECKING:
    import numpy as np

    from bertkit.checks.findings import Finding, Level
    from bertkit.data.features import Features
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.split import SplitKeys
    from bertkit.metrics.significance import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(RunConfig):
    """The settings of all tasks that decide about a text or a pair."""

    label_column: str | None = setting(None, "The label.", DATA, default_text="guessed")
    long_texts: Literal["head", "tail", "head+tail", "windows"] = setting(
        "head",
        "Of a text longer than --max-length: keep its head, tail, both, or all of it in windows.",
        MODEL,
    )
    class_weights: Literal["balanced"] | None = setting(
        None, "Let rare classes weigh as much as frequent ones."
    )
    label_smoothing: float = setting(0.0, "Share of the target spread over all classes.", min=0.0, max=0.99)


class SequenceTask(Task):
    """Labels are numbered by the known order of the data set, else sorted, else as the model has them.

    Attributes:
        roles: the settings that name the first and the second text.
        problem: the kind of labels and their names, known after `columns`.
        causal: whether the model reads from left to right, known after `adopt`.
    """

    hub_task = "text-classification"
    text_settings: ClassVar[tuple[str, str]]
    is_causal: bool = False
    label_type: LabelType

    @property
    def pipeline(self) -> Pipeline | None:  # type: ignore[override]
        """Of the stock model."""
        stock = Pipeline(self.hub_task, {"top_k": None}, {"truncation": True})
        return None if self.pipeline_caveat else stock

    @property
    def pipeline_caveat(self) -> str:  # type: ignore[override]
        """A stock pipeline would load what follows here without a word, and decide otherwise."""
        if self.config.head == "bilstm":
            return "leaves out its BiLSTM"
        return "reads [CLS], which in this model has seen nothing of the text" if self.is_causal else ""

    @property
    def labels(self) -> list[str]:
        """The labels in the order of the model's outputs; empty for numbers."""
        return self.label_type.labels

    @property
    def uses_windows(self) -> bool:  # type: ignore[override]
        """As asked by `--long-texts`."""
        return self.config.long_texts == "windows"

    @property
    def sequence_grouping(self) -> Literal["document"] | None:  # type: ignore[override]
        """Windows are the sequences of one document."""
        return "document" if self.uses_windows else None

    @property
    def gold_columns(self) -> set[str]:
        """The label."""
        return {self.config.label_column}

    # ---- rows

    def _name_columns(self, train: "Rows") -> None:
        """Columns named must be there; those not named are guessed."""
        from bertkit.data import columns as guess

        for name in (*self.text_settings, "label_column"):
            if column := getattr(self.config, name):
                guess.require_column(train, column, get_flag(name, get_settings(self.Config)[name][1]))
        self._guess_texts(train)
        if self.config.label_column is None:
            self.config = fill_unset(self.config, {"label_column": guess.guess_label_column(train)})
        self._set_text_columns()
        if len(set(self.text_columns)) < len(self.text_columns):
            flag = get_flag(self.text_settings[1], get_settings(self.Config)[self.text_settings[1]][1])
            raise UserError(f"{flag} {self.text_columns[1]}: is the first text already; name another column")

    @abstractmethod
    def _guess_texts(self, train: "Rows") -> None:
        """Fill in the text columns that were not named. Raises `UserError` where there are none."""

    def _set_text_columns(self) -> None:
        self.text_columns = [column for role in self.text_settings if (column := getattr(self.config, role))]

    def _decided(self, found: "LoadedDataset") -> "LoadedDataset":
        """Without the rows that have no gold label, which is noted."""
        from bertkit.data.labels import drop_unlabeled_rows

        splits, notes = drop_unlabeled_rows(found.splits, self.config.label_column)
        return dataclasses.replace(found, splits=splits, notes=[*found.notes, *notes])

    def _require_classes(self, train: "Rows", found: int) -> None:
        """Raise where the labels found in training are too few, or too many to be labels."""
        column = f"{train.files[0]}: column {self.config.label_column!r}"
        if found < 2:
            only = f"only the class {self.labels[0]!r}" if self.labels else "no labels"
            raise UserError(f"{column} has {only}; training needs at least two")
        if isinstance(self.label_type, SingleLabel) and found > max(20, len(train) // 2):
            raise UserError(
                f"{column} has {found:,} different labels in {len(train):,} rows; is it the label?"
            )

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """An example is its text or pair; classes have equal shares on both sides."""
        from bertkit.data.split import SplitKeys

        texts = rows.zip_columns(self.text_columns)
        labels = rows.columns.get(self.config.label_column) if self.labels else None
        return SplitKeys(texts, texts, [str(value) for value in labels] if labels else [0] * len(rows))

    def validate_splits(self, splits: "Splits") -> None:
        """Texts are texts, labels are known, numbers are numbers, in every split."""
        import numpy as np

        from bertkit.data.columns import require_column

        for name, rows in splits.items():
            self.normalize_rows(rows)
            if name in ("train", "validation"):
                require_column(rows, self.config.label_column, f"the {name} split needs it")
            targets = self._targets(rows, required=name in ("train", "validation"))
            if name == "train" and targets is not None and len(np.unique(targets, axis=0)) < 2:
                seen = format_count(len(rows), "row")
                raise UserError(f"only one label in the {seen} to train on; take more of them")

    def normalize_rows(self, rows: "Rows") -> "Rows":
        """Every row has its text, or both of them."""
        from bertkit.data.columns import require_column, require_texts

        for column, what in zip(self.text_columns, ("the text", "the second text"), strict=False):
            require_column(rows, column, what)
        require_texts(rows, self.text_columns)
        return rows

    def map_columns(self, rows: "Rows") -> None:
        """Texts and label, each as training called it or else as it is usually called."""
        from bertkit.data import columns as guess

        trained, count = self.config, len(self.text_columns)
        with suppress(UserError):  # then what training called them is what is missed
            if not set(self.text_columns) <= set(rows.columns):
                self.config = dataclasses.replace(trained, **dict.fromkeys(self.text_settings))
                self._guess_texts(rows)
                self._set_text_columns()
        if len(self.text_columns) != count or not set(self.text_columns) <= set(rows.columns):
            self.config = trained
            self._set_text_columns()
        with suppress(UserError):
            if trained.label_column not in rows.columns:
                self.config = dataclasses.replace(self.config, label_column=guess.guess_label_column(rows))

    def normalize_labeled_rows(self, rows: "Rows", split: str) -> tuple["Rows", list[str]]:
        """Those with a gold label, which the model has to know."""
        from bertkit.data.columns import require_column
        from bertkit.data.labels import drop_unlabeled_rows

        require_column(rows, self.config.label_column, "the label")
        found, notes = drop_unlabeled_rows({"train": rows}, self.config.label_column)
        self._targets(rows := self._named(self.normalize_rows(found["train"])), required=True)
        return rows, [note.replace("train", split) for note in notes]

    def _named(self, rows: "Rows") -> "Rows":
        """With labels that are numbers by their names, where they have any."""
        return rows

    def describe(self) -> str:
        """The texts, the label and its classes."""
        classes = f", classes {format_list(self.labels)}" if self.labels else ""
        return f"{' + '.join(self.text_columns)} by {self.config.label_column}{classes}"

    def _targets(self, rows: "Rows", required: bool = False) -> "np.ndarray | None":
        """The labels as numbers; None where the split has none."""
        from bertkit.data.labels import has_labels

        column = self.config.label_column
        return self.label_type.encode_labels(rows, column) if required or has_labels(rows, column) else None

    # ---- looked at before training

    def extract_gold(self, rows: "Rows") -> list[Hashable] | None:
        """The labels."""
        from bertkit.data.labels import has_labels

        column = self.config.label_column
        return [self.label_type.parse_label(v) for v in rows[column]] if has_labels(rows, column) else None

    def count_labels(self, rows: "Rows") -> dict[str, int]:
        """Of label sets each label by itself; numbers are not counted."""
        gold = self.extract_gold(rows)
        if gold is None or isinstance(self.label_type, Regression):
            return {}
        if isinstance(self.label_type, MultiLabel):
            gold = [label for labels in gold for label in labels or ()]  # type: ignore[attr-defined]
        return {str(name): count for name, count in Counter(gold).most_common()}

    @property
    def conflict_severity(self) -> "tuple[Level, str]":
        """Numbers may differ from judge to judge."""
        if isinstance(self.label_type, Regression):
            return "note", "what is learned lies between them; decide on one number where that is a slip"
        return super().conflict_severity

    def check_balance(self, counts: "Mapping[str, Mapping[str, int]]") -> Iterator["Finding"]:
        """Of classes."""
        from bertkit.checks.classification import check_balance

        return check_balance(counts)

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator["Finding"]:
        """Labels spelled alike or that are none, pairs of one text, rows without any, numbers beyond."""
        from bertkit.checks import classification

        yield from super().check_rows(dataset, parsed, notes)
        yield from classification.find_similar_labels(self.labels)
        for split, rows in parsed.splits.items():
            if len(self.text_columns) > 1:
                yield from classification.find_identical_pairs(split, rows, self.text_columns)
            if isinstance(self.label_type, SingleLabel) and self.config.label_column in rows.columns:
                yield from classification.find_placeholder_labels(
                    split, rows, self.config.label_column, self.labels
                )
            if isinstance(self.label_type, MultiLabel):
                yield from classification.find_empty_label_sets(split, rows, self.extract_gold(rows) or [])
        if isinstance(self.label_type, Regression):
            found_ = {split: self._targets(rows) for split, rows in parsed.splits.items()}
            numbers = {split: targets for split, targets in found_.items() if targets is not None}
            yield from classification.find_out_of_range(numbers, parsed.splits)

    # ---- model

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Take the model's own label order where its labels are ours; refuse where they are others."""
        from bertkit.modeling.heads import SEQUENCE_HEAD, has_head_type, match_labels, set_labels
        from bertkit.modeling.pooling import is_causal

        self.is_causal = is_causal(model_config)
        if not self.config.new_head and has_head_type(model_config, self.config.head):
            found = match_labels(model_config, self.labels, source.name, SEQUENCE_HEAD)
            self.has_new_head, self.label_type.labels = found
        model_config.problem_type = self.label_type.problem_type
        return set_labels(model_config, self.labels or ["score"])

    def load_state(self, model_config: Any) -> None:
        """Label names, their order and the columns, as trained."""
        self.label_type = self._problem_of(model_config)
        self._set_text_columns()
        self.has_new_head = False

    @abstractmethod
    def _problem_of(self, model_config: Any) -> LabelType:
        """The kind of labels and their names, from a finished run's config."""

    def featurize(self, rows: "Rows", tokenizer: Any) -> "Features":
        """Special pieces around one text or two, cut as `--long-texts` says."""
        from bertkit.data.features import build_features

        return build_features(
            [rows[column] for column in self.text_columns], self._targets(rows), tokenizer,
            self.config.max_length, self.config.long_texts, cache=self.use_cache,
        )  # fmt: skip

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """`AutoModelForSequenceClassification`."""
        from transformers import AutoModelForSequenceClassification

        from bertkit.modeling.pooling import load_with_pooling

        return load_with_pooling(
            AutoModelForSequenceClassification, source, model_config, self.has_new_head, self.config.head
        )

    def verify_label_order(self, score_sample: Callable[[], Outputs]) -> None:
        """Refuse a head under whose names the answers are wrong and under others right."""
        from bertkit.modeling.heads import verify_label_order

        if isinstance(self.label_type, SingleLabel):
            outputs = score_sample()
            assert outputs.features.labels is not None
            predicted = self.label_type.predict(outputs.logits)
            verify_label_order(outputs.features.labels, predicted, self.labels, str(self.config.model))

    def loss(self, train: "Features") -> "Loss":
        """Cross-entropy, binary cross-entropy or squared error."""
        assert train.labels is not None
        balanced = self.config.class_weights == "balanced"
        return self.label_type.loss(train.labels, balanced, self.config.label_smoothing)

    # ---- results

    def compute_metrics(self, outputs: Outputs) -> Scores:
        """Scores by kind of label."""
        assert outputs.features.labels is not None
        return self.label_type.score(outputs.features.labels, self.label_type.predict(outputs.logits))

    def scorer(self, outputs: Outputs) -> "Scorer":
        """By kind of label; of single ones which are right."""
        from bertkit.metrics.significance import Scorer

        gold, predicted = outputs.features.labels, self.label_type.predict(outputs.logits)
        assert gold is not None
        score, right = self.label_type.score, isinstance(self.label_type, SingleLabel)
        return Scorer(
            lambda rows: score(gold[rows], predicted[rows]), len(gold), gold == predicted if right else None
        )

    def iter_predictions(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """`gold`, `predicted` and `probabilities`; of regression, numbers."""
        gold, predicted = outputs.features.labels, self.label_type.predict(outputs.logits)
        probabilities = self.label_type.compute_probabilities(outputs.logits)
        for index, found in enumerate(predicted):
            record = {
                "gold": None if gold is None else self.label_type.decode_label(gold[index]),
                "predicted": self.label_type.decode_label(found),
            }
            if probabilities is not None:
                named = zip(self.labels, probabilities[index].tolist(), strict=True)
                record["probabilities"] = dict(named)
            yield record

    def compact(self, record: dict[str, Any]) -> dict[str, Any]:
        """The probabilities of the labels that are predicted."""
        if "probabilities" not in record:
            return record
        found, every = record["predicted"], record["probabilities"]
        there = found if isinstance(found, list) else [found]
        return record | {"probabilities": {label: every[label] for label in there}}

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """`majority`, and a bag of words under the task's name for it."""
        from bertkit.metrics.baselines import predict_majority, predict_tfidf

        labels, gold = self._targets(train), self._targets(rows)
        assert labels is not None
        assert gold is not None
        name, columns = self._bag_of_words()
        texts = [[part[column] for column in columns] for part in (train, rows)]
        [words] = predict_tfidf(texts[0], labels, texts[1:], self.config.seed)
        score = self.label_type.score
        return {"majority": score(gold, predict_majority(labels, len(gold))), name: score(gold, words)}

    def _bag_of_words(self) -> tuple[str, list[str]]:
        """The bag-of-words baseline's name, and the columns it reads."""
        return "tfidf", self.text_columns
