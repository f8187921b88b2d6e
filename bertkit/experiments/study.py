"""`bertkit study TASK`: folds, seeds and trials of one task, and the files with their results.

The held-out scores of a study are measured on rows that were not used to select settings, checkpoints or
thresholds.
"""

import dataclasses
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.split import (
    sample_rows,
)
from bertkit.data.table import fingerprint_splits
from bertkit.errors import RunInterrupted, TrainingFailed, UserError, format_count
from bertkit.experiments import search
from bertkit.experiments.experiment import Outcome, PlannedRun
from bertkit.experiments.held_out import (
    PREDICTIONS_FILE,
    SPLITS,
    TRIAL_FOLD,
    FinalSplits,
    HeldOutPredictions,
    StudySplits,
    TaskExperiment,
    get_split_seed,
    parse_labeled_rows,
    split_data,
)
from bertkit.experiments.study_results import (
    FinishedRuns,
    build_study_table,
    build_trial_table,
    compare,
    describe_results,
    format_number,
    measure_gain,
    write_ensemble_run,
)
from bertkit.reports.tables import ResultTable, build_study_charts, render_experiment_page
from bertkit.run.baselines import fit_all_baselines
from bertkit.run.load_data import LoadedData
from bertkit.run.prepare import PreparedRun, RunOptions
from bertkit.run.resolve_settings import resolve_settings
from bertkit.run.results import summarize_data
from bertkit.run.train import require_unchanged_data
from bertkit.run_directory import RunDir
from bertkit.settings.recipes import serialize_settings
from bertkit.settings.run_settings import MAX_SEED
from bertkit.stats.judgement import judge
from bertkit.utils.files import write_jsonl, write_text
from bertkit.utils.reporting import report_info, silence_reports
from bertkit.utils.text import dump_yaml

STUDY_FILE, RECIPE_FILE = "study.json", "recipe.yaml"
TRIALS_DIR, TRIALS_FILE = "trials", "trials.jsonl"
FOLDS_DIR, SEEDS_DIR, DEFAULTS_DIR = "folds", "seeds", "defaults"
# What is kept of a complete trial.
TRIAL_FILES = {RunDir.METRICS_FILE, RunDir.LOG_FILE, RunDir.SETTINGS_FILE}


# ---- the study


