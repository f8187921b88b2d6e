"""The KLUE tasks, with their official metrics and the published scores of KLUE-BERT."""

from dataclasses import dataclass

from bertkit.suites.glue_tasks import GlueTask, ReportedScore


@dataclass(frozen=True)
class KlueTask(GlueTask):
    """A KLUE task.

    Attributes:
        console_metric: Score of a single run on the console; the official scores follow when it is finished.
    """

    console_metric: str = "accuracy"

    @property
    def run_metric(self) -> str:
        """Validation score of a single run on the console."""
        return self.console_metric

    @property
    def recipe(self) -> str:
        """Name of the shipped recipe of the task."""
        return f"klue/{self.name}"

    @property
    def dataset(self) -> str:
        """Name of the dataset of the task."""
        return f"klue-{self.name}"


def _make_task(name: str, title: str, console_metric: str, *scores: ReportedScore) -> KlueTask:
    return KlueTask(name, (title,) * len(scores), scores, {}, console_metric=console_metric)


def _make_score(metric: str, published: float, baseline_metric: str = "") -> ReportedScore:
    return ReportedScore("validation", metric, published, baseline_metric=baseline_metric)


# Published scores of KLUE-BERT-base: README of the repository KLUE-benchmark/KLUE for version 1.1 of the data
# (November 2021). It does not name the split.
# The third argument is the score of the baselines that has the same definition.
KLUE_TASKS = [
    _make_task("ynat", "YNAT", "f1", _make_score("macro_f1", 85.73, "f1")),
    _make_task(
        "sts",
        "KLUE-STS",
        "pearson",
        _make_score("pearson", 90.85, "pearson"),
        _make_score("paraphrase_f1", 82.84),
    ),
    _make_task("nli", "KLUE-NLI", "accuracy", _make_score("accuracy", 81.63, "accuracy")),
    _make_task("ner", "KLUE-NER", "f1", _make_score("entity_f1", 83.97), _make_score("character_f1", 91.39)),
    _make_task("re", "KLUE-RE", "f1", _make_score("micro_f1", 66.44), _make_score("auprc", 66.17)),
    _make_task("mrc", "KLUE-MRC", "exact", _make_score("exact_match", 62.32), _make_score("rouge_w", 68.51)),
]
