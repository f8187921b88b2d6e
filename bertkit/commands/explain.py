"""Explanations: the attribution of each word to the prediction, for `classify` and `nli`.

The baseline of integrated gradients keeps the special tokens, and replaces all other tokens by [MASK].
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bertkit.data.features import TextFeatures
from bertkit.data.language import WORD_PATTERN
from bertkit.data.tokens import encode_with_offsets
from bertkit.errors import UserError
from bertkit.models.forward import batch_by_length, integrate_gradients
from bertkit.models.loading import is_linear_text_model
from bertkit.run.predictor import Predictor, find_onnx_model
from bertkit.tasks.base import Task
from bertkit.tasks.text.task import SequenceEvaluation
from bertkit.utils.arrays import Ragged, compute_offsets
from bertkit.utils.reporting import report_warning, track_progress

MAX_ERROR = 0.05  # maximum completeness error, as a fraction of the difference of the scores
NUM_STEPS = (16, 32, 64, 128, 256)  # tried in this order until the error of a row is small enough
BATCH_SIZE = 16  # gradients need more memory than predictions


def require_explainable(task: Task, run: str) -> None:
    if find_onnx_model(Path(run)):
        raise UserError(
            f"--explain: {run} is an exported model, which has no gradients; pass the run that was exported"
        )
    if is_linear_text_model(Path(run)):
        raise UserError(
            f"--explain: {run} is a linear model of texts, which has no gradients; pass a run of another "
            "method"
        )
    if task.definition.labeled_unit != "text":
        raise UserError(
            f"--explain: {run} is a run of {task.definition.name}; pass a run of classify or nli, or leave "
            "it out"
        )


class ExplainedWord(NamedTuple):
    """A word that the model reads, with its attribution."""

    start: int  # first character
    end: int  # of the characters, exclusive
    word: str
    attribution: float  # sum over its tokens


@dataclass(frozen=True)
class Explanation:
    """The attributions of one row.

    The completeness error is the distance of the sum of all attributions from the difference of the scores,
    as a fraction of this difference.
    """

    words: dict[str, list[ExplainedWord]]  # that the model reads, by text column
    error: float

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of a prediction record; the words of two texts have the key "column"."""
        has_pairs = len(self.words) > 1
        words = [
            {"word": word.word, "attribution": word.attribution} | ({"column": column} if has_pairs else {})
            for column, column_words in self.words.items()
            for word in column_words
        ]
        return {"explanation": words, "completeness_error": self.error}


def explain(predictor: Predictor, evaluation: SequenceEvaluation) -> Iterator[Explanation]:
    """Yield the explanation of each prediction."""
    columns = predictor.task.input_schema.text_columns
    explainer = _Explainer(predictor, evaluation)
    token_values, is_read, errors = explainer.attribute()
    if num_inexact := int((errors > MAX_ERROR).sum()):
        report_warning(
            f"{num_inexact:,} of {len(errors):,} explanations have a completeness error above {MAX_ERROR:.0%}"
        )
    parts = map(explainer.split, (token_values, is_read))
    words_by_column = [
        _sum_by_word(evaluation.outputs.rows[column], predictor.tokenizer, values, is_used)
        for column, values, is_used in zip(columns, *parts, strict=True)
    ]
    for error, words in zip(errors, zip(*words_by_column, strict=True), strict=True):
        yield Explanation(dict(zip(columns, words, strict=True)), float(error))


