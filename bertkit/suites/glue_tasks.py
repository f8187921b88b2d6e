"""The GLUE tasks, with the scores of the paper and the file formats of the leaderboard."""

from dataclasses import dataclass
from typing import Literal

PAPER_LEARNING_RATES = (5e-5, 4e-5, 3e-5, 2e-5)  # Devlin et al. 2018, section 4.1
LabelFormat = Literal["number", "name", "score"]


@dataclass(frozen=True)
class ReportedScore:
    """A score in our table, and the scores of the paper.

    Attributes:
        split: Validation split.
        metric: Name of the score.
        published: Published score of a model of this size in percent: BERT-BASE on the corresponding test set
            (GLUE, table 1 of the paper), or KLUE-BERT-base (KLUE, whose README does not name the split).
        published_large: The same of BERT-LARGE; None for KLUE.
        baseline_metric: Name of the score of baselines with the same definition; None for `metric`, and empty
            if baselines have no such score.
    """

    split: str
    metric: str
    published: float | None = None
    published_large: float | None = None
    baseline_metric: str | None = None


@dataclass(frozen=True)
class GlueTask:
    """A GLUE task.

    Attributes:
        name: Name of the task in `--tasks`, and of its dataset.
        titles: Names of the task in the paper, one for each score.
        scores: The scores in the table; the first score selects the learning rate.
        submission_files: Names of the leaderboard files by split.
        label_format: What a leaderboard file contains: label numbers, label names, or scores from 0 to 5.
    """

    name: str
    titles: tuple[str, ...]
    scores: tuple[ReportedScore, ...]
    submission_files: dict[str, str]
    label_format: LabelFormat = "number"

    @property
    def recipe(self) -> str:
        """Name of the shipped recipe of the task."""
        return f"glue/{self.name}"

    @property
    def dataset(self) -> str:
        """Name of the dataset of the task."""
        return self.name

    @property
    def run_metric(self) -> str:
        """Validation score of a single run on the console."""
        return self.scores[0].metric


def _make_task(name: str, title: str, *scores: tuple, label_format: LabelFormat) -> GlueTask:
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
    _make_task("qqp", "QQP", ("positive_f1", 71.2, 72.1), ("accuracy",), label_format="number"),
    _make_task("qnli", "QNLI", ("accuracy", 90.5, 92.7), label_format="name"),
    _make_task("sst2", "SST-2", ("accuracy", 93.5, 94.9), label_format="number"),
    _make_task("cola", "CoLA", ("matthews", 52.1, 60.5), label_format="number"),
    _make_task("stsb", "STS-B", ("spearman", 85.8, 86.5), ("pearson",), label_format="score"),
    _make_task("mrpc", "MRPC", ("positive_f1", 88.9, 89.3), ("accuracy",), label_format="number"),
    _make_task("rte", "RTE", ("accuracy", 66.4, 70.1), label_format="name"),
    _make_task("wnli", "WNLI", ("accuracy",), label_format="number"),
]
