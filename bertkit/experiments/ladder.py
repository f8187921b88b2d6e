"""`bertkit ladder TASK`: models of several kinds on the same folds, and the smallest one that is good enough.

The candidates are those of the settings of the task (`RunConfig.candidates`). Each predicts every row by a
run that was not trained on it, so that all are compared on the same rows.
"""

import dataclasses
import json
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bertkit.commands import export
from bertkit.data.table import Rows, fingerprint_splits
from bertkit.errors import RunInterrupted, TrainingFailed, UserError, format_count
from bertkit.experiments.experiment import Outcome, PlannedRun
from bertkit.experiments.held_out import (
    PREDICTIONS_FILE,
    SPLITS,
    HeldOutPredictions,
    StudySplits,
    TaskExperiment,
    split_into_folds,
)
from bertkit.models.exported import load_onnx_model
from bertkit.models.loading import ONNX_FILE, find_model, find_run_model, load_config
from bertkit.reports.tables import ResultTable, build_ladder_charts, format_margin, render_experiment_page
from bertkit.run.dry_run import dry_run
from bertkit.run.load_data import LoadedData
from bertkit.run.predictor import load_predictor
from bertkit.run.prepare import PreparedRun, RunOptions, find_linear_text
from bertkit.run.results import LOSS, summarize_data
from bertkit.run_directory import RunDir
from bertkit.settings.declaration import get_flag, get_settings, is_column_setting
from bertkit.settings.recipes import serialize_settings
from bertkit.settings.run_settings import Candidate
from bertkit.stats.judgement import MAX_TRUNCATED, judge
from bertkit.stats.significance import Drop, Scorer, bound_drop, compare_scorers, compute_intervals
from bertkit.tasks.base import Evaluation
from bertkit.training.failures import release_memory
from bertkit.utils.compat import require_extra
from bertkit.utils.files import join_command, stage_files, write_jsonl, write_text
from bertkit.utils.reporting import report_info, silence_reports, use_reporter
from bertkit.utils.text import dump_yaml, format_signed

LADDER_FILE, RECIPE_FILE, CANDIDATES_DIR = "ladder.json", "recipe.yaml", "candidates"
RECOMMENDED_DIR, TEACHER_DIR = "recommended", "recommended-teacher"
SPEED_ROWS, SPEED_SECONDS = 256, 1.0  # for a measurement of the speed: rows, and seconds at least
NO_SOURCE = "no fine-tuned model to make it from"
USED_FRACTION = 0.9  # of the time limit, for training; the rest is for the measurements at the end


# ---- the recommendation


@dataclass(frozen=True)
class Result:
    """The measurements of a candidate that decide which one is recommended.

    Attributes:
        drop: How much lower its score is than that of the best candidate.
    """

    name: str
    drop: Drop
    megabytes: float
    rows_per_second: float


@dataclass(frozen=True)
class Recommendation:
    """The smallest good candidate.

    Attributes:
        is_shown: Whether the rows show, with a confidence of 97.5 %, that it is below the best one by no more
            than the margin.
        needed_rows: With how many rows that may be shown; None if it is shown, or if no number is enough.
    """

    name: str
    is_shown: bool
    needed_rows: int | None


def recommend(results: Sequence[Result], best: str, margin: float) -> Recommendation:
    """Recommend the smallest of the candidates whose score is within `margin` points of the best one.

    Of models whose sizes agree in two digits, the fastest one is recommended, and of those whose speeds agree
    in one digit, that with the best score.
    """
    limit = margin / 100
    good = [result for result in results if result.drop.drop <= limit]

    def rank(result: Result) -> tuple[float, float, float]:
        size, speed = float(f"{result.megabytes:.1e}"), float(f"{result.rows_per_second:.0e}")
        return size, -speed, result.drop.drop

    chosen = min(good, key=rank)
    is_shown = chosen.name == best or chosen.drop.bound <= limit
    return Recommendation(chosen.name, is_shown, None if is_shown else chosen.drop.count_needed_rows(limit))


# ---- the ladder


@dataclass(frozen=True)
class Trained:
    """A candidate with the runs and the predictions of all folds.

    Attributes:
        runs: One for each fold; empty for a baseline.
        seconds: Seconds of training for a fold, including those of the model that it was made from; None for
            a baseline.
        predictions: None for a baseline.
        made_from: Name of the fine-tuned candidate that it was made from, or None.
    """

    candidate: Candidate
    runs: Sequence[PlannedRun]
    seconds: float | None
    scorer: Scorer
    predictions: HeldOutPredictions | None = None
    made_from: str | None = None


