"""Entities in sentences: `ner`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import eq
from typing import Any

import numpy as np

from bertkit.data.schemes import Scheme, detect, to_iob2
from bertkit.data.tags import OUTSIDE, TagSet, iob2_names, offsets_of, sentence_numbers
from bertkit.data.words import Sentences
from bertkit.metrics.calibration import calibration
from bertkit.metrics.entities import UNTYPED, scores
from bertkit.metrics.intervals import Scorer
from bertkit.reports.charts import Chart, reliability
from bertkit.reports.example import Example, Field, Mark
from bertkit.reports.recorded import Recorded
from bertkit.reports.views.base import View, f1_bars

COLOURS = 8
Span = tuple[int, int, str]  # characters, and the type


class Entities(View):
    """Records with tokens, their gold and predicted tags, and the predicted entities by characters."""

    decided = frozenset({"predicted", "entities"})

    def __init__(self, run: Recorded, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.gold = self._gold()
        self.types = sorted({type for some in self.gold for _, _, type in some})
        self.types += sorted({e["label"] for r in self.records for e in r["entities"]} - set(self.types))

    @classmethod
    def fits(cls, record: Mapping[str, Any]) -> bool:
        """Tokens and entities."""
        return "tokens" in record and "entities" in record

    def _gold(self) -> list[list[Span]]:
        """The gold entities of each sentence, by conlleval's rule."""
        tokens, texts = ([record[key] for record in self.records] for key in ("tokens", "text"))
        tags = [record["gold"] for record in self.records]
        like = self.run.content("config.json").get("tag_scheme")
        iob2 = to_iob2(tags, detect(tags, Scheme(**like) if like else None))
        types = {tag[2:] for some in iob2 for tag in some if tag != OUTSIDE}
        offsets, known = offsets_of(tokens), TagSet(iob2_names(types))
        numbers = known.numbers(iob2)
        first, last = (np.flatnonzero(bounds) for bounds in known.bounds(numbers, offsets))
        places = Sentences.of(tokens, texts)
        found: list[list[Span]] = [[] for _ in self.records]
        for sentence, start, stop, type in zip(
            sentence_numbers(first, offsets).tolist(), places.start[first].tolist(),
            places.stop[last].tolist(), known.type_of[numbers[first]].tolist(), strict=True,
        ):  # fmt: skip
            found[sentence].append((start, stop, known.types[type]))
        return found

    def examples(self) -> list[Example]:
        """Sentences with the most wrong entities first, of these the surest ones."""
        return [self._example(record, gold) for record, gold in zip(self.records, self.gold, strict=True)]

    def _example(self, record: Mapping[str, Any], gold: list[Span]) -> Example:
        predicted = _spans(record)
        sure = min((entity["score"] for entity in record["entities"]), default=None)
        wrong = len(set(gold) ^ set(predicted))
        text = record["text"]
        fields = [Field("gold", text, self._marks(gold)), Field("predicted", text, self._marks(predicted))]
        if not wrong:
            fields = [Field("gold and predicted", text, self._marks(gold))]
        return Example(
            record["id"], _labels(gold), _labels(predicted), not wrong, sure, wrong + (sure or 0) / 2, fields,
            ("", ""),
        )  # fmt: skip

    def _marks(self, spans: list[Span]) -> list[Mark]:
        return [
            Mark(start, stop, f"type{self.types.index(type) % COLOURS}", type) for start, stop, type in spans
        ]

    def charts(self) -> list[Chart]:
        """F1 by type, and the reliability of predicted entities."""
        gold = [(number, *span) for number, some in enumerate(self.gold) for span in some]
        predicted = [(number, *span) for number, some in enumerate(self.records) for span in _spans(some)]
        known = set(gold)
        right, guessed, there = (
            self._counted(some) for some in ([span for span in predicted if span in known], predicted, gold)
        )
        names = [type or UNTYPED for type in self.types]
        found = [f1_bars(names, right, guessed, there, "type")] if names else []
        if predicted:
            sure = np.array([entity["score"] for record in self.records for entity in record["entities"]])
            hits = np.array([span in known for span in predicted])
            found.append(reliability(calibration(sure, hits), "entities"))
        return found

    def _counted(self, spans: list[tuple[int, int, int, str]]) -> np.ndarray:
        """[types] how many there are of each."""
        often = Counter(type for *_, type in spans)
        return np.array([often[type] for type in self.types])

    def scorer(self) -> Scorer:
        """Entities, and tokens."""
        spans = [
            (set(gold), set(_spans(record))) for gold, record in zip(self.gold, self.records, strict=True)
        ]
        entities = np.array([[len(gold & found), len(found), len(gold)] for gold, found in spans])
        tags = [(record["gold"], record["predicted"]) for record in self.records]
        tokens = np.array([[sum(map(eq, gold, found)), len(gold)] for gold, found in tags])
        return Scorer(lambda rows: scores(entities[rows], tokens[rows]), len(entities))


def _labels(spans: list[Span]) -> list[str]:
    return sorted({type or UNTYPED for _, _, type in spans}) or [OUTSIDE]


def _spans(record: Mapping[str, Any]) -> list[Span]:
    return [(entity["start"], entity["end"], entity["label"]) for entity in record["entities"]]
