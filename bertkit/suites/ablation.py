"""`bertkit ablation`: pre-train variants on the same text, and fine-tune them on the same tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.corpus.source import find_text
from bertkit.errors import UserError, format_list
from bertkit.pipeline.run import Run
from bertkit.recipes import read_recipe
from bertkit.reports.result_table import ResultTable, format_score
from bertkit.setting import fill_unset, get_flag, get_settings
from bertkit.suites.ablation_tables import FALLBACK_TASK, TABLES, AblationRow, DownstreamTask
from bertkit.suites.base import DataSources, Suite, find_data, select_names
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
        self.run_dirs = [PRETRAINED_DIR, *names]
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
        sources = self._find_data([task for task in self.table.tasks if task.name in names])
        found, missing, reason = sources.found, sources.missing, sources.reason
        if FALLBACK_TASK.name in names and (has_tasks_flag or not found):
            fallback_sources = self._find_data([FALLBACK_TASK])
            found = found | fallback_sources.found
            missing = missing + fallback_sources.missing
            reason = reason or fallback_sources.reason
        titles = format_list(
            task.title for task in [*self.table.tasks, FALLBACK_TASK] if task.name in missing
        )
        if missing and (has_tasks_flag or not found):
            flag = f"--tasks {','.join(self.config.tasks)}: " if has_tasks_flag else ""
            raise UserError(f"{flag}no data for {titles} ({reason})")
        if missing:
            self.reporter.info(f"no data for {titles}: left out of the table")
        return found

    def _find_data(self, tasks: list[DownstreamTask]) -> DataSources:
        return find_data([(task.name, task.command) for task in tasks], self.config.data_dir)

    def plan_runs(self) -> list[dict[str, Any]]:
        """Return one pre-training run for each recipe, and one fine-tuning run for each row and task."""
        pretraining = {
            row.pretraining_recipe: {
                "folder": f"{PRETRAINED_DIR}/{row.pretraining_recipe}",
                "recipe": row.recipe,
                "data": self.text.location,
            }
            for row in self.rows
        }
        fine_tuning = [
            {"folder": f"{row.name}/{task.name}", "recipe": "", "data": self.data_sources[task.name]}
            for row in self.rows
            for task in self.tasks
        ]
        return [*pretraining.values(), *fine_tuning]

    def execute_runs(self, folder: Path) -> dict[str, dict[str, Run]]:
        """Return the runs of each row by task; the pre-training run comes first."""
        return {row.name: self._run_row(row, folder) for row in self.rows}

    def _run_row(self, row: AblationRow, folder: Path) -> dict[str, Run]:
        pretrained = folder / PRETRAINED_DIR / row.pretraining_recipe
        self.reporter.info(f"{row.name}: {pretrained}")
        runs = {PRETRAINED_DIR: self.train(Pretrain.spec.name, row.recipe, {}, pretrained)}
        for task in self.tasks:
            output_dir = folder / row.name / task.name
            self.reporter.info(f"{row.name}, {task.title}: {output_dir}")
            settings = self._get_finetuning_settings(row, task, pretrained)
            runs[task.name] = self.train(task.command, None, settings, output_dir)
        return runs

    def _get_finetuning_settings(
        self, row: AblationRow, task: DownstreamTask, pretrained: Path
    ) -> dict[str, Any]:
        """Return the settings of a fine-tuning run; other settings have their usual defaults."""
        max_length = self.config.max_length or _read_recipe_settings(row).get(
            "max_length", DEFAULT_MAX_LENGTH
        )
        samples = {
            "max_train_samples": self.config.task_train_samples,
            "max_eval_samples": self.config.task_eval_samples,
        }
        return {
            "model": str(pretrained),
            "max_length": max_length,
            **{name: value for name, value in samples.items() if value is not None},
            **task.settings,
            **row.finetuning_settings,
        }

    def select_shared_settings(self, task_name: str) -> dict[str, Any]:
        """Return the settings that apply to pre-training, or only `MACHINE_SETTINGS` for fine-tuning."""
        shared = super().select_shared_settings(task_name)
        if task_name == Pretrain.spec.name:
            return shared
        return {name: value for name, value in shared.items() if name in MACHINE_SETTINGS}

    def compute_metrics(self, folder: Path, results: dict[str, dict[str, Run]]) -> dict[str, Any]:
        """Return the scores, intervals and training times of the runs of each row."""
        first = next(iter(results.values()))[PRETRAINED_DIR].metrics
        return {
            "task": self.name,
            "table": self.config.table,
            "data": first["data"],
            "rows": {
                row: {name: _summarize(run.metrics) for name, run in runs.items()}
                for row, runs in results.items()
            },
        }

    @staticmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:  # noqa: ARG004
        """Return a table of our scores, with the paper's scores in parentheses."""
        tasks = _list_tasks(metrics)
        return ResultTable(
            title=f"ablation · {metrics['table']} · {metrics['data']['name']}",
            headings=["row", "perplexity", "nsp accuracy", *(task.title for task in tasks)],
            rows=[*_build_rows(metrics, tasks), _build_baseline_row(metrics, tasks)],
            caption=_build_caption(metrics),
            run_notes=[f"{row}: {_format_minutes(runs)}" for row, runs in metrics["rows"].items()],
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
    runs = next(iter(metrics["rows"].values()))
    return [task for task in [*TABLES[metrics["table"]].tasks, FALLBACK_TASK] if task.name in runs]


def _build_rows(metrics: Mapping[str, Any], tasks: list[DownstreamTask]) -> list[list[str]]:
    paper_scores = {row.name: row.paper_scores for row in TABLES[metrics["table"]].rows}
    rows = []
    for name, runs in metrics["rows"].items():
        pretraining_scores = runs[PRETRAINED_DIR]["validation"]
        row_paper_scores = paper_scores[name]
        cells = [
            name,
            _format_cell(pretraining_scores["perplexity"], row_paper_scores.get("perplexity"), 2),
            format_score(pretraining_scores.get("nsp_accuracy"), 3),
        ]
        cells += [
            _format_cell(_get_score(task, runs[task.name]), row_paper_scores.get(task.name)) for task in tasks
        ]
        rows.append(cells)
    return rows


def _build_baseline_row(metrics: Mapping[str, Any], tasks: list[DownstreamTask]) -> list[str]:
    runs = next(iter(metrics["rows"].values()))
    scores = [format_score(_get_baseline(task, runs[task.name])) for task in tasks]
    return ["baseline", "", "", *scores]


def _get_score(task: DownstreamTask, run: Mapping[str, Any]) -> float:
    return float(run["validation"][task.metric]) * task.scale


def _get_baseline(task: DownstreamTask, run: Mapping[str, Any]) -> float:
    """Return the score of the majority label, or of word overlap for question answering."""
    baseline = run["baselines"].get("majority") or run["baselines"]["overlap"]
    return float(baseline[task.metric]) * task.scale


def _format_cell(our_score: float, paper_score: float | None, digits: int = 1) -> str:
    ours = format_score(our_score, digits)
    return ours if paper_score is None else f"{ours} ({format_score(paper_score, digits)})"


def _format_minutes(runs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {summary['seconds'] / 60:.1f} min" for name, summary in runs.items())


def _build_caption(metrics: Mapping[str, Any]) -> str:
    return (
        "Perplexity is that of the predicted tokens: the masked tokens or, for ltr, all tokens but the first "
        "of an example. Task scores are accuracy (SQuAD: F1) in percent on the validation rows. The baseline "
        f"is the majority label (SQuAD: word overlap). In parentheses: {TABLES[metrics['table']].source}."
    )
