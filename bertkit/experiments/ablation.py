"""`bertkit ablation`: pre-train variants on the same text, and fine-tune them on the same tasks."""

import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from bertkit.charts import Chart, plot_intervals
from bertkit.data.corpus.documents import find_text
from bertkit.errors import UserError, format_list
from bertkit.experiments.config import AblationConfig
from bertkit.experiments.experiment import PlannedRun, RunGroup
from bertkit.experiments.suites import (
    RunMetrics,
    Suite,
    find_data,
    read_table_file,
    select_named,
    select_task_settings,
)
from bertkit.reports.tables import ResultTable, format_score
from bertkit.settings.declaration import fill_unset, get_flag, get_settings
from bertkit.settings.recipes import read_recipe
from bertkit.stats.significance import average_values, compare_paired_scores, compute_t_interval
from bertkit.tasks.pretrain.config import PretrainConfig
from bertkit.tasks.pretrain.task import Pretrain
from bertkit.utils.reporting import report_info
from bertkit.utils.text import format_signed

# Settings of the suite that also apply to fine-tuning.
MACHINE_SETTINGS = (
    "data_dir", "device", "seed", "fp16", "bf16", "compile", "deterministic", "gradient_checkpointing",
    "report_to",
)  # fmt: skip
# Settings of the suite that apply only to fine-tuning, with their names in a fine-tuning run.
TASK_SETTINGS = {
    "task_train_samples": "max_train_samples",
    "task_eval_samples": "max_eval_samples",
    "task_learning_rate": "learning_rate",
    "task_pooling": "pooling",
}
MODEL_SIZE_SETTINGS = ("size", "num_layers", "hidden_size", "num_heads")
DEFAULT_TEXT = "imdb"  # for the rows of the paper, whose recipes name no text
# Maximum length in fine-tuning, in tokens, if neither a flag nor the recipe sets `max_length`.
DEFAULT_MAX_LENGTH = 128
PRETRAINED_DIR = "pretrained"  # the directory of the pre-training runs
SIGNIFICANCE_LEVEL = 0.05


# ---- the tables as data


class DownstreamTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task that the model of every row is fine-tuned on."""

    name: str  # in `--tasks`, and name of its dataset
    title: str  # in the paper
    command: str  # of bertkit, which fine-tunes on the task
    metric: str = "accuracy"  # validation score in the table
    settings: dict[str, Any] | None = None  # of the fine-tuning run; by default, the name of the dataset
    scale: float = 100.0  # factor that converts the metric to percent
    baseline: str = "majority"  # in the table


class AblationRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of a table."""

    name: str  # in `--rows`
    recipe: str  # pre-trains the model of the row
    finetuning_settings: dict[str, Any] = {}
    pretraining_settings: dict[str, Any] = {}  # override those of the recipe and of the suite
    published: dict[str, float] = {}  # scores in percent by task; for model sizes, also the perplexity

    @property
    def model_name(self) -> str:
        """Directory name of the pre-trained model. Rows with the same recipe and settings share the model."""
        return self.name if self.pretraining_settings else self.recipe.rpartition("/")[2]


class AblationTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the paper's ablation tables; `source` cites it, and `tasks` are names."""

    source: str
    tasks: list[str]
    rows: list[AblationRow]


