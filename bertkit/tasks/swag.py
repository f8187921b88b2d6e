"""`swag`: which of several endings follows a context?"""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.config import DATA, RunConfig, fill, setting
from bertkit.errors import UserError, listed
from bertkit.tasks.base import Outputs, Scores, Task

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.features import Features
    from bertkit.data.findings import Finding
    from bertkit.data.piece_counts import PieceCounts
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.sources import Found
    from bertkit.data.split import Keys
    from bertkit.metrics.intervals import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss

FIRST = "first_ending"  # in the model's config


@dataclass(frozen=True, kw_only=True)
class SwagConfig(RunConfig):
    """The settings of `swag` beside the shared ones."""

    context_column: str | None = setting(None, "The context.", DATA, default_text="guessed")
    start_column: str | None = setting(
        None, "What every ending of a row begins with, as SWAG's sent2.", DATA, default_text="none"
    )
    ending_columns: list[str] | None = setting(
        None,
        "The endings: a column each (repeatable, or parted by commas), or one that holds lists.",
        DATA,
        default_text="guessed",
    )
    label_column: str | None = setting(None, "The right ending.", DATA, default_text="guessed")


class Swag(Task):
    """A pair, context and ending, for each ending; a softmax over the endings of a row.

    Devlin et al. 2018, 4.4. A label is a number, a letter or the ending itself.
    """

    name = "swag"
    help = "Fine-tune on multiple choice: a context and any number of endings."
    Config = SwagConfig
    hub_task = "multiple-choice"
    several = "choice"
    best = ("accuracy", 1)
    first: int = 0  # the number of the first ending in the labels

    # ---- rows

    def columns(self, found: "Found") -> "Found":
        """Context, endings and label, and from which number labels are counted."""
        from bertkit.data import choices
        from bertkit.data.columns import guess_label, require

        train, config = found.splits["train"], self.config
        for name in ("context_column", "start_column", "label_column"):
            if column := getattr(config, name):
                require(train, column, "--" + name.replace("_", "-"))
        if config.context_column is None:
            config = fill(config, choices.guess_context(train))
        if config.label_column is None:
            config = fill(config, {"label_column": guess_label(train)})
        endings = config.ending_columns
        endings = choices.split_names(train, endings) if endings else choices.guess_endings(train)
        self.config = dataclasses.replace(config, ending_columns=endings)
        self._set_text_columns()
        self.first = choices.counted_from(train[self.config.label_column], self._endings(train))
        notes = [*found.notes, "labels are counted from 1"] if self.first else found.notes
        splits = {name: self._unmarked(rows) for name, rows in found.splits.items()}
        return dataclasses.replace(found, splits=splits, notes=notes)

    def _unmarked(self, rows: "Rows") -> "Rows":
        """-1 is the Hub's "no label"."""
        column = self.config.label_column
        if column not in rows.columns:
            return rows
        return rows.with_column(column, [None if str(v) == "-1" else v for v in rows[column]])

    def _set_text_columns(self) -> None:
        self.contexts = [c for c in (self.config.context_column, self.config.start_column) if c]
        self.text_columns = [*self.contexts, *self.config.ending_columns]

    def _endings(self, rows: "Rows") -> list[list[str]]:
        from bertkit.data.choices import endings_of

        return endings_of(rows, [column for column in self.config.ending_columns if column in rows.columns])

    def keys(self, rows: "Rows") -> "Keys":
        """The order of the endings makes no other example; what shares a context stays together."""
        from bertkit.data.split import Keys

        contexts = rows.texts(self.contexts)
        identity = [(*c, *sorted(e)) for c, e in zip(contexts, self._endings(rows), strict=True)]
        return Keys(identity, [context[0] for context in contexts], [0] * len(rows))

    def check(self, splits: "Splits") -> None:
        """Texts are texts, endings are two or more, labels name one of them, in every split."""
        from bertkit.data.columns import require

        for name, rows in splits.items():
            self._require_all(rows)
            self.readable(rows)
            if name in ("train", "validation"):
                require(rows, self.config.label_column, f"the {name} split needs it")
            self._targets(rows, required=name in ("train", "validation"))

    def meet(self, rows: "Rows") -> None:
        """Context, endings and label, each as training called it or else as it is usually called."""
        from bertkit.data import choices
        from bertkit.data.columns import guess_label

        with suppress(UserError):  # then what training called them is what is missed
            if self.config.context_column not in rows.columns:
                found = {"start_column": None} | choices.guess_context(rows)
                self.config = dataclasses.replace(self.config, **found)
        with suppress(UserError):
            if self.config.ending_columns[0] not in rows.columns:
                self.config = dataclasses.replace(self.config, ending_columns=choices.guess_endings(rows))
        with suppress(UserError):
            if self.config.label_column not in rows.columns:
                self.config = dataclasses.replace(self.config, label_column=guess_label(rows))
        self._set_text_columns()

    def labelled(self, rows: "Rows", split: str) -> tuple["Rows", list[str]]:
        """Choices with a label that names one of them."""
        from bertkit.data.columns import require

        require(rows, self.config.label_column, "the label")
        self._require_all(rows)
        self._targets(rows := self.readable(self._unmarked(rows)), required=True)
        return rows, []

    def _require_all(self, rows: "Rows") -> None:
        """Raise where a column of endings is not there: of labelled rows it may hold the right one."""
        from bertkit.data.columns import require

        for column in self.config.ending_columns:
            require(rows, column, "an ending")

    def readable(self, rows: "Rows") -> "Rows":
        """Every row has a context and at least two endings; of more there may be no columns."""
        from bertkit.data.columns import require, require_texts

        for column in [*self.contexts, *self.config.ending_columns[:2]]:
            require(rows, column, "the context" if column in self.contexts else "an ending")
        require_texts(rows, self.contexts)
        self._endings(rows)
        return rows

    @property
    def asked(self) -> dict[str, str]:
        """A context and several endings."""
        return {"context": self.config.context_column, "ending": self.config.ending_columns[0]}

    def asked_rows(self, said: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """One row of all endings.

        Raises:
            UserError: several contexts, or more endings than there are columns of them.
        """
        columns, endings = self.config.ending_columns, said["ending"]
        if len(said["context"]) != 1:
            raise UserError("--context: one, with an --ending for each choice; --data takes many")
        if len(endings) < 2 or len(endings) > len(columns) > 1:
            most = f" to {len(columns)}, as in training" if len(columns) > 1 else " or more"
            raise UserError(f"--ending: {len(endings)} of them, where a choice has 2{most}")
        row = dict.fromkeys(self.contexts, "") | {self.config.context_column: said["context"][0]}
        filled = {columns[0]: endings} if len(columns) == 1 else zip(columns, endings, strict=False)
        return [row | dict(filled)]

    def example(self) -> dict[str, Any]:
        """A row with texts, and a list of them where the endings are in one column."""
        row: dict[str, Any] = super().example()
        endings = self.config.ending_columns
        return row | {endings[0]: ["...", "..."]} if len(endings) == 1 else row

    @property
    def gold_columns(self) -> set[str]:
        """The label."""
        return {self.config.label_column}

    def summary(self) -> str:
        """The columns of context, endings and label."""
        endings = listed(self.config.ending_columns)
        return f"{' + '.join(self.contexts)} with one of {endings} by {self.config.label_column}"

    def _targets(self, rows: "Rows", required: bool = False) -> "np.ndarray | None":
        """[n] int, the right endings; None where the split has no labels."""
        from bertkit.data.choices import right_endings
        from bertkit.data.labels import has_labels

        column = self.config.label_column
        if not required and not has_labels(rows, column):
            return None
        return right_endings(rows, column, self._endings(rows), self.first)

    # ---- looked at before training

    def texts(self, rows: "Rows") -> list[Sequence[str]]:
        """The contexts, and each row's endings as one text."""
        return [*(rows[column] for column in self.contexts), [" ".join(some) for some in self._endings(rows)]]

    def gold(self, rows: "Rows") -> list[Hashable] | None:
        """The right endings, whose number says nothing where the order is another."""
        targets = self._targets(rows)
        if targets is None:
            return None
        return [some[number] for some, number in zip(self._endings(rows), targets, strict=True)]

    def balance(self, rows: "Rows") -> dict[str, int]:
        """At which place the right ending stands, counted as the labels are."""
        targets = self._targets(rows)
        counts = Counter([] if targets is None else (targets + self.first).tolist())
        return {f"ending {place}": count for place, count in counts.most_common()}

    def findings(self, found: "Found", read: "Found", notes: Sequence[str]) -> Iterator["Finding"]:
        """How many endings rows have, and endings that are equal."""
        from bertkit.data import choice_checks

        yield from super().findings(found, read, notes)
        for split, rows in read.splits.items():
            endings, right = self._endings(rows), self.gold(rows)
            yield from choice_checks.sizes(split, rows, endings)
            yield from choice_checks.equal(split, rows, endings, right)  # type: ignore[arg-type]

    def count_pieces(self, rows: "Rows", tokenizer: Any) -> "PieceCounts":
        """Of the context with its longest ending."""
        from bertkit.data.piece_counts import PieceCounts

        return PieceCounts.of_choices(rows[self.config.context_column], self._whole_endings(rows), tokenizer)

    def _whole_endings(self, rows: "Rows") -> list[list[str]]:
        """With what they begin with."""
        endings = self._endings(rows)
        if not self.config.start_column:
            return endings
        starts = rows[self.config.start_column]
        return [[f"{s} {e}".strip() for e in some] for s, some in zip(starts, endings, strict=True)]

    # ---- model

    def adopt(self, model_config: Any, source: "ModelSource") -> Any:
        """A model that has a head for choices keeps it: going on from one data set to the next."""
        from bertkit.modeling.heads import CHOICE, has_head, stands_on

        fits = has_head(model_config, CHOICE) and stands_on(model_config, self.config.head)
        self.new_head = self.config.new_head or not fits
        setattr(model_config, FIRST, self.first)
        return model_config

    def restore(self, model_config: Any) -> None:
        """The columns, and from where labels are counted, as trained."""
        self._set_text_columns()
        self.first = getattr(model_config, FIRST, 0)
        self.new_head = False

    def prepare(self, rows: "Rows", tokenizer: Any) -> "Features":
        """A pair for each ending: the context, and what the ending begins with and the ending."""
        from bertkit.data.features import build_choices

        contexts, endings = rows[self.config.context_column], self._whole_endings(rows)
        return build_choices(
            contexts, endings, self._targets(rows), tokenizer, self.config.max_length,
            cache=self.caches,
        )  # fmt: skip

    def model(self, model_config: Any, source: "ModelSource") -> Any:
        """`AutoModelForMultipleChoice`."""
        from transformers import AutoModelForMultipleChoice

        from bertkit.modeling.reading import load_reader

        return load_reader(AutoModelForMultipleChoice, source, model_config, self.new_head, self.config.head)

    def loss(self, train: "Features") -> "Loss":
        """Cross-entropy over the endings that are there."""
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy()

    # ---- results

    def metrics(self, outputs: Outputs) -> Scores:
        """`accuracy`."""
        assert outputs.features.labels is not None
        return _accuracy(outputs.features.labels, outputs.logits.argmax(-1))

    def scorer(self, outputs: Outputs) -> "Scorer":
        """Which are right."""
        from bertkit.metrics.intervals import Scorer

        gold, predicted = outputs.features.labels, outputs.logits.argmax(-1)
        assert gold is not None
        return Scorer(lambda rows: _accuracy(gold[rows], predicted[rows]), len(gold), gold == predicted)

    def decode(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """`gold` and `predicted`, numbers of endings counted from 0; `scores` and `probabilities` of each."""
        import numpy as np

        from bertkit.metrics.probabilities import softmax

        gold, logits = outputs.features.labels, outputs.logits
        probabilities, counts = softmax(logits), np.diff(outputs.features.first)
        for index, (predicted, count) in enumerate(zip(logits.argmax(-1), counts, strict=True)):
            yield {
                "gold": None if gold is None else int(gold[index]),
                "predicted": int(predicted),
                "scores": logits[index, :count].tolist(),
                "probabilities": probabilities[index, :count].tolist(),
            }

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """`majority`, and `ending_only`: a bag of words that never sees the context."""
        from bertkit.metrics.baselines import ending_only, majority

        labels, gold = self._targets(train), self._targets(rows)
        assert labels is not None
        assert gold is not None
        words = ending_only(self._endings(train), labels, self._endings(rows), self.config.seed)
        return {
            "majority": _accuracy(gold, majority(labels, len(gold))),
            "ending_only": _accuracy(gold, words),
        }


def _accuracy(gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
    return {"accuracy": float((gold == predicted).mean())}
