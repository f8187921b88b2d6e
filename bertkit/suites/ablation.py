"""`bertkit ablation`: pre-train variants on the same text, and fine-tune them on the same tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.charts import Chart
from bertkit.data.corpus.documents import find_text
from bertkit.errors import UserError, format_list
from bertkit.report.tables import ResultTable
from bertkit.settings.recipes import read_recipe
from bertkit.settings.setting import fill_unset, get_flag, get_settings
from bertkit.suites.ablation_results import (
    PRETRAINED_DIR,
    build_ablation_table,
    build_difference_table,
    compare_rows,
    plot_scores,
    summarize_pretraining,
    summarize_seeds,
)
from bertkit.suites.ablation_tables import FALLBACK_TASK, TABLES, AblationRow, DownstreamTask
from bertkit.suites.base import RunMetrics, Suite, SuiteRun, find_data, select_names, select_task_settings
from bertkit.suites.config import AblationConfig
from bertkit.tasks.pretrain.config import PretrainConfig
from bertkit.tasks.pretrain.task import Pretrain
from bertkit.utils.reporting import report_info

# Settings of the suite that also apply to fine-tuning.
MACHINE_SETTINGS = (
    "data_dir", "seed", "fp16", "bf16", "compile", "deterministic", "gradient_checkpointing", "report_to",
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


class AblationSuite(Suite):
    """Runs for the selected rows of a table, in the directories `pretrained/NAME` and `ROW/TASK/seedN`."""

    name = "ablation"
    output_names = [PRETRAINED_DIR, *(row.name for table in TABLES.values() for row in table.rows)]
    suite_settings = frozenset({"table", "rows", "tasks", "seeds", *TASK_SETTINGS})

    def __init__(self, config: AblationConfig) -> None:
        if config.table == "sizes":
            _refuse_model_size(config)
        self.table = TABLES[config.table]
        names = select_names("--rows", config.rows, [row.name for row in self.table.rows], "row of the table")
        self.rows = [row for row in self.table.rows if row.name in names]
        text = _read_recipe_settings(self.rows[0]).get("data", DEFAULT_TEXT)
        super().__init__(fill_unset(config, {"data": text}))

    def resolve_inputs(self) -> list[str]:
        """Find the pre-training text and the data of the tasks. Raises `UserError` if data is missing."""
        self.text = find_text(
            self.config.data, self.config.data_dir, self.config.text_column, encoding=self.config.encoding
        )
        self._check_pretraining_settings()
        self.data_sources = self._find_task_data()
        self.tasks = [task for task in [*self.table.tasks, FALLBACK_TASK] if task.name in self.data_sources]
        return [self.text.name, self.config.table]

    def _check_pretraining_settings(self) -> None:
        """Check that the settings of the user apply to the objective of each row."""
        for row in self.rows:
            config = self.make_run_group(
                Pretrain.definition.name, row.recipe, row.pretraining_settings
            ).config
            assert isinstance(config, PretrainConfig)
            try:
                Pretrain(config).objective.validate_config(config)
            except UserError as error:
                raise UserError(f"row {row.name}: {error}") from error

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
            report_info(f"no data for {titles}: left out of the table")
        return found

    def _find_data(self, tasks: list[DownstreamTask]) -> tuple[dict[str, str], dict[str, str]]:
        return find_data([(task.name, task.command) for task in tasks], self.config.data_dir)

    def plan_runs(self, folder: Path) -> list[SuiteRun]:
        """Return the pre-training runs, and the fine-tuning runs of each row."""
        return [*self._plan_pretraining(folder), *self._plan_finetuning(folder)]

    def _plan_pretraining(self, folder: Path) -> list[SuiteRun]:
        """Return one run for each model that is pre-trained; rows may share a model."""
        rows = {row.model_name: row for row in self.rows}
        return [
            SuiteRun(
                folder=folder / PRETRAINED_DIR / name, settings=row.pretraining_settings,
                run_group=self.make_run_group(Pretrain.definition.name, row.recipe, {}),
                seed=self.config.seed,
                recipe=row.recipe, data=self.text.location, metric="perplexity",
            )
            for name, row in rows.items()
        ]  # fmt: skip

    def _plan_finetuning(self, folder: Path) -> list[SuiteRun]:
        """Return one run for each row, task and seed."""
        run_groups = {
            task.name: self.make_run_group(task.command, None, task.settings) for task in self.tasks
        }
        return [
            SuiteRun(
                folder=folder / name_run(row, task, seed), run_group=run_groups[task.name],
                settings=self._get_finetuning_settings(row, folder), seed=seed, recipe="",
                data=self.data_sources[task.name], metric=task.metric,
            )
            for row in self.rows
            for task in self.tasks
            for seed in self.seeds
        ]  # fmt: skip

    @property
    def seeds(self) -> list[int]:
        """The seeds of fine-tuning; each model is pre-trained with the first one."""
        return list(range(self.config.seed, self.config.seed + self.config.seeds))

    def _get_finetuning_settings(self, row: AblationRow, folder: Path) -> dict[str, Any]:
        """Return the settings of the fine-tuning runs of a row; other settings have their usual defaults."""
        max_length = self.config.max_length or _read_recipe_settings(row).get(
            "max_length", DEFAULT_MAX_LENGTH
        )
        model = folder / PRETRAINED_DIR / row.model_name
        return {"model": str(model), "max_length": max_length, **row.finetuning_settings}

    def execute_runs(self, folder: Path) -> RunMetrics:
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

    def compute_metrics(self, folder: Path, results: RunMetrics) -> dict[str, Any]:
        """Return the scores, intervals and training times of the finished runs of each row."""
        rows: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            rows[row.name] = {}
            if pretraining := results.get(folder / PRETRAINED_DIR / row.model_name):
                rows[row.name][PRETRAINED_DIR] = summarize_pretraining(pretraining)
            for task in self.tasks:
                paths = {seed: folder / name_run(row, task, seed) for seed in self.seeds}
                finished = {seed: results[path] for seed, path in paths.items() if path in results}
                if finished:
                    rows[row.name][task.name] = summarize_seeds(finished, task.metric)
        compare_rows(rows, [task.name for task in self.tasks])
        first = next(iter(results.values()))  # a pre-training run
        return {
            "task": self.name, "table": self.config.table, "data": first["data"], "seeds": self.seeds,
            "rows": rows,
        }  # fmt: skip

    @staticmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:  # noqa: ARG004
        """Return a table of our scores, with the paper's scores in parentheses."""
        return build_ablation_table(metrics)

    @staticmethod
    def build_details(metrics: Mapping[str, Any]) -> tuple[dict[str, ResultTable], list[Chart]]:
        """Return the differences between the rows, and a chart of the scores of each task."""
        differences = build_difference_table(metrics)
        return ({"Differences": differences} if differences.rows else {}), plot_scores(metrics)


def name_run(row: AblationRow, task: DownstreamTask, seed: int) -> str:
    """Return the directory of a fine-tuning run, relative to that of the suite."""
    return f"{row.name}/{task.name}/seed{seed}"


def _refuse_model_size(config: AblationConfig) -> None:
    """Raise `UserError` if a setting changes the model size, which the rows of `--table sizes` define."""
    for name in MODEL_SIZE_SETTINGS:
        if getattr(config, name):
            flag = get_flag(name, get_settings(AblationConfig)[name].metadata)
            raise UserError(
                f"{flag}: each row of --table sizes has its own model size; select rows with --rows"
            )


def _read_recipe_settings(row: AblationRow) -> dict[str, Any]:
    return read_recipe(row.recipe, Pretrain.definition.name, Pretrain.definition.config).settings