class AblationTables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `ablation.yaml`."""

    tasks: list[DownstreamTask]
    fallback: str  # name of the task that is used if there is no data for those of the table
    tables: dict[str, AblationTable]

    def list_tasks(self, table: str) -> list[DownstreamTask]:
        """Return the tasks of a table; the fallback is the last one."""
        tasks = {task.name: task for task in self.tasks}
        return [tasks[name] for name in [*self.tables[table].tasks, self.fallback]]


@cache
def load_tables() -> AblationTables:
    """Return the tables of the paper."""
    tables: AblationTables = read_table_file("ablation", AblationTables)
    return tables


# ---- the suite


class Ablation(Suite):
    """Runs for the selected rows of a table, in the directories `pretrained/NAME` and `ROW/TASK/seedN`."""

    command = "ablation"
    output_names = (
        PRETRAINED_DIR, *(row.name for table in load_tables().tables.values() for row in table.rows)
    )  # fmt: skip
    own_settings = frozenset({"table", "rows", "tasks", "seeds", *TASK_SETTINGS})

    def __init__(self, config: AblationConfig) -> None:
        for name in MODEL_SIZE_SETTINGS if config.table == "sizes" else ():
            if getattr(config, name):
                flag = get_flag(name, get_settings(AblationConfig)[name].metadata)
                raise UserError(
                    f"{flag}: each row of --table sizes has its own model size; select rows with --rows"
                )
        rows = load_tables().tables[config.table].rows
        self.rows: list[AblationRow] = select_named("--rows", config.rows, rows, "row of the table")
        self.table_tasks = load_tables().list_tasks(config.table)
        text = _read_recipe_settings(self.rows[0]).get("data", DEFAULT_TEXT)
        super().__init__(fill_unset(config, {"data": text}))

    def make_group(self, name: str) -> RunGroup:
        """Return the group of a pre-training recipe or of a task."""
        for task in self.table_tasks:
            if task.name == name:
                settings = {"data": task.name} if task.settings is None else task.settings
                return self.make_run_group(task.command, None, settings)
        return self.make_run_group(Pretrain.definition.name, name, {})

    def prepare(self) -> list[str]:
        """Find the text and the data of the tasks, and check that the settings apply to the objectives."""
        self.text = find_text(
            self.config.data, self.config.data_dir, self.config.text_column, encoding=self.config.encoding
        )
        for row in self.rows:
            group = self.make_run_group(Pretrain.definition.name, row.recipe, row.pretraining_settings)
            assert isinstance(group.config, PretrainConfig)
            try:
                Pretrain(group.config).objective.validate_config(group.config)
            except UserError as error:
                raise UserError(f"row {row.name}: {error}") from error
        self.data_sources = self._find_task_data()
        self.tasks = [task for task in self.table_tasks if task.name in self.data_sources]
        for task in self.tasks:  # checks the settings
            self.get_group(task.name)
        return [self.text.name, self.config.table]

    def _find_task_data(self) -> dict[str, str]:
        """Return the location of the data of each task in `--tasks`.

        By default, all tasks of the table whose data is found are used, or else the fallback task.
        """
        *tasks, fallback = self.table_tasks
        selected = select_named("--tasks", self.config.tasks, self.table_tasks, "task of the table")
        has_tasks_flag, data_dir = bool(self.config.tasks), self.config.data_dir
        found, errors = find_data([(task.name, task.command) for task in tasks if task in selected], data_dir)
        if fallback in selected and (has_tasks_flag or not found):
            more_found, more_errors = find_data([(fallback.name, fallback.command)], data_dir)
            found, errors = found | more_found, errors | more_errors
        titles = format_list(task.title for task in self.table_tasks if task.name in errors)
        if errors and (has_tasks_flag or not found):
            flag = f"--tasks {','.join(self.config.tasks)}: " if has_tasks_flag else ""
            raise UserError(f"{flag}no data for {titles} ({next(iter(errors.values()))})")
        if errors:
            report_info(f"no data for {titles}: left out of the table")
        return found

    def plan_runs(self, folder: Path) -> list[PlannedRun]:
        return [*self._plan_pretraining(folder), *self._plan_finetuning(folder)]

    def _plan_pretraining(self, folder: Path) -> list[PlannedRun]:
        """Return one run for each model that is pre-trained; rows may share a model."""
        rows = {row.model_name: row for row in self.rows}
        return [
            PlannedRun(
                folder=folder / PRETRAINED_DIR / name, settings=row.pretraining_settings,
                seed=self.config.seed, group=row.recipe, recipe=row.recipe, data=self.text.location,
                metric="perplexity",
            )
            for name, row in rows.items()
        ]  # fmt: skip

    def _plan_finetuning(self, folder: Path) -> list[PlannedRun]:
        """Return one run for each row, task and seed; settings other than these have their defaults."""
        runs = []
        for row in self.rows:
            recipe_length = _read_recipe_settings(row).get("max_length", DEFAULT_MAX_LENGTH)
            settings = {
                "model": str(folder / PRETRAINED_DIR / row.model_name),
                "max_length": self.config.max_length or recipe_length,
                **row.finetuning_settings,
            }
            runs += [
                PlannedRun(
                    folder=folder / _name_run(row, task, seed), group=task.name, settings=settings, seed=seed,
                    data=self.data_sources[task.name], metric=task.metric,
                )
                for task in self.tasks
                for seed in self.seeds
            ]  # fmt: skip
        return runs

    @property
    def seeds(self) -> list[int]:
        """The seeds of fine-tuning; each model is pre-trained with the first one."""
        return list(range(self.config.seed, self.config.seed + self.config.seeds))

    def train_all(self, folder: Path) -> RunMetrics:
        """Pre-train all models, and then fine-tune those whose pre-training has not failed."""
        results = self.train_runs(self._plan_pretraining(folder))
        runs = [run for run in self._plan_finetuning(folder) if Path(run.settings["model"]) in results]
        return results | self.train_runs(runs)

    def select_shared_settings(self, task_name: str) -> dict[str, Any]:
        """Return the settings that apply to pre-training, or those that apply to fine-tuning."""
        shared = super().select_shared_settings(task_name)
        if task_name == Pretrain.definition.name:
            return shared
        machine = {name: value for name, value in shared.items() if name in MACHINE_SETTINGS}
        values = {name: getattr(self.config, setting) for setting, name in TASK_SETTINGS.items()}
        passed = {name: value for name, value in values.items() if value is not None}
        # with one split seed, the models of all seeds are scored on the same rows
        return {**machine, **select_task_settings(task_name, passed), "split_seed": self.config.seed}

    # ---- the results

    def compute_metrics(self, folder: Path, results: RunMetrics) -> dict[str, Any]:
        """Return the scores, intervals and training times of the finished runs of each row."""
        rows: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            rows[row.name] = {}
            if pretrained := results.get(folder / PRETRAINED_DIR / row.model_name):
                rows[row.name][PRETRAINED_DIR] = {
                    **{key: pretrained[key] for key in ("validation", "intervals", "baselines")},
                    "rows": pretrained["data"]["train"],
                    "seconds": pretrained["training"]["seconds"],
                }
            for task in self.tasks:
                paths = {seed: folder / _name_run(row, task, seed) for seed in self.seeds}
                finished = {seed: results[path] for seed, path in paths.items() if path in results}
                if finished:
                    rows[row.name][task.name] = _summarize_seeds(finished, task.metric)
        compare_rows(rows, [task.name for task in self.tasks])
        first = next(iter(results.values()))  # a pre-training run
        return {
            "task": self.command, "table": self.config.table, "data": first["data"], "seeds": self.seeds,
            "rows": rows,
        }  # fmt: skip

    @classmethod
    def build_tables(cls, metrics: Mapping[str, Any], folder: Path) -> list[ResultTable]:  # noqa: ARG003
        return [build_ablation_table(metrics)]

    @staticmethod
    def build_details(metrics: Mapping[str, Any]) -> tuple[dict[str, ResultTable], list[Chart]]:
        """Return the differences between the rows, and a chart of the scores of each task."""
        differences = build_difference_table(metrics)
        charts = []
        for task in _list_tasks(metrics):
            rows = {name: runs[task.name] for name, runs in metrics["rows"].items() if task.name in runs}
            charts += [_plot_scores(task, rows)] if rows else []
        return ({"Differences": differences} if differences.rows else {}), charts


def _name_run(row: AblationRow, task: DownstreamTask, seed: int) -> str:
    """Return the directory of a fine-tuning run, relative to that of the suite."""
    return f"{row.name}/{task.name}/seed{seed}"


def _read_recipe_settings(row: AblationRow) -> dict[str, Any]:
    return read_recipe(row.recipe, Pretrain.definition.name, Pretrain.definition.config).settings


def _summarize_seeds(runs: Mapping[int, Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Return the entry of the fine-tuning runs of a row and a task in the suite's `metrics.json`.

    `runs` are the metrics of each run by seed. `validation` has the mean scores, and `scores` the table's
    score of each seed. `interval` is Student's 95 % interval of their mean, or None for fewer than three
    seeds. A single seed has `intervals` over the rows instead.
    """
    first = next(iter(runs.values()))
    scores = {str(seed): run["validation"][metric] for seed, run in runs.items()}
    return {
        "validation": average_values([run["validation"] for run in runs.values()]),
        "scores": scores,
        "interval": compute_t_interval(list(scores.values())),
        "intervals": first["intervals"] if len(runs) == 1 else {},
        "baselines": first["baselines"],
        "rows": first["data"]["train"],
        "seconds": sum(run["training"]["seconds"] for run in runs.values()),
    }


