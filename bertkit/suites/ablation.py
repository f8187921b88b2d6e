"""The paper's ablations: rows are pre-trained on one text, and each is fine-tuned on the same tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.config import fill_unset
from bertkit.data.corpus.source import find_text
from bertkit.data.loading import load_dataset
from bertkit.errors import UserError, format_list
from bertkit.pipeline.run import Run
from bertkit.recipes import read_recipe
from bertkit.suites.ablation_tables import FALLBACK_TASK, TABLES, AblationRow, DownstreamTask
from bertkit.suites.base import Suite, run_suite, select_names
from bertkit.suites.config import AblationConfig
from bertkit.suites.result_table import ResultTable
from bertkit.tasks.pretrain import Pretrain
from bertkit.utils.reporting import Reporter

PRETRAINED_DIR = "pretrained"  # the folder of what rows begin with
MACHINE_SETTINGS = ("data_dir", "seed", "fp16", "bf16", "compile", "gradient_checkpointing", "report_to")
MODEL_SIZE_SETTINGS = ("size", "num_layers", "hidden_size", "num_heads")
DEFAULT_MAX_LENGTH = 128  # pieces that a row is pre-trained at where nothing else is said


def run_ablation(
    settings: Mapping[str, Any], recipe: str | None = None, reporter: Reporter | None = None
) -> Run:
    """Run the chosen rows, or what is left; see `bertkit ablation --help` and `run_suite`."""
    return run_suite(AblationSuite, settings, recipe, reporter)


class AblationSuite(Suite):
    """The chosen rows in one directory: `pretrained/RECIPE` and `ROW/TASK` is a run each."""

    name = "ablation"
    Config = AblationConfig
    output_names = [PRETRAINED_DIR, *(row.name for table in TABLES.values() for row in table.rows)]
    suite_settings = frozenset({"table", "rows", "tasks", "task_train_samples", "task_eval_samples"})

    def __init__(self, config: AblationConfig, reporter: Reporter) -> None:
        super().__init__(config, reporter)
        self.data_sources: dict[str, str] = {}  # task -> where its data is
        self.table = TABLES[config.table]
        names = select_names("--rows", config.rows, [row.name for row in self.table.rows], "row of the table")
        self.rows = [row for row in self.table.rows if row.name in names]
        self.run_dirs = [PRETRAINED_DIR, *names]
        self.config = fill_unset(
            self.config, {"data": self._settings(self.rows[0]).get("data", FALLBACK_TASK.dataset)}
        )
        if config.table == "sizes" and (
            given := [name for name in MODEL_SIZE_SETTINGS if getattr(config, name)]
        ):
            raise UserError(f"--{given[0]}: the rows of --table sizes have their own; choose with --rows")

    def _settings(self, row: AblationRow) -> dict[str, Any]:
        """What the recipe of a row's pre-training says."""
        return read_recipe(_recipe(row.pretraining_recipe), Pretrain.spec.name, Pretrain.spec.config).settings

    def resolve_inputs(self) -> list[str]:
        """The text and the tasks' data. Raises `UserError` for what is not there."""
        self.text = find_text(self.config.data, self.config.data_dir, self.config.text_column)
        self.tasks = self._at_hand()
        return [self.text.name, self.config.table]

    def _at_hand(self) -> list[DownstreamTask]:
        """The tasks that were chosen, or else those whose data is there."""
        known = [task.name for task in self.table.tasks]
        names = select_names("--tasks", self.config.tasks, [*known, FALLBACK_TASK.name], "task of the table")
        missing, reason = self._look_for([task for task in self.table.tasks if task.name in names])
        asked = bool(self.config.tasks)
        if FALLBACK_TASK.name in names and (asked or not self.data_sources):
            missing += self._look_for([FALLBACK_TASK])[0]
        if missing and (asked or not self.data_sources):
            flag = f"--tasks {','.join(self.config.tasks)}: " if asked else ""
            raise UserError(f"{flag}no data for {format_list(missing)} ({reason})")
        if missing:
            self.reporter.info(f"no data for {format_list(missing)}: not in the table")
        return [task for task in [*self.table.tasks, FALLBACK_TASK] if task.name in self.data_sources]

    def _look_for(self, tasks: list[DownstreamTask]) -> tuple[list[str], str]:
        """Note where their data is; gives those whose is not there, and why the first is not."""
        missing, reason = [], ""
        for task in tasks:
            try:
                self.data_sources[task.name] = load_dataset(
                    task.dataset, task.command, self.config.data_dir
                ).source
            except UserError as error:
                missing.append(task.title)
                reason = reason or str(error)
        return missing, reason

    def plan_runs(self) -> list[dict[str, Any]]:
        """A run of pre-training for each recipe, and one of fine-tuning for each task of each row."""
        begun = {
            row.pretraining_recipe: {"recipe": _recipe(row.pretraining_recipe), "data": self.text.location}
            for row in self.rows
        }
        found = [{"folder": f"{PRETRAINED_DIR}/{name}", **about} for name, about in begun.items()]
        for row in self.rows:
            found += [
                {"folder": f"{row.name}/{task.name}", "recipe": "", "data": self.data_sources[task.name]}
                for task in self.tasks
            ]
        return found

    def execute_runs(self, folder: Path) -> dict[str, dict[str, Run]]:
        """The runs of each row, pre-training first."""
        return {row.name: self._row(row, folder) for row in self.rows}

    def _row(self, row: AblationRow, folder: Path) -> dict[str, Run]:
        begun = folder / PRETRAINED_DIR / row.pretraining_recipe
        self.reporter.info(f"{row.name}: {begun}")
        runs = {PRETRAINED_DIR: self.train(Pretrain.spec.name, _recipe(row.pretraining_recipe), {}, begun)}
        for task in self.tasks:
            place = folder / row.name / task.name
            self.reporter.info(f"{row.name}, {task.title}: {place}")
            runs[task.name] = self.train(task.command, None, self._tuning(row, task, begun), place)
        return runs

    def _tuning(self, row: AblationRow, task: DownstreamTask, begun: Path) -> dict[str, Any]:
        """What fine-tuning is told; the rest is advice by data and model size, the same for all rows."""
        length = self.config.max_length or self._settings(row).get("max_length", DEFAULT_MAX_LENGTH)
        samples = {
            "max_train_samples": self.config.task_train_samples,
            "max_eval_samples": self.config.task_eval_samples,
        }
        given = {key: value for key, value in samples.items() if value is not None}
        return {
            "model": str(begun),
            "max_length": length,
            **given,
            **task.settings,
            **row.finetuning_settings,
        }

    def select_shared_settings(self, task_name: str) -> dict[str, Any]:
        """To pre-training all but the suite's own; to fine-tuning what is the machine's."""
        handed_on = super().select_shared_settings(task_name)
        if task_name == Pretrain.spec.name:
            return handed_on
        return {key: value for key, value in handed_on.items() if key in MACHINE_SETTINGS}

    def compute_metrics(self, folder: Path, results: dict[str, dict[str, Run]]) -> dict[str, Any]:
        """Scores and intervals of each run of each row."""
        first = next(iter(results.values()))[PRETRAINED_DIR].metrics
        return {
            "task": self.name,
            "table": self.config.table,
            "data": first["data"],
            "rows": {
                row: {name: _summary(run.metrics) for name, run in runs.items()}
                for row, runs in results.items()
            },
        }

    @staticmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:  # noqa: ARG004
        """The paper's table with ours beside it."""
        return ResultTable(
            f"ablation · {metrics['table']} · {metrics['data']['name']}",
            _headings(metrics), _rows(metrics), _source(metrics),
            [f"{row}: {_minutes(runs)}" for row, runs in metrics["rows"].items()],
        )  # fmt: skip


