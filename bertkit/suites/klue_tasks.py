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


def _make_task(
    name: str, title: str, console_metric: str, *scores: tuple[str, float] | tuple[str, float, str]
) -> KlueTask:
    reported = tuple(
        ReportedScore("validation", metric, published, baseline_metric=next(iter(baseline_metric), ""))
        for metric, published, *baseline_metric in scores
    )
    return KlueTask(name, (title,) * len(reported), reported, {}, console_metric=console_metric)


# Scores of KLUE-BERT-base on the test sets: Park et al. 2021, table in the repository KLUE-benchmark/KLUE.
# A third value is the name of the score of the baselines that has the same definition.
KLUE_TASKS = [
    _make_task("ynat", "YNAT", "f1", ("macro_f1", 85.49, "f1")),
    _make_task("sts", "KLUE-STS", "pearson", ("pearson", 90.85, "pearson"), ("paraphrase_f1", 82.84)),
    _make_task("nli", "KLUE-NLI", "accuracy", ("accuracy", 81.63, "accuracy")),
    _make_task("ner", "KLUE-NER", "f1", ("entity_f1", 84.77), ("character_f1", 91.28)),
    _make_task("re", "KLUE-RE", "f1", ("micro_f1", 66.44), ("auprc", 66.17)),
    _make_task("mrc", "KLUE-MRC", "exact", ("exact_match", 62.32), ("rouge_w", 68.51)),
]