def compare_rows(rows: Mapping[str, dict[str, Any]], tasks: Sequence[str]) -> None:
    """Add `difference` to the entries of each row but the first: the paired difference to the first row.

    Rows are paired by the seed of fine-tuning. An entry without three common seeds gets no difference.
    """
    reference, *others = rows
    for task in tasks:
        first = rows[reference].get(task)
        for summary in (rows[name].get(task) for name in others):
            if first is None or summary is None:
                continue
            seeds = [seed for seed in first["scores"] if seed in summary["scores"]]
            difference = compare_paired_scores(
                [first["scores"][seed] for seed in seeds], [summary["scores"][seed] for seed in seeds]
            )
            if difference is not None:
                summary["difference"] = {"row": reference, **difference}


# ---- the tables and the charts


def build_ablation_table(metrics: Mapping[str, Any]) -> ResultTable:
    """Return a table of our scores, with the paper's scores in parentheses."""
    tasks = _list_tasks(metrics)
    finished = {name: run for runs in metrics["rows"].values() for name, run in runs.items()}
    baselines = [
        format_score(_get_baseline(task, finished[task.name]) if task.name in finished else None)
        for task in tasks
    ]
    return ResultTable(
        title=f"ablation · {metrics['table']} · {metrics['data']['name']}",
        headings=["row", "perplexity", "nsp accuracy", *(task.title for task in tasks)],
        rows=[*_build_rows(metrics, tasks), ["baseline", "", "", *baselines]],
        caption=_build_caption(metrics),
        run_notes=[
            f"{row}: "
            + ", ".join(f"{name} {summary['seconds'] / 60:.1f} min" for name, summary in runs.items())
            for row, runs in metrics["rows"].items()
            if runs
        ],
        failures=metrics.get("failed", {}),
    )


