"""The search: train trials, in one or several processes, until all of them have ended."""

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import run_directory
from bertkit.data.table import Splits
from bertkit.errors import RunInterrupted, UserError
from bertkit.run.prepare import RunOptions
from bertkit.studies.planned_runs import PlannedRun, Wait
from bertkit.studies.pruning import PruningCallback, TrialPruned
from bertkit.studies.run_group import RunGroup
from bertkit.studies.space import format_settings
from bertkit.studies.trials import RunningTrial, State, Trial, TrialStore
from bertkit.training.failures import release_memory
from bertkit.utils.files import is_lock_file, write_jsonl
from bertkit.utils.locks import try_lock, wait_for_lock
from bertkit.utils.reporting import report_info

TRIALS_DIR, TRIALS_FILE = "trials", "trials.jsonl"
KEPT_FILES = {run_directory.METRICS_FILE, run_directory.LOG_FILE, run_directory.SETTINGS_FILE}


@dataclass(frozen=True)
class Search:
    """A search over settings.

    Attributes:
        folder: Directory of the study.
        store: The trials.
        run_group: The group of all runs of the study.
        splits: The splits of the trials.
        metric: Name of the validation score.
        num_trials: Number of trials.
        deadline: Time of `time.monotonic` after which no trial begins, or None.
    """

    folder: Path
    store: TrialStore
    run_group: RunGroup
    splits: Splits
    metric: str
    num_trials: int
    deadline: float | None = None

    def run(self) -> None:
        """Train trials until all have ended, also those of other processes."""
        wait = Wait("trial")
        while not self.store.is_search_ended:
            with ExitStack() as stack:
                trial = self._claim(stack)
                if trial is not None:
                    self._run_trial(trial)
                elif running := self.store.list_running():
                    wait.sleep(len(running))
                else:
                    self.store.end_search()

    def _claim(self, stack: ExitStack) -> RunningTrial | None:
        """Return a trial whose directory this process has locked.

        First come trials that another process began and did not end. None if no trial is left.
        """
        with wait_for_lock(self.folder / TRIALS_DIR):
            for trial in self.store.list_running():
                if try_lock(stack, self._get_run_folder(trial)):
                    return trial
            is_late = self.deadline is not None and time.monotonic() >= self.deadline
            if self.store.is_search_ended or self.store.count() >= self.num_trials or is_late:
                return None
            trial = self.store.begin()
            try_lock(stack, self._get_run_folder(trial))
            return trial

    def _get_run_folder(self, trial: RunningTrial) -> Path:
        return self.folder / TRIALS_DIR / f"{trial.number:03d}"

    def _run_trial(self, trial: RunningTrial) -> None:
        started = time.monotonic()
        callback = PruningCallback(trial.report, self.metric)
        outcome, reason = self._train(trial, callback)
        release_memory()  # here, where no error keeps the tensors alive
        scores, sign = trial.scores, self.store.sign
        ended = Trial(
            trial.number, trial.settings, outcome,
            max(scores, key=lambda score: sign * score, default=None),
            callback.steps, callback.planned_steps, round(time.monotonic() - started, 3), reason,
        )  # fmt: skip
        self.store.end(trial, ended)
        _delete_weights(self._get_run_folder(trial), is_complete=outcome == "complete")
        write_jsonl(self.folder / TRIALS_FILE, (trial.to_record() for trial in self.store.list_ended()))
        report_info(self._describe(ended))
        if callback.is_interrupted:
            raise KeyboardInterrupt

    def _train(self, trial: RunningTrial, callback: PruningCallback) -> tuple[State, str | None]:
        """Train the run of a trial, and return how it ended, and why if it failed."""
        folder = self._get_run_folder(trial)
        try:
            options = RunOptions(has_report=False, callbacks=[callback])
            metrics = PlannedRun(
                folder=folder, run_group=self.run_group, settings=trial.settings,
                seed=self.run_group.config.seed, splits=self.splits, options=options,
            ).train()  # fmt: skip
        except RunInterrupted:
            raise
        except TrialPruned:
            return "pruned", None
        except UserError as error:
            return "failed", str(error)
        if not trial.scores:
            return "failed", f"no evaluation has the score {self.metric}"
        callback.steps = callback.planned_steps = metrics["training"]["steps"]
        return "complete", None

    def _describe(self, trial: Trial) -> str:
        settings = format_settings(trial.settings) or "the defaults"
        score = "" if trial.score is None else f"{self.metric} {trial.score:.4f}"
        notes = {
            "complete": "",
            "pruned": f" (pruned after {trial.steps} of {trial.planned_steps} steps)",
            "failed": f"failed: {trial.reason}",
        }
        result = notes["failed"] if trial.state == "failed" else score + notes[trial.state]
        return f"trial {trial.number} of {self.num_trials}: {settings}: {result}"


def _delete_weights(folder: Path, is_complete: bool) -> None:
    """Delete the files of a trial; a complete trial keeps settings, scores and learning curves."""
    if not is_complete:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in KEPT_FILES and not is_lock_file(path.name):
            path.unlink()


def summarize_trials(trials: list[Trial]) -> dict[str, Any]:
    """Return the numbers of trials by state, and the steps that pruning has saved."""
    states = [trial.state for trial in trials]
    return {
        "trials": len(trials),
        **{state: states.count(state) for state in ("complete", "pruned", "failed")},
        "steps": sum(trial.steps for trial in trials),
        "steps_without_pruning": sum(trial.planned_steps for trial in trials),
        "seconds": sum(trial.seconds for trial in trials),
    }
