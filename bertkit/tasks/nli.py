"""`nli`: does a premise entail a hypothesis, contradict it, or neither?"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.config import DATA, fill_unset, setting
from bertkit.errors import UserError, format_list
from bertkit.tasks.base import Scores
from bertkit.tasks.label_types import LabelType, SingleLabel
from bertkit.tasks.sequence import SequenceConfig, SequenceTask

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows
    from bertkit.data.split import SplitKeys

STANDARD_LABELS = ["entailment", "neutral", "contradiction"]  # what 0, 1, 2 mean in SNLI, MNLI, XNLI, ANLI


@dataclass(frozen=True, kw_only=True)
class NliConfig(SequenceConfig):
    """The settings of `nli` beside the shared ones."""

    premise_column: str | None = setting(None, "The premise.", DATA, default_text="guessed")
    hypothesis_column: str | None = setting(None, "The hypothesis.", DATA, default_text="guessed")


class InferenceLabel(SingleLabel):
    """One label of two or three, scored by accuracy and macro f1."""

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """`accuracy` and `f1`."""
        scores = super().score(gold, predicted)
        return {name: scores[name] for name in ("accuracy", "f1")}


class Nli(SequenceTask):
    """Pairs that belong to one premise stay on one side where a share is set aside."""

    name = "nli"
    help = "Fine-tune on premise and hypothesis: entailment, neutral, contradiction."
    Config = NliConfig
    text_settings = ("premise_column", "hypothesis_column")
    column_aliases = {"text_column": "premise_column", "text_pair_column": "hypothesis_column"}

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Premise, hypothesis and label columns, and the label names; undecided rows are left out."""
        from bertkit.data.labels import normalize_label, sort_labels

        self._name_columns(dataset.splits["train"])
        dataset = self._numbers_named(self._decided(dataset))
        train = dataset.splits["train"]
        there = {text for value in train[self.config.label_column] if (text := normalize_label(value))}
        known = dataset.labels if there <= set(dataset.labels) else sort_labels(list(there))
        self.label_type = InferenceLabel(known)
        self._require_classes(train, len(there))
        self.best_metric = (dataset.best_metric or self.label_type.default_metric, 1)
        return dataset

    def _guess_texts(self, train: "Rows") -> None:
        from bertkit.data.columns import guess_pair_columns

        if any(getattr(self.config, role) is None for role in self.text_settings):
            pair = guess_pair_columns(train)
            if pair is None:
                raise UserError(
                    f"{train.files[0]}: no two columns look like premise and hypothesis (it has "
                    f"{format_list(train.columns)}); name them with --premise-column and --hypothesis-column"
                )
            self.config = fill_unset(self.config, dict(zip(self.text_settings, pair, strict=True)))

    def _numbers_named(self, found: "LoadedDataset") -> "LoadedDataset":
        """Labels 0, 1 and 2 by the names that all the large sets number so."""
        from bertkit.data.labels import has_labels, normalize_label

        column = self.config.label_column
        if {normalize_label(value) for value in found.splits["train"][column]} != {"0", "1", "2"}:
            return found
        said = (
            "labels 0, 1, 2 are taken as entailment, neutral, contradiction; write names where they are not"
        )
        defaults = {**found.defaults, "label_column": column}
        named = dataclasses.replace(
            found, labels=STANDARD_LABELS, defaults=defaults, notes=[*found.notes, said]
        )
        return named.add_splits({n: rows for n, rows in found.splits.items() if has_labels(rows, column)})

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """Pairs are set aside by premise: a premise's other pairs would tell on this one."""
        keys = super().split_keys(rows)
        return dataclasses.replace(keys, group=rows[self.text_columns[0]])

    def _bag_of_words(self) -> tuple[str, list[str]]:
        """What the hypotheses alone give away."""
        return "hypothesis_only", self.text_columns[1:]

    def _named(self, rows: "Rows") -> "Rows":
        """0, 1 and 2 as the large sets number them, where the model has names."""
        from bertkit.data.labels import map_label_ids, normalize_label

        column, numbers = self.config.label_column, {str(number) for number in range(len(STANDARD_LABELS))}
        if set(self.labels) != set(STANDARD_LABELS) or not {*map(normalize_label, rows[column])} <= numbers:
            return rows
        return rows.with_column(column, map_label_ids(rows[column], STANDARD_LABELS))

    def _problem_of(self, model_config: Any) -> LabelType:
        return InferenceLabel([model_config.id2label[number] for number in range(model_config.num_labels)])
