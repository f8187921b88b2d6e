"""`bertkit ablation`: pre-train variants on the same text, and fine-tune them on the same tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.corpus.source import find_text
from bertkit.errors import UserError, format_list
from bertkit.recipes import read_recipe
from bertkit.reports.result_table import ResultTable, format_score
from bertkit.setting import fill_unset, get_flag, get_settings
from bertkit.suites.ablation_tables import FALLBACK_TASK, TABLES, AblationRow, DownstreamTask
from bertkit.suites.base import RunMetrics, Suite, SuiteRun, find_data, select_names
from bertkit.suites.config import AblationConfig
from bertkit.tasks.pretrain import Pretrain
from bertkit.utils.reporting import Reporter

PRETRAINED_DIR = "pretrained"  # the directory of the pre-training runs
# Settings of the suite that also apply to fine-tuning.
MACHINE_SETTINGS = ("data_dir", "seed", "fp16", "bf16", "compile", "gradient_checkpointing", "report_to")
MODEL_SIZE_SETTINGS = ("size", "num_layers", "hidden_size", "num_heads")
# Maximum length in fine-tuning, in tokens, if neither a flag nor the recipe sets `max_length`.
DEFAULT_MAX_LENGTH = 128


class AblationSuite(Suite):
    """Runs for the selected rows of a table, in the directories `pretrained/RECIPE` and `ROW/TASK`."""

    name = "ablation"
    output_names = [PRETRAINED_DIR, *(row.name for table in TABLES.values() for row in table.rows)]
    suite_settings = frozenset({"table", "rows", "tasks", "task_train_samples", "task_eval_samples"})

    def __init__(self, config: AblationConfig, reporter: Reporter) -> None:
        super().__init__(config, reporter)
        if config.table == "sizes":
            _refuse_model_size(config)
        self.table = TABLES[config.table]
        names = select_names("--rows", config.rows, [row.name for row in self.table.rows], "row of the table")
        self.rows = [row for row in self.table.rows if row.name in names]
        dataset = _read_recipe_settings(self.rows[0]).get("data", FALLBACK_TASK.name)
        self.config = fill_unset(self.config, {"data": dataset})

    def resolve_inputs(self) -> list[str]:
        """Find the pre-training text and the data of the tasks. Raises `UserError` if data is missing."""
        self.text = find_text(
            self.config.data, self.config.data_dir, self.config.text_column, encoding=self.config.encoding
        )
        self.data_sources = self._find_task_data()
        self.tasks = [task for task in [*self.table.tasks, FALLBACK_TASK] if task.name in self.data_sources]
        return [self.text.name, self.config.table]

    def _find_task_data(self) -> dict[str, str]:
        """Return the location of the data of each task in `--tasks`.

        By default, all tasks of the table whose data is found are used, or else the fallback task.
        """
        table_names = [task.name for task in self.table.tasks]
        choices = [*table_names, FALLBACK_TASK.name]
        names = select_names("--tasks", self.config.tasks, choices, "task of the table")
        has_tasks_flag = bool(self.config.tasks)
        found, errors = self._find_data([task for task in self.table.tasks if task.name in names])
        if FALLBACK_TASK.name in names and (has_tasks_flag or not found):
            fallback_found, fallback_errors = self._find_data([FALLBACK_TASK])
            found, errors = found | fallback_found, errors | fallback_errors
        titles = format_list(task.title for task in [*self.table.tasks, FALLBACK_TASK] if task.name in errors)
        if errors and (has_tasks_flag or not found):
            flag = f"--tasks {','.join(self.config.tasks)}: " if has_tasks_flag else ""
            raise UserError(f"{flag}no data for {titles} ({next(iter(errors.values()))})")
        if errors:
            self.reporter.info(f"no data for {titles}: left out of the table")
        return found

    def _find_data(self, tasks: list[DownstreamTask]) -> tuple[dict[str, str], dict[str, str]]:
        return find_data([(task.name, task.command) for task in tasks], self.config.data_dir)

    def plan_runs(self, folder: Path) -> list[SuiteRun]:
        """Return the pre-training runs, and the fine-tuning runs of each row."""
        return [*self._plan_pretraining(folder), *self._plan_finetuning(folder)]

    def _plan_pretraining(self, folder: Path) -> list[SuiteRun]:
        """Return one run for each recipe, which rows may share."""
        recipes = {row.pretraining_recipe: row.recipe for row in self.rows}
        return [
            SuiteRun(
                folder=folder / PRETRAINED_DIR / name, settings={}, seed=self.config.seed,
                run_group=self.make_run_group(Pretrain.spec.name, recipe, {}),
                recipe=recipe, data=self.text.location, metric="perplexity",
            )
            for name, recipe in recipes.items()
        ]  # fmt: skip

    def _plan_finetuning(self, folder: Path) -> list[SuiteRun]:
        """Return one run for each row and task."""
        samples = {
            "max_train_samples": self.config.task_train_samples,
            "max_eval_samples": self.config.task_eval_samples,
        }
        samples = {name: value for name, value in samples.items() if value is not None}
        run_groups = {
            task.name: self.make_run_group(task.command, None, {**samples, **task.settings})
            for task in self.tasks
        }
        return [
            SuiteRun(
                folder=folder / row.name / task.name, run_group=run_groups[task.name],
                settings=self._get_finetuning_settings(row, folder), seed=self.config.seed, recipe="",
                data=self.data_sources[task.name], metric=task.metric,
            )
            for row in self.rows
            for task in self.tasks
        ]  # fmt: skip

    def _get_finetuning_settings(self, row: AblationRow, folder: Path) -> dict[str, Any]:
        """Return the settings of the fine-tuning runs of a row; other settings have their usual defaults."""
        max_length = self.config.max_length or _read_recipe_settings(row).get(
            "max_length", DEFAULT_MAX_LENGTH
        )
        model = folder / PRETRAINED_DIR / row.pretraining_recipe
        return {"model": str(model), "max_length": max_length, **row.finetuning_settings}

    def execute_runs(self, folder: Path) -> RunMetrics:
        """Pre-train all models, and then fine-tune those whose pre-training has not failed."""
        results = self.train_runs(self._plan_pretraining(folder))
        runs = [run for run in self._plan_finetuning(folder) if Path(run.settings["model"]) in results]
        return results | self.train_runs(runs)

    def select_shared_settings(self, task_name: str) -> dict[str, Any]:
        """Return the settings that apply to pre-training, or only `MACHINE_SETTINGS` for fine-tuning."""
        shared = super().select_shared_settings(task_name)
        if task_name == Pretrain.spec.name:
            return shared
        return {name: value for name, value in shared.items() if name in MACHINE_SETTINGS}

    def compute_metrics(self, folder: Path, results: RunMetrics) -> dict[str, Any]:
        """Return the scores, intervals and training times of the finished runs of each row."""
        rows = {}
        for row in self.rows:
            runs = {PRETRAINED_DIR: folder / PRETRAINED_DIR / row.pretraining_recipe}
            runs |= {task.name: folder / row.name / task.name for task in self.tasks}
            rows[row.name] = {
                name: _summarize(results[path]) for name, path in runs.items() if path in results
            }
        first = next(iter(results.values()))  # a pre-training run
        return {"task": self.name, "table": self.config.table, "data": first["data"], "rows": rows}

    @staticmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:  # noqa: ARG004
        """Return a table of our scores, with the paper's scores in parentheses."""
        tasks = _list_tasks(metrics)
        return ResultTable(
            title=f"ablation · {metrics['table']} · {metrics['data']['name']}",
            headings=["row", "perplexity", "nsp accuracy", *(task.title for task in tasks)],
            rows=[*_build_rows(metrics, tasks), _build_baseline_row(metrics, tasks)],
            caption=_build_caption(metrics),
            run_notes=[f"{row}: {_format_minutes(runs)}" for row, runs in metrics["rows"].items() if runs],
            failures=metrics.get("failed", {}),
        )


