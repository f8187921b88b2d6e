"""The GLUE tasks, with the paper's scores and the leaderboard's file formats."""

from dataclasses import dataclass
from typing import Literal

PAPER_LEARNING_RATES = (5e-5, 4e-5, 3e-5, 2e-5)  # Devlin et al. 2018, section 4.1
LabelFormat = Literal["number", "name", "score"]


@dataclass(frozen=True)
class ReportedScore:
    """A score of one split, and the paper's scores on the corresponding test set (table 1, percent)."""

    split: str
    metric: str
    bert_base: float | None = None
    bert_large: float | None = None


@dataclass(frozen=True)
class GlueTask:
    """A GLUE task. Its dataset is called `name`, and its recipe `glue/NAME`.

    Attributes:
        name: The task as `--tasks` calls it.
        titles: The paper's names, one for each score.
        scores: The scores in the table; the first one selects the learning rate.
        submission_files: Split -> file of the leaderboard.
        label_format: How the leaderboard writes a label: its number, its name, or a score from 0 to 5.
    """

    name: str
    titles: tuple[str, ...]
    scores: tuple[ReportedScore, ...]
    submission_files: dict[str, str]
    label_format: LabelFormat = "number"

    @property
    def recipe(self) -> str:
        """The shipped recipe of the task."""
        return f"glue/{self.name}"


def _task(name: str, title: str, *scores: tuple, label_format: LabelFormat) -> GlueTask:
    reported = tuple(ReportedScore("validation", *score) for score in scores)
    return GlueTask(name, (title,) * len(reported), reported, {"test": f"{title}.tsv"}, label_format)


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
    _task("qqp", "QQP", ("positive_f1", 71.2, 72.1), ("accuracy",), label_format="number"),
    _task("qnli", "QNLI", ("accuracy", 90.5, 92.7), label_format="name"),
    _task("sst2", "SST-2", ("accuracy", 93.5, 94.9), label_format="number"),
    _task("cola", "CoLA", ("matthews", 52.1, 60.5), label_format="number"),
    _task("stsb", "STS-B", ("spearman", 85.8, 86.5), ("pearson",), label_format="score"),
    _task("mrpc", "MRPC", ("positive_f1", 88.9, 89.3), ("accuracy",), label_format="number"),
    _task("rte", "RTE", ("accuracy", 66.4, 70.1), label_format="name"),
    _task("wnli", "WNLI", ("accuracy",), label_format="number"),
]
