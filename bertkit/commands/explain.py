"""Explanations: the attribution of each word to the prediction, for `classify` and `nli`.

The baseline of integrated gradients keeps the special tokens, and replaces all other tokens by [MASK].
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from bertkit.data.features import TextFeatures
from bertkit.data.table import Rows
from bertkit.data.tokens import encode_with_offsets
from bertkit.data.words import WORD_PATTERN
from bertkit.errors import UserError
from bertkit.models.forward import batch_by_length, integrate_gradients
from bertkit.report.finished_run import FinishedRun
from bertkit.report.page import ExampleExplanation, compute_strengths, create_view
from bertkit.run.predictor import Predictor, find_onnx_model, load_predictor
from bertkit.tasks.base import Task
from bertkit.tasks.text.predictions import SequenceEvaluation
from bertkit.tasks.text.task import SequenceTask
from bertkit.tasks.view import COMMON_KEYS, Attribution, View, sort_worst_first
from bertkit.utils import devices
from bertkit.utils.arrays import Ragged, compute_offsets
from bertkit.utils.reporting import report_info, report_warning, silence_libraries, track_progress

MAX_ERROR = 0.05  # maximum completeness error, as a fraction of the difference of the scores
NUM_STEPS = (16, 32, 64, 128, 256)  # tried in this order until the error of a row is small enough
BATCH_SIZE = 16  # gradients need more memory than predictions


def require_explainable(task: Task, run: str) -> None:
    """Raise `UserError` if predictions of the run cannot be explained."""
    if find_onnx_model(Path(run)):
        raise UserError(
            f"--explain: {run} is an exported model, which has no gradients; pass the run that was exported"
        )
    if not task.definition.classifies_texts:
        raise UserError(
            f"--explain: {run} is a run of {task.definition.name}; pass a run of classify or nli, or leave "
            "it out"
        )


class ExplainedWord(NamedTuple):
    """A word that the model reads, with its attribution.

    Attributes:
        start: First character of the word.
        end: End of its characters, exclusive.
        word: The word.
        attribution: Sum of the attributions of its tokens.
    """

    start: int
    end: int
    word: str
    attribution: float


@dataclass(frozen=True)
class Explanation:
    """The attributions of one row.

    Attributes:
        words: The words that the model reads, by text column.
        error: Completeness error: distance of the sum of all attributions from the difference of the scores,
            as a fraction of this difference.
    """

    words: dict[str, list[ExplainedWord]]
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
    explainer = _Explainer(predictor, evaluation)
    token_values, errors = explainer.attribute()
    if num_inexact := int((errors > MAX_ERROR).sum()):
        report_warning(
            f"{num_inexact:,} of {len(errors):,} explanations have a completeness error above {MAX_ERROR:.0%}"
        )
    columns = predictor.task.input_schema.text_columns
    words_by_column = [
        _sum_by_word(evaluation.outputs.rows[column], predictor.tokenizer, values, is_used)
        for column, values, is_used in zip(columns, token_values, explainer.is_used, strict=True)
    ]
    for error, words in zip(errors, zip(*words_by_column, strict=True), strict=True):
        yield Explanation(dict(zip(columns, words, strict=True)), float(error))


@dataclass(frozen=True)
class _Explainer:
    """The attributions of the tokens of all texts.

    Attributes:
        predictor: The model.
        evaluation: Its predictions.
    """

    predictor: Predictor
    evaluation: SequenceEvaluation

    @cached_property
    def features(self) -> TextFeatures:
        """The features without labels."""
        return dataclasses.replace(self.evaluation.outputs.features, labels=None)

    @cached_property
    def indexed_features(self) -> TextFeatures:
        """The features with ~i as the id of token i, counted over all columns; special tokens keep theirs."""
        sizes = [len(column.values) for column in self.features.columns]
        starts = compute_offsets(np.array(sizes))
        columns = [
            Ragged(~np.arange(start, start + size), column.offsets)
            for start, size, column in zip(starts, sizes, self.features.columns, strict=False)
        ]
        return dataclasses.replace(self.features, columns=columns)

    def attribute(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Return [tokens] the attributions of each column's tokens, and [rows] the completeness errors."""
        sizes = [len(column.values) for column in self.features.columns]
        values, errors = np.zeros(sum(sizes)), np.full(len(self.features), np.inf)
        batches = batch_by_length(self.features, BATCH_SIZE)
        for rows in track_progress(batches, len(batches), "explaining"):
            pending = rows
            for num_steps in NUM_STEPS:
                token, attribution, errors[pending] = self._attribute_rows(pending, num_steps)
                is_row = np.isin(self._rows_of_tokens, pending)
                values[is_row] = 0
                np.add.at(values, token, attribution)
                pending = pending[errors[pending] > MAX_ERROR]
                if not len(pending):
                    break
        return np.split(values, np.cumsum(sizes)[:-1]), errors

    @cached_property
    def _rows_of_tokens(self) -> np.ndarray:
        """[tokens] row of each token, over all columns."""
        return np.concatenate([
            np.repeat(np.arange(len(column)), column.lengths) for column in self.features.columns
        ])  # fmt: skip

    @cached_property
    def is_used(self) -> list[np.ndarray]:
        """[tokens] bool for each column, whether the model reads a token; texts may be truncated."""
        num_sequences = int(self.features.sequence_offsets[-1])
        ids = np.concatenate([self.indexed_features.get_sequence(n)[0] for n in range(num_sequences)])
        is_used = np.zeros(len(self._rows_of_tokens), bool)
        is_used[~ids[ids < 0]] = True
        sizes = [len(column.values) for column in self.features.columns]
        return np.split(is_used, np.cumsum(sizes)[:-1])

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
        baseline_ids = torch.where(is_text, self._baseline_id, batch["input_ids"])
        score = _make_score(self.evaluation, rows)
        found = integrate_gradients(model, batch, score, baseline_ids, num_steps)
        totals = np.zeros(len(rows))
        document = batch["document"].cpu().numpy() if "document" in batch else np.arange(len(rows))
        np.add.at(totals, document, found.tokens.sum(1))
        errors = np.abs(totals - found.difference) / np.maximum(np.abs(found.difference), 1e-12)
        return ~token[token < 0], found.tokens[token < 0], errors

    @property
    def _baseline_id(self) -> int:
        tokenizer = self.predictor.tokenizer
        return tokenizer.pad_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id