def build_difference_table(metrics: Mapping[str, Any]) -> ResultTable:
    """Return a table of the differences between each row and the first one; it may have no rows."""
    rows = []
    for task in _list_tasks(metrics):
        for name, runs in metrics["rows"].items():
            if difference := runs.get(task.name, {}).get("difference"):
                points, *bounds = (
                    format_signed(task.scale * value, "+.1f")
                    for value in (difference["difference"], *difference["interval"])
                )
                rows.append([name, task.title, points, " to ".join(bounds), f"{difference['p']:.3f}"])
    return ResultTable(
        title="Differences",
        headings=("row", "task", "difference", "95 % interval", "p-value"),
        rows=rows,
        caption=f"Mean score of the row minus that of {next(iter(metrics['rows']))}, in points. The runs are "
        "paired by the seed of fine-tuning; interval and p-value are those of a paired t-test.",
        run_notes=[],
        text_columns=2,
    )


def _list_tasks(metrics: Mapping[str, Any]) -> list[DownstreamTask]:
    """Return the tasks that the variants were fine-tuned on."""
    names = {name for runs in metrics["rows"].values() for name in runs}
    names |= {PurePosixPath(folder).parts[1] for folder in metrics.get("failed", {})}
    return [task for task in load_tables().list_tasks(metrics["table"]) if task.name in names]


