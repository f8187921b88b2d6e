"""Predictions of the final runs for held-out rows, and paired tests between settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bertkit.data.table import Rows
from bertkit.run.prepare import PreparedRun
from bertkit.run.results import read_logits
from bertkit.run_directory import LOGITS_FILE
from bertkit.stats.scores import Scores
from bertkit.stats.significance import Scorer, average_values
from bertkit.studies.final_runs import FinalRun
from bertkit.tasks.evaluation import Evaluation, Outputs, merge_prediction
from bertkit.utils.arrays import concat_ranges


@dataclass(frozen=True)
class HeldOutPredictions:
    """The predictions of final runs with the same settings for the test rows of these runs.

    Each row is predicted once per seed, by a run that was not trained on it.

    Attributes:
        runs: The runs.
        prepared: The rows as the splits "train" and "validation" of a run, with their features.
        index: [n] index of each row in the rows that all final runs predict.
        fold: [n] fold of each row.
    """

    runs: Sequence[FinalRun]
    prepared: PreparedRun
    index: np.ndarray
    fold: np.ndarray

    @classmethod
    def load(cls, runs: Sequence[FinalRun], rows: Rows) -> "HeldOutPredictions":
        """Collect the predictions of finished runs.

        Args:
            runs: The runs.
            rows: The rows that all final runs of the study predict.
        """
        fold_by_row = np.full(len(rows), -1)
        for run in runs:
            fold_by_row[run.test_rows] = run.fold or 0
        index = np.flatnonzero(fold_by_row >= 0)
        selected = rows.select(index)
        prepared = runs[0].run_group.prepare(runs[0].settings, {"train": selected, "validation": selected})
        return cls(runs, prepared, index, fold_by_row[index])

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return list(dict.fromkeys(run.seed for run in self.runs))

    def _evaluate(self, logits: np.ndarray, fitted_params: Mapping[str, float]) -> Evaluation:
        task = self.prepared.task
        task.state.fitted_params = dict(fitted_params)
        features = self.prepared.features["validation"]
        return task.evaluate(Outputs(logits, features, self.prepared.splits["validation"]))

    def _collect_logits(self, seed: int) -> tuple[np.ndarray, dict[str, float]]:
        """Return the logits of all rows, and the means of the fitted parameters of the runs."""
        runs = [run for run in self.runs if run.seed == seed]
        contents = [read_logits(run.folder / LOGITS_FILE) for run in runs]
        offsets = _get_logit_offsets(self.prepared.features["validation"])
        num_outputs = max(logits.shape[-1] for logits, _ in contents)
        joined = np.full((offsets[-1], *contents[0][0].shape[1:-1], num_outputs), -np.inf, np.float32)
        for run, (logits, _) in zip(runs, contents, strict=True):
            rows = np.searchsorted(self.index, run.test_rows)
            joined[concat_ranges(offsets[rows], offsets[rows + 1]), ..., : logits.shape[-1]] = logits
        return joined, average_values([params for _, params in contents])

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """The evaluation of all rows, for each seed."""
        return [self._evaluate(*self._collect_logits(seed)) for seed in self.seeds]

    # ---- scores

    @cached_property
    def scores(self) -> Scores:
        """The scores of all rows, as the mean over the seeds."""
        return average_values([evaluation.scores for evaluation in self.evaluations])

    def make_scorer(self) -> Scorer:
        """Return a scorer of the rows; with several seeds, it averages their scores."""
        scorers = [evaluation.make_scorer() for evaluation in self.evaluations]
        if len(scorers) == 1:
            return scorers[0]

        def score(rows: np.ndarray) -> Scores:
            return average_values([scorer.score(rows) for scorer in scorers])

        return Scorer(score, scorers[0].size, num_resamples=scorers[0].num_resamples)

    # ---- records

    def iter_records(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of `out_of_fold.jsonl`: predictions with the mean probabilities of all seeds."""
        task, rows = self.prepared.task, self.prepared.splits["validation"]
        hidden_columns = task.input_schema.hidden_columns
        predictions = zip(rows, self._iter_predictions(), self.fold.tolist(), strict=True)
        for number, (row, prediction, fold) in enumerate(predictions):
            yield merge_prediction(number, row, hidden_columns, {**prediction, "fold": fold})

    def _iter_predictions(self) -> Iterator[dict[str, Any]]:
        first, *others = self.evaluations
        if not first.has_comparable_logits:
            records = zip(*(member.iter_full_records() for member in self.evaluations), strict=True)
            return map(first.merge_records, records)
        return (self._average() if others else first).iter_full_records()

    def _average(self) -> Evaluation:
        """Return the evaluation of the mean predictions of all seeds."""
        members = [self._collect_logits(seed) for seed in self.seeds]
        params = average_values([params for _, params in members])
        logits = torch.from_numpy(np.stack([logits for logits, _ in members]))
        return self._evaluate(self.prepared.task.combine_logits(logits).numpy(), params)


def _get_logit_offsets(features: Any) -> np.ndarray:
    """Return [n + 1] index of the first logits of each row, which may have several windows."""
    windows = getattr(features, "window_offsets", None)
    return features.logit_offsets if windows is None else features.logit_offsets[windows]