def _make_score(evaluation: SequenceEvaluation, rows: np.ndarray) -> Any:
    """Return a function from logits to the score that is explained.

    The score is the log-odds of the predicted label; with label sets, of the most probable label; for
    regression, it is the predicted number.
    """
    target = evaluation.predicted[rows] if evaluation.has_sets else evaluation.outputs.logits[rows].argmax(1)
    has_other_classes = evaluation.has_sets

    def score(logits: torch.Tensor) -> torch.Tensor:
        index = torch.from_numpy(np.asarray(target, np.int64)).to(logits.device).unsqueeze(1)
        chosen = logits.gather(1, index).squeeze(1)
        if not has_other_classes:
            return chosen
        return chosen - logits.scatter(1, index, -torch.inf).logsumexp(1)

    return score


def _sum_by_word(
    texts: Sequence[str], tokenizer: Any, values: np.ndarray, is_used: np.ndarray
) -> list[list[ExplainedWord]]:
    """Return the words of each text that the model reads, with the sum of their tokens' attributions.

    Args:
        texts: [n] texts.
        tokenizer: Fast tokenizer.
        values: [tokens] attribution of each token of all texts.
        is_used: [tokens] bool, whether the model reads the token.
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


def explain_examples(run: FinishedRun, num_examples: int) -> dict[int, ExampleExplanation]:
    """Return the explanations of the worst examples, by the index of the record."""
    view = create_view(run)
    if view is None:
        return {}
    indices = sort_worst_first(view.build_examples())[:num_examples]
    records = [run.records[index] for index in indices]
    # The faster layers of inference compute no gradients.
    predictor = load_predictor(run.folder, keep_stock_layers=True)
    predictor.model.to(devices.select_device())
    devices.report_device(predictor.model)
    keys = _map_columns_to_keys(predictor.task, view)
    rows = [{column: record.get(key) for column, key in keys.items()} for record in records]
    evaluation = _evaluate(predictor, Rows.from_dicts(rows, run.predictions_path.name))
    explanations = list(explain(predictor, evaluation))
    report_info(f"attributions of the {len(records):,} worst of {len(run.records):,} examples")
    return {
        index: _convert(record, explanation, keys)
        for index, record, explanation in zip(indices, records, explanations, strict=True)
    }


def _map_columns_to_keys(task: Task, view: View) -> dict[str, str]:
    """Return the keys of the text columns in the records; see `merge_prediction`."""
    reserved = view.predicted_keys | COMMON_KEYS
    columns = task.input_schema.text_columns
    return {column: f"input_{column}" if column in reserved else column for column in columns}


def _evaluate(predictor: Predictor, rows: Rows) -> SequenceEvaluation:
    """Predict rows without fitted thresholds: the records have the predictions of training."""
    task = cast("SequenceTask", predictor.task)
    task.state.label_type.thresholds = {}
    with silence_libraries():
        return cast("SequenceEvaluation", predictor.evaluate_without_labels(rows))


def _convert(
    record: Mapping[str, Any], explanation: Explanation, keys: Mapping[str, str]
) -> ExampleExplanation:
    """Convert an explanation for the page, without the words that are not shaded.

    Args:
        record: The prediction.
        explanation: Its explanation.
        keys: The keys of the text columns in the record.
    """
    words = [(column, word) for column, column_words in explanation.words.items() for word in column_words]
    strengths = compute_strengths([word.attribution for _, word in words])
    attributions: dict[str, list[Attribution]] = {}
    for (column, word), strength in zip(words, strengths, strict=True):
        if strength:
            value = float(f"{word.attribution:.3g}")
            attribution = Attribution(word.start, word.end, value, round(strength, 2))
            attributions.setdefault(keys[column], []).append(attribution)
    return ExampleExplanation(_name_target(record), explanation.error, attributions)


def _name_target(record: Mapping[str, Any]) -> str:
    """Return what is explained: the predicted label, the most probable label of a set, or the number."""
    if isinstance(record["predicted"], str):
        return record["predicted"]
    probabilities = record.get("probabilities")
    return max(probabilities, key=probabilities.get) if probabilities else "the predicted number"
