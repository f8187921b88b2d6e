"""`nli`: does a premise entail a hypothesis, contradict it, or neither?"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.config import DATA, fill, setting
from bertkit.errors import UserError, listed
from bertkit.tasks.base import Scores
from bertkit.tasks.problems import Problem, SingleLabel
from bertkit.tasks.sequence import SequenceConfig, SequenceTask

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.rows import Rows
    from bertkit.data.sources import Found
    from bertkit.data.split import Keys

NUMBERED = ["entailment", "neutral", "contradiction"]  # what 0, 1, 2 mean in SNLI, MNLI, XNLI, ANLI


@dataclass(frozen=True, kw_only=True)
class NliConfig(SequenceConfig):
    """The settings of `nli` beside the shared ones."""

    premise_column: str | None = setting(None, "The premise.", DATA, default_text="guessed")
    hypothesis_column: str | None = setting(None, "The hypothesis.", DATA, default_text="guessed")


class Inference(SingleLabel):
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
    roles = ("premise_column", "hypothesis_column")
    known_as = {"text_column": "premise_column", "text_pair_column": "hypothesis_column"}

    def columns(self, found: "Found") -> "Found":
        """Premise, hypothesis and label columns, and the label names; undecided rows are left out."""
        from bertkit.data.labels import label_text, sorted_names

        self._name_columns(found.splits["train"])
        found = self._numbers_named(self._decided(found))
        train = found.splits["train"]
        there = {text for value in train[self.config.label_column] if (text := label_text(value))}
        known = found.labels if there <= set(found.labels) else sorted_names(list(there))
        self.problem = Inference(known)
        self._require_classes(train, len(there))
        self.best = (found.best or self.problem.best, 1)
        return found

    def _guess_texts(self, train: "Rows") -> None:
        from bertkit.data.columns import guess_pair

        if any(getattr(self.config, role) is None for role in self.roles):
            pair = guess_pair(train)
            if pair is None:
                raise UserError(
                    f"{train.files[0]}: no two columns look like premise and hypothesis (it has "
                    f"{listed(train.columns)}); name them with --premise-column and --hypothesis-column"
                )
            self.config = fill(self.config, dict(zip(self.roles, pair, strict=True)))

    def _numbers_named(self, found: "Found") -> "Found":
        """Labels 0, 1 and 2 by the names that all the large sets number so."""
        from bertkit.data.labels import has_labels, label_text

        column = self.config.label_column
        if {label_text(value) for value in found.splits["train"][column]} != {"0", "1", "2"}:
            return found
        said = (
            "labels 0, 1, 2 are taken as entailment, neutral, contradiction; write names where they are not"
        )
        defaults = {**found.defaults, "label_column": column}
        named = dataclasses.replace(found, labels=NUMBERED, defaults=defaults, notes=[*found.notes, said])
        return named.with_splits({n: rows for n, rows in found.splits.items() if has_labels(rows, column)})

    def keys(self, rows: "Rows") -> "Keys":
        """Pairs are set aside by premise: a premise's other pairs would tell on this one."""
        keys = super().keys(rows)
        return dataclasses.replace(keys, together=rows[self.text_columns[0]])

    def _bag_of_words(self) -> tuple[str, list[str]]:
        """What the hypotheses alone give away."""
        return "hypothesis_only", self.text_columns[1:]

    def _named(self, rows: "Rows") -> "Rows":
        """0, 1 and 2 as the large sets number them, where the model has names."""
        from bertkit.data.labels import label_text, name_numbers

        column, numbers = self.config.label_column, {str(number) for number in range(len(NUMBERED))}
        if set(self.labels) != set(NUMBERED) or not {*map(label_text, rows[column])} <= numbers:
            return rows
        return rows.with_column(column, name_numbers(rows[column], NUMBERED))

    def _problem_of(self, model_config: Any) -> Problem:
        return Inference([model_config.id2label[number] for number in range(model_config.num_labels)])
