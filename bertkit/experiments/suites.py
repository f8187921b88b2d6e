"""Suites: experiments that reproduce a table of a paper. YAML files have the tasks and published scores."""

import json
import statistics
import zipfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from bertkit.charts import Chart
from bertkit.data.readers.formats import Dialect
from bertkit.data.sources import load_dataset, load_dataset_specs, normalize_name
from bertkit.errors import UserError, format_count, format_list, suggest_similar
from bertkit.experiments.experiment import Experiment, PlannedRun, RunGroup
from bertkit.models import loading
from bertkit.models.tagger import select_layers
from bertkit.reports.page import render_template
from bertkit.reports.tables import ResultTable, format_percent, format_score
from bertkit.run.resolve_settings import fill_data_dir, resolve_settings
from bertkit.run_directory import RunDir
from bertkit.settings.declaration import fill_unset, get_settings
from bertkit.settings.recipes import list_passed_data, read_recipe, read_recipe_task, serialize_settings
from bertkit.stats.klue import SCORERS
from bertkit.stats.significance import MIN_SCORES, average_values, compute_t_interval
from bertkit.tasks import task_definition
from bertkit.tasks.ner.task import Ner
from bertkit.training import arguments
from bertkit.utils.files import write_text
from bertkit.utils.reporting import report_info, report_warning
from bertkit.utils.text import read_yaml, validate

RunMetrics = dict[Path, dict[str, Any]]  # content of `metrics.json`, by run directory
SUBMISSION_DIR, SUBMISSION_ARCHIVE, PREDICTIONS_DIR = "submission", "submission.zip", "predictions"


# ---- the tables as data


class SuiteScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A score in our table, and the published scores."""

    metric: str
    title: str = ""  # name of the task in the paper
    split: str = "validation"
    published: tuple[float, ...] = ()  # in percent, one for each column; empty if there is none
    baseline_metric: str | None = None  # with the same definition; None for `metric`, empty if there is none


class SuiteTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task of a suite."""

    name: str  # in `--tasks`
    recipe: str
    dataset: str
    scores: tuple[SuiteScore, ...]  # in the table; the first score selects the best run
    console_metric: str | None = None  # of a single run; by default, the first score
    submission_files: dict[str, str] = {}  # names of the leaderboard files by split
    label_format: Literal["number", "name", "score"] = "number"  # in leaderboard files


class SuiteTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a paper: the content of a YAML file."""

    title: str
    noun: str  # a task in error messages
    caption: str  # source of the published scores
    published: tuple[str, ...]  # headings of the columns with published scores
    tasks: tuple[SuiteTask, ...]
    digits: int = 1  # decimal places of the published scores
    has_test_scores: bool = False  # whether there is a column for our scores on labeled test sets
    average: str = ""  # note on the average over all scores with published ones; empty for no such row
    learning_rates: tuple[float, ...] = ()  # the values of `--learning-rates paper`

    @property
    def names(self) -> list[str]:
        """The names of the tasks."""
        return [task.name for task in self.tasks]


@cache
def load_table(name: str) -> SuiteTable:
    """Return the table of a suite."""
    table: SuiteTable = read_table_file(name, SuiteTable)
    return table


def read_table_file(name: str, schema: type) -> Any:
    """Return the content of the YAML file of a suite."""
    path, fix = Path(__file__).parent / f"{name}.yaml", "install bertkit again"
    return validate(read_yaml(path, "table of a suite", fix), schema, path, fix)


# ---- all suites


class Suite(Experiment):
    """An experiment whose runs are those of a table."""

    own_settings: ClassVar[frozenset[str]]  # that are not passed to the runs

    def __init__(self, config: Any) -> None:
        for name, kind in list_passed_data(config).items():
            raise UserError(
                f"{self.command}: {name}: expected a name or a path, found a {kind}; save the data, for "
                "example with Dataset.save_to_disk, and pass the directory"
            )
        arguments.check_precision(config)
        super().__init__(fill_data_dir(config))
        self.failures: dict[Path, str] = {}  # reasons by run directory

    @abstractmethod
    def plan_runs(self, folder: Path) -> list[PlannedRun]:
        """Return the runs of the suite in a directory; settings that depend on other runs may be missing."""

    @abstractmethod
    def compute_metrics(self, folder: Path, results: RunMetrics) -> dict[str, Any]:
        """Return the content of the suite's `metrics.json` from what `train_all` has returned."""

    @staticmethod
    def build_details(metrics: Mapping[str, Any]) -> tuple[dict[str, ResultTable], list[Chart]]:  # noqa: ARG004
        """Return further tables by heading, and the charts, for the page and the README of the suite."""
        return {}, []

    def describe_runs(self) -> dict[str, Any]:
        runs = [
            {"folder": run.folder.as_posix(), "recipe": run.recipe, "data": run.data}
            for run in self.plan_runs(Path())
        ]
        return {"task": self.command, "model": self.config.model, "runs": runs}

    def select_shared_settings(self, task_name: str) -> dict[str, Any]:
        """Return the settings of the suite that apply to its runs of this task."""
        settings = {**serialize_settings(self.config), "device": self.config.device}
        shared = {name: value for name, value in settings.items() if name not in self.own_settings}
        return select_task_settings(task_name, shared)

    def make_run_group(self, task_name: str, recipe: str | None, settings: Mapping[str, Any]) -> RunGroup:
        """Return a group for runs of a task on the same data; `settings` override those of the suite."""
        values = {**self.select_shared_settings(task_name), **settings}
        config_class = task_definition(task_name).config
        config, _ = resolve_settings(task_name, config_class, values, recipe)
        return RunGroup(task_name, config, self.run_reporter)

    def execute(self, folder: Path) -> dict[str, Any]:
        results = self.train_all(folder)
        failed = {path.relative_to(folder).as_posix(): reason for path, reason in self.failures.items()}
        if not results:
            name, reason = next(iter(failed.items()))
            raise UserError(f"{self.command}: all runs have failed ({name}: {reason}); change the settings")
        metrics = {**self.compute_metrics(folder, results), "failed": failed}
        [table] = self.build_tables(metrics, folder)
        details, charts = self.build_details(metrics)
        sections = [detail.to_markdown(f"## {heading}") for heading, detail in details.items()]
        RunDir(folder).write_card("\n".join([table.to_markdown(), *sections]))
        names = [path.relative_to(folder).as_posix() for path in results]
        page = render_template(
            "suite.html", title=table.title, tables={"Scores": table, **details}, charts=charts, runs=names
        )
        RunDir(folder).write_report(page)
        RunDir(folder).write_metrics(metrics)
        return metrics

    def train_all(self, folder: Path) -> RunMetrics:
        """Train the unfinished runs, and return the metrics of each finished run by directory."""
        return self.train_runs(self.plan_runs(folder))

    def train_runs(self, runs: Sequence[PlannedRun]) -> RunMetrics:
        """Train runs that do not depend on each other, and report a line when each begins and ends."""
        already_finished: set[Path] = set()

        def announce() -> Iterator[PlannedRun]:
            for run in runs:
                if (run.folder / RunDir.METRICS_FILE).exists():
                    already_finished.add(run.folder)
                else:
                    report_info(str(run.folder))
                yield run

        results: RunMetrics = {}
        for run, outcome in self.executor.run(announce()):
            if outcome.reason:
                self.failures[run.folder] = outcome.reason
                report_warning(f"{run.folder} failed: {outcome.reason}")
                continue
            results[run.folder] = outcome.metrics
            score = f"{run.metric} {outcome.metrics['validation'][run.metric]:.4f}"
            note = " (already finished)" if run.folder in already_finished else ""
            report_info(f"{run.folder}: {score}{note}")
        return {run.folder: results[run.folder] for run in runs if run.folder in results}


