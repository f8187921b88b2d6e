"""The paper's ablations: rows are pre-trained on one text, and each is fine-tuned on the same tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.config import fill
from bertkit.data.sources import find
from bertkit.data.text_source import find_text
from bertkit.errors import UserError, listed
from bertkit.recipes import read_recipe
from bertkit.reporter import Reporter
from bertkit.run import Run
from bertkit.suite.ablations import FALLBACK, TABLES, Row, TunedTask
from bertkit.suite.base import Suite, chosen, run_suite
from bertkit.suite.config import AblationConfig
from bertkit.suite.shown import Shown
from bertkit.tasks.pretrain import Pretrain

PRETRAINED = "pretrained"  # the folder of what rows begin with
OF_THE_MACHINE = ("data_dir", "seed", "fp16", "bf16", "compile", "gradient_checkpointing", "report_to")
OF_A_SHAPE = ("size", "layers", "hidden", "heads")
LONGEST = 128  # pieces that a row is pre-trained at where nothing else is said


def run_ablation(
    given: Mapping[str, Any], recipe: str | None = None, reporter: Reporter | None = None
) -> Run:
    """Run the chosen rows, or what is left; see `bertkit ablation --help` and `run_suite`."""
    return run_suite(AblationSuite, given, recipe, reporter)


class AblationSuite(Suite):
    """The chosen rows in one directory: `pretrained/RECIPE` and `ROW/TASK` is a run each."""

    name = "ablation"
    Config = AblationConfig
    leaves = [PRETRAINED, *(row.name for table in TABLES.values() for row in table.rows)]
    own = frozenset({"table", "rows", "tasks", "task_train_samples", "task_eval_samples"})

    def __init__(self, config: AblationConfig, reporter: Reporter) -> None:
        super().__init__(config, reporter)
        self.found: dict[str, str] = {}  # task -> where its data is
        self.table = TABLES[config.table]
        names = chosen("--rows", config.rows, [row.name for row in self.table.rows], "row of the table")
        self.rows = [row for row in self.table.rows if row.name in names]
        self.parts = [PRETRAINED, *names]
        self.config = fill(self.config, {"data": self._settings(self.rows[0]).get("data", FALLBACK.known)})
        if config.table == "sizes" and (given := [name for name in OF_A_SHAPE if getattr(config, name)]):
            raise UserError(f"--{given[0]}: the rows of --table sizes have their own; choose with --rows")

    def _settings(self, row: Row) -> dict[str, Any]:
        """What the recipe of a row's pre-training says."""
        return read_recipe(_recipe(row.pretrained), Pretrain.name, Pretrain.Config).settings

    def require_all(self) -> list[str]:
        """The text and the tasks' data. Raises `UserError` for what is not there."""
        self.text = find_text(self.config.data, self.config.data_dir, self.config.text_column)
        self.tasks = self._at_hand()
        return [self.text.name, self.config.table]

    def _at_hand(self) -> list[TunedTask]:
        """The tasks that were chosen, or else those whose data is there."""
        known = [task.name for task in self.table.tasks]
        names = chosen("--tasks", self.config.tasks, [*known, FALLBACK.name], "task of the table")
        missing, reason = self._look_for([task for task in self.table.tasks if task.name in names])
        asked = bool(self.config.tasks)
        if FALLBACK.name in names and (asked or not self.found):
            missing += self._look_for([FALLBACK])[0]
        if missing and (asked or not self.found):
            flag = f"--tasks {','.join(self.config.tasks)}: " if asked else ""
            raise UserError(f"{flag}no data for {listed(missing)} ({reason})")
        if missing:
            self.reporter.say(f"no data for {listed(missing)}: not in the table")
        return [task for task in [*self.table.tasks, FALLBACK] if task.name in self.found]

    def _look_for(self, tasks: list[TunedTask]) -> tuple[list[str], str]:
        """Note where their data is; gives those whose is not there, and why the first is not."""
        missing, reason = [], ""
        for task in tasks:
            try:
                self.found[task.name] = find(task.known, task.kind, self.config.data_dir).source
            except UserError as error:
                missing.append(task.title)
                reason = reason or str(error)
        return missing, reason

    def planned(self) -> list[dict[str, Any]]:
        """A run of pre-training for each recipe, and one of fine-tuning for each task of each row."""
        begun = {
            row.pretrained: {"recipe": _recipe(row.pretrained), "data": self.text.where} for row in self.rows
        }
        found = [{"folder": f"{PRETRAINED}/{name}", **about} for name, about in begun.items()]
        for row in self.rows:
            found += [
                {"folder": f"{row.name}/{task.name}", "recipe": "", "data": self.found[task.name]}
                for task in self.tasks
            ]
        return found

    def results(self, folder: Path) -> dict[str, dict[str, Run]]:
        """The runs of each row, pre-training first."""
        return {row.name: self._row(row, folder) for row in self.rows}

    def _row(self, row: Row, folder: Path) -> dict[str, Run]:
        begun = folder / PRETRAINED / row.pretrained
        self.reporter.say(f"{row.name}: {begun}")
        runs = {PRETRAINED: self.train(Pretrain.name, _recipe(row.pretrained), {}, begun)}
        for task in self.tasks:
            place = folder / row.name / task.name
            self.reporter.say(f"{row.name}, {task.title}: {place}")
            runs[task.name] = self.train(task.kind, None, self._tuning(row, task, begun), place)
        return runs

    def _tuning(self, row: Row, task: TunedTask, begun: Path) -> dict[str, Any]:
        """What fine-tuning is told; the rest is advice by data and model size, the same for all rows."""
        length = self.config.max_length or self._settings(row).get("max_length", LONGEST)
        samples = {
            "max_train_samples": self.config.task_train_samples,
            "max_eval_samples": self.config.task_eval_samples,
        }
        given = {key: value for key, value in samples.items() if value is not None}
        return {"model": str(begun), "max_length": length, **given, **task.own, **row.own}

    def shared(self, kind: str) -> dict[str, Any]:
        """To pre-training all but the suite's own; to fine-tuning what is the machine's."""
        handed_on = super().shared(kind)
        if kind == Pretrain.name:
            return handed_on
        return {key: value for key, value in handed_on.items() if key in OF_THE_MACHINE}

    def metrics(self, folder: Path, results: dict[str, dict[str, Run]]) -> dict[str, Any]:
        """Scores and intervals of each run of each row."""
        first = next(iter(results.values()))[PRETRAINED].metrics
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
    def shown(metrics: Mapping[str, Any], folder: Path) -> Shown:  # noqa: ARG004
        """The paper's table with ours beside it."""
        return Shown(
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


def _tasks(metrics: Mapping[str, Any]) -> list[TunedTask]:
    """The tasks that were run."""
    run = next(iter(metrics["rows"].values()))
    return [task for task in [*TABLES[metrics["table"]].tasks, FALLBACK] if task.name in run]


def _headings(metrics: Mapping[str, Any]) -> list[str]:
    return ["row", "perplexity", "nsp accuracy", *(task.title for task in _tasks(metrics))]


def _rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """The cells of each row run, the paper's figure behind ours in brackets, and of the majority."""
    table = {row.name: row for row in TABLES[metrics["table"]].rows}
    tasks = _tasks(metrics)
    found = []
    for name, runs in metrics["rows"].items():
        begun, paper = runs[PRETRAINED]["validation"], table[name].paper
        cells = [_cell(begun["perplexity"], paper.get("perplexity"), 2)]
        cells += [f"{begun['nsp_accuracy']:.3f}" if "nsp_accuracy" in begun else ""]
        cells += [_cell(_score(task, runs[task.name]), paper.get(task.name)) for task in tasks]
        found.append([name, *cells])
    first = next(iter(metrics["rows"].values()))
    least = [_cell(_least(task, first[task.name]), None) for task in tasks]
    return [*found, ["baseline", "", "", *least]]


def _score(task: TunedTask, run: Mapping[str, Any]) -> float:
    return float(run["validation"][task.metric]) * task.scale


def _least(task: TunedTask, run: Mapping[str, Any]) -> float:
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