class Study(TaskExperiment):
    """Trials, and final runs for each fold and seed, with the best settings and with the defaults."""

    noun = "study"
    output_names = (
        STUDY_FILE, PREDICTIONS_FILE, RECIPE_FILE, TRIALS_FILE, TRIALS_DIR, RunDir.ENSEMBLE_DIR, FOLDS_DIR,
        SEEDS_DIR, DEFAULTS_DIR, "label_issues*",
    )  # fmt: skip

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if not (config.folds or config.trials or config.seeds > 1):
            raise UserError("study: nothing to compare; pass --folds, --seeds or --trials")
        if config.seed + config.seeds - 1 > MAX_SEED:
            raise UserError(f"--seeds {config.seeds}: the last seed is above {MAX_SEED}; pass a lower --seed")
        if config.search and not config.trials:
            raise UserError("--search: has no effect without --trials; pass the number of trials")
        if config.trials:
            search.require_optuna()
        self.other: Study | None = None  # of `--against`
        self.space = search.parse_space(config.search, self.run_config)

    # ---- the plan

    def split(self, data: LoadedData) -> StudySplits:
        return split_data(data, self.config.folds)

    @cached_property
    def prepared(self) -> PreparedRun:
        """A prepared run with the default settings and the splits of a trial."""
        return self.get_group().prepare({}, self.splits.search)

    @property
    def metric(self) -> str:
        """Name of the score that selects settings and checkpoints."""
        return self.prepared.task.state.best_metric[0]

    def prepare(self) -> list[str]:
        self.fingerprints = fingerprint_splits(self.get_group().data.dataset.splits)
        _ = self.splits
        if self.config.against:
            self.other = self._load_other(Path(self.config.against))
        defaults = self.prepared.config
        if self.config.trials:
            self.space = self.space or search.make_default_space(self.run_config, defaults)
            report_info(f"search space: {', '.join(map(str, self.space))}")
        return [self.prepared.dataset.name, self.prepared.model_source.name]

    def _load_other(self, folder: Path) -> "Study":
        """Return the finished study of `--against`, which must predict the same rows in the same folds."""
        flag = f"--against {self.config.against}"
        metrics = RunDir(folder).read_metrics()
        if metrics is None or metrics["task"] != "study":
            raise UserError(f"{flag}: is not a finished study; pass the directory of one")
        if metrics["command"] != self.task_name:
            raise UserError(
                f"{flag}: is a study of {metrics['command']}, this one of {self.task_name}; compare studies "
                "of one task"
            )
        if metrics["metric"] != self.metric:
            raise UserError(
                f"{flag}: is judged by {metrics['metric']}, this study by {self.metric}; pass the same "
                "--metric-for-best-model"
            )
        if self.metric not in metrics["settings"]["best"]["held_out"]["intervals"]:
            raise UserError(
                f"{flag}: {self.metric} is a score of a module of --metric, which has no paired test; omit "
                "the flag, or --metric-for-best-model"
            )
        if self.folder is not None and self.folder.resolve() == folder.resolve():
            raise UserError(f"{flag}: is this study; pass another one")
        settings = {"output_dir": str(folder), "resume": True}
        config, fingerprints = resolve_settings(self.command, type(self.config), settings, None)
        with silence_reports():
            other = Study(config)
            other.fingerprints = fingerprint_splits(other.get_group().data.dataset.splits)
            require_unchanged_data(folder, fingerprints or {}, other.fingerprints)
            ours, theirs = self.splits, other.splits
        if fingerprint_splits({"test": ours.rows}) != fingerprint_splits({"test": theirs.rows}):
            raise UserError(
                f"{flag}: predicts other rows than this study; pass the same data and options of rows"
            )
        folds = [[part.rows.tolist() for part in each.final] for each in (ours, theirs)]
        if folds[0] != folds[1]:
            raise UserError(
                f"{flag}: has other folds than this study; pass the same --folds, --split-seed, "
                "--group-column and --time-column"
            )
        return other

    def _compare_with_other(self, predictions: HeldOutPredictions) -> dict[str, Any]:
        """Return the section "judgement" of `study.json`: the verdict against the other study.

        Both predict each row by runs that were not trained on it. After a search, fold 0 is left out.
        """
        other = self.other
        if other is None:
            return {}
        folder = Path(other.config.output_dir)
        searched = (RunDir(folder).read_metrics() or {})["search"]
        settings = searched["best_settings"] if searched else {}
        with silence_reports():
            runs = other.plan_final_runs(folder, settings)
            others = other.load_predictions(
                [run for run in runs if not (searched and run.fold == TRIAL_FOLD)]
            )
        common = np.intersect1d(predictions.index, others.index)
        judgement = judge(
            predictions.select(common), {self.config.against: others.select(common)}, self.metric,
            self.prepared.task.state.best_metric[1] > 0,
            rows=format_count(len(common), self.prepared.task.definition.unit), name=str(self.folder),
            seed=self.config.seed,
        )  # fmt: skip
        assert judgement is not None  # see `_load_other`
        return {"judgement": dataclasses.asdict(judgement)}

    def plan_final_runs(self, folder: Path, settings: Mapping[str, Any]) -> list[PlannedRun]:
        """Return the runs with the best settings."""
        name = FOLDS_DIR if self.config.folds else SEEDS_DIR
        return self._plan(folder / name, settings, self.splits.final)

    def plan_default_runs(self, folder: Path) -> list[PlannedRun]:
        """Return the runs with the default settings, for the comparison with the best settings."""
        unbiased = [part for part in self.splits.final if part.fold != TRIAL_FOLD]
        return self._plan(folder / DEFAULTS_DIR, {}, unbiased)

    def _plan(self, folder: Path, settings: Mapping[str, Any], parts: list[FinalSplits]) -> list[PlannedRun]:
        """Return a run for each fold and seed, in the directories `foldK-seedS`, or `seedS` without folds."""
        runs = []
        for part in parts:
            for seed in range(self.config.seed, self.config.seed + self.config.seeds):
                title = f"seed {seed}" if part.fold is None else f"fold {part.fold}, seed {seed}"
                runs.append(PlannedRun(
                    folder=folder / title.replace(", ", "-").replace(" ", ""), title=title, settings=settings,
                    seed=seed, metric=self.metric, fold=part.fold,
                ))  # fmt: skip
        return runs

    def describe_runs(self) -> dict[str, Any]:
        folder = Path()
        final = [*self.plan_final_runs(folder, {}), *(self.plan_default_runs(folder) if self.space else [])]
        planned = [(f"{TRIALS_DIR}/{number:03d}", self.splits.search) for number in range(self.config.trials)]
        planned += [(run.folder.as_posix(), self.get_final_splits(run).splits) for run in final]
        runs = [
            {"folder": name, **{split: str(len(splits.get(split, ()))) for split in SPLITS}}
            for name, splits in planned
        ]
        space = [str(dimension) for dimension in self.space]
        return {"task": "study", "model": self.prepared.model_source.name, "space": space, "runs": runs}

    # ---- one run

    def attempt(self, run: PlannedRun) -> Outcome:
        if run.trial is not None:
            return self._attempt_trial(run, run.trial)
        try:
            options = RunOptions(has_report=False, has_logits=True)
            return Outcome(self.train_run(run, self.get_final_splits(run).splits, options))
        except TrainingFailed as error:
            return Outcome({}, str(error))

    def _attempt_trial(self, run: PlannedRun, number: int) -> Outcome:
        """Train the run of a trial, which reports its scores to optuna."""
        started = time.monotonic()
        trial = search.open_trial(run.folder.parent, number, dict(run.settings))
        callback = search.PruningCallback(trial.report, run.metric)
        state: search.State
        state, reason, metrics = "complete", None, {}
        try:
            options = RunOptions(has_report=False, callbacks=[callback])
            metrics = self.train_run(run, self.splits.search, options)
            if trial.scores:
                callback.steps = callback.planned_steps = metrics["training"]["steps"]
            else:
                state, reason = "failed", f"no evaluation has the score {run.metric}"
        except RunInterrupted:
            raise
        except search.TrialPruned:
            state = "pruned"
        except UserError as error:
            state, reason = "failed", str(error)
        seconds = round(time.monotonic() - started, 3)
        ended = search.Trial(
            number, trial.settings, state, trial.best_score, callback.steps, callback.planned_steps, seconds,
            reason,
        )  # fmt: skip
        return Outcome(metrics, reason, ended, callback.is_interrupted)

    # ---- all runs

    def execute(self, folder: Path) -> dict[str, Any]:
        store = self._search(folder) if self.space else None
        best_settings = store.find_best().settings if store else {}
        best = self._train(self.plan_final_runs(folder, best_settings), "best settings, " if store else "")
        defaults = self._train(self.plan_default_runs(folder), "defaults, ") if best_settings else None
        return self._write_results(folder, store, best, defaults)

    def _search(self, folder: Path) -> search.TrialStore:
        """Train trials until there are enough, or the time limit is over."""
        (folder / TRIALS_DIR).mkdir(exist_ok=True)
        sign = self.prepared.task.state.best_metric[1]
        store = search.TrialStore(
            folder / TRIALS_DIR, self.space, self.default_settings, self.config.seed, sign
        )
        if store.is_search_ended:
            return store
        for run, outcome in self.executor.run(self._iter_trials(folder / TRIALS_DIR, store)):
            trial = outcome.trial
            assert trial is not None
            store.end(trial)
            if trial.state != "complete":
                shutil.rmtree(run.folder, ignore_errors=True)
            else:  # it keeps settings, scores and learning curves
                for path in run.folder.iterdir():
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
                    elif path.name not in TRIAL_FILES:
                        path.unlink()
            write_jsonl(folder / TRIALS_FILE, (ended.to_record() for ended in store.list_ended()))
            settings = search.format_settings(trial.settings) or "the defaults"
            score = "" if trial.score is None else f"{self.metric} {trial.score:.4f}"
            result = {
                "complete": score,
                "pruned": f"{score} (pruned after {trial.steps} of {trial.planned_steps} steps)",
                "failed": f"failed: {trial.reason}",
            }[trial.state]
            report_info(f"trial {trial.number} of {self.config.trials}: {settings}: {result}")
            if outcome.is_interrupted:
                raise KeyboardInterrupt
        store.end_search()
        return store

    def _iter_trials(self, folder: Path, store: search.TrialStore) -> Iterator[PlannedRun]:
        """Yield the trials that an earlier process did not end, and then new ones."""

        def plan(trial: search.RunningTrial) -> PlannedRun:
            return PlannedRun(
                folder=folder / f"{trial.number:03d}", title=f"trial {trial.number}", settings=trial.settings,
                seed=self.config.seed, metric=self.metric, trial=trial.number,
            )  # fmt: skip

        yield from map(plan, store.list_running())
        limit = self.config.time_limit
        while store.count() < self.config.trials:
            if limit is not None and time.monotonic() >= self.started + 60 * limit:
                return
            yield plan(store.begin())

    @cached_property
    def default_settings(self) -> dict[str, Any]:
        """The default values of the settings in the search space."""
        return {dimension.name: getattr(self.prepared.config, dimension.name) for dimension in self.space}

    def _train(self, runs: list[PlannedRun], prefix: str) -> FinishedRuns:
        """Train final runs, with a line for each of them."""
        metrics = {}
        for run, outcome in self.executor.run(runs):
            if outcome.reason:
                raise UserError(f"{prefix}{run.title}: {outcome.reason}")
            metrics[run.folder] = outcome.metrics
            score = format_number(outcome.metrics["test"].get(self.metric))
            report_info(f"{prefix}{run.title}: {self.metric} {score}")
        return FinishedRuns(runs, metrics)

    # ---- the results

    @classmethod
    def build_tables(cls, metrics: Mapping[str, Any], folder: Path) -> list[ResultTable]:
        trials = [build_trial_table(metrics)] if metrics["search"] else []
        return [*trials, build_study_table(metrics, folder)]

    def _write_results(
        self, folder: Path, store: search.TrialStore | None, best: FinishedRuns, defaults: FinishedRuns | None
    ) -> dict[str, Any]:
        """Write all results into the directory of the study, with `metrics.json` last."""
        write_ensemble_run(folder / RunDir.ENSEMBLE_DIR, best)
        metrics = self._compute_metrics(folder, store, best, defaults)
        if self.config.folds:
            predictions = self.load_predictions(best.runs)
            write_jsonl(folder / PREDICTIONS_FILE, predictions.iter_records())
        best_settings = best.runs[0].settings
        config = dataclasses.replace(self.get_group().data.requested, **best_settings)
        recipe = dump_yaml({"task": self.task_name, "settings": serialize_settings(config)})
        title = f"# Best settings of the study: {search.format_settings(best_settings) or 'the defaults'}\n"
        write_text(folder / RECIPE_FILE, title + recipe)
        table = build_study_table(metrics, folder)
        tables = {"Scores": table, **({"Trials": build_trial_table(metrics)} if store else {})}
        page = render_experiment_page(metrics, tables, describe_results(metrics), build_study_charts(metrics))
        RunDir(folder).write_report(page)
        notes = "".join(f"* {note}\n" for note in table.notes)
        RunDir(folder).write_card(f"{table.to_markdown()}\n## Notes\n\n{notes}")
        write_text(folder / STUDY_FILE, json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
        RunDir(folder).write_metrics(metrics)
        return metrics

    def _compute_metrics(
        self, folder: Path, store: search.TrialStore | None, best: FinishedRuns, defaults: FinishedRuns | None
    ) -> dict[str, Any]:
        """Return the content of `study.json`; the ensemble has been written.

        After a search, the held-out scores are without fold 0, on which the trials were scored.
        """
        unbiased = [run for run in best.runs if not self.space or run.fold != TRIAL_FOLD]
        predictions = self.load_predictions(unbiased)
        settings = {"best": best.summarize(folder, self.metric, predictions, self.config.seed)}
        comparison = None
        if defaults is not None:
            others = self.load_predictions(defaults.runs)
            settings["defaults"] = defaults.summarize(folder, self.metric, others, self.config.seed)
            comparison = compare(others, predictions, self.metric, self.config.seed)
        held_out_score = settings["best"]["held_out"]["scores"].get(self.metric)
        last = self.splits.final[-1].splits
        used = {"train": self.splits.rows} if self.config.folds else last
        dataset = self.prepared.dataset
        return {
            "task": "study",
            "command": self.task_name,
            "data": summarize_data(
                self.prepared.task, dataset, self.fingerprints, {**dataset.splits, **used}
            ),
            "model": self.prepared.model_source.name,
            "metric": self.metric,
            "folds": self.config.folds,
            "seeds": list(dict.fromkeys(run.seed for run in best.runs)),
            "predicted_rows": len(self.splits.rows),
            "settings": settings,
            "search": self._summarize_search(store, held_out_score) if store else None,
            "comparison": comparison,
            # on the test rows of the last fold, or on the test split
            "baselines": {
                name: baseline.score_all()
                for name, baseline in fit_all_baselines(
                    self.prepared.task, last["train"], last["test"], self.prepared.tokenizer
                ).items()
            },
            "ensemble": self._measure_gain(folder / RunDir.ENSEMBLE_DIR),
            **self._compare_with_other(predictions),
        }

    def _measure_gain(self, ensemble: Path) -> dict[str, Any]:
        """Measure the gain of the ensemble on a labeled split that no final run was trained on.

        With folds, that is a split of the dataset. `reason` is why the gain is not measured, else None.
        """
        num_members = len(RunDir(ensemble).find_members())
        result: dict[str, Any] = {"members": num_members, "reason": "it has a single member"}
        if num_members == 1:
            return result
        if self.config.keep_overlap:
            return result | {
                "reason": "with --keep-overlap, the members may have been trained on the rows of other splits"
            }
        if not self.config.folds:
            return result | measure_gain(ensemble, self.metric, "test", self.splits.final[0].splits["test"])
        for split in ("test", "validation"):
            if (rows := parse_labeled_rows(self.get_group().data, split)) is not None:
                rows = sample_rows(rows, self.config.max_eval_samples, get_split_seed(self.config))
                return result | measure_gain(ensemble, self.metric, split, rows)
        return result | {"reason": "the data has no labeled validation or test split"}

    def _summarize_search(self, store: search.TrialStore, held_out_score: float | None) -> dict[str, Any]:
        """Return the trials, and the score of the best trial with its optimism.

        The optimism is the score on the rows by which the settings were selected, minus that on other rows
        (Efron and Tibshirani 1993, 17.6).
        """
        trials, best = store.list_ended(), store.find_best()
        assert best.score is not None
        optimism = None if held_out_score is None else store.sign * (best.score - held_out_score)
        return {
            "space": {dimension.name: str(dimension).partition("=")[2] for dimension in self.space},
            "trials": len(trials),
            **{
                state: sum(trial.state == state for trial in trials)
                for state in ("complete", "pruned", "failed")
            },
            "steps": sum(trial.steps for trial in trials),
            "steps_without_pruning": sum(trial.planned_steps for trial in trials),
            "seconds": sum(trial.seconds for trial in trials),
            "default_settings": self.default_settings,
            "best_trial": best.number,
            "best_settings": best.settings,
            "best_score": best.score,
            "optimism": optimism,
            "table": [trial.to_record() for trial in trials],
        }