def _build_rows(metrics: Mapping[str, Any], tasks: list[DownstreamTask]) -> list[list[str]]:
    published_by_row = {row.name: row.published for row in load_tables().tables[metrics["table"]].rows}

    def add_published(cell: str, score: float | None, digits: int = 1) -> str:
        return cell if score is None else f"{cell} ({format_score(score, digits)})"

    rows = []
    for name, runs in metrics["rows"].items():
        pretrained, published = runs.get(PRETRAINED_DIR), published_by_row[name]
        perplexity = format_score(pretrained["validation"]["perplexity"], 2) if pretrained else "failed"
        nsp_accuracy = pretrained["validation"].get("nsp_accuracy") if pretrained else None
        scores = [
            add_published(_format_task_score(task, runs.get(task.name)), published.get(task.name))
            for task in tasks
        ]
        perplexity = add_published(perplexity, published.get("perplexity"), 2)
        rows.append([name, perplexity, format_score(nsp_accuracy, 3), *scores])
    return rows


def _get_baseline(task: DownstreamTask, summary: Mapping[str, Any]) -> float:
    """Return the score of the baseline that the caption of the table names."""
    return float(summary["baselines"][task.baseline][task.metric]) * task.scale


def _format_task_score(task: DownstreamTask, summary: Mapping[str, Any] | None) -> str:
    """Return the mean score with its standard deviation, and `*` for a significant difference."""
    if summary is None:
        return "failed"
    scores = [task.scale * score for score in summary["scores"].values()]
    deviation = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    difference = summary.get("difference")
    mark = "*" if difference and difference["p"] < SIGNIFICANCE_LEVEL else ""
    return f"{statistics.fmean(scores):.1f}{deviation}{mark}"


def _build_caption(metrics: Mapping[str, Any]) -> str:
    lines = [
        "Perplexity is that of the predicted tokens: the masked tokens or, for ltr, all tokens but the first "
        "of an example. Task scores are accuracy (SQuAD, WNUT-17: F1) in percent on the validation rows. The "
        "baseline is the majority label (SQuAD: word overlap, WNUT-17: the most frequent tag of each word). "
        f"In parentheses: {load_tables().tables[metrics['table']].source}."
    ]
    if "mlm+sop" in metrics["rows"]:
        lines.append("For mlm+sop, nsp accuracy is the accuracy of sentence order prediction.")
    if len(metrics["seeds"]) > 1:
        lines.append(f"Mean and standard deviation over {len(metrics['seeds'])} seeds of fine-tuning.")
    if any("difference" in summary for runs in metrics["rows"].values() for summary in runs.values()):
        first = next(iter(metrics["rows"]))
        lines.append(f"*: differs from {first} (paired t-test over the seeds, p < {SIGNIFICANCE_LEVEL}).")
    return " ".join(lines)


def _plot_scores(task: DownstreamTask, finished: Mapping[str, Mapping[str, Any]]) -> Chart:
    """Plot the score of each finished row with its 95 % interval."""
    scores = {name: task.scale * summary["validation"][task.metric] for name, summary in finished.items()}
    intervals = {
        name: [task.scale * bound for bound in interval]
        for name, summary in finished.items()
        if (interval := summary["interval"] or summary["intervals"].get(task.metric))
    }
    baseline = _get_baseline(task, next(iter(finished.values())))
    over = "seeds of fine-tuning" if any(run["interval"] for run in finished.values()) else "validation rows"
    note = f"Lines are 95 % intervals over the {over}. " if intervals else ""
    return plot_intervals(
        task.title, scores, intervals, f"{task.metric}, percent", baseline, f"{note}Dashed: baseline."
    )
