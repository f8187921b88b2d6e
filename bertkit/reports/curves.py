"""The curves of training, from its log."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.reports.charts import Chart, plot_curves

TrainingLog = Sequence[Mapping[str, Any]]
MAX_SCORES = 4  # scores in one chart
STEP = "step"


def build_training_charts(log: TrainingLog) -> list[Chart]:
    """Loss, its parts where it has several, validation scores, learning rate; none without a log."""
    names = list(dict.fromkeys(name for line in log for name in line))
    parts = [name for name in names if name.endswith("_loss") and not name.startswith("eval_")]
    found = [
        _chart("Loss", log, {"loss": "training", "eval_loss": "validation"}, "Training loss, as logged.")
    ]
    if len(parts) > 1:
        whole = {name: f"training {_part(name)}" for name in parts}
        whole |= {f"eval_{name}": f"validation {_part(name)}" for name in parts}
        found.append(_chart("Parts of the loss", log, whole))
    scores = [name for name in names if name.startswith("eval_") and _is_score(name)][:MAX_SCORES]
    found.append(_chart("Validation scores", log, {name: name[len("eval_") :] for name in scores}))
    found.append(_chart("Learning rate", log, {"learning_rate": "learning rate"}))
    return [one for one in found if one]


def extract_series(log: TrainingLog, name: str) -> tuple[list[float], list[float]]:
    """The steps at which a figure was logged, and the figure."""
    there = [line for line in log if isinstance(line.get(name), (int, float))]
    return [line[STEP] for line in there], [line[name] for line in there]


def _chart(title: str, log: TrainingLog, names: Mapping[str, str], note: str = "") -> Chart | None:
    lines = {shown: found for name, shown in names.items() if (found := extract_series(log, name))[0]}
    return plot_curves(title, lines, STEP, note) if lines else None


def _part(name: str) -> str:
    return name.removesuffix("_loss").upper()


def _is_score(name: str) -> bool:
    """Neither a loss, nor of one part of the rows, nor what another threshold would reach."""
    score = name[len("eval_") :]
    return (
        not score.endswith("loss") and score != "perplexity" and score == score.lower().removeprefix("best_")
    )