class _Explainer:
    """The attributions of the tokens of all texts.

    Attributes:
        features: The features without labels.
        indexed_features: The features with ~i as the id of token i, counted over all columns; special tokens
            keep their ids.
        row: [tokens] row of each token, over all columns.
    """

    def __init__(self, predictor: Predictor, evaluation: SequenceEvaluation) -> None:
        self.predictor, self.evaluation = predictor, evaluation
        self.features: TextFeatures = dataclasses.replace(evaluation.outputs.features, labels=None)
        columns = self.features.columns
        self._starts = compute_offsets(np.array([len(column.values) for column in columns]))
        indexed = [
            Ragged(~np.arange(start, start + len(column.values)), column.offsets)
            for start, column in zip(self._starts, columns, strict=False)
        ]
        self.indexed_features = dataclasses.replace(self.features, columns=indexed)
        self.row = np.concatenate([np.repeat(np.arange(len(column)), column.lengths) for column in columns])

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """Return [tokens] values of each column, from those of all columns."""
        return np.split(values, self._starts[1:-1])

    def attribute(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return [tokens] the attributions, [tokens] bool, and [rows] the completeness errors.

        Tokens are those of all columns. The booleans are whether the model reads them: it truncates texts.
        """
        values, is_read = np.zeros(len(self.row)), np.zeros(len(self.row), bool)
        errors = np.full(len(self.features), np.inf)
        batches = batch_by_length(self.features, BATCH_SIZE)
        for rows in track_progress(batches, len(batches), "explaining"):
            pending = rows
            for num_steps in NUM_STEPS:
                token, attribution, errors[pending] = self._attribute_rows(pending, num_steps)
                values[np.isin(self.row, pending)] = 0
                np.add.at(values, token, attribution)
                is_read[token] = True
                pending = pending[errors[pending] > MAX_ERROR]
                if not len(pending):
                    break
        return values, is_read, errors

    def _attribute_rows(self, rows: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tokens of rows, their attributions, and the [rows] completeness errors.

        A token that is in several windows occurs several times.
        """
        model, task = self.predictor.model, self.predictor.task
        device = next(model.parameters()).device
        collator = task.make_collator(self.predictor.tokenizer, model)
        items = [self.features[int(row)] for row in rows]
        batch = {name: tensor.to(device) for name, tensor in collator(items).items()}
        sequences = [
            self.indexed_features.get_sequence(number)[0]
            for row in rows
            for number in range(*self.features.sequence_offsets[row : row + 2])
        ]
        token = np.zeros(tuple(batch["input_ids"].shape), np.int64)
        for number, ids in enumerate(sequences):
            token[number, : len(ids)] = np.where(ids < 0, ids, 0)
        is_text = torch.from_numpy(token < 0).to(device)
        tokenizer = self.predictor.tokenizer
        has_mask = tokenizer.mask_token_id is not None
        baseline_id = tokenizer.mask_token_id if has_mask else tokenizer.pad_token_id
        baseline_ids = torch.where(is_text, baseline_id, batch["input_ids"])
        score = _make_score(self.evaluation, rows)
        tokens, difference = integrate_gradients(model, batch, score, baseline_ids, num_steps)
        totals = np.zeros(len(rows))
        document = batch["document"].cpu().numpy() if "document" in batch else np.arange(len(rows))
        np.add.at(totals, document, tokens.sum(1))
        errors = np.abs(totals - difference) / np.maximum(np.abs(difference), 1e-12)
        return ~token[token < 0], tokens[token < 0], errors


def _make_score(evaluation: SequenceEvaluation, rows: np.ndarray) -> Any:
    """Return a function from logits to the score that is explained.

    The score is the log-odds of the predicted label; with label sets, of the most probable label; for
    regression, it is the predicted number.
    """
    target = evaluation.predicted[rows] if evaluation.has_sets else evaluation.outputs.logits[rows].argmax(1)

    def score(logits: torch.Tensor) -> torch.Tensor:
        logits = logits[:, : evaluation.outputs.logits.shape[1]]  # without that of the scope
        index = torch.from_numpy(np.asarray(target, np.int64)).to(logits.device).unsqueeze(1)
        chosen = logits.gather(1, index).squeeze(1)
        if not evaluation.has_sets:
            return chosen
        return chosen - logits.scatter(1, index, -torch.inf).logsumexp(1)

    return score


def _sum_by_word(
    texts: Sequence[str], tokenizer: Any, values: np.ndarray, is_used: np.ndarray
) -> list[list[ExplainedWord]]:
    """Return the words of each text that the model reads, with the sum of their tokens' attributions.

    `values` and `is_used` have the attribution of each of the [tokens] of all texts, and whether it is read.
    """
    encoded = encode_with_offsets(texts, tokenizer, cache=False)
    result = []
    for text, first, stop in zip(texts, encoded.ids.offsets[:-1], encoded.ids.offsets[1:], strict=True):
        words = list(WORD_PATTERN.finditer(text))
        ends = np.array([word.end() for word in words], int)
        # A token belongs to the first word that ends after the token begins.
        index = np.minimum(np.searchsorted(ends, encoded.start[first:stop], side="right"), len(words) - 1)
        totals = np.bincount(index, values[first:stop], minlength=len(words))
        counts = np.bincount(index, is_used[first:stop], minlength=len(words))
        result.append(
            [
                ExplainedWord(word.start(), word.end(), word[0], float(total))
                for word, total, count in zip(words, totals, counts, strict=True)
                if count
            ]
        )
    return result