class Ladder(TaskExperiment):
    """Candidates, the cheapest ones first, each with a run for each fold."""

    noun = "ladder"
    output_names = (
        LADDER_FILE, PREDICTIONS_FILE, RECIPE_FILE, CANDIDATES_DIR, RECOMMENDED_DIR, TEACHER_DIR,
        "label_issues*",
    )  # fmt: skip

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.left_out: dict[str, str] = {}  # reasons by candidate

    # ---- the plan

    def split(self, data: LoadedData) -> StudySplits:
        return split_into_folds(data, self.config.folds)

    @cached_property
    def models(self) -> list[str | None]:
        """The encoders; None is the default one."""
        names = [name.strip() for value in self.config.models for name in value.split(",") if name.strip()]
        return [*dict.fromkeys(names)] or [self.config.model]

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The candidates with all settings of their runs; several encoders are in the names."""
        models, titles = self.models, [Path(model or "").name for model in self.models]
        if len(set(titles)) < len(titles):
            titles = [str(model) for model in models]
        planned = []
        for candidate in self.config.candidates:
            for title, model in zip(titles, models, strict=True):
                complete = self._fill_settings(candidate, model)
                if complete.settings["model"] != model or candidate.origin != "run":
                    planned.append(complete)
                    break
                name = candidate.name if len(models) == 1 else f"{candidate.name} {title}"
                planned.append(dataclasses.replace(complete, name=name))
        return planned

    def _fill_settings(self, candidate: Candidate, model: str | None) -> Candidate:
        """Add the encoder, and reset the settings of the user that have no effect on the candidate."""
        config = self.get_group().data.task.config
        chosen = {**candidate.settings, "model": model}
        fields = get_settings(type(config))
        ineffective = dataclasses.replace(config, **chosen).list_ineffective_settings()
        reset = {name: fields[name].default for name in ineffective}
        return dataclasses.replace(candidate, settings={**chosen, **reset})

    @cached_property
    def _reference(self) -> tuple[Candidate, PreparedRun]:
        """The first candidate that can be prepared, of those that are fine-tuned, if there are any."""
        runs = [one for one in self.candidates if one.origin == "run"]
        errors = []
        for candidate in [one for one in runs if one.is_fine_tuned] or runs:
            try:
                return candidate, self.prepare_candidate(candidate)
            except UserError as error:
                errors.append(error)
        raise errors[0]

    @property
    def prepared(self) -> PreparedRun:
        """The reference, prepared for the first fold: it checks the data and the settings."""
        return self._reference[1]

    def prepare_candidate(self, candidate: Candidate) -> PreparedRun:
        """Prepare the run of a candidate for the first fold."""
        try:
            return self.get_group().prepare(candidate.settings, self.splits.final[0].splits)
        except UserError as error:
            error.args = (name_flag(error),)
            raise

    @property
    def model_names(self) -> str:
        """The encoders of the candidates, as the user passed them."""
        return ", ".join(model or self.prepared.model_source.name for model in self.models)

    @property
    def metric(self) -> str:
        return self.prepared.task.state.best_metric[0]

    def prepare(self) -> list[str]:
        for model in filter(None, self.models):  # a wrong name is an error, an unsuitable model is left out
            find_model(model, "--models")
        self.fingerprints = fingerprint_splits(self.get_group().data.dataset.splits)
        _ = self.splits
        if self.metric == LOSS:
            raise UserError(f"--metric-for-best-model {LOSS}: is not a score of rows; choose another score")
        return [self.prepared.dataset.name]

    def describe_runs(self) -> dict[str, Any]:
        """Return a row for each candidate, in the order of training, in which `--time-limit` is used up.

        A student is planned with the seconds of the slowest fine-tuned candidate.
        """
        rows: list[dict[str, str]] = []
        has_source, slowest, total, parts = False, 0.0, 0.0, self.splits.final
        for candidate in self.candidates:
            reason = self.find_obstacle(candidate)
            seconds = slowest if candidate.origin == "distilled" else 0.0
            if reason is None and candidate.is_derived and not has_source:
                reason = NO_SOURCE
            if reason is None and candidate.origin == "run":
                try:
                    seconds = self._estimate(candidate, None)
                except UserError as error:
                    reason = name_flag(error)
            if reason is not None:
                self._leave_out(candidate, reason)
                continue
            if candidate.origin == "baseline":
                continue
            if candidate.is_fine_tuned:
                has_source, slowest = True, max(slowest, seconds)
            total += seconds * len(parts)
            rows.append({
                "candidate": candidate.name,
                "runs": str(len(parts)),
                **{split: str(len(parts[0].splits[split])) for split in SPLITS},
                "seconds": f"{seconds * len(parts):.1f}" if seconds else "-",
                "total": f"{total:.1f}",
            })  # fmt: skip
        return {"task": "ladder", "model": self.model_names, "runs": rows, "left_out": self.left_out}

    def _leave_out(self, candidate: Candidate, reason: str) -> None:
        self.left_out[candidate.name] = reason
        report_info(f"left out: {candidate.name}: {reason}")

    def find_obstacle(self, candidate: Candidate) -> str | None:
        """Return why a candidate cannot be trained on the data, or None."""
        task, train = self.prepared.task, self.splits.final[0].splits["train"]
        fields = get_settings(type(task.config))
        for name, value in candidate.settings.items():
            if is_column_setting(name) and getattr(task.config, name) and not value:
                return f"it does not support {get_flag(name, fields[name].metadata)}"
        if candidate.needs_long_texts and task.uses_windows:
            return "--long-texts windows applies to the others, too"
        if candidate.needs_long_texts and task.state.new_tokens:
            return "a window may leave out the marker of an entity"
        if candidate.name == "majority" and not task.state.labels:
            # With the constants of the folds together, it would have one.
            return f"a constant has no {self.metric}"
        if (most := candidate.max_rows_per_class) is not None:
            labels = task.state.labels
            if not labels:
                return "numbers have no classes"
            if len(train) > most * len(labels):
                count = len(train) / len(labels)
                return f"{count:,.0f} training rows per class, and it is for at most {most}"
        if candidate.origin == "int8":
            try:
                require_extra("onnx", export.REQUIRED_PACKAGES, "int8")
            except UserError as error:
                return str(error).removeprefix("int8: ")
        if candidate.origin != "run" or candidate is self._reference[0]:
            return None
        try:
            features = self.prepare_candidate(candidate).features["train"]
        except UserError as error:
            return str(error)
        if candidate.needs_long_texts and features.windowed_fraction <= MAX_TRUNCATED:
            return (
                f"{features.windowed_fraction:.1%} of the texts are longer than "
                f"{task.config.max_length} tokens, and windows need more than {MAX_TRUNCATED:.0%}"
            )
        return None

    def _name_folder(self, candidate: Candidate, fold: int) -> Path:
        name = re.sub(r"[^\w.-]+", "-", candidate.name)
        return Path(CANDIDATES_DIR) / f"{name}-fold{fold}"

    def _plan(self, folder: Path, candidate: Candidate, source: Trained | None) -> list[PlannedRun]:
        """Return the runs of a candidate, in the directories `candidates/NAME-foldK`."""
        return [
            PlannedRun(
                folder=folder / self._name_folder(candidate, part.fold or 0),
                title=f"{candidate.name}, fold {part.fold}", seed=self.config.seed, metric=self.metric,
                settings=self._choose_settings(candidate, source.runs[number] if source else None),
                fold=part.fold, candidate=candidate,
            )
            for number, part in enumerate(self.splits.final)
        ]  # fmt: skip

    def _choose_settings(self, candidate: Candidate, source: PlannedRun | None) -> Mapping[str, Any]:
        """Return the settings of a run, which may be made from the fine-tuned run `source`."""
        if source is None:
            return candidate.settings
        settings = {**source.settings, "model": str(source.folder.resolve())}
        if candidate.origin == "distilled":  # the teacher's way of training is not that of the student
            num_layers = max(1, load_config(find_run_model(source.folder)).num_hidden_layers // 2)
            settings |= {"num_layers": num_layers, "freeze": 0, "lora": None, "learning_rate": None}
        return settings

    # ---- one run

    def attempt(self, run: PlannedRun) -> Outcome:
        assert run.candidate is not None
        origin, splits, options = run.candidate.origin, None, None
        if run.fold is not None:
            splits, options = self.get_final_splits(run).splits, RunOptions(has_report=False, has_logits=True)
            if origin == "int8":
                return self._quantize(run, splits["test"])
        if origin == "distilled":
            run = dataclasses.replace(run, settings={**run.settings, "teacher": run.settings["model"]})
        try:
            return Outcome(self.train_run(run, splits, options))
        except TrainingFailed as error:
            return Outcome({}, str(error))
        except UserError as error:
            # The other candidates may do without this encoder, and a teacher may have too few layers. Any
            # other error, such as a full disk, stops the ladder, which can be resumed.
            is_about_model = name_flag(error) != str(error) or origin == "distilled"
            if isinstance(error, RunInterrupted) or not is_about_model:
                raise
            return Outcome({}, name_flag(error))

    def _quantize(self, run: PlannedRun, rows: Rows) -> Outcome:
        """Write the model of a fine-tuned run in int8, and its predictions for the test rows."""
        source, run_dir = Path(run.settings["model"]), RunDir(run.folder)
        if metrics := run_dir.read_metrics():
            return Outcome(metrics)
        started = time.perf_counter()
        predictor = load_predictor(source, keep_stock_layers=True)
        run.folder.mkdir(parents=True, exist_ok=True)
        try:
            with stage_files(run.folder) as staging, tempfile.TemporaryDirectory() as temporary:
                files = {export.FP32: Path(temporary) / ONNX_FILE, export.INT8: staging / ONNX_FILE}
                export.write_variants(predictor.task, predictor.model, files)
                export.copy_run_files(source, predictor.tokenizer, staging)
        except UserError as error:
            return Outcome({}, str(error))
        seconds = time.perf_counter() - started
        predictor = dataclasses.replace(predictor, model=load_onnx_model(run.folder))
        with silence_reports():
            outputs = predictor.compute_outputs(rows)
        fitted_params = RunDir(source).read_logits()[1]
        run_dir.write_logits(outputs.logits, fitted_params)
        metrics = RunDir(source).require_metrics()
        metrics["test"] = predictor.task.evaluate(outputs).scores
        metrics["training"] = {**metrics["training"], "seconds": seconds}
        run_dir.write_metrics(metrics)
        return Outcome(metrics)

    # ---- all runs

    def execute(self, folder: Path) -> dict[str, Any]:
        if (metrics := RunDir(folder).read_metrics()) is None:
            trained = self._train_candidates(folder)
            metrics = self._write_results(folder, trained)
        if self.config.keep:
            self._keep(folder, metrics)
        elif not (folder / RECOMMENDED_DIR).exists():
            keep = ["bertkit", *self.command.split(), "--resume", "--keep", "--output-dir", str(folder)]
            report_info(f"train the recommended model as a run of its own: {join_command(keep)}")
        return metrics

    def _train_candidates(self, folder: Path) -> dict[str, Trained]:
        """Return the candidates that were trained, by name; `self.left_out` has the others."""
        trained: dict[str, Trained] = {}
        for candidate in self.candidates:
            reason = self.find_obstacle(candidate)
            source = self._find_source(candidate, trained)
            if reason is None and candidate.is_derived and source is None:
                reason = NO_SOURCE
            if reason is None and candidate.origin == "baseline":
                baseline = self._fit_baseline(candidate)
                if self.metric in baseline.scorer.score_all():
                    trained[candidate.name] = baseline
                else:
                    reason = f"a baseline has no {self.metric}"
            elif reason is None:
                runs = self._plan(folder, candidate, source)
                ended = self._train_folds(candidate, runs, source, has_model=bool(trained_models(trained)))
                if isinstance(ended, str):
                    reason = ended
                else:
                    trained[candidate.name] = self._collect(candidate, runs, ended, source)
            if reason is not None:
                self._leave_out(candidate, reason)
                continue
            score = trained[candidate.name].scorer.score_all()[self.metric]
            report_info(f"{candidate.name}: {self.metric} {score:.4f}")
        if not trained_models(trained):
            raise UserError(f"{folder}: no candidate could be trained; see the messages above")
        return trained

    def _find_source(self, candidate: Candidate, trained: Mapping[str, Trained]) -> Trained | None:
        """Return the best fine-tuned candidate if a student or an export is made from it."""
        if not candidate.is_derived:
            return None
        found = [one for one in trained.values() if one.candidate.is_fine_tuned]
        return max(found, key=lambda one: self.sign * one.scorer.score_all()[self.metric], default=None)

    @property
    def sign(self) -> int:
        return self.prepared.task.state.best_metric[1]

    def _fit_baseline(self, candidate: Candidate) -> Trained:
        """Predict each fold by a baseline that is fitted on the training rows of the others."""
        task, parts = self.prepared.task, self.splits.final
        scorers = [task.fit_baselines(part.splits["train"], part.splits["test"]) for part in parts]
        scorer = Scorer.concatenate([fitted[candidate.name] for fitted in scorers])
        order = np.concatenate([part.rows for part in parts])
        return Trained(candidate, [], None, scorer.select(np.argsort(order)))

    def _train_folds(
        self, candidate: Candidate, runs: Sequence[PlannedRun], source: Trained | None, has_model: bool
    ) -> list[dict[str, Any]] | str:
        """Return the metrics of the runs of a candidate, or why it is left out.

        With a time limit, the first fold is trained alone if its estimated seconds fit, and then the others
        if as many seconds as it took fit for each of them. A ladder has at least one model.
        """
        unfinished = [run for run in runs if not RunDir(run.folder).is_finished]
        must_fit = self.config.time_limit is not None and has_model and bool(unfinished)
        if must_fit:
            try:
                seconds = self._estimate(candidate, source)
            except UserError as error:
                return name_flag(error)
            if reason := self._describe_excess(seconds, len(unfinished)):
                return reason
        metrics: dict[Path, dict[str, Any]] = {}
        parts = [unfinished[:1], unfinished[1:]] if must_fit else [unfinished]
        parts.append([run for run in runs if run not in unfinished])
        for number, part in enumerate(parts):
            started = time.monotonic()
            for run, outcome in self.executor.run(part):
                if outcome.reason:
                    return f"{run.title}: {outcome.reason}"
                metrics[run.folder] = outcome.metrics
            if must_fit and number == 0:
                reason = self._describe_excess(time.monotonic() - started, len(unfinished) - 1)
                if reason:
                    return reason
        return [metrics[run.folder] for run in runs]

    def _estimate(self, candidate: Candidate, source: Trained | None) -> float:
        """Return roughly the seconds of a run of a candidate; 0 if it takes no longer than the estimate."""
        if candidate.origin == "int8":
            return 0.0
        if source is not None:  # a student with half of the layers takes no longer than its teacher
            return source.seconds or 0.0
        with silence_reports(), use_reporter(self.run_reporter):
            prepared = self.prepare_candidate(candidate)
            if find_linear_text(prepared.methods):
                return 0.0
            seconds: float = dry_run(prepared)["estimated_seconds"]
        release_memory()
        return seconds

    def _describe_excess(self, seconds: float, num_runs: int) -> str | None:
        """Return why runs of so many seconds do not fit into the time limit, or None.

        The recommended model may have to be trained once more on all rows.
        """
        all_rows = self.config.folds / (self.config.folds - 1)  # relative to the rows of a fold's run
        needed = seconds * (num_runs + all_rows * self.config.keep)
        left = USED_FRACTION * 60 * self.config.time_limit - (time.monotonic() - self.started)
        if not num_runs or needed <= left:
            return None
        limit = f"--time-limit {self.config.time_limit:g}"
        if left <= 0:
            return f"no time of {limit} is left"
        return (
            f"it needs about {format_minutes(needed)} more, and {format_minutes(left)} of {limit} are left "
            "for training"
        )

    def _collect(
        self, candidate: Candidate, runs: Sequence[PlannedRun], metrics: Sequence[Mapping[str, Any]],
        source: Trained | None,
    ) -> Trained:  # fmt: skip
        """Return a trained candidate with its predictions for all rows."""
        with silence_reports():
            predictions = self.load_predictions(runs)
        seconds = fmean(one["training"]["seconds"] for one in metrics) + ((source and source.seconds) or 0)
        made_from = source.candidate.name if source else None
        return Trained(candidate, runs, seconds, predictions.scorer, predictions, made_from)

    # ---- the results

    def _write_results(self, folder: Path, trained: Mapping[str, Trained]) -> dict[str, Any]:
        """Write all results into the directory of the ladder, with `metrics.json` last."""
        models, seed = trained_models(trained), self.config.seed
        best = max(models, key=lambda one: self.sign * one.scorer.score_all()[self.metric])
        report_info("measuring the speed of the models")
        speeds = {}
        for model in models:
            with silence_reports():
                speeds[model.candidate.name] = measure_prediction_speeds(
                    model, self.splits.final[0].splits["test"]
                )
            release_memory()
        perfect = best.predictions.evaluations[0].perfect_score  # type: ignore[union-attr]
        records, results = [], []
        for name, one in trained.items():
            record = self._describe_candidate(one, best, speeds.get(name))
            records.append(record)
            if one.runs:
                drop = bound_drop(best.scorer, one.scorer, self.metric, self.sign > 0, perfect, seed)
                results.append(Result(name, drop, record["megabytes"], record["rows_per_second"]))
        found = recommend(results, best.candidate.name, self.config.margin)
        chosen = trained[found.name]
        [drop] = [result.drop for result in results if result.name == found.name]
        if chosen is best:  # then no model is compared with it, only baselines
            others = {name: one.scorer for name, one in trained.items() if not one.runs}
        else:
            others = {best.candidate.name: best.scorer}
        judgement = judge(
            chosen.scorer, others, self.metric, self.sign > 0,
            rows=format_count(len(self.splits.rows), self.prepared.task.definition.unit),
            name=None if chosen is best else found.name, seed=seed,
        )  # fmt: skip
        self._write_recipe(folder, chosen, trained)
        mean = self._write_predictions(folder, best, models)
        metrics = {
            "task": "ladder",
            "command": self.task_name,
            "data": summarize_data(
                self.prepared.task, self.prepared.dataset, self.fingerprints,
                {**self.prepared.dataset.splits, "train": self.splits.rows},
            ),
            "model": self.model_names,
            "metric": self.metric,
            "greater_is_better": self.sign > 0,
            "folds": self.config.folds,
            "seeds": [seed],
            "predicted_rows": len(self.splits.rows),
            "margin": self.config.margin,
            "candidates": records,
            "left_out": self.left_out,
            "best": best.candidate.name,
            "recommended": found.name,
            "shown": found.is_shown,
            "drop": {"points": 100 * drop.drop, "bound": 100 * drop.bound},
            "needed_rows": found.needed_rows,
            "judgement": dataclasses.asdict(judgement) if judgement else None,
            "mean_of_candidates": mean,
            "commands": self._list_commands(folder, chosen),
        }  # fmt: skip
        table, notes = build_ladder_table(metrics), describe_recommendation(metrics)
        page = render_experiment_page(metrics, {"Candidates": table}, notes, build_ladder_charts(metrics))
        RunDir(folder).write_report(page)
        lines = "".join(f"* {note}\n" for note in notes)
        RunDir(folder).write_card(f"{table.to_markdown()}\n## Recommendation\n\n{lines}")
        write_text(folder / LADDER_FILE, json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
        RunDir(folder).write_metrics(metrics)
        return metrics

    def _describe_candidate(
        self, one: Trained, best: Trained, speeds: tuple[float, float] | None
    ) -> dict[str, Any]:
        """Return the entry of `candidates` in `ladder.json`."""
        name, seed = one.candidate.name, self.config.seed
        difference = compare_scorers(best.scorer, one.scorer, seed)[self.metric]
        single, batched = speeds or (None, None)
        return {
            "name": name,
            "origin": one.candidate.origin,
            "made_from": one.made_from,
            "score": one.scorer.score_all()[self.metric],
            "interval": compute_intervals(one.scorer, seed)[self.metric],
            "difference": difference.difference,
            "difference_interval": difference.interval,
            "train_seconds": one.seconds,
            "rows_per_second": batched,
            "single_rows_per_second": single,
            "megabytes": RunDir(one.runs[0].folder).measure_model() if one.runs else None,
        }

    def _write_predictions(self, folder: Path, best: Trained, models: Sequence[Trained]) -> dict[str, Any]:
        """Write `out_of_fold.jsonl`: the mean of the candidates whose logits belong to the same labels.

        The result says which candidates these are, and has the score of the mean.
        """
        predictions = best.predictions
        assert predictions is not None
        logits = {
            one.candidate.name: next(one.predictions.collect_logits()) for one in models if one.predictions
        }
        shape = logits[best.candidate.name][0].shape
        labels = predictions.prepared.task.state.labels
        names = [
            one.candidate.name
            for one in models
            if logits[one.candidate.name][0].shape == shape
            and one.predictions is not None
            and one.predictions.prepared.task.state.labels == labels
        ]
        mean: Evaluation = predictions.combine([logits[name] for name in names])
        write_jsonl(folder / PREDICTIONS_FILE, predictions.iter_records(mean))
        scorer = mean.scorer
        return {
            "candidates": names,
            "score": scorer.score_all()[self.metric],
            "interval": compute_intervals(scorer, self.config.seed)[self.metric],
        }

    def _write_recipe(self, folder: Path, chosen: Trained, trained: Mapping[str, Trained]) -> None:
        """Write the settings of the recommended model, or of the fine-tuned model that it was made from."""
        source = trained[chosen.made_from] if chosen.made_from else chosen
        config = dataclasses.replace(self.get_group().data.requested, **source.candidate.settings)
        recipe = dump_yaml({"task": self.task_name, "settings": serialize_settings(config)})
        write_text(folder / RECIPE_FILE, f"# Recommended by the ladder: {chosen.candidate.name}\n{recipe}")

    def _list_commands(self, folder: Path, chosen: Trained) -> list[str]:
        """Return the commands that train the recommended model alone."""
        command = ["bertkit", self.task_name, "--recipe", str(folder / RECIPE_FILE)]
        if chosen.candidate.origin == "int8":
            return [join_command([*command, "-o", "RUN"]), "bertkit export RUN --quantize int8"]
        if chosen.candidate.origin == "distilled":
            student = f"bertkit distill RUN --num-layers {chosen.runs[0].settings['num_layers']}"
            return [join_command([*command, "-o", "RUN"]), student]
        return [join_command(command)]

    # ---- the recommended model

    def _keep(self, folder: Path, metrics: Mapping[str, Any]) -> None:
        """Train the recommended model as a run of its own, which holds out its validation rows."""
        [record] = [one for one in metrics["candidates"] if one["name"] == metrics["recommended"]]
        [chosen] = [one for one in self.candidates if one.name == record["name"]]
        target = folder / RECOMMENDED_DIR
        first = chosen
        if record["made_from"]:
            [first] = [one for one in self.candidates if one.name == record["made_from"]]
        has_teacher = chosen.origin == "distilled"
        source = PlannedRun(
            folder=folder / (TEACHER_DIR if has_teacher else RECOMMENDED_DIR), settings=first.settings,
            seed=self.config.seed, metric=self.metric, candidate=first,
        )  # fmt: skip
        self._train_kept(source)
        if has_teacher:
            settings = self._choose_settings(chosen, source)
            self._train_kept(dataclasses.replace(source, folder=target, settings=settings, candidate=chosen))
        int8 = target / RunDir.ONNX_DIR / export.INT8
        if chosen.origin == "int8" and not RunDir(int8).is_finished:
            export.export({"run": str(target), "quantize": export.INT8, "overwrite": True})
        path = int8 if chosen.origin == "int8" else target
        report_info(f"{chosen.name}, trained as a run of its own: {path}")

    def _train_kept(self, run: PlannedRun) -> None:
        for _, outcome in self.executor.run([run]):
            if outcome.reason:
                raise UserError(f"{run.folder}: {outcome.reason}")

    @classmethod
    def build_tables(cls, metrics: Mapping[str, Any], folder: Path) -> list[ResultTable]:  # noqa: ARG003
        return [dataclasses.replace(build_ladder_table(metrics), notes=describe_recommendation(metrics))]


def name_flag(error: UserError) -> str:
    """Return the message of a run, with the flag of a ladder."""
    return re.sub(r"--model(?![\w-])", "--models", str(error))


def trained_models(trained: Mapping[str, Trained]) -> list[Trained]:
    """Return the candidates that are models, without baselines."""
    return [one for one in trained.values() if one.runs]


def measure_prediction_speeds(trained: Trained, rows: Rows) -> tuple[float, float]:
    """Return the rows per second of the model of the first fold: one row at a time, and in batches.

    This is the time from rows to predictions in this process, including tokenization.
    """
    predictor = load_predictor(trained.runs[0].folder)
    schema = predictor.task.input_schema
    left_out = {*schema.gold_columns, *schema.hidden_columns}.difference(schema.text_columns)
    inputs = [
        {name: value for name, value in row.items() if name not in left_out}
        for row in rows.select(range(min(len(rows), SPEED_ROWS)))
    ]

    def measure(parts: Sequence[Sequence[Mapping[str, Any]]]) -> float:
        list(predictor.predict(parts[0]))  # allocates memory
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < SPEED_SECONDS:
            for part in parts:
                count += len(list(predictor.predict(part)))
                if time.perf_counter() - started >= SPEED_SECONDS:
                    break
        return count / (time.perf_counter() - started)

    return measure([[row] for row in inputs]), measure([inputs])


# ---- the table


def format_points(fraction: float) -> str:
    return format_signed(100 * fraction, "+.1f")


def format_minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} minutes"


def format_megabytes(megabytes: float) -> str:
    return f"{megabytes:.1f}" if megabytes >= 1 else f"{megabytes:.2g}"


def build_ladder_table(metrics: Mapping[str, Any]) -> ResultTable:
    """Return the table of the candidates, from the content of `ladder.json`."""
    rows = []
    for one in metrics["candidates"]:
        (low, high), bounds = one["interval"], map(format_points, one["difference_interval"])
        difference = f"{format_points(one['difference'])} ({' to '.join(bounds)})"
        costs = ["", "", "", ""]
        if one["origin"] != "baseline":
            speeds = [one["rows_per_second"], one["single_rows_per_second"]]
            costs = [f"{one['train_seconds']:.1f}", *(f"{speed:,.0f}" for speed in speeds)]
            costs.append(format_megabytes(one["megabytes"]))
        rows.append([
            one["name"], f"{one['score']:.3f} ({low:.3f} to {high:.3f})",
            "best" if one["name"] == metrics["best"] else difference, *costs,
        ])  # fmt: skip
    return ResultTable(
        title=" · ".join(["ladder " + metrics["command"], metrics["data"]["name"], metrics["model"]]),
        headings=["candidate", metrics["metric"], "points to the best", "s", "rows/s", "single", "MB"],
        rows=rows,
        caption=(
            f"Scores of {format_count(metrics['predicted_rows'], 'row')}, each predicted by runs that were "
            f"not trained on it, with 95 % intervals. s: seconds of training for one of {metrics['folds']} "
            "folds. rows/s: predicted rows per second, in batches; single: one row at a time."
        ),
        run_notes=[],
    )  # fmt: skip


def describe_recommendation(metrics: Mapping[str, Any]) -> list[str]:
    """Return lines on the recommended model, on its commands, and on what was left out."""
    name, best = metrics["recommended"], metrics["best"]
    margin = format_margin(metrics["margin"])
    sign = 1 if metrics["greater_is_better"] else -1
    good_baselines = [
        one["name"]
        for one in metrics["candidates"]
        if one["origin"] == "baseline" and sign * one["difference"] >= 0
    ]
    if good_baselines:
        lines = [
            f"no model is better than {good_baselines[0]} on these rows; the smallest good model is {name}"
        ]
    elif name == best:
        lines = [f"recommended: {name}, the best model; no smaller one is within {margin} of it"]
    else:
        lines = [f"recommended: {name}, the smallest model within {margin} of the best one, {best}"]
        bound = format_signed(metrics["drop"]["bound"], ".1f")
        bound = f"{bound} points below {best}, with a confidence of 97.5 %"
        needed = metrics["needed_rows"]
        rows = "" if needed is None else f"; about {needed:,} rows may show that it is within {margin}"
        lines.append(
            f"shown: {name} is at most {bound}"
            if metrics["shown"]
            else f"not shown: {name} may be up to {bound}{rows}"
        )
    if metrics["judgement"]:
        lines.append(metrics["judgement"]["text"].removesuffix("."))
    mean = metrics["mean_of_candidates"]
    if len(mean["candidates"]) > 1:
        low, high = mean["interval"]
        count = format_count(len(mean["candidates"]), "candidate")
        score = f"{metrics['metric']} {mean['score']:.3f} (95 % interval {low:.3f} to {high:.3f})"
        lines.append(f"mean of {count}: {score}")
    lines += [f"left out: {name}: {reason}" for name, reason in metrics["left_out"].items()]
    return [*lines, *(f"repeat it alone: {command}" for command in metrics["commands"])]