def _refuse_model_size(config: AblationConfig) -> None:
    """Raise `UserError` if a setting changes the model size, which the rows of `--table sizes` define."""
    for name in MODEL_SIZE_SETTINGS:
        if getattr(config, name):
            flag = get_flag(name, get_settings(AblationConfig)[name].metadata)
            raise UserError(
                f"{flag}: each row of --table sizes has its own model size; select rows with --rows"
            )


def _read_recipe_settings(row: AblationRow) -> dict[str, Any]:
    return read_recipe(row.recipe, Pretrain.spec.name, Pretrain.spec.config).settings


def _summarize(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a run in `metrics.json`."""
    scores = {key: metrics[key] for key in ("validation", "intervals", "baselines")}
    return {**scores, "rows": metrics["data"]["train"], "seconds": metrics["training"]["seconds"]}


# ---- the table


def _list_tasks(metrics: Mapping[str, Any]) -> list[DownstreamTask]:
    """Return the tasks that the variants were fine-tuned on."""
    names = {name for runs in metrics["rows"].values() for name in runs}
    names |= {Path(folder).name for folder in metrics.get("failed", {})}
    return [task for task in [*TABLES[metrics["table"]].tasks, FALLBACK_TASK] if task.name in names]


def _build_rows(metrics: Mapping[str, Any], tasks: list[DownstreamTask]) -> list[list[str]]:
    paper_scores = {row.name: row.paper_scores for row in TABLES[metrics["table"]].rows}
    rows = []
    for name, runs in metrics["rows"].items():
        pretrained, row_paper_scores = runs.get(PRETRAINED_DIR), paper_scores[name]
        cells = [
            name,
            _format_cell(
                pretrained and pretrained["validation"]["perplexity"], row_paper_scores.get("perplexity"), 2
            ),
            format_score(pretrained and pretrained["validation"].get("nsp_accuracy"), 3),
        ]
        cells += [
            _format_cell(_get_score(task, runs.get(task.name)), row_paper_scores.get(task.name))
            for task in tasks
        ]
        rows.append(cells)
    return rows


def _build_baseline_row(metrics: Mapping[str, Any], tasks: list[DownstreamTask]) -> list[str]:
    finished = {name: run for runs in metrics["rows"].values() for name, run in runs.items()}
    scores = [format_score(_get_baseline(task, finished.get(task.name))) for task in tasks]
    return ["baseline", "", "", *scores]


def _get_score(task: DownstreamTask, run: Mapping[str, Any] | None) -> float | None:
    return None if run is None else float(run["validation"][task.metric]) * task.scale


def _get_baseline(task: DownstreamTask, run: Mapping[str, Any] | None) -> float | None:
    """Return the score of the majority label, or of word overlap for question answering."""
    if run is None:
        return None
    baseline = run["baselines"].get("majority") or run["baselines"]["overlap"]
    return float(baseline[task.metric]) * task.scale


def _format_cell(our_score: float | None, paper_score: float | None, digits: int = 1) -> str:
    ours = "failed" if our_score is None else format_score(our_score, digits)
    return ours if paper_score is None else f"{ours} ({format_score(paper_score, digits)})"


def _format_minutes(runs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {summary['seconds'] / 60:.1f} min" for name, summary in runs.items())


def _build_caption(metrics: Mapping[str, Any]) -> str:
    return (
        "Perplexity is that of the predicted tokens: the masked tokens or, for ltr, all tokens but the first "
        "of an example. Task scores are accuracy (SQuAD: F1) in percent on the validation rows. The baseline "
        f"is the majority label (SQuAD: word overlap). In parentheses: {TABLES[metrics['table']].source}."
    )
