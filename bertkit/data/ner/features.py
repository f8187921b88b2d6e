"""Features of sentences of which each token is decided by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.features import StoredFeatures
from bertkit.data.ner.documents import DocumentPosition, collect_sentences
from bertkit.data.ner.windows import Windows, build_windows, expand_windows
from bertkit.data.ner.words import WordSpans, encode_words
from bertkit.data.tokenization import SequenceTemplate
from bertkit.utils.ragged import Ragged, concat_ranges


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
    word_offsets: np.ndarray
    prediction_index: np.ndarray
    window_offsets: np.ndarray

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = super().__getitem__(index)
        item["positions"] = [self.positions[index]]
        if self.labels is not None:
            item["labels"] = self.labels[self.logit_offsets[index] : self.logit_offsets[index + 1]]
        return item

    @property
    def logit_offsets(self) -> np.ndarray:
        """[n + 1] the first decision of each sequence."""
        return self.positions.offsets

    @property
    def windowed_fraction(self) -> float:
        """Share of the sentences that are read in several windows."""
        return float((np.diff(self.window_offsets) > 1).mean())


def build_word_features(
    words: Sequence[Sequence[str]], texts: Sequence[str], labels: np.ndarray | None, tokenizer: Any,
    max_length: int, document_positions: Sequence[DocumentPosition] | None = None, cache: bool = True,
) -> WordFeatures:  # fmt: skip
    """Features of sentences, each by itself or with what stands around it in its document.

    Args:
        tokens, texts: [n] the tokens of each sentence, and the text they stand in.
        labels: [all tokens] int, or None.
        max_length: longest sequence in pieces, special ones included.
        places: [n] in documents, whose other sentences are then read too, and not decided.
    """
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=False)
    sentences, rows, documents = _laid_out(words, texts, document_positions)
    pieces = encode_words(sentences, tokenizer, cache)
    plan = _plan(pieces.ids.offsets, rows, documents, max_length - template.num_special_tokens)
    first, last = sentences.offsets[rows], sentences.offsets[rows + 1]
    decided, decision = _decisions(pieces.first_token[concat_ranges(first, last)], plan)
    if labels is not None:
        numbers, at = np.unique(decision, return_index=True)  # the first token of each decision
        labels = labels[at[numbers >= 0]]
    input_ids, token_type_ids, place = template.wrap_ranges(pieces.ids.values, plan.start, plan.stop)
    return WordFeatures(
        input_ids=input_ids, token_type_ids=token_type_ids, sequence_offsets=np.arange(len(plan.start) + 1),
        labels=labels, window_offsets=plan.window_offsets, word_offsets=np.concatenate([[0], np.cumsum(last - first)]),
        positions=Ragged(
            decided.values - np.repeat(plan.start, decided.lengths) + place, decided.offsets
        ),
        prediction_index=decision,
        max_untruncated_length=int(pieces.ids.lengths[rows].max(initial=0)) + template.num_special_tokens,
        unk_fraction=float((pieces.ids.values == tokenizer.unk_token_id).sum()) / max(1, len(pieces.ids.values)),
    )  # fmt: skip


def _laid_out(
    tokens: Sequence[Sequence[str]], texts: Sequence[str], places: Sequence[DocumentPosition] | None
) -> tuple[WordSpans, np.ndarray, np.ndarray | None]:
    """All sentences to be read, which of them each row is, and [n, 2] the sentences of its document."""
    if places is None:
        return WordSpans.from_words(tokens, texts), np.arange(len(tokens)), None
    around, rows, documents = collect_sentences(places)
    return WordSpans.from_words([some for some, _ in around], [text for _, text in around]), rows, documents


def _plan(bounds: np.ndarray, rows: np.ndarray, documents: np.ndarray | None, budget: int) -> Windows:
    """The windows of the rows; `bounds` [sentences + 1] are all sentences in pieces."""
    plan = build_windows(bounds[rows], bounds[rows + 1], budget)
    if documents is None:
        return plan
    return expand_windows(
        plan, bounds, np.repeat(bounds[documents], np.diff(plan.window_offsets), axis=0), budget
    )


def _decisions(carrier: np.ndarray, plan: Windows) -> tuple[Ragged, np.ndarray]:
    """The pieces that each sequence decides, and [tokens] which of these decisions is each token's, or -1.

    Args:
        carrier: [tokens] the piece that carries each token, or -1.
    """
    carriers = np.unique(carrier[carrier >= 0])
    low, high = np.searchsorted(carriers, plan.predict_start), np.searchsorted(carriers, plan.predict_stop)
    decided = carriers[concat_ranges(low, high)]
    number = np.full(carriers.max(initial=-1) + 2, -1)  # the last is where -1 points
    number[decided] = np.arange(len(decided))
    return Ragged(decided, np.concatenate([[0], np.cumsum(high - low)])), number[carrier]
