"""Experiments with one task: the rows that their runs hold out, and the predictions for these rows."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bertkit.data.groups_and_times import describe_sides
from bertkit.data.split import (
    DEFAULT_FRACTION,
    SplitKeys,
    describe_overlap,
    find_overlap,
    hold_out,
    join_groups,
    make_folds,
    remove_overlap,
)
from bertkit.data.table import Rows, Splits
from bertkit.data.tokens import share_tokens
from bertkit.errors import UserError, format_count
from bertkit.experiments.config import make_run_config
from bertkit.experiments.experiment import Experiment, PlannedRun, RunGroup
from bertkit.run.load_data import (
    LoadedData,
    describe_group_risk,
    sample_training_rows,
    split_parsed_rows,
    summarize_split_columns,
)
from bertkit.run.prepare import PreparedRun
from bertkit.run_directory import RunDir
from bertkit.settings.run_settings import RunConfig
from bertkit.stats.scores import Scores
from bertkit.stats.significance import Scorer, average_values
from bertkit.tasks.base import Evaluation, Outputs, Task, merge_prediction
from bertkit.utils.arrays import concat_ranges
from bertkit.utils.reporting import report_info, use_reporter

PREDICTIONS_FILE = "out_of_fold.jsonl"
OUTER_FRACTION = 0.2  # of the training rows, if there are neither folds nor a labeled test split
SPLITS = ("train", "validation", "test")
TRIAL_FOLD = 0  # the fold on which the trials of a study are scored


# ---- the rows of the runs


@dataclass(frozen=True)
class FinalSplits:
    """The splits of those final runs that have the same rows."""

    fold: int | None  # that these runs predict; None without folds
    splits: Splits  # "train", "validation" and "test"
    rows: np.ndarray  # [test] indices of the test rows in the rows that all final runs predict


@dataclass(frozen=True)
class StudySplits:
    """The splits of all runs of a study."""

    search: Splits  # "train" and "validation" of the trials
    final: list[FinalSplits]
    rows: Rows  # that the final runs predict, each once per seed


def get_split_seed(config: RunConfig) -> int:
    """Return the seed of all splits of a study."""
    return config.seed if config.split_seed is None else config.split_seed


def split_data(data: LoadedData, num_folds: int | None) -> StudySplits:
    """Return the splits of all runs of a study, with or without folds, and report how the rows were split."""
    if num_folds:
        return split_into_folds(data, num_folds)
    if parse_labeled_rows(data, "test") is None:
        data = hold_out_test_rows(data)
        rows = format_count(len(data.dataset.splits["test"]), data.task.definition.unit)
        report_info(f"{rows} of the training data are held out as test split, which has no labels")
    splits = split_parsed_rows(data.task, data.dataset)
    test = splits["test"]
    final = FinalSplits(None, {name: splits[name] for name in SPLITS}, np.arange(len(test)))
    return StudySplits({name: splits[name] for name in ("train", "validation")}, [final], test)


def parse_labeled_rows(data: LoadedData, split: str) -> Rows | None:
    """Return the rows of a split of the dataset if all of them have labels, else None."""
    rows = data.dataset.splits.get(split)
    if rows is None:
        return None
    try:
        labeled, _ = data.task.parse_rows(rows, split, require_labels=True)
    except UserError:
        return None
    return labeled if len(labeled) == len(rows) else None


def split_into_folds(data: LoadedData, num_folds: int) -> StudySplits:
    """Return the splits of a study with folds.

    A final run predicts one fold. The rows that choose its checkpoint are held out of the other folds; with
    times, of the earlier ones. A trial trains on all rows that the final run of one fold may use, and is
    scored on that fold.
    """
    task, seed = data.task, get_split_seed(data.task.config)
    rows, notes = data.dataset.splits["train"], list(data.dataset.notes)
    if not task.config.keep_overlap:
        rows = remove_overlap(data.dataset.splits, task.split_keys, notes)
    rows = sample_training_rows(task, rows, seed)
    keys = task.split_keys(rows)
    keys = dataclasses.replace(keys, group=join_groups(keys))
    num_groups = len(np.unique(keys.group))
    count = format_count(num_groups, keys.group_unit or f"different {keys.unit}")
    if num_groups < num_folds:
        raise UserError(f"--folds {num_folds}: the training data has only {count}; use fewer folds")
    fraction = task.config.validation_fraction or DEFAULT_FRACTION
    folds = make_folds(keys, num_folds, seed)
    final = []
    for number, (rest, test) in enumerate(folds):
        train, validation = (rest[index] for index in hold_out(keys.select(rest), fraction, seed))
        fold_notes: list[str] = []
        train = _leave_out_overlap(task, keys, train, [validation, test], fold_notes)
        if not (len(train) and len(validation)):
            raise UserError(
                f"--folds {num_folds}: {count} in the training data are too few to hold out rows for "
                "validation; raise --validation-fraction, or add rows"
            )
        indices = {"train": train, "validation": validation, "test": test}
        splits = {name: rows.select(index) for name, index in indices.items()}
        task.validate_splits(splits)
        final.append(FinalSplits(number, splits, test))
        sides = [describe_sides(section) for section in summarize_split_columns(task, splits).values()]
        notes += [f"fold {number}: {note}" for note in [*fold_notes, *sides]]
    rest, test = folds[TRIAL_FOLD]
    rest = _leave_out_overlap(task, keys, rest, [test], [])
    predicted = np.sort(np.concatenate([part.rows for part in final]))
    final = [dataclasses.replace(part, rows=np.searchsorted(predicted, part.rows)) for part in final]
    unused = len(rows) - len(predicted)
    earliest = f"; the earliest {format_count(unused, keys.unit)} are only trained on" if unused else ""
    notes.append(f"{format_count(len(predicted), keys.unit)} in {num_folds} folds (seed {seed}){earliest}")
    notes += describe_group_risk(task, final[0].splits["train"], final[0].splits["test"])
    for note in notes:
        report_info(note)
    trial_splits = {"train": rows.select(rest), "validation": rows.select(test)}
    return StudySplits(trial_splits, final, rows.select(predicted))


def _leave_out_overlap(
    task: Task, keys: SplitKeys, train: np.ndarray, others: Sequence[np.ndarray], notes: list[str]
) -> np.ndarray:
    """Return the training rows that share no text and no group with the other rows, and add notes.

    All are indices of `keys`. Folds of joined groups share none anyway.
    """
    if task.config.keep_overlap or not (keys.group_column or keys.time_column):
        return train
    overlap = find_overlap(keys.select(train), [keys.select(each) for each in others], of_same_rows=True)
    notes += describe_overlap(overlap, keys.unit)
    return train[~np.any([np.zeros(len(train), bool), *overlap.values()], axis=0)]


def hold_out_test_rows(data: LoadedData) -> LoadedData:
    """Return the data with a test split from the training rows, for a dataset without labeled test rows."""
    task, rows = data.task, data.dataset.splits["train"]
    keys = task.split_keys(rows)
    keys = dataclasses.replace(keys, group=join_groups(keys))
    train, test = hold_out(keys, OUTER_FRACTION, get_split_seed(task.config))
    notes: list[str] = []
    train = _leave_out_overlap(task, keys, train, [test], notes)
    if not (len(train) and len(test)):
        raise UserError(
            f"{rows.files[0]}: {format_count(len(rows), keys.unit)} are too few to hold out a test split; "
            "add rows, or pass --test FILE"
        )
    splits = {**data.dataset.splits, "train": rows.select(train), "test": rows.select(test)}
    notes += describe_group_risk(task, splits["train"], splits["test"])
    dataset = dataclasses.replace(data.dataset, splits=splits, notes=[*data.dataset.notes, *notes])
    return dataclasses.replace(data, dataset=dataset)


# ---- predictions for held-out rows


@dataclass(frozen=True)
class HeldOutPredictions:
    """The predictions of final runs with the same settings for the test rows of these runs.

    Each row is predicted once per seed, by a run that was not trained on it.

    Attributes:
        runs: The runs.
        test_rows: [test] indices of the test rows of each run in the rows that all final runs predict.
        prepared: The rows as the splits "train" and "validation" of a run, with their features.
        index: [n] index of each row in the rows that all final runs predict.
        fold: [n] fold of each row.
    """

    runs: Sequence[PlannedRun]
    test_rows: Sequence[np.ndarray]
    prepared: PreparedRun
    index: np.ndarray
    fold: np.ndarray

    @classmethod
    def load(
        cls, group: RunGroup, rows: Rows, runs: Sequence[PlannedRun], test_rows: Sequence[np.ndarray]
    ) -> "HeldOutPredictions":
        """Collect the predictions of finished runs for `rows`, which all final runs predict."""
        fold_by_row = np.full(len(rows), -1)
        for run, test in zip(runs, test_rows, strict=True):
            fold_by_row[test] = run.fold or 0
        index = np.flatnonzero(fold_by_row >= 0)
        selected = rows.select(index)
        splits = {"train": selected, "validation": selected}
        prepared = group.prepare(runs[0].settings, splits)
        return cls(runs, test_rows, prepared, index, fold_by_row[index])

    def evaluate(self, logits: np.ndarray, fitted_params: Mapping[str, float]) -> Evaluation:
        task = self.prepared.task
        task.state.fitted_params = dict(fitted_params)
        features = self.prepared.features["validation"]
        return task.evaluate(Outputs(logits, features, self.prepared.splits["validation"]))

    def collect_logits(self) -> Iterator[tuple[np.ndarray, dict[str, float]]]:
        """Yield the logits of all rows for each seed, and the means of the fitted parameters of its runs."""
        features = self.prepared.features["validation"]
        # [n + 1] index of the first logits of each row, which may have several windows
        windows, offsets = getattr(features, "window_offsets", None), features.logit_offsets
        offsets = offsets if windows is None else offsets[windows]
        for seed in dict.fromkeys(run.seed for run in self.runs):
            runs = [pair for pair in zip(self.runs, self.test_rows, strict=True) if pair[0].seed == seed]
            contents = [RunDir(run.folder).read_logits() for run, _ in runs]
            num_outputs = max(logits.shape[-1] for logits, _ in contents)
            joined = np.full((offsets[-1], *contents[0][0].shape[1:-1], num_outputs), -np.inf, np.float32)
            for (_, test), (logits, _) in zip(runs, contents, strict=True):
                rows = np.searchsorted(self.index, test)
                joined[concat_ranges(offsets[rows], offsets[rows + 1]), ..., : logits.shape[-1]] = logits
            yield joined, average_values([params for _, params in contents])

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """The evaluation of all rows, for each seed."""
        return [self.evaluate(logits, params) for logits, params in self.collect_logits()]

    @cached_property
    def scores(self) -> Scores:
        """The scores of all rows, as the mean over the seeds."""
        return average_values([evaluation.scores for evaluation in self.evaluations])

    @cached_property
    def scorer(self) -> Scorer:
        """A scorer of the rows; with several seeds, it averages their scores."""
        scorers = [evaluation.scorer for evaluation in self.evaluations]
        if len(scorers) == 1:
            return scorers[0]

        def score(rows: np.ndarray) -> Scores:
            return average_values([scorer.score(rows) for scorer in scorers])

        return Scorer(score, scorers[0].size, num_resamples=scorers[0].num_resamples)

    def select(self, index: np.ndarray) -> Scorer:
        """Return a scorer of some of the rows, which are given by `index` and ascend."""
        return self.scorer.select(np.searchsorted(self.index, index))

    def combine(self, members: Sequence[tuple[np.ndarray, dict[str, float]]]) -> Evaluation:
        """Return the evaluation of the mean of several models, given what `collect_logits` yields of each."""
        logits, params = zip(*members, strict=True)
        combined = self.prepared.task.combine_logits(torch.from_numpy(np.stack(logits))).numpy()
        return self.evaluate(combined, average_values(params))

    def iter_records(self, evaluation: Evaluation | None = None) -> Iterator[dict[str, Any]]:
        """Yield the lines of `out_of_fold.jsonl`, by default with the mean probabilities of all seeds."""
        rows = self.prepared.splits["validation"]
        first, *others = self.evaluations
        records: Iterator[dict[str, Any]]
        if evaluation is None and not first.has_comparable_logits:
            members = zip(*(member.iter_full_records() for member in self.evaluations), strict=True)
            records = map(first.merge_records, members)
        else:
            evaluation = evaluation or (self.combine(list(self.collect_logits())) if others else first)
            records = evaluation.iter_full_records()
        hidden_columns = self.prepared.task.input_schema.hidden_columns
        predictions = zip(rows, records, self.fold.tolist(), strict=True)
        for number, (row, prediction, fold) in enumerate(predictions):
            yield merge_prediction(number, row, hidden_columns, {**prediction, "fold": fold})


# ---- the experiment


class TaskExperiment(Experiment):
    """An experiment with one task: its runs share the data, and predict rows they were not trained on."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.task_name: str = config.task_name
        self.command = f"{self.noun} {self.task_name}"
        self.run_config = make_run_config(self.task_name, config)

    def share_data(self) -> AbstractContextManager[None]:
        return share_tokens()

    def make_group(self, name: str) -> RunGroup:
        return RunGroup(self.task_name, self.run_config, self.run_reporter)

    @abstractmethod
    def split(self, data: LoadedData) -> StudySplits:
        """Return the splits of all runs, and report how the rows were split."""

    @cached_property
    def splits(self) -> StudySplits:
        """The splits of all runs."""
        data = self.get_group().data
        with use_reporter(self.run_reporter), self.run_reporter.show_info():
            return self.split(data)

    def get_final_splits(self, run: PlannedRun) -> FinalSplits:
        return self.splits.final[run.fold or 0]

    def load_predictions(self, runs: Sequence[PlannedRun]) -> HeldOutPredictions:
        test_rows = [self.get_final_splits(run).rows for run in runs]
        return HeldOutPredictions.load(self.get_group(), self.splits.rows, runs, test_rows)
