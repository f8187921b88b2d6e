"""Features of sentences of which each token is decided by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.features import Features
from bertkit.data.ragged import Ragged, stretches
from bertkit.data.sequences import Template
from bertkit.data.windows import Windows, in_context, windows
from bertkit.data.words import Sentences, encode_words


@dataclass(frozen=True, kw_only=True)
class WordFeatures(Features):
    """An example is one sequence: a sentence, or a window of one that is longer than the model.

    Each is trained on and scored by itself, so that a sentence of any length takes no more memory than
    others. Its decisions are the pieces that carry tokens; those of a sentence stand in order.

    Attributes:
        positions: where in each sequence the pieces stand that are decided there.
        tokens: [sentences + 1] the first token of each sentence, counted over all tokens.
        decision: [tokens] the row of logits of each token; -1 where no piece is left of it.
        labels: [decisions], or None.
        windows: [sentences + 1] the first sequence of each sentence.
    """

    positions: Ragged
    tokens: np.ndarray
    decision: np.ndarray
    windows: np.ndarray

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = super().__getitem__(index)
        item["positions"] = [self.positions[index]]
        if self.labels is not None:
            item["labels"] = self.labels[self.outputs[index] : self.outputs[index + 1]]
        return item

    @property
    def outputs(self) -> np.ndarray:
        """[n + 1] the first decision of each sequence."""
        return self.positions.offsets

    @property
    def windowed(self) -> float:
        """Share of the sentences that are read in several windows."""
        return float((np.diff(self.windows) > 1).mean())


@dataclass(frozen=True)
class Place:
    """Where a sentence stands in its document, whose sentences are pairs of tokens and text."""

    document: Sequence[tuple[Sequence[str], str]]
    number: int

    def __repr__(self) -> str:  # what a fingerprint sees: the document's text is in its own rows
        return f"{self.number} of {len(self.document)}"


def build_words(
    tokens: Sequence[Sequence[str]], texts: Sequence[str], labels: np.ndarray | None, tokenizer: Any,
    max_length: int, places: Sequence[Place] | None = None, cache: bool = True,
) -> WordFeatures:  # fmt: skip
    """Features of sentences, each by itself or with what stands around it in its document.

    Args:
        tokens, texts: [n] the tokens of each sentence, and the text they stand in.
        labels: [all tokens] int, or None.
        max_length: longest sequence in pieces, special ones included.
        places: [n] in documents, whose other sentences are then read too, and not decided.
    """
    template = Template.of(tokenizer, pair=False)
    budget = max_length - template.special
    if places is None:
        sentences = Sentences.of(tokens, texts)
        pieces = encode_words(sentences, tokenizer, cache)
        rows, bounds = np.arange(len(tokens)), pieces.ids.offsets
        plan = windows(bounds[:-1], bounds[1:], budget)
    else:
        around, rows, ends = _documents(places)
        sentences = Sentences.of([some for some, _ in around], [text for _, text in around])
        pieces = encode_words(sentences, tokenizer, cache)
        bounds = pieces.ids.offsets
        plan = windows(bounds[rows], bounds[rows + 1], budget)
        plan = in_context(plan, bounds, np.repeat(bounds[ends], np.diff(plan.first), axis=0), budget)
    longest = int(pieces.ids.lengths[rows].max(initial=0)) + template.special
    first, last = sentences.offsets[rows], sentences.offsets[rows + 1]
    decided = pieces.carrier[stretches(first, last)]
    unknown = float((pieces.ids.values == tokenizer.unk_token_id).mean()) if len(pieces.ids.values) else 0.0
    return _assembled(pieces.ids.values, decided, last - first, plan, labels, template, longest, unknown)


def _documents(places: Sequence[Place]) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """The sentences of all documents, each row's place among them, and [n, 2] the bounds of its document."""
    documents = {id(place.document): place.document for place in places}
    before = np.cumsum([0, *map(len, documents.values())])
    numbers = {key: number for number, key in enumerate(documents)}
    at = np.array([numbers[id(place.document)] for place in places], np.int64)
    rows = before[at] + np.array([place.number for place in places], np.int64)
    sentences = [sentence for document in documents.values() for sentence in document]
    return sentences, rows, np.stack([before[at], before[at + 1]], axis=1)


def _assembled(
    values: np.ndarray, carrier: np.ndarray, sizes: np.ndarray, plan: Windows, labels: np.ndarray | None,
    template: Template, longest: int, unknown: float,
) -> WordFeatures:  # fmt: skip
    """The sequences of a plan; `carrier` [tokens] are the pieces to be decided, `sizes` [n] their tokens."""
    carriers = np.unique(carrier[carrier >= 0])
    low, high = np.searchsorted(carriers, plan.own), np.searchsorted(carriers, plan.own_stop)
    decided = carriers[stretches(low, high)]
    row_of = np.full(len(values) + 1, -1)  # the last is where -1 points
    row_of[decided] = np.arange(len(decided))
    decision = row_of[carrier]
    input_ids, token_type_ids, place = template.around(values, plan.start, plan.stop)
    positions = decided - np.repeat(plan.start, high - low) + place
    if labels is not None:
        rows, tokens = np.unique(decision, return_index=True)  # the first token of each decision
        labels = labels[tokens[rows >= 0]]
    return WordFeatures(
        input_ids=input_ids, token_type_ids=token_type_ids, first=np.arange(len(plan.start) + 1),
        labels=labels, longest=longest, unknown=unknown, decision=decision,
        windows=plan.first,
        positions=Ragged(positions, np.concatenate([[0], np.cumsum(high - low)])),
        tokens=np.concatenate([[0], np.cumsum(sizes)]),
    )  # fmt: skip
