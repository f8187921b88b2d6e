"""The paper's two ablations: their rows, what each row is fine-tuned on, and the paper's figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DownstreamTask:
    """A task that every row is fine-tuned on.

    Attributes:
        name: what `--tasks` calls it.
        title: the paper's name for it.
        kind: the command.
        metric: what the table shows of the validation split.
        known: the data set.
        own: settings beside the data set.
        scale: of the metric, to percent.
    """

    name: str
    title: str
    command: str
    metric: str
    dataset: str
    settings: Mapping[str, Any]
    scale: float = 100.0


@dataclass(frozen=True)
class AblationRow:
    """A line of a table.

    Attributes:
        name: what `--rows` calls it.
        pretrained: its recipe is `pretrain/PRETRAINED`; rows may share one.
        own: settings of fine-tuning.
        paper: task -> the paper's figure, in percent; of sizes the perplexity too.
    """

    name: str
    pretraining_recipe: str
    finetuning_settings: Mapping[str, Any] = field(default_factory=dict)
    paper_scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AblationTable:
    """One of the paper's tables."""

    rows: list[AblationRow]
    tasks: list[DownstreamTask]
    source: str


def _on(name: str, title: str, kind: str) -> DownstreamTask:
    return DownstreamTask(name, title, kind, "accuracy", name, {"data": name})


MNLI, QNLI = _on("mnli", "MNLI-m", "nli"), _on("qnli", "QNLI", "classify")
MRPC, SST2 = _on("mrpc", "MRPC", "classify"), _on("sst2", "SST-2", "classify")
SQUAD = DownstreamTask("squad", "SQuAD", "qa", "f1", "squad", {"squad": "v1"}, 1.0)
FALLBACK_TASK = _on("imdb", "IMDB", "classify")  # not the paper's, but at hand where nothing else is


def _objective(name: str, pretrained: str, *figures: float, **own: Any) -> AblationRow:
    paper = zip(("mnli", "qnli", "mrpc", "sst2", "squad"), figures, strict=False)
    return AblationRow(name, f"objective-{pretrained}", own, dict(paper))


def _size(layers: int, hidden: int, heads: int, *figures: float) -> AblationRow:
    name = f"{layers}-{hidden}-{heads}"
    return AblationRow(
        name, f"size-{name}", {}, dict(zip(("perplexity", "mnli", "mrpc", "sst2"), figures, strict=False))
    )


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
