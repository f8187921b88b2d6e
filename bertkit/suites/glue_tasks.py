"""GLUE: its tasks, the scores the BERT paper reports of each, and the files its leaderboard takes."""

from dataclasses import dataclass
from typing import Literal

PAPER_LEARNING_RATES = (5e-5, 4e-5, 3e-5, 2e-5)  # Devlin et al. 2018, 4.1


@dataclass(frozen=True)
class ReportedScore:
    """A score of a split, and what the paper reports of it on the test set, in percent (table 1)."""

    split: str
    metric: str
    bert_base: float | None = None
    bert_large: float | None = None


@dataclass(frozen=True)
class GlueTask:
    """One task. The data set and the recipe `glue/NAME` have its name.

    Attributes:
        titles: the name in the paper, one for each figure.
        figures: the first one chooses the learning rate.
        files: split -> file of the leaderboard's.
        spelling: how the leaderboard spells a label: its number, its name, or a score from 0 to 5.
    """

    name: str
    titles: tuple[str, ...]
    scores: tuple[ReportedScore, ...]
    submission_files: dict[str, str]
    label_format: Literal["number", "name", "score"] = "number"


def _task(name: str, title: str, *figures: tuple, spelling: Literal["number", "name", "score"]) -> GlueTask:
    shown = tuple(ReportedScore("validation", *figure) for figure in figures)
    return GlueTask(name, (title,) * len(shown), shown, {"test": f"{title}.tsv"}, spelling)


MNLI = GlueTask(
    "mnli",
    ("MNLI-m", "MNLI-mm"),
    (
        ReportedScore("validation", "accuracy", 84.6, 86.7),
        ReportedScore("validation_mismatched", "accuracy", 83.4, 85.9),
    ),
    {"test": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", "diagnostic": "AX.tsv"},
    "name",
)
GLUE_TASKS = [
    MNLI,
    _task("qqp", "QQP", ("positive_f1", 71.2, 72.1), ("accuracy",), spelling="number"),
    _task("qnli", "QNLI", ("accuracy", 90.5, 92.7), spelling="name"),
    _task("sst2", "SST-2", ("accuracy", 93.5, 94.9), spelling="number"),
    _task("cola", "CoLA", ("matthews", 52.1, 60.5), spelling="number"),
    _task("stsb", "STS-B", ("spearman", 85.8, 86.5), ("pearson",), spelling="score"),
    _task("mrpc", "MRPC", ("positive_f1", 88.9, 89.3), ("accuracy",), spelling="number"),
    _task("rte", "RTE", ("accuracy", 66.4, 70.1), spelling="name"),
    _task("wnli", "WNLI", ("accuracy",), spelling="number"),
]
