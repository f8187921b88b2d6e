"""Entities in sentences: `ner`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import eq
from typing import Annotated, Any, TypedDict

import numpy as np
from msgspec import Meta

from bertkit.data.ner.schemes import SCHEMES, Scheme, detect_scheme, find_invalid_tag, to_iob2
from bertkit.data.ner.tags import OUTSIDE, TagSet, build_iob2_labels, compute_offsets, find_sentence_indices
from bertkit.data.ner.words import WordSpans, matches_text
from bertkit.errors import format_count, shorten_repr
from bertkit.metrics.calibration import compute_calibration
from bertkit.metrics.entities import UNTYPED_LABEL, score_sentences
from bertkit.metrics.significance import Scorer
from bertkit.reports.charts import Chart, plot_reliability_diagram
from bertkit.reports.example import Example, Field, Mark
from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.views.base import Index, Probability, Record, View, plot_f1_bars

NUM_COLORS = 8
Span = tuple[int, int, str]  # characters, and the type


class _Entity(TypedDict):
    start: Index
    end: Index
    label: str
    score: Probability


class _Tagged(Record):
    text: str
    tokens: list[str]
    gold: list[str]
    predicted: list[str]
    entities: list[_Entity]


class _Scheme(TypedDict):
    name: Annotated[str, Meta(pattern=f"^({'|'.join(SCHEMES)})$")]
    separator: str


class _Config(TypedDict, total=False):
    tag_scheme: _Scheme


class NerView(View):
    """Records with tokens, their gold and predicted tags, and the predicted entities by characters."""

    schema = _Tagged
    predicted_keys = frozenset({"predicted", "entities"})

    def __init__(self, run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.gold = self._gold()
        self.types = sorted({type for some in self.gold for _, _, type in some})
        self.types += sorted({e["label"] for r in self.records for e in r["entities"]} - set(self.types))

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """Tokens and entities."""
        return "tokens" in record and "entities" in record

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        """Tokens that are not the text's, not a tag for each, or entities that it cannot have."""
        tokens, text = record["tokens"], record["text"]
        if not matches_text(tokens, text):
            return "its tokens do not make up its text"
        for side in ("gold", "predicted"):
            if len(record[side]) != len(tokens):
                return f"{side}: {format_count(len(record[side]), 'tag')} of {format_count(len(tokens), 'token')}"
        places = [0, *(place for span in _spans(record) for place in span[:2]), len(text)]
        ordered = all(place <= after for place, after in pairwise(places))
        return None if ordered else "its entities do not follow each other within its text"

    def _gold(self) -> list[list[Span]]:
        """The gold entities of each sentence, by conlleval's rule."""
        tokens, texts = ([record[key] for record in self.records] for key in ("tokens", "text"))
        tags = [record["gold"] for record in self.records]
        like = self.run.read_json("config.json", _Config).get("tag_scheme")
        scheme = detect_scheme(tags, Scheme(**like) if like else None)
        if place := find_invalid_tag(tags, scheme):
            raise self.run.make_record_error(
                place[0], f"gold: {shorten_repr(tags[place[0]][place[1]])} is no tag of {scheme}"
            )
        iob2 = to_iob2(tags, scheme)
        types = {tag[2:] for some in iob2 for tag in some if tag != OUTSIDE}
        offsets, known = compute_offsets(tokens), TagSet(build_iob2_labels(types))
        numbers = known.encode(iob2)
        first, last = (np.flatnonzero(bounds) for bounds in known.find_entity_bounds(numbers, offsets))
        places = WordSpans.from_words(tokens, texts)
        found: list[list[Span]] = [[] for _ in self.records]
        for sentence, start, stop, type in zip(
            find_sentence_indices(first, offsets).tolist(), places.start[first].tolist(),
            places.stop[last].tolist(), known.type_ids[numbers[first]].tolist(), strict=True,
        ):  # fmt: skip
            found[sentence].append((start, stop, known.types[type]))
        return found

    def build_examples(self) -> list[Example]:
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
            Mark(start, stop, f"type{self.types.index(type) % NUM_COLORS}", type)
            for start, stop, type in spans
        ]

    def build_charts(self) -> list[Chart]:
        """F1 by type, and the reliability of predicted entities."""
        gold = [(number, *span) for number, some in enumerate(self.gold) for span in some]
        predicted = [(number, *span) for number, some in enumerate(self.records) for span in _spans(some)]
        known = set(gold)
        right, guessed, there = (
            self._counted(some) for some in ([span for span in predicted if span in known], predicted, gold)
        )
        names = [type or UNTYPED_LABEL for type in self.types]
        found = [plot_f1_bars(names, right, guessed, there, "type")] if names else []
        if predicted:
            sure = np.array([entity["score"] for record in self.records for entity in record["entities"]])
            hits = np.array([span in known for span in predicted])
            found.append(plot_reliability_diagram(compute_calibration(sure, hits), "entities"))
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
        return Scorer(lambda rows: score_sentences(entities[rows], tokens[rows]), len(entities))


def _labels(spans: list[Span]) -> list[str]:
    return sorted({type or UNTYPED_LABEL for _, _, type in spans}) or [OUTSIDE]


def _spans(record: Mapping[str, Any]) -> list[Span]:
    return [(entity["start"], entity["end"], entity["label"]) for entity in record["entities"]]
