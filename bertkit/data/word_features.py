"""Features of sentences of which each token is decided by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.documents import Place, all_sentences
from bertkit.data.features import StoredFeatures
from bertkit.data.ragged import Ragged, stretches
from bertkit.data.sequences import Template
from bertkit.data.windows import Windows, in_context, windows
from bertkit.data.words import Sentences, encode_words


@dataclass(frozen=True, kw_only=True)
class WordFeatures(StoredFeatures):
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
    sentences, rows, documents = _laid_out(tokens, texts, places)
    pieces = encode_words(sentences, tokenizer, cache)
    plan = _plan(pieces.ids.offsets, rows, documents, max_length - template.special)
    first, last = sentences.offsets[rows], sentences.offsets[rows + 1]
    decided, decision = _decisions(pieces.carrier[stretches(first, last)], plan)
    if labels is not None:
        numbers, at = np.unique(decision, return_index=True)  # the first token of each decision
        labels = labels[at[numbers >= 0]]
    input_ids, token_type_ids, place = template.around(pieces.ids.values, plan.start, plan.stop)
    return WordFeatures(
        input_ids=input_ids, token_type_ids=token_type_ids, first=np.arange(len(plan.start) + 1),
        labels=labels, windows=plan.first, tokens=np.concatenate([[0], np.cumsum(last - first)]),
        positions=Ragged(
            decided.values - np.repeat(plan.start, decided.lengths) + place, decided.offsets
        ),
        decision=decision,
        longest=int(pieces.ids.lengths[rows].max(initial=0)) + template.special,
        unknown=float((pieces.ids.values == tokenizer.unk_token_id).sum()) / max(1, len(pieces.ids.values)),
    )  # fmt: skip


def _laid_out(
    tokens: Sequence[Sequence[str]], texts: Sequence[str], places: Sequence[Place] | None
) -> tuple[Sentences, np.ndarray, np.ndarray | None]:
    """All sentences to be read, which of them each row is, and [n, 2] the sentences of its document."""
    if places is None:
        return Sentences.of(tokens, texts), np.arange(len(tokens)), None
    around, rows, documents = all_sentences(places)
    return Sentences.of([some for some, _ in around], [text for _, text in around]), rows, documents


def _plan(bounds: np.ndarray, rows: np.ndarray, documents: np.ndarray | None, budget: int) -> Windows:
    """The windows of the rows; `bounds` [sentences + 1] are all sentences in pieces."""
    plan = windows(bounds[rows], bounds[rows + 1], budget)
    if documents is None:
        return plan
    return in_context(plan, bounds, np.repeat(bounds[documents], np.diff(plan.first), axis=0), budget)


def _decisions(carrier: np.ndarray, plan: Windows) -> tuple[Ragged, np.ndarray]:
    """The pieces that each sequence decides, and [tokens] which of these decisions is each token's, or -1.

    Args:
        carrier: [tokens] the piece that carries each token, or -1.
    """
    carriers = np.unique(carrier[carrier >= 0])
    low, high = np.searchsorted(carriers, plan.own), np.searchsorted(carriers, plan.own_stop)
    decided = carriers[stretches(low, high)]
    number = np.full(carriers.max(initial=-1) + 2, -1)  # the last is where -1 points
    number[decided] = np.arange(len(decided))
    return Ragged(decided, np.concatenate([[0], np.cumsum(high - low)])), number[carrier]
