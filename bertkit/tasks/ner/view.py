"""View of named entity recognition (`ner`)."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from operator import eq
from typing import Annotated, Any, TypedDict

import numpy as np
from msgspec import Meta

from bertkit.charts import Chart, plot_reliability_diagram
from bertkit.data.language import WordSpans, matches_text
from bertkit.errors import format_count, shorten_repr
from bertkit.stats.calibration import compute_calibration
from bertkit.stats.significance import Scorer
from bertkit.tasks.ner.predictions import UNTYPED_LABEL, score_sentences
from bertkit.tasks.ner.tags import (
    OUTSIDE,
    SCHEMES,
    Scheme,
    TagSet,
    build_iob2_labels,
    compute_sentence_offsets,
    detect_scheme,
    find_invalid_tag,
    find_sentence_indices,
    to_iob2,
)
from bertkit.tasks.view import Example, Field, Index, Mark, Probability, Record, View, plot_f1_bars
from bertkit.utils.compat import NotRequired

NUM_COLORS = 8
Span = tuple[int, int, str]  # start and end character, entity type


class _EntityRecord(TypedDict):
    start: Index
    end: Index
    label: str
    score: Probability


class _NerRecord(Record):
    text: str
    tokens: list[str]
    gold: list[str]
    predicted: list[str]
    entities: list[_EntityRecord]


class _Scheme(TypedDict):
    name: Annotated[str, Meta(pattern=f"^({'|'.join(SCHEMES)})$")]
    separator: str
    has_suffix: NotRequired[bool]
    is_lowercase: NotRequired[bool]
    outside: NotRequired[str]


class _Config(TypedDict, total=False):
    tag_scheme: _Scheme


class NerView(View):
    """Records with words, their gold and predicted tags, and the predicted entities."""

    schema = _NerRecord
    predicted_keys = frozenset({"predicted", "entities"})

    def prepare(self) -> None:
        self.gold = self._build_gold()
        gold_types = {type for entities in self.gold for _, _, type in entities}
        predicted_types = {entity["label"] for record in self.records for entity in record["entities"]}
        self.types = sorted(gold_types) + sorted(predicted_types - gold_types)

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        return "tokens" in record and "entities" in record

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        words, text = record["tokens"], record["text"]
        if not matches_text(words, text):
            return "its tokens do not form its text"
        for key in ("gold", "predicted"):
            tags = record[key]
            if len(tags) != len(words):
                return f"{key}: found {format_count(len(tags), 'tag')} for {format_count(len(words), 'word')}"
        offsets = [0, *(offset for span in _get_spans(record) for offset in span[:2]), len(text)]
        is_ordered = all(offset <= following for offset, following in pairwise(offsets))
        return None if is_ordered else "its entities overlap, are not sorted, or lie outside of its text"

    def _build_gold(self) -> list[list[Span]]:
        """Return the gold entities of each sentence, extracted from the tags as conlleval does."""
        words, texts = ([record[key] for record in self.records] for key in ("tokens", "text"))
        tags = [record["gold"] for record in self.records]
        configured = self.run.read_json("config.json", _Config).get("tag_scheme")
        scheme = detect_scheme(tags, Scheme(**configured) if configured else None)
        if position := find_invalid_tag(tags, scheme):
            sentence, word = position
            problem = f"gold: {shorten_repr(tags[sentence][word])} is not a tag of {scheme}"
            raise self.run.make_record_error(sentence, problem)
        iob2 = to_iob2(tags, scheme)
        types = {tag[2:] for sentence_tags in iob2 for tag in sentence_tags if tag != OUTSIDE}
        offsets, tag_set = compute_sentence_offsets(words), TagSet(build_iob2_labels(types))
        tag_ids = tag_set.encode(iob2)
        first, last = tag_set.find_entities(tag_ids, offsets)
        spans = WordSpans.from_words(words, texts)
        entities: list[list[Span]] = [[] for _ in self.records]
        for sentence, start, stop, type_id in zip(
            find_sentence_indices(first, offsets).tolist(), spans.start[first].tolist(),
            spans.stop[last].tolist(), tag_set.type_ids[tag_ids[first]].tolist(), strict=True,
        ):  # fmt: skip
            entities[sentence].append((start, stop, tag_set.types[type_id]))
        return entities

    def build_example(self, index: int, record: Mapping[str, Any]) -> Example:
        gold, predicted = self.gold[index], _get_spans(record)
        confidence = min((entity["score"] for entity in record["entities"]), default=None)
        num_errors = len(set(gold) ^ set(predicted))
        text = record["text"]
        fields = [
            Field("gold", text, self._build_marks(gold)),
            Field("predicted", text, self._build_marks(predicted)),
        ]
        if not num_errors:
            fields = [Field("gold and predicted", text, self._build_marks(gold))]
        return Example(
            record["id"], _get_labels(gold), _get_labels(predicted), not num_errors, confidence,
            num_errors + (confidence or 0) / 2, fields, ("", ""),
        )  # fmt: skip

    def _build_marks(self, spans: list[Span]) -> list[Mark]:
        return [
            Mark(start, stop, f"type{self.types.index(type) % NUM_COLORS}", type)
            for start, stop, type in spans
        ]

    def build_charts(self) -> list[Chart]:
        gold = [(row, *span) for row, spans in enumerate(self.gold) for span in spans]
        predicted = [(row, *span) for row, record in enumerate(self.records) for span in _get_spans(record)]
        gold_spans = set(gold)
        is_correct = np.array([span in gold_spans for span in predicted], bool)
        correct = [span for span in predicted if span in gold_spans]
        names = [type or UNTYPED_LABEL for type in self.types]
        charts = []
        if names:
            counts = [Counter(type for *_, type in spans) for spans in (correct, predicted, gold)]
            num_correct, num_predicted, num_gold = (
                np.array([count[type] for type in self.types]) for count in counts
            )
            charts.append(plot_f1_bars(names, num_correct, num_predicted, num_gold, "type"))
        if predicted:
            scores = [entity["score"] for record in self.records for entity in record["entities"]]
            calibration = compute_calibration(np.array(scores), is_correct)
            charts.append(plot_reliability_diagram(calibration, "entities"))
        return charts

    def scorer(self) -> Scorer:
        spans = [
            (set(gold), set(_get_spans(record))) for gold, record in zip(self.gold, self.records, strict=True)
        ]
        entities = np.array([[len(gold & predicted), len(predicted), len(gold)] for gold, predicted in spans])
        tags = [(record["gold"], record["predicted"]) for record in self.records]
        words = np.array([[sum(map(eq, gold, predicted)), len(gold)] for gold, predicted in tags])
        return Scorer(lambda rows: score_sentences(entities[rows], words[rows]), len(entities))


def _get_labels(spans: list[Span]) -> list[str]:
    return sorted({type or UNTYPED_LABEL for _, _, type in spans}) or [OUTSIDE]


def _get_spans(record: Mapping[str, Any]) -> list[Span]:
    return [(entity["start"], entity["end"], entity["label"]) for entity in record["entities"]]
