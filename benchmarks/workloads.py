"""Define the workloads of `training.py`, and sample their rows once for all systems."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import qa_data
import review_data
from harness import SEED

ENDINGS = 4  # of each question of CODAH
QUESTION_WORDS = ("who", "what", "when", "where", "how", "which")
VALIDATION_FRACTION = 10  # of the reviews for pre-training, one in this number


@dataclass(frozen=True)
class Workload:
    """A dataset and the common settings of all systems.

    Attributes:
        rows: Number of training rows; in pre-training, of film reviews.
        folder: Directory in DATA that contains the dataset, if it is not part of a package.
        metric: Name of the score in `metrics.json`.
        score_factor: 100 for scores that are shown in percent.
        speed: The speed that is compared.
    """

    name: str
    title: str
    task: str
    rows: int
    eval_rows: int
    max_length: int
    batch_size: int
    learning_rate: float
    folder: str | None = None
    file_format: str = "jsonl"
    metric: str = "accuracy"
    score_factor: int = 100
    speed: str = "examples_per_second"

    def resize(self, rows: int | None) -> Workload:
        """Return the workload with this number of training rows, and at most as many validation rows."""
        if rows is None:
            return self
        return dataclasses.replace(self, rows=rows, eval_rows=min(self.eval_rows, rows))

    def __str__(self) -> str:
        return (
            f"{self.rows:,} training rows, {self.eval_rows:,} validation rows, at most {self.max_length} "
            f"tokens, batches of {self.batch_size}, learning rate {self.learning_rate:g}"
        )


WORKLOADS = {
    work.name: work
    for work in (
        Workload("sst2", "SST-2", "classify", 5000, 872, 128, 32, 5e-5, "SST-2"),
        Workload("imdb", "IMDB", "classify", 500, 400, 256, 16, 2e-4),
        Workload("squad", "SQuAD v1.1", "qa", 300, 100, 384, 12, 2e-4, "squad", "json", "f1", 1),
        Workload(
            "pretrain", "Pre-training", "pretrain-mlm-nsp", 1000, 100, 64, 64, 1e-4, file_format="txt",
            metric="loss", score_factor=1, speed="tokens_per_second",
        ),
        Workload("wnut17", "WNUT-17", "ner", 1000, 1009, 128, 16, 3e-4, "wnut17", metric="f1"),
        Workload("codah", "CODAH", "swag", 600, 100, 64, 8, 5e-5, "codah"),
        Workload("questions", "Short questions", "classify", 1600, 100, 32, 16, 5e-5, "squad"),
    )
}  # fmt: skip


# ---- the data


def write_data(work: Workload, data_dir: Path | None, folder: Path) -> None:
    """Sample the rows with a fixed seed, and write them for all systems."""
    folder.mkdir(parents=True)
    if work.task == "pretrain-mlm-nsp":
        write_reviews(work, folder)
    elif work.task == "qa":
        assert data_dir is not None
        qa_data.write_splits(data_dir / "squad" / "dev-v1.1.json", folder, work.rows, work.eval_rows)
        (folder / "dev.json").rename(folder / "validation.json")
    elif work.name == "questions":
        assert data_dir is not None
        write_questions(work, data_dir / "squad" / "dev-v1.1.json", folder)
    else:
        write_rows(work, data_dir, folder)


def write_reviews(work: Workload, folder: Path) -> None:
    """Write film reviews with one sentence per line, and a blank line after each review."""
    by_label = review_data.read_reviews()
    reviews = [review for group in by_label.values() for review in group if len(review) > 1]
    sampled = random.Random(SEED).sample(reviews, work.rows + work.eval_rows)
    for split, part in (("validation", sampled[: work.eval_rows]), ("train", sampled[work.eval_rows :])):
        text = "".join("\n".join(review) + "\n\n" for review in part)
        (folder / f"{split}.txt").write_text(text, "utf-8")


def write_questions(work: Workload, source: Path, folder: Path) -> None:
    """Write questions of SQuAD with 5 to 9 words; the label is the question word.

    They are as short as those of TREC (Li and Roth 2002), about 10 tokens.
    """
    articles = json.loads(source.read_text("utf-8"))["data"]
    questions = [
        question["question"].strip()
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    rows = [
        {"text": text, "label": words[0].lower()}
        for text in dict.fromkeys(questions)
        if 5 <= len(words := text.split()) <= 9 and words[0].lower() in QUESTION_WORDS
    ]
    sampled = random.Random(SEED).sample(rows, work.rows + work.eval_rows)
    for split, part in (("validation", sampled[: work.eval_rows]), ("train", sampled[work.eval_rows :])):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in part]
        (folder / f"{split}.jsonl").write_text("".join(lines), "utf-8")


def write_rows(work: Workload, data_dir: Path | None, folder: Path) -> None:
    """Write the rows of a fine-tuning task as JSON lines."""
    from bertkit.run.load_data import create_task, select_dataset_defaults, split_and_sample
    from bertkit.tasks import task_class
    from bertkit.utils.files import write_jsonl

    task_type = task_class(work.task)
    config = task_type.definition.config(
        data=work.name, data_dir=str(data_dir) if data_dir else None, max_train_samples=work.rows,
        max_eval_samples=work.eval_rows, seed=SEED,
    )  # fmt: skip
    task = create_task(work.task, config)
    dataset = task.load_data()
    task.resolve(**select_dataset_defaults(dataset, task_type))
    splits, _ = split_and_sample(task, task.parse_dataset(dataset).splits)
    train, validation = (
        list(FORMATTERS[work.task](task, splits[split])) for split in ("train", "validation")
    )
    write_jsonl(folder / "train.jsonl", train)
    write_jsonl(folder / "validation.jsonl", remove_unseen_tags(train, validation))


def remove_unseen_tags(train: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without tags that a small training sample lacks."""
    known = {tag for row in train for tag in row.get("tags", ())}
    return [row for row in rows if known.issuperset(row.get("tags", ()))]


