"""Features of questions: each with a window of its paragraph, and with the best answers in it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features
from bertkit.data.qa.spans import find_distinct_spans
from bertkit.data.qa.spelling import RollingHash, build_rolling_hash
from bertkit.data.rows import Rows
from bertkit.data.tokenization import SequenceTemplate, TokenizedTexts, encode, encode_with_offsets
from bertkit.errors import UserError, format_count, format_list
from bertkit.utils.ragged import Ragged

Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Limits:
    """How long things may be, in pieces; `n_best` is how many answers are kept of a window."""

    max_length: int
    max_query_length: int
    doc_stride: int
    max_answer_length: int
    n_best: int


@dataclass(frozen=True, kw_only=True)
class QuestionFeatures(Features):
    """An example is a window: a question and a stretch of its paragraph, put together when it is asked for.

    Paragraphs are kept once, however many questions and windows they have. Numbers of pieces count those
    of all paragraphs.

    Attributes:
        template: of the special pieces; `null_piece` is the one that stands for no answer, [CLS].
        questions: their pieces.
        asked: [questions] how many of its pieces a question keeps.
        paragraphs, texts: the distinct ones, in pieces and as they are.
        windows: [questions + 1] the first window of each question.
        question: [n] that of each window.
        start, stop: [n] its stretch of the paragraph.
        labels: [n, 2] where in the sequence the answer begins and ends; both at [CLS] where it does not
            stand in the window.
        unread: questions whose answer has no piece: the tokenizer dropped all its characters.
    """

    template: SequenceTemplate
    null_token_id: int
    limits: Limits
    question_ids: Ragged
    question_lengths: np.ndarray
    contexts: TokenizedTexts
    context_texts: Sequence[str]
    window_offsets: np.ndarray
    question_index: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    answers_without_tokens: Sequence[int] = ()

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The question and the window between the special pieces."""
        question = self.question_index[number]
        asked = self.question_ids[question][: self.question_lengths[question]]
        return self.template.fill([asked, self.contexts.ids.values[self.start[number] : self.stop[number]]])

    @property
    def sequence_lengths(self) -> np.ndarray:
        """[n]."""
        return (
            self.question_lengths[self.question_index]
            + self.stop
            - self.start
            + self.template.num_special_tokens
        )

    @property
    def windowed_fraction(self) -> float:
        """Share of the questions whose paragraph is read in several windows."""
        return float((np.diff(self.window_offsets) > 1).mean())

    def describe_issues(self, rows: Rows) -> list[str]:
        """The questions that are cut, and the answers that cannot be learned."""
        notes, over = [], float((self.question_lengths < self.question_ids.lengths).mean())
        if over:
            notes.append(
                f"{over:.1%} of the training questions are over {self.question_lengths.max()} pieces and cut"
            )
        if self.answers_without_tokens:
            notes.append(
                f"the tokenizer leaves no piece of {format_count(len(self.answers_without_tokens), 'answer')}, learned as if "
                f"there were none (ids {format_list(rows['id'][question] for question in self.answers_without_tokens)})"
            )
        return notes

    @cached_property
    def has_characters(self) -> np.ndarray:
        """[pieces] whether a piece of a paragraph stands for any characters."""
        return self.contexts.stop > self.contexts.start

    @cached_property
    def rolling_hash(self) -> RollingHash:
        """How the paragraphs are spelt: of answers with the same text one is told."""
        return build_rolling_hash(self.context_texts, self.contexts)

    def get_context_positions(self, windows: np.ndarray) -> np.ndarray:
        """[windows] where in its sequence each begins."""
        return (
            self.template.count_special_tokens_before(~1)
            + self.question_lengths[self.question_index[windows]]
        )

    def get_null_positions(self, windows: np.ndarray) -> np.ndarray:
        """[windows] where in its sequence [CLS] stands, which means that there is no answer."""
        before = self.template.slots[: self.template.slots.index(self.null_token_id)]
        asked, size = (
            self.question_lengths[self.question_index[windows]],
            self.stop[windows] - self.start[windows],
        )
        return (
            self.template.count_special_tokens_before(self.null_token_id)
            + asked * (~0 in before)
            + size * (~1 in before)
        )

    def reduce_logits(
        self, logits: Any, examples: np.ndarray, batch: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """[windows, 2 + 4 n_best]: start and end logit of [CLS], then of the best answers, no two of one
        text, their start and end logits, and their first and last pieces, counted from the window's first.
        """
        place, start, stop = self.get_context_positions(examples), self.start[examples], self.stop[examples]
        shift = (start - place)[:, None]
        pieces = np.arange(logits.shape[-1]) + shift
        inside = (pieces >= start[:, None]) & (pieces < stop[:, None])
        allowed = inside & self.has_characters.take(pieces, mode="clip")
        scores = logits.cpu().numpy()  # many small steps, for which an accelerator is no help

        def text(places: np.ndarray) -> np.ndarray:
            return self.rolling_hash.hash_spans(places[:, 0] + shift, places[:, 1] + shift)

        limits = self.limits
        places, found = find_distinct_spans(scores, allowed, limits.n_best, limits.max_answer_length, text)
        of_null = scores[np.arange(len(examples)), :, self.get_null_positions(examples)]
        places -= place[:, None, None]
        kept = [of_null, found.reshape(len(examples), -1), places.reshape(len(examples), -1)]
        return torch.from_numpy(np.concatenate(kept, 1, dtype=np.float32))


def build_question_features(
    questions: Sequence[str], contexts: Sequence[str], answers: Sequence[Sequence[Answer]] | None,
    tokenizer: Any, limits: Limits, cache: bool = True,
) -> QuestionFeatures:  # fmt: skip
    """Features of questions and their paragraphs.

    A paragraph that is too long is read in windows, as in google's `run_squad.py`: each begins `doc_stride`
    pieces after the one before, all but the last are as long as the question leaves room for. A question
    keeps its first `max_query_length` pieces, at most half of the room.

    Args:
        questions, contexts: [n] texts.
        answers: [n] the right answers, of which the first is learned, by `text` and `answer_start`.
    """
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=True)
    asked = encode(questions, tokenizer, cache)
    number = {text: at for at, text in enumerate(dict.fromkeys(contexts))}
    paragraphs = strip_token_whitespace(encode_with_offsets(list(number), tokenizer, cache), list(number))
    paragraph = np.fromiter(map(number.__getitem__, contexts), np.int64, len(contexts))
    room = limits.max_length - template.num_special_tokens
    kept = np.minimum(asked.lengths, min(limits.max_query_length, room // 2))
    bounds = paragraphs.ids.offsets
    counts, start, stop = _windows(bounds[paragraph], bounds[paragraph + 1], room - kept, limits.doc_stride)
    question = np.repeat(np.arange(len(questions)), counts)
    features = QuestionFeatures(
        template=template, null_token_id=_null_piece(template, tokenizer), limits=limits,
        question_ids=asked, question_lengths=kept, contexts=paragraphs, context_texts=list(number),
        window_offsets=np.concatenate([[0], np.cumsum(counts)]), question_index=question, start=start, stop=stop,
        sequence_offsets=np.arange(len(question) + 1), labels=None,
        max_untruncated_length=int((kept + np.diff(bounds)[paragraph]).max(initial=0)) + template.num_special_tokens,
        unk_fraction=_unknown(tokenizer, asked, paragraphs.ids),
    )  # fmt: skip
    return features if answers is None else _labelled(features, paragraph, answers)


def _null_piece(template: SequenceTemplate, tokenizer: Any) -> int:
    """[CLS], else the first special piece that the tokenizer puts around a pair.

    Raises:
        UserError: it puts none.
    """
    special = [slot for slot in template.slots if slot >= 0]
    if not special:
        raise UserError(
            "--model: its tokenizer puts no special piece around a pair, so none can stand for no answer"
        )
    return tokenizer.cls_token_id if tokenizer.cls_token_id in special else special[0]


def _windows(
    begin: np.ndarray, end: np.ndarray, budget: np.ndarray, stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many windows each paragraph has, and the pieces at which they start and stop."""
    step = np.minimum(stride, budget)  # no text is skipped beside a question of any length
    counts = 1 + np.maximum(0, -(-(end - begin - budget) // step))
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    start = np.repeat(begin, counts) + number * np.repeat(step, counts)
    return counts, start, np.minimum(start + np.repeat(budget, counts), np.repeat(end, counts))


def _labelled(
    features: QuestionFeatures, paragraph: np.ndarray, answers: Sequence[Sequence[Answer]]
) -> QuestionFeatures:
    """With the place of each question's first answer in each of its windows."""
    known = [some[0] if some and some[0]["answer_start"] is not None else None for some in answers]
    start = np.array([answer["answer_start"] if answer else 0 for answer in known], np.int64)
    sizes = np.array([len(answer["text"]) if answer else 0 for answer in known], np.int64)
    first, last = features.contexts.find_token_ranges(paragraph, start, start + sizes)
    unread = np.flatnonzero((sizes > 0) & (first < 0)).tolist()
    first, last = first[features.question_index], last[features.question_index]
    inside = (first >= features.start) & (last < features.stop) & (first >= 0)
    windows = np.arange(len(features))
    places = np.stack([first, last], 1) + (features.get_context_positions(windows) - features.start)[:, None]
    labels = np.where(inside[:, None], places, features.get_null_positions(windows)[:, None])
    return dataclasses.replace(features, labels=labels, answers_without_tokens=unread)


def strip_token_whitespace(located: TokenizedTexts, texts: Sequence[str]) -> TokenizedTexts:
    """Without the white space that some tokenizers count to the word behind it, so that no answer has it."""
    line = np.frombuffer("\0".join(texts).encode("utf-32-le", "surrogatepass") + bytes(4), np.uint32)
    blank = np.isin(line, [code for code in range(0x3001) if chr(code).isspace()])
    shift = np.repeat(located.text_offsets, located.ids.lengths)
    start, stop = located.start + shift, located.stop + shift
    while (lead := blank[start] & (start < stop)).any():
        start = start + lead
    while (tail := blank[stop - 1] & (start < stop)).any():
        stop = stop - tail
    return dataclasses.replace(located, start=start - shift, stop=stop - shift)


def _unknown(tokenizer: Any, *texts: Ragged) -> float:
    unknown = sum(int((some.values == tokenizer.unk_token_id).sum()) for some in texts)
    return unknown / max(1, sum(len(some.values) for some in texts))
