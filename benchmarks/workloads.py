"""Define the workloads of `training.py`, and sample their rows once for all systems."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import qa_data
from harness import SEED


@dataclass(frozen=True)
class Workload:
    """A dataset and the common settings of all systems; `rows` is the number of training rows."""

    name: str
    title: str
    task: str
    rows: int
    eval_rows: int
    max_length: int
    batch_size: int
    learning_rate: float
    file_format: str = "jsonl"
    metric: str = "accuracy"

    def resize(self, rows: int | None) -> Workload:
        """Return the workload with this number of training rows, and at most as many validation rows."""
        return (
            self
            if rows is None
            else dataclasses.replace(self, rows=rows, eval_rows=min(self.eval_rows, rows))
        )

    def __str__(self) -> str:
        return (
            f"{self.rows:,} training examples, {self.eval_rows:,} validation examples, at most "
            f"{self.max_length} tokens, "
            f"batches of {self.batch_size}, learning rate {self.learning_rate:g}"
        )


WORKLOADS = {
    work.name: work
    for work in (
        Workload("sst2", "SST-2", "classify", 6000, 872, 128, 32, 5e-5),
        Workload("imdb", "IMDB", "classify", 600, 400, 256, 16, 2e-4),
        Workload("squad", "SQuAD v1.1", "qa", 300, 100, 384, 12, 2e-4, "json", "f1"),
    )
}


def write_data(work: Workload, data_dir: Path, folder: Path) -> None:
    """Sample the rows with a fixed seed, and write them for all systems."""
    folder.mkdir(parents=True)
    if work.task == "qa":
        qa_data.write_splits(data_dir / "squad" / "dev-v1.1.json", folder, work.rows, work.eval_rows)
        (folder / "dev.json").rename(folder / "validation.json")
        return
    from bertkit.pipeline.prepare import create_task, select_dataset_defaults
    from bertkit.pipeline.splitting import split_and_sample
    from bertkit.tasks.classify import Classify, ClassifyConfig
    from bertkit.utils.files import write_jsonl
    from bertkit.utils.reporting import Reporter

    sampled: dict[str, Any] = {
        "max_train_samples": work.rows,
        "max_eval_samples": work.eval_rows,
        "seed": SEED,
    }
    task = create_task(work.task, ClassifyConfig(data=work.name, data_dir=str(data_dir), **sampled))
    dataset = task.load_data(Reporter())
    task.config = dataclasses.replace(task.config, **select_dataset_defaults(dataset, Classify))
    splits, _ = split_and_sample(task, task.parse_dataset(dataset).splits)
    for split in ("train", "validation"):
        texts, labels = (
            splits[split][getattr(task.config, f"{column}_column")] for column in ("text", "label")
        )
        rows = ({"text": text, "label": label} for text, label in zip(texts, labels, strict=True))
        write_jsonl(folder / f"{split}.jsonl", rows)


def compute_squad_f1(folder: Path, answers: dict[str, str]) -> float:
    """Compute the F1 of SQuAD 1.1."""
    from bertkit.metrics.squad import average_scores_v1, score_answers_v1

    articles = json.loads((folder / "validation.json").read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    questions = [question for paragraph in paragraphs for question in paragraph["qas"]]
    gold = [[answer["text"] for answer in question["answers"]] for question in questions]
    return average_scores_v1(score_answers_v1(gold, [answers[question["id"]] for question in questions]))[
        "f1"
    ]
