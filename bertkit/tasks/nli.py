"""`nli`: classify pairs of premise and hypothesis as entailment, neutral or contradiction."""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError, format_list
from bertkit.setting import DATA, fill_unset, setting
from bertkit.tasks.base import Scores, TaskSpec
from bertkit.tasks.label_type import LabelType
from bertkit.tasks.label_types import SingleLabel
from bertkit.tasks.sequence import SEQUENCE_PIPELINE, SequenceTask
from bertkit.tasks.sequence_config import SequenceConfig

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows
    from bertkit.data.split import SplitKeys

STANDARD_LABELS = [
    "entailment",
    "neutral",
    "contradiction",
]  # in the order of the ids in SNLI, MNLI, XNLI and ANLI


@dataclass(frozen=True, kw_only=True)
class NliConfig(SequenceConfig):
    """The settings of `nli`."""

    premise_column: str | None = setting(None, "Column of the premise.", DATA, default_text="guessed")
    hypothesis_column: str | None = setting(None, "Column of the hypothesis.", DATA, default_text="guessed")


class InferenceLabel(SingleLabel):
    """The label of a pair, scored by accuracy and macro F1."""

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """Return `accuracy` and macro `f1`."""
        scores = super().score(gold, predicted)
        return {name: scores[name] for name in ("accuracy", "f1")}


SPEC = TaskSpec(
    name="nli",
    help="Fine-tune on premise and hypothesis: entailment, neutral, contradiction.",
    config=NliConfig,
    pipeline=SEQUENCE_PIPELINE,
    column_aliases={"text_column": "premise_column", "text_pair_column": "hypothesis_column"},
)


class Nli(SequenceTask):
    """Natural language inference; pairs with the same premise stay in the same split."""

    spec = SPEC
    text_settings = ("premise_column", "hypothesis_column")

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Find premise, hypothesis and label, drop unlabeled rows, and collect the labels."""
        from bertkit.data.labels import normalize_label, order_labels

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
        from bertkit.data.columns import guess_pair_columns

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
        from bertkit.data.labels import has_labels, normalize_label

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

    def split_keys(self, rows: "Rows") -> "SplitKeys":
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
        from bertkit.data.labels import map_label_ids, normalize_label

        column = self.config.label_column
        ids = {str(index) for index in range(len(STANDARD_LABELS))}
        distinct = set(map(normalize_label, rows.factorize(column)[1]))
        if set(self.labels) != set(STANDARD_LABELS) or not distinct <= ids:
            return rows
        return rows.map_column(column, partial(map_label_ids, names=STANDARD_LABELS))

    def _load_label_type(self, model_config: Any) -> LabelType:
        return InferenceLabel([model_config.id2label[index] for index in range(model_config.num_labels)])
