"""The two ablation tables of the paper: rows, fine-tuning tasks and scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DownstreamTask:
    """A task that the model of every row is fine-tuned on.

    Attributes:
        name: Name of the task in `--tasks`, and of its dataset.
        title: Name of the task in the paper.
        command: The bertkit command that fine-tunes on the task.
        metric: Name of the validation score in the table.
        settings: Settings of the fine-tuning run.
        scale: Factor that converts the metric to percent.
        baseline: Name of the baseline in the table.
    """

    name: str
    title: str
    command: str
    metric: str
    settings: Mapping[str, Any]
    scale: float = 100.0
    baseline: str = "majority"


@dataclass(frozen=True)
class AblationRow:
    """A row of a table.

    Attributes:
        name: Name of the row in `--rows`.
        pretraining_recipe: Name of the recipe without `pretrain/`.
        finetuning_settings: Settings of all fine-tuning runs of the row.
        pretraining_settings: Settings that override those of the recipe and of the suite.
        paper_scores: The paper's scores in percent by task; for model sizes, also the perplexity.
    """

    name: str
    pretraining_recipe: str
    finetuning_settings: Mapping[str, Any] = field(default_factory=dict)
    pretraining_settings: Mapping[str, Any] = field(default_factory=dict)
    paper_scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def recipe(self) -> str:
        """Name of the shipped recipe that pre-trains the model of the row."""
        return f"pretrain/{self.pretraining_recipe}"

    @property
    def model_name(self) -> str:
        """Directory name of the pre-trained model. Rows with the same recipe and settings share the model."""
        return self.name if self.pretraining_settings else self.pretraining_recipe


@dataclass(frozen=True)
class AblationTable:
    """One of the paper's ablation tables; `source` cites it."""

    rows: list[AblationRow]
    tasks: list[DownstreamTask]
    source: str


def _make_task(name: str, title: str, command: str) -> DownstreamTask:
    return DownstreamTask(name, title, command, "accuracy", {"data": name})


MNLI, QNLI = _make_task("mnli", "MNLI-m", "nli"), _make_task("qnli", "QNLI", "classify")
MRPC, SST2 = _make_task("mrpc", "MRPC", "classify"), _make_task("sst2", "SST-2", "classify")
SQUAD = DownstreamTask("squad", "SQuAD", "qa", "f1", {"squad": "v1"}, 1.0, "overlap")
# Not in the paper.
WNUT17 = DownstreamTask("wnut17", "WNUT-17", "ner", "f1", {"data": "wnut17"}, baseline="frequent_tag")
FALLBACK_TASK = _make_task("imdb", "IMDB", "classify")  # not in the paper, but available without a download


def _make_objective_row(
    name: str, recipe_suffix: str, *paper_scores: float, **finetuning_settings: Any
) -> AblationRow:
    scores = dict(zip(("mnli", "qnli", "mrpc", "sst2", "squad"), paper_scores, strict=False))
    return AblationRow(name, f"objective-{recipe_suffix}", finetuning_settings, paper_scores=scores)


def _make_size_row(layers: int, hidden_size: int, heads: int, *paper_scores: float) -> AblationRow:
    name = f"{layers}-{hidden_size}-{heads}"
    scores = dict(zip(("perplexity", "mnli", "mrpc", "sst2"), paper_scores, strict=False))
    return AblationRow(name, f"size-{name}", paper_scores=scores)


# The model and tokenizer of the row mlm with new, random weights, which shows what pre-training is worth.
NO_PRETRAINING = AblationRow(
    "none", "objective-mlm",
    pretraining_settings={"epochs": 0, "max_steps": None, "embedding_init": "random"},
)  # fmt: skip
OBJECTIVES = AblationTable(
    [
        _make_objective_row("mlm+nsp", "mlm-nsp", 84.4, 88.4, 86.7, 92.7, 88.5),
        _make_objective_row("mlm", "mlm", 83.9, 84.9, 86.5, 92.6, 87.9),
        _make_objective_row("ltr", "ltr", 82.1, 84.3, 77.5, 92.1, 77.8),
        _make_objective_row("ltr+bilstm", "ltr", 82.1, 84.1, 75.7, 91.6, 84.9, head="bilstm"),
        _make_objective_row("mlm+sop", "mlm-sop"),
        NO_PRETRAINING,
    ],
    [MNLI, QNLI, MRPC, SST2, SQUAD, WNUT17],
    "Devlin et al. 2018, table 5 (BERT-BASE)",
)
SIZES = AblationTable(
    [
        _make_size_row(2, 64, 1),
        _make_size_row(2, 128, 2),
        _make_size_row(4, 256, 4),
        _make_size_row(3, 768, 12, 5.84, 77.9, 79.8, 88.4),
        _make_size_row(6, 768, 3, 5.24, 80.6, 82.2, 90.7),
        _make_size_row(6, 768, 12, 4.68, 81.9, 84.8, 91.3),
        _make_size_row(12, 768, 12, 3.99, 84.4, 86.7, 92.9),
        _make_size_row(12, 1024, 16, 3.54, 85.7, 86.9, 93.3),
        _make_size_row(24, 1024, 16, 3.23, 86.6, 87.8, 93.7),
    ],
    [MNLI, MRPC, SST2, WNUT17],
    "Devlin et al. 2018, table 6",
)
TABLES = {"objectives": OBJECTIVES, "sizes": SIZES}