def format_texts(task: Any, rows: Any) -> Iterator[dict[str, Any]]:
    """Yield rows with `text` and `label`."""
    columns = (rows[getattr(task.config, f"{name}_column")] for name in ("text", "label"))
    return ({"text": text, "label": label} for text, label in zip(*columns, strict=True))


def format_sentences(_: Any, rows: Any) -> Iterator[dict[str, Any]]:
    """Yield rows with `tokens` and `tags`, in IOB2."""
    columns = (rows["tokens"], rows["iob2"])
    return ({"tokens": list(words), "tags": list(tags)} for words, tags in zip(*columns, strict=True))


def format_questions(task: Any, rows: Any) -> Iterator[dict[str, Any]]:
    """Yield rows with `context`, `ending0` and so on, and `label`, the correct ending, counted from 0."""
    labels, contexts = task.encode_labels(rows), rows[task.config.context_column]
    for context, endings, label in zip(contexts, task.parse_endings(rows), labels, strict=True):
        if len(endings) == ENDINGS:
            yield {
                "context": context,
                **{f"ending{number}": ending for number, ending in enumerate(endings)},
                "label": int(label),
            }


FORMATTERS: dict[str, Callable[[Any, Any], Iterable[dict[str, Any]]]] = {
    "classify": format_texts,
    "ner": format_sentences,
    "swag": format_questions,
}


def compute_squad_f1(folder: Path, answers: dict[str, str]) -> float:
    """Compute the F1 of SQuAD 1.1."""
    from bertkit.tasks.qa.predictions import average_scores, score_answers

    articles = json.loads((folder / "validation.json").read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    questions = [question for paragraph in paragraphs for question in paragraph["qas"]]
    gold = [[answer["text"] for answer in question["answers"]] for question in questions]
    predicted = [answers[question["id"]] for question in questions]
    return average_scores(score_answers(gold, predicted, "v1"))["f1"]