def find_data(
    datasets: Iterable[tuple[str, str]], data_dir: str | None, encoding: str | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Find datasets for tasks, so that missing ones are reported before the first run.

    Returns the location of each dataset that was found, and the error for each missing one, by name.
    """
    found, errors = {}, {}
    for name, task_name in datasets:
        try:
            found[name] = load_dataset(name, task_name, data_dir, Dialect(encoding=encoding)).source
        except UserError as error:
            errors[name] = str(error)
    return found, errors


def select_task_settings(task_name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a task has. For example, the task `ner` has no `pooling`."""
    available = get_settings(task_definition(task_name).config)
    return {name: value for name, value in settings.items() if name in available}


def select_named(flag: str, values: Sequence[str] | None, items: Sequence[Any], noun: str) -> list[Any]:
    """Return the items that the values of a flag name, separated by commas, in the order of `items`.

    Without values, all items are returned. `noun` is an item in error messages, such as "GLUE task".
    """
    choices = {normalize_name(item.name): item for item in items}
    known = [item.name for item in items]
    names = [name.strip() for value in values or known for name in value.split(",") if name.strip()]
    for name in names:
        if normalize_name(name) not in choices:
            hint = suggest_similar(name, known) or ";"
            raise UserError(f"{flag} {name}: is not a {noun}{hint} choose from {format_list(known)}")
    if not names:
        raise UserError(f"{flag}: is empty; choose from {format_list(known)}")
    selected = {normalize_name(name) for name in names}
    return [item for name, item in choices.items() if name in selected]


# ---- GLUE and KLUE


class Glue(Suite):
    """`bertkit glue`: runs of each task, in the directories `TASK/seed0` or `TASK/lr5e-05-seed0`."""

    command = "glue"
    own_settings = frozenset({"tasks", "learning_rates", "seeds", "seed"})
    output_names = (SUBMISSION_DIR, SUBMISSION_ARCHIVE, *load_table("glue").names)
    files = ("leaderboard files", SUBMISSION_DIR)  # what `write_files` writes, and its directory

    def __init__(self, config: Any) -> None:
        super().__init__(fill_unset(config, {"model": loading.choose_default_model()}))
        self.table = load_table(self.command)
        self.tasks: list[SuiteTask] = select_named("--tasks", config.tasks, self.table.tasks, self.table.noun)
        self.learning_rates = self._parse_learning_rates()

    def _parse_learning_rates(self) -> list[float | None]:
        """Return the learning rates to try; None means the default of the run."""
        text = self.config.learning_rates
        if text is None:
            return [self.config.learning_rate]
        if self.config.learning_rate is not None:
            raise UserError("--learning-rate and --learning-rates: cannot be combined; pass one of them")
        if text == "paper":
            return list(self.table.learning_rates)
        try:
            rates = [float(value) for value in text.split(",")]
        except ValueError:
            rates = []
        if not rates or not all(0 < rate < 1 for rate in rates):
            raise UserError(
                f"--learning-rates {text}: cannot parse; pass 'paper', or numbers between 0 and 1 separated "
                "by commas"
            )
        return list(dict.fromkeys(rates))

    def make_group(self, name: str) -> RunGroup:
        [task] = [task for task in self.tasks if task.name == name]
        seeds = {"seed": self.config.seed, "split_seed": self.config.seed}
        return self.make_run_group(read_recipe_task(task.recipe), task.recipe, seeds)

    def prepare(self) -> list[str]:
        for task in self.tasks:  # checks the settings
            self.get_group(task.name)
        self.model_source = loading.find_model(str(self.config.model))
        datasets = [(task.dataset, read_recipe_task(task.recipe)) for task in self.tasks]
        self.data_sources, errors = find_data(datasets, self.config.data_dir, self.config.encoding)
        if errors:
            others = ",".join(task.name for task in self.tasks if task.dataset in self.data_sources)
            fix = f"; run the others with --tasks {others}" if others else ""
            raise UserError(f"no data for {format_list(errors)}{fix} ({next(iter(errors.values()))})")
        return [self.model_source.name]

    def _plan_run(self, task: SuiteTask, folder: Path, rate: float | None, seed: int) -> PlannedRun:
        name = f"seed{seed}"
        if self.config.learning_rates is not None:  # without a rate, it is the best one
            name = f"lr{'BEST' if rate is None else format(rate, 'g')}-{name}"
        return PlannedRun(
            folder=folder / task.name / name, group=task.name, seed=seed, recipe=task.recipe,
            settings={} if rate is None else {"learning_rate": rate}, data=self.data_sources[task.dataset],
            metric=task.console_metric or task.scores[0].metric,
        )  # fmt: skip

    def _plan_search(self, task: SuiteTask, folder: Path) -> list[PlannedRun]:
        """Return a run with the first seed for each learning rate."""
        return [self._plan_run(task, folder, rate, self.config.seed) for rate in self.learning_rates]

    def _plan_other_seeds(self, task: SuiteTask, folder: Path, rate: float | None) -> list[PlannedRun]:
        """Return a run for each seed but the first one."""
        seeds = range(self.config.seed + 1, self.config.seed + self.config.seeds)
        return [self._plan_run(task, folder, rate, seed) for seed in seeds]

    def plan_runs(self, folder: Path) -> list[PlannedRun]:
        """Return a run of each task for each learning rate, and for each further seed at the best rate."""
        return [
            run
            for task in self.tasks
            for run in [*self._plan_search(task, folder), *self._plan_other_seeds(task, folder, None)]
        ]

    def train_all(self, folder: Path) -> RunMetrics:
        """Search the learning rate of each task with the first seed, then run the other seeds at it."""
        searches = [self._plan_search(task, folder) for task in self.tasks]
        results = self.train_runs([run for runs in searches for run in runs])
        others: list[PlannedRun] = []
        for task, runs in zip(self.tasks, searches, strict=True):
            if best := find_best(task, runs, results):
                rate = best.settings.get("learning_rate")
                others += self._plan_other_seeds(task, folder, rate)
                if len(runs) > 1:
                    report_info(f"{task.name}: the best learning rate is {rate:g}")
        return results | self.train_runs(others)

    def compute_metrics(self, folder: Path, results: RunMetrics) -> dict[str, Any]:
        """Return the scores of each task, and write the leaderboard files with the best runs."""
        tasks = {}
        best_runs = []
        for task in self.tasks:
            if first := find_best(task, self._plan_search(task, folder), results):
                others = self._plan_other_seeds(task, folder, first.settings.get("learning_rate"))
                runs = [run for run in [first, *others] if run.folder in results]
                best = find_best(task, runs, results) or first
                best_runs.append((task, best.folder))
                tasks[task.name] = _summarize_task(task, runs, best, results) | {
                    "best_run": best.folder.relative_to(folder).as_posix()
                }
        files = self.write_files(folder, best_runs)
        return {"task": self.command, "model": self.model_source.name, "tasks": tasks, "submission": files}

    def write_files(self, folder: Path, best_runs: Sequence[tuple[SuiteTask, Path]]) -> list[str]:
        """Write the leaderboard files with the best run of each task, and return their names.

        A leaderboard needs predictions for all test rows, so `--max-eval-samples` leaves the files out.
        """
        if self.config.max_eval_samples:
            report_info("no leaderboard files were written: --max-eval-samples leaves out test rows")
            return []
        return write_submission(folder, best_runs)

    @classmethod
    def build_tables(cls, metrics: Mapping[str, Any], folder: Path) -> list[ResultTable]:
        table, files, (files_title, files_dir) = load_table(cls.command), metrics["submission"], cls.files
        tasks = metrics["tasks"]
        finished = [(task, tasks[task.name]) for task in table.tasks if task.name in tasks]
        baselines = {task.name: _find_best_baseline(task.scores[0], summary)[0] for task, summary in finished}
        named = ", ".join(f"{task} {name}" for task, name in baselines.items() if name)
        test = ["ours (test)"] if table.has_test_scores else []
        return [ResultTable(
            title=f"{table.title} · {metrics['model']}",
            headings=["task", "score", "ours (dev)", "baseline (dev)", *test, *table.published],
            rows=build_score_rows(table, metrics),
            caption=table.caption,
            run_notes=[_describe_run(task, summary) for task, summary in finished],
            failures=metrics.get("failed", {}),
            text_columns=2,
            page_title=f"{table.title} with `{metrics['model']}`",
            notes=[
                *([f"best baselines: {named}"] if named else []),
                *([f"{files_title}: {folder}/{files_dir}: {', '.join(files)}"] if files else []),
            ],
        )]  # fmt: skip


class Klue(Glue):
    """`bertkit klue`: as `Glue`, with the official scores."""

    command = "klue"
    output_names = (PREDICTIONS_DIR, *load_table("klue").names)
    files = ("predictions", PREDICTIONS_DIR)

    def train_runs(self, runs: Sequence[PlannedRun]) -> RunMetrics:
        """Train the unfinished runs, and add the official scores to their metrics."""
        names = {run.folder: run.group for run in runs}
        return {
            folder: {
                **metrics,
                "validation": metrics["validation"] | SCORERS[names[folder]](RunDir(folder).records),
            }
            for folder, metrics in super().train_runs(runs).items()
        }

    def write_files(self, folder: Path, best_runs: Sequence[tuple[SuiteTask, Path]]) -> list[str]:
        """Write the predictions of the best run of each task, one JSON object with `guid` per row."""
        names = []
        (folder / PREDICTIONS_DIR).mkdir(exist_ok=True)
        for task, run in best_runs:
            names.append(f"{task.name}.jsonl")
            records = [
                {
                    "guid": record["guid"] if "guid" in record else record["id"],
                    "prediction": record.get("predicted", record.get("answer")),
                }
                for record in RunDir(run).records
            ]
            lines = [json.dumps(record, ensure_ascii=False) for record in records]
            write_text(folder / PREDICTIONS_DIR / names[-1], "".join(f"{line}\n" for line in lines))
        return names


def find_best(task: SuiteTask, runs: Sequence[PlannedRun], results: RunMetrics) -> PlannedRun | None:
    """Return the finished run with the best validation score, or None if no run is finished."""
    finished = [run for run in runs if run.folder in results]
    split, metric = task.scores[0].split, task.scores[0].metric
    return max(finished, key=lambda run: results[run.folder][split][metric], default=None)


def _summarize_task(
    task: SuiteTask, runs: Sequence[PlannedRun], best: PlannedRun, results: RunMetrics
) -> dict[str, Any]:
    """Return the entry of a task in `metrics.json`.

    `SPLIT_std` has the sample standard deviations over the seeds, and `SPLIT_interval` Student's 95 %
    intervals of the means.
    """
    summary: dict[str, Any] = {}
    metrics = [results[run.folder] for run in runs]
    for split in dict.fromkeys([*(reported.split for reported in task.scores), "test"]):
        scores = [run_metrics[split] for run_metrics in metrics if run_metrics.get(split)]
        values = {name: [s[name] for s in scores] for name in (scores[0] if scores else ())}
        if scores:
            summary[split] = average_values(scores)
        if len(scores) > 1:
            summary[f"{split}_std"] = {name: statistics.stdev(values[name]) for name in values}
        if len(scores) >= MIN_SCORES:
            summary[f"{split}_interval"] = {name: compute_t_interval(values[name]) for name in values}
    best_metrics = results[best.folder]
    return {
        **summary,
        "majority": best_metrics["baselines"].get("majority", {}),
        "baselines": best_metrics["baselines"],
        "rows": {split: best_metrics["data"].get(split) for split in ("train", "validation")},
        "learning_rate": RunDir(best.folder).read_settings()["learning_rate"],
        "seeds": [run.seed for run in runs],
        "seconds": sum(run_metrics["training"]["seconds"] for run_metrics in metrics),
    }


# ---- the table of GLUE and KLUE


def build_score_rows(table: SuiteTable, metrics: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of one row for each score of the tasks that were run, in the order of the headings.

    A row with the average follows if we have all scores that the paper averages.
    """
    rows: list[list[str]] = []
    averaged: list[tuple[float | None, ...]] = []  # ours, and the published ones

    def add_row(title: str, metric: str, dev: str, baseline: str, test: str, scores: Sequence[float]) -> None:
        published = [format_score(score, table.digits) for score in scores] or [""] * len(table.published)
        rows.append([title, metric, dev, baseline, *([test] if table.has_test_scores else []), *published])

    for task in table.tasks:
        summary = metrics["tasks"].get(task.name, {})
        for reported in task.scores:
            title, metric, split = reported.title, reported.metric, reported.split
            ours = summary.get(split, {}).get(metric)
            if reported.published:
                averaged.append((ours, *reported.published))
            if ours is not None:
                means = [summary.get(name, {}).get(metric) for name in (split, "test")]
                stds = [summary.get(f"{name}_std", {}).get(metric) for name in (split, "test")]
                dev, test = map(format_percent, means, stds)
                baseline = format_percent(_find_best_baseline(reported, summary)[1])
                if split != "validation":  # only the main split has baselines and a labeled test set
                    baseline = test = ""
                add_row(title, metric, dev, baseline, test, reported.published)
            elif any(folder.startswith(f"{task.name}/") for folder in metrics.get("failed", {})):
                add_row(title, metric, "failed", "", "", reported.published)
    columns = [[score for score in column if score is not None] for column in zip(*averaged, strict=True)]
    if table.average and len(columns[0]) == len(averaged):
        ours, *published_means = [statistics.fmean(column) for column in columns]
        add_row("average", table.average, format_percent(ours), "", "", published_means)
    return rows


def _find_best_baseline(reported: SuiteScore, summary: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the name and the score of the best baseline on the main validation split.

    The name is empty if the baselines do not have the reported score.
    """
    metric = reported.metric if reported.baseline_metric is None else reported.baseline_metric
    baselines = summary.get("baselines", {"majority": summary["majority"]})  # of an earlier version
    scores = {name: values[metric] for name, values in baselines.items() if metric in values}
    return max(scores.items(), key=lambda item: item[1], default=("", None))


def _describe_run(task: SuiteTask, summary: Mapping[str, Any]) -> str:
    """Return the best run of a task, its learning rate, seeds and numbers of rows, and the best baseline."""
    seeds, score = len(summary["seeds"]), task.scores[0]
    over = "mean and standard deviation over " if seeds > 1 else ""
    interval = summary.get(f"{score.split}_interval", {}).get(score.metric)
    bounds = " to ".join(map(format_percent, interval)) if interval else ""
    interval_note = f", 95 % interval of the mean {score.metric} {bounds}" if bounds else ""
    rows = " and ".join(f"{summary['rows'][split]:,} {split}" for split in ("train", "validation"))
    name, _ = _find_best_baseline(score, summary)
    return (
        f"{task.name}: `{summary['best_run']}`, learning rate {summary['learning_rate']:g}, {over}"
        f"{format_count(seeds, 'seed')}{interval_note}, {rows} rows"
        f"{f', best baseline: {name}' if name else ''}"
    )


# ---- the leaderboard of GLUE


def write_submission(folder: Path, runs: Sequence[tuple[SuiteTask, Path]]) -> list[str]:
    """Write a leaderboard file for each predicted test set; zip the files if all tasks have theirs.

    A file has the columns `index` and `prediction`, separated by tabs. The index comes from the test file. If
    the test file has none, rows are counted from 0. `runs` has each task and the directory of its best run.
    Labels are numbers or names; scores are clipped to the range from 0 to 5.
    """
    names = []
    for task, run_dir in runs:
        labels = load_dataset_specs()[task.name].labels
        for split, name in task.submission_files.items():
            if (run_dir / f"predictions-{split}.jsonl").exists():
                lines = ["index\tprediction"]
                for record in RunDir(run_dir).iter_lines(f"predictions-{split}.jsonl"):
                    label = record["predicted"]
                    if task.label_format == "score":
                        label = f"{min(5.0, max(0.0, label)):.3f}"
                    elif task.label_format == "number":
                        label = labels.index(label)
                    lines.append(f"{record.get('index', record['id'])}\t{label}")
                (folder / SUBMISSION_DIR).mkdir(exist_ok=True)
                write_text(folder / SUBMISSION_DIR / name, "\n".join(lines) + "\n")
                names.append(name)
    if set(names) == {name for task in load_table("glue").tasks for name in task.submission_files.values()}:
        with zipfile.ZipFile(folder / SUBMISSION_ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.write(folder / SUBMISSION_DIR / name, name)
    return names


# ---- feature-based


class FeatureBased(Suite):
    """`bertkit feature-based`: `ner` on layers of a frozen encoder, in the directories `FEATURES`."""

    command = "feature-based"
    own_settings = frozenset({"features"})
    output_names = tuple(load_table("feature-based").names)

    def __init__(self, config: Any) -> None:
        table = load_table(self.command)
        self.rows: list[SuiteTask] = select_named("--features", config.features, table.tasks, table.noun)
        recipe = read_recipe(self.rows[0].recipe, Ner.definition.name, Ner.definition.config)
        super().__init__(fill_unset(config, {name: recipe.settings[name] for name in ("data", "model")}))

    def make_group(self, name: str) -> RunGroup:
        # the recipes differ only in the features
        return self.make_run_group(Ner.definition.name, self.rows[0].recipe, {})

    def prepare(self) -> list[str]:
        model_source = loading.find_model(str(self.config.model))
        model_config = loading.load_config(model_source)
        for row in self.rows:
            select_layers(model_config, row.name)
        dialect = Dialect(conll=True, task="ner", encoding=self.config.encoding)
        dataset = load_dataset(str(self.config.data), Ner.definition.name, self.config.data_dir, dialect)
        self.data_source = dataset.source
        self.get_group()
        return [dataset.name, model_source.name]

    def plan_runs(self, folder: Path) -> list[PlannedRun]:
        return [
            PlannedRun(
                folder=folder / row.name, settings={"features": row.name}, seed=self.config.seed,
                recipe=row.recipe, data=self.data_source, metric=row.scores[0].metric,
            )
            for row in self.rows
        ]  # fmt: skip

    def compute_metrics(self, folder: Path, results: RunMetrics) -> dict[str, Any]:
        """Return the scores of each row; data and baselines are the same for all rows."""
        first = next(iter(results.values()))
        rows = {
            path.name: {
                **{key: metrics[key] for key in ("validation", "intervals", "test")},
                "seconds": metrics["training"]["seconds"],
            }
            for path, metrics in results.items()
        }
        return {
            "task": self.command,
            "data": first["data"],
            "model": first["model"],
            "features": rows,
            "baselines": first["baselines"],
        }

    @classmethod
    def build_tables(cls, metrics: Mapping[str, Any], folder: Path) -> list[ResultTable]:  # noqa: ARG003
        table, failed = load_table(cls.command), metrics.get("failed", {})
        published = {row.name: format_score(row.scores[0].published[0]) for row in table.tasks}
        rows = [
            (
                features,
                format_percent(summary["validation"]["f1"]),
                " to ".join(map(format_percent, summary["intervals"]["f1"])),
                format_percent(summary["test"].get("f1")),
                published[features],
            )
            for features, summary in metrics["features"].items()
        ]
        rows += [(features, "failed", "", "", published[features]) for features in failed]
        baseline = "frequent_tag"
        rows.append((baseline, format_percent(metrics["baselines"][baseline]["f1"]), "", "", ""))
        dataset = metrics["data"]["name"]
        other = "" if dataset == table.tasks[0].dataset else f"; our scores are on {dataset}"
        return [ResultTable(
            title=f"{table.title} · {dataset} · {metrics['model']}",
            headings=["features", "ours (dev)", "95 % interval", "ours (test)", *table.published],
            rows=rows,
            caption=f"{table.caption}{other}.",
            run_notes=[
                f"{features}: trained in {summary['seconds']:.0f} s"
                for features, summary in metrics["features"].items()
            ],
            failures=failed,
        )]  # fmt: skip
