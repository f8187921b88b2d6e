"""Measure `bertkit qa` without the model: building features, extracting answers, memory.

    python benchmarks/qa_speed.py --data-dir DATA --out qa.md

features: building features, compared with a call of the tokenizer.
answers: from logits to predictions and n-best lists, compared with the loops in `qa_baseline.py` on the same
random logits.
memory: how much the prediction of many windows increases the peak memory.
Everything runs in this process, without training.

DATA is a directory that contains squad/dev-v1.1.json. Progress goes to standard error, the report to standard
output.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import accumulate, cycle, groupby, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer
from transformers.modeling_outputs import QuestionAnsweringModelOutput

import qa_baseline
from bertkit.data.collators import PaddingCollator
from bertkit.data.table import Rows
from bertkit.tasks.base import Outputs
from bertkit.tasks.qa.features import Limits, QuestionFeatures, build_question_features
from bertkit.tasks.qa.predictions import QaEvaluation
from bertkit.training.scoring import predict_logits
from harness import (
    SEED,
    add_options,
    compute_median_ratio,
    describe_model_and_rounds,
    format_report,
    list_rounds,
    publish,
    validate_options,
)
from ner_data import time_alternating
from process_memory import read_memory_mb

LIMITS = Limits(max_length=384, max_query_length=64, doc_stride=128, max_answer_length=30, n_best=20)
BATCH_SIZE = 24
PARAGRAPHS_JOINED = 10  # paragraphs that are joined to a long one


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read and validate the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "squad/", (2000, "number of questions, from the first one (default: 2000)"), rounds=5)
    parser.add_argument(
        "--part", choices=list(PARTS), action="append", help="repeatable (default: all three)"
    )
    parser.add_argument(
        "--windows", type=int, default=100_000, help="approximate number of windows in the memory part"
    )
    args = parser.parse_args(argv)
    if args.data_dir is None or not (args.data_dir / "squad" / "dev-v1.1.json").is_file():
        parser.error("no squad/dev-v1.1.json found: give the folder of squad/ with --data-dir")
    validate_options(parser, args)
    if args.windows < 1:
        parser.error("--windows must be at least 1")
    return args


def iterate_squad(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield id, title, context and question of each question."""
    text = (folder / "squad" / "dev-v1.1.json").read_text(encoding="utf-8")
    for article in json.loads(text)["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield question["id"], article["title"], paragraph["context"], question["question"]


def load_questions(args: argparse.Namespace) -> tuple[list[str], list[str], list[str]]:
    """Load ids, questions and contexts of the first questions."""
    rows = list(islice(iterate_squad(args.data_dir), args.rows))
    return [row[0] for row in rows], [row[3] for row in rows], [row[2] for row in rows]


# ---- features


def compare_features(args: argparse.Namespace, tokenizer: Any) -> list[str]:
    """Compare `build_question_features` with a call of the tokenizer."""
    _, questions, contexts = load_questions(args)
    tokenizer_copy = copy.deepcopy(tokenizer)  # the call changes the truncation of its tokenizer
    distinct = [f"{context} {number}" for number, context in enumerate(contexts)]

    def call_tokenizer(contexts: list[str]) -> Callable[[], object]:
        return lambda: tokenizer_copy(
            questions, contexts, truncation="only_second", max_length=384, stride=128,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip

    def build_features(contexts: list[str]) -> Callable[[], object]:
        return lambda: build_question_features(questions, contexts, None, tokenizer, LIMITS, cache=False)

    lines = [f"{len(questions):,} questions, without a cache. The ratio compares seconds."]
    for name, paragraphs in (("unchanged", contexts), ("all different", distinct)):
        calls = {
            "tokenizer(questions, contexts, ...)": call_tokenizer(paragraphs),
            "build_question_features": build_features(paragraphs),
        }
        lines += ["", f"Paragraphs {name}, {len(set(paragraphs)):,} distinct:", ""]
        lines += compare_calls(calls, args, 1, "s")
    return ["## Features", "", *lines]


# ---- answers


def compare_answers(args: argparse.Namespace, tokenizer: Any) -> list[str]:
    """Compare the time from logits to files and the answers with those of the baseline."""
    ids, questions, contexts = load_questions(args)
    built = build_question_features(questions, contexts, None, tokenizer, LIMITS, cache=False)
    logits, windows = make_peaked_logits(built), to_baseline_windows(built)
    rows = Rows.from_columns({"id": ids, "context": contexts}, "dev-v1.1.json")

    def find_baseline_answers() -> qa_baseline.BaselineAnswers:
        return qa_baseline.find_answers(
            logits, windows, ids, contexts, LIMITS.n_best, LIMITS.max_answer_length
        )

    def reduce_outputs() -> Outputs:
        return Outputs(reduce_logits(logits, built), built, rows)

    calls: dict[str, Callable[[], object]] = {
        "baseline loops": lambda: find_baseline_answers().format_files(),
        "bertkit": lambda: ["".join(lines) for lines in evaluate(reduce_outputs()).format_files().values()],
        "of which: reducing the logits": reduce_outputs,
        "of which: reducing the logits and merging windows": lambda: evaluate(reduce_outputs()).nbest,
    }
    about = (
        f"{len(ids):,} questions in {len(built):,} windows, random logits with peaks, batches of "
        f"{BATCH_SIZE}. The time from logits to the text of the three files. The ratio compares times."
    )
    table = compare_calls(calls, args, len(ids) / 1e6, "µs per question")
    return [
        "## Answers",
        "",
        about,
        "",
        *table,
        "",
        *describe_agreement(find_baseline_answers(), reduce_outputs()),
    ]


def make_peaked_logits(built: QuestionFeatures) -> np.ndarray:
    """Return random logits `[num_windows, 2, 384]` with peaks at some spans and at [CLS]; padding is -inf."""
    generator, n = np.random.default_rng(SEED), len(built)
    logits = generator.normal(0, 2, (n, 2, LIMITS.max_length)).astype(np.float32)
    every, place, size = np.arange(n), built.get_context_positions(np.arange(n)), built.stop - built.start
    for height in (8, 6, 4):
        start = generator.integers(size)
        end = np.minimum(start + generator.integers(12, size=n), size - 1)
        logits[every, 0, place + start] += height
        logits[every, 1, place + end] += height
    logits[:, :, 0] += 9
    padding = np.arange(LIMITS.max_length) >= built.sequence_lengths[:, None]
    logits[np.broadcast_to(padding[:, None], logits.shape)] = -np.inf
    return logits


def to_baseline_windows(built: QuestionFeatures) -> qa_baseline.Windows:
    """Convert the features to the windows of `qa_baseline.py`."""
    places = list(zip(built.contexts.start.tolist(), built.contexts.stop.tolist(), strict=True))
    begins = built.get_context_positions(np.arange(len(built))).tolist()
    bounds = zip(begins, built.start.tolist(), built.stop.tolist(), strict=True)
    offsets = [[*repeat(None, begin), *places[start:stop], None] for begin, start, stop in bounds]
    return qa_baseline.Windows(built.question_index.tolist(), offsets)


def reduce_logits(logits: np.ndarray, built: QuestionFeatures) -> np.ndarray:
    """Reduce the logits as prediction does: in batches, longest windows first, padded per batch."""
    lengths = built.sequence_lengths
    order = np.argsort(-lengths, kind="stable")
    batches = [order[first : first + BATCH_SIZE] for first in range(0, len(order), BATCH_SIZE)]
    reduced = [
        built.reduce_logits(torch.from_numpy(logits[rows, :, : lengths[rows[0]]]), rows, {})
        for rows in batches
    ]
    result = np.empty((len(order), reduced[0].shape[1]), np.float32)
    result[order] = torch.cat(reduced).numpy()
    return result


def evaluate(outputs: Outputs) -> QaEvaluation:
    """Return the answers by the rules of SQuAD v2 with a threshold of 0."""
    return QaEvaluation(outputs, "v2", 0.0)


def describe_agreement(baseline: qa_baseline.BaselineAnswers, outputs: Outputs) -> list[str]:
    """Count the questions with the same answer, and compare the scores of the best spans."""
    evaluation = evaluate(outputs)
    nbest = evaluation.nbest
    same = np.equal(evaluation.answers, list(baseline.predictions.values()))
    best, other = nbest.score[nbest.offsets[:-1]], np.array(baseline.scores, np.float32)
    higher, lower, n = best > other, best < other, len(same)
    return [
        f"- same answer: {same.sum()} of {n}; {sum(map(bool, baseline.predictions.values()))} answers of the "
        "baseline are not empty",
        f"- other answer: bertkit's best span scores higher for {(~same & higher).sum()} questions, "
        f"lower for {(~same & lower).sum()}, and equally for {(~same & (best == other)).sum()}",
        f"- best span of all questions: bertkit scores higher for {higher.sum()}, lower for {lower.sum()}; "
        f"the baseline finds no span for {np.isinf(other).sum()}",
    ]


# ---- memory


class RandomScorer(torch.nn.Module):
    """A model with random logits."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> QuestionAnsweringModelOutput:
        """Return random start and end logits, each `[batch, seq_len]`."""
        start, end = self.scale * torch.rand(2, *attention_mask.shape)
        return QuestionAnsweringModelOutput(start_logits=start, end_logits=end)


def measure_memory(args: argparse.Namespace, tokenizer: Any) -> list[str]:
    """Measure how much building features and predicting many windows increases the peak memory."""
    questions, contexts = build_long_rows(args, tokenizer)
    before = read_memory_mb()["VmRSS"]
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory
    built = build_question_features(questions, contexts, None, tokenizer, LIMITS, cache=False)
    after = read_memory_mb()["VmHWM"]
    started = time.perf_counter()
    pad = PaddingCollator(tokenizer.pad_token_id, return_token_type_ids=False)
    logits = predict_logits(RandomScorer(), built, pad, BATCH_SIZE)
    took, raised = time.perf_counter() - started, read_memory_mb()["VmHWM"] - before
    return [
        *("## Memory", ""),
        f"{len(questions):,} questions over {len(set(contexts)):,} paragraphs in {len(built):,} windows of "
        f"{built.sequence_lengths.mean():.0f} tokens on average, with random logits in place of a model.",
        *("", "| | MB |", "|---|---:|"),
        f"| increase of the peak | {raised:.0f} |",
        f"| of which: building features | {after - before:.0f} |",
        f"| reduced logits | {logits.nbytes / 1e6:.0f} |",
        *("", f"Prediction took {took:.0f} s, {took / len(built) * 1e6:.0f} µs per window."),
    ]


def build_long_rows(args: argparse.Namespace, tokenizer: Any) -> tuple[list[str], list[str]]:
    """Repeat questions with long contexts until they have the requested number of windows."""
    rows: list[tuple[str, str]] = []
    for _, article in groupby(iterate_squad(args.data_dir), key=lambda row: row[1]):
        questions_of_article = list(article)
        texts = list(dict.fromkeys(row[2] for row in questions_of_article))
        first = {text: at // PARAGRAPHS_JOINED * PARAGRAPHS_JOINED for at, text in enumerate(texts)}
        rows += [
            (row[3], " ".join(texts[first[row[2]] : first[row[2]] + PARAGRAPHS_JOINED]))
            for row in questions_of_article
        ]
    questions, contexts = map(list, zip(*rows, strict=True))
    built = build_question_features(questions, contexts, None, tokenizer, LIMITS, cache=False)
    counts = accumulate(cycle(np.diff(built.window_offsets).tolist()))
    n = 1 + next(at for at, count in enumerate(counts) if count >= args.windows)
    return list(islice(cycle(questions), n)), list(islice(cycle(contexts), n))


PARTS = {"features": compare_features, "answers": compare_answers, "memory": measure_memory}


# ---- the report


def compare_calls(
    calls: dict[str, Callable[[], object]], args: argparse.Namespace, divisor: float, unit: str
) -> list[str]:
    """Time the calls in turn; return a table of medians and ratios to the first call, and every round."""
    seconds = time_alternating(calls, args.rounds)
    base = next(iter(seconds.values()))
    lines = [f"| | {unit} | ratio | speedup |", "|---|---:|---:|---:|"]
    for name, runs in seconds.items():
        took, ratio = statistics.median(runs) / divisor, compute_median_ratio(runs, base)
        lines.append(f"| {name} | {took:.3g} | {ratio:.3f} | {1 / ratio:.1f} |")
    shown = {name: [f"{run:.3f}" for run in runs] for name, runs in seconds.items()}
    return [*lines, *list_rounds("Seconds", shown)]


def main() -> None:
    """Run the parts and report."""
    args = parse_args()
    torch.set_num_threads(1)  # the tensors are small, and threads would wait for each other on a busy machine
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.backend_tokenizer.no_truncation()  # as bertkit loads it
    tokenizer.backend_tokenizer.no_padding()
    parts = [PARTS[name](args, tokenizer) for name in args.part or PARTS]
    about = (
        f"SQuAD 1.1, dev set; windows of {LIMITS.max_length} tokens, doc stride {LIMITS.doc_stride}; "
        f"{describe_model_and_rounds(args.model, args.rounds)}. Ratios are medians of the "
        "ratios to the first row per round."
    )
    own = f"qa_speed.py --data-dir DATA --rows {args.rows} --rounds {args.rounds} --windows {args.windows}"
    own += "".join(f" --part {name}" for name in args.part or [])
    results = [line for lines in parts for line in [*lines, ""]]
    title = "Speed of bertkit qa: features, answers, memory"
    publish(format_report(title, about, results[:-1], [f"python benchmarks/{own}"]), args.out)


if __name__ == "__main__":
    main()
