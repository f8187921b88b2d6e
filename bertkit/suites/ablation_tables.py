"""The paper's two ablation tables: their rows, their fine-tuning tasks, and the paper's scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DownstreamTask:
    """A task that every row is fine-tuned on.

    Attributes:
        name: The task as `--tasks` calls it, which is also the name of its dataset.
        title: The paper's name.
        command: The bertkit task.
        metric: The validation score in the table.
        settings: Settings of the run.
        scale: The factor from the metric to percent.
    """

    name: str
    title: str
    command: str
    metric: str
    settings: Mapping[str, Any]
    scale: float = 100.0


@dataclass(frozen=True)
class AblationRow:
    """A row of a table.

    Attributes:
        name: The row as `--rows` calls it.
        pretraining_recipe: The recipe `pretrain/PRETRAINING_RECIPE`; rows may share one.
        finetuning_settings: Settings of the fine-tuning runs.
        paper_scores: Task -> the paper's score in percent; for model sizes, the perplexity too.
    """

    name: str
    pretraining_recipe: str
    finetuning_settings: Mapping[str, Any] = field(default_factory=dict)
    paper_scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def recipe(self) -> str:
        """The shipped recipe that pre-trains the row's model."""
        return f"pretrain/{self.pretraining_recipe}"


@dataclass(frozen=True)
class AblationTable:
    """One of the paper's tables."""

    rows: list[AblationRow]
    tasks: list[DownstreamTask]
    source: str


def _task(name: str, title: str, command: str) -> DownstreamTask:
    return DownstreamTask(name, title, command, "accuracy", {"data": name})


MNLI, QNLI = _task("mnli", "MNLI-m", "nli"), _task("qnli", "QNLI", "classify")
MRPC, SST2 = _task("mrpc", "MRPC", "classify"), _task("sst2", "SST-2", "classify")
SQUAD = DownstreamTask("squad", "SQuAD", "qa", "f1", {"squad": "v1"}, 1.0)
FALLBACK_TASK = _task("imdb", "IMDB", "classify")  # not in the paper, but available without a download


def _objective(
    name: str, recipe_suffix: str, *paper_scores: float, **finetuning_settings: Any
) -> AblationRow:
    scores = dict(zip(("mnli", "qnli", "mrpc", "sst2", "squad"), paper_scores, strict=False))
    return AblationRow(name, f"objective-{recipe_suffix}", finetuning_settings, scores)


def _size(layers: int, hidden_size: int, heads: int, *paper_scores: float) -> AblationRow:
    name = f"{layers}-{hidden_size}-{heads}"
    scores = dict(zip(("perplexity", "mnli", "mrpc", "sst2"), paper_scores, strict=False))
    return AblationRow(name, f"size-{name}", {}, scores)


OBJECTIVES = AblationTable(
    [
        _objective("mlm+nsp", "mlm-nsp", 84.4, 88.4, 86.7, 92.7, 88.5),
        _objective("mlm", "mlm", 83.9, 84.9, 86.5, 92.6, 87.9),
        _objective("ltr", "ltr", 82.1, 84.3, 77.5, 92.1, 77.8),
        _objective("ltr+bilstm", "ltr", 82.1, 84.1, 75.7, 91.6, 84.9, head="bilstm"),
        _objective("mlm+sop", "mlm-sop"),
    ],
    [MNLI, QNLI, MRPC, SST2, SQUAD],
    "Devlin et al. 2018, table 5 (BERT-BASE)",
)
SIZES = AblationTable(
    [
        _size(2, 128, 2),
        _size(4, 256, 4),
        _size(3, 768, 12, 5.84, 77.9, 79.8, 88.4),
        _size(6, 768, 3, 5.24, 80.6, 82.2, 90.7),
        _size(6, 768, 12, 4.68, 81.9, 84.8, 91.3),
        _size(12, 768, 12, 3.99, 84.4, 86.7, 92.9),
        _size(12, 1024, 16, 3.54, 85.7, 86.9, 93.3),
        _size(24, 1024, 16, 3.23, 86.6, 87.8, 93.7),
    ],
    [MNLI, MRPC, SST2],
    "Devlin et al. 2018, table 6",
)
TABLES = {"objectives": OBJECTIVES, "sizes": SIZES}