def _recipe(pretrained: str) -> str:
    return f"pretrain/{pretrained}"


def _summary(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What a row keeps of one of its runs."""
    kept = {key: metrics[key] for key in ("validation", "intervals", "baselines")}
    return {**kept, "rows": metrics["data"]["train"], "seconds": metrics["training"]["seconds"]}


def _minutes(runs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {about['seconds'] / 60:.1f} min" for name, about in runs.items())


# ---- the table


def _tasks(metrics: Mapping[str, Any]) -> list[DownstreamTask]:
    """The tasks that were run."""
    run = next(iter(metrics["rows"].values()))
    return [task for task in [*TABLES[metrics["table"]].tasks, FALLBACK_TASK] if task.name in run]


def _headings(metrics: Mapping[str, Any]) -> list[str]:
    return ["row", "perplexity", "nsp accuracy", *(task.title for task in _tasks(metrics))]


def _rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """The cells of each row run, the paper's figure behind ours in brackets, and of the majority."""
    table = {row.name: row for row in TABLES[metrics["table"]].rows}
    tasks = _tasks(metrics)
    found = []
    for name, runs in metrics["rows"].items():
        begun, paper = runs[PRETRAINED_DIR]["validation"], table[name].paper_scores
        cells = [_cell(begun["perplexity"], paper.get("perplexity"), 2)]
        cells += [f"{begun['nsp_accuracy']:.3f}" if "nsp_accuracy" in begun else ""]
        cells += [_cell(_score(task, runs[task.name]), paper.get(task.name)) for task in tasks]
        found.append([name, *cells])
    first = next(iter(metrics["rows"].values()))
    least = [_cell(_least(task, first[task.name]), None) for task in tasks]
    return [*found, ["baseline", "", "", *least]]


def _score(task: DownstreamTask, run: Mapping[str, Any]) -> float:
    return float(run["validation"][task.metric]) * task.scale


def _least(task: DownstreamTask, run: Mapping[str, Any]) -> float:
    """Of the majority of the labels or, of answers, the words in common."""
    baseline = run["baselines"].get("majority") or run["baselines"]["overlap"]
    return float(baseline[task.metric]) * task.scale


def _cell(ours: float, paper: float | None, digits: int = 1) -> str:
    return f"{ours:.{digits}f}" + ("" if paper is None else f" ({paper:.{digits}f})")


def _source(metrics: Mapping[str, Any]) -> str:
    """What the figures are, and whose stand in brackets."""
    return (
        "Perplexity of the pieces to predict, of ltr all but the first of each example, else "
        "the masked ones. Of tasks: accuracy, of SQuAD F1, in percent, on validation rows; the baseline is "
        "the majority of the labels, of SQuAD the words in common. "
        f"In brackets: {TABLES[metrics['table']].source}."
    )
