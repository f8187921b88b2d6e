"""Measure what `bertkit qa` does around the model: features, answers from scores, memory.

    python benchmarks/qa_speed.py --data-dir SETS --out qa.md

features: compared with a bare call of the tokenizer.
answers: from start and end scores to predictions and n-best lists, compared with the usual loops in
`qa_baseline.py`, on the same random scores.
memory: how much scoring many windows adds to the peak.
Everything runs in this process, and nothing is trained.

SETS is a directory that contains squad/dev-v1.1.json. Progress goes to standard error, the report to standard
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
from bertkit.data.collator import PaddingCollator
from bertkit.data.qa.features import Limits, QuestionFeatures, build_question_features
from bertkit.data.rows import Rows
from bertkit.tasks.evaluation import Outputs
from bertkit.tasks.qa_predictions import QaEvaluation
from bertkit.training.scoring import predict_logits
from bertkit.utils.reporting import Reporter
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

LIMITS = Limits(max_length=384, max_query_length=64, doc_stride=128, max_answer_length=30, n_best=20)
BATCH_SIZE = 24
PARAGRAPHS_JOINED = 10  # paragraphs of an article that make one long one
PROC_STATUS = Path("/proc/self/status")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line and check what can be checked at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "squad/", (2000, "questions, from the first on (default: 2000)"), rounds=5)
    parser.add_argument(
        "--part", choices=list(PARTS), action="append", help="repeatable (default: all three)"
    )
    parser.add_argument("--windows", type=int, default=100_000, help="about how many, in memory")
    args = parser.parse_args(argv)
    if args.data_dir is None or not (args.data_dir / "squad" / "dev-v1.1.json").is_file():
        parser.error("no squad/dev-v1.1.json found: give the folder of squad/ with --data-dir")
    validate_options(parser, args)
    if args.windows < 1:
        parser.error("--windows must be at least 1")
    return args


def iterate_squad(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """The questions: id, article, paragraph, question."""
    text = (folder / "squad" / "dev-v1.1.json").read_text(encoding="utf-8")
    for article in json.loads(text)["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                yield asked["id"], article["title"], paragraph["context"], asked["question"]


def load_questions(args: argparse.Namespace) -> tuple[list[str], list[str], list[str]]:
    """Ids, questions and paragraphs of the first questions."""
    rows = list(islice(iterate_squad(args.data_dir), args.rows))
    return [row[0] for row in rows], [row[3] for row in rows], [row[2] for row in rows]


# ---- features


def compare_features(args: argparse.Namespace, tokenizer: Any) -> list[str]:
    """Compare `build_questions` with a bare call of the tokenizer."""
    _, questions, contexts = load_questions(args)
    alone = copy.deepcopy(tokenizer)  # the bare call leaves its truncation behind in the tokenizer
    unlike = [f"{context} {number}" for number, context in enumerate(contexts)]

    def bare(contexts: list[str]) -> Callable[[], object]:
        return lambda: alone(
            questions, contexts, truncation="only_second", max_length=384, stride=128,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip

    def built(contexts: list[str]) -> Callable[[], object]:
        return lambda: build_question_features(questions, contexts, None, tokenizer, LIMITS, cache=False)

    lines = [f"{len(questions):,} questions, nothing cached. The ratio is of seconds."]
    for name, paragraphs in (("as they are", contexts), ("all different", unlike)):
        calls = {
            "tokenizer(questions, contexts, ...)": bare(paragraphs),
            "build_questions": built(paragraphs),
        }
        lines += ["", f"Paragraphs {name}, {len(set(paragraphs)):,} of them:", ""]
        lines += compare_calls(calls, args, 1, "s")
    return ["## Features", "", *lines]


# ---- answers


def compare_answers(args: argparse.Namespace, tokenizer: Any) -> list[str]:
    """Compare the way from scores to files with the usual one, and the answers of both."""
    ids, questions, contexts = load_questions(args)
    built = build_question_features(questions, contexts, None, tokenizer, LIMITS, cache=False)
    logits, windows = make_peaked_logits(built), to_baseline_windows(built)
    rows = Rows.from_columns({"id": ids, "context": contexts}, "dev-v1.1.json")

    def usual() -> qa_baseline.BaselineAnswers:
        return qa_baseline.find_answers(
            logits, windows, ids, contexts, LIMITS.n_best, LIMITS.max_answer_length
        )

    def ours() -> Outputs:
        return Outputs(reduce_logits(logits, built), built, rows)

    calls: dict[str, Callable[[], object]] = {
        "the usual loops": lambda: usual().format_files(),
        "bertkit": lambda: ["".join(lines) for lines in evaluate(ours()).files().values()],
        "of which: kept": ours,
        "of which: kept and merge": lambda: evaluate(ours()).nbest,
    }
    about = (
        f"{len(ids):,} questions in {len(built):,} windows, random scores with peaks, batches of "
        f"{BATCH_SIZE}. From scores to the text of the three files. The ratio is of time."
    )
    shown = compare_calls(calls, args, len(ids) / 1e6, "µs per question")
    return ["## Answers", "", about, "", *shown, "", *describe_agreement(usual(), ours())]


def make_peaked_logits(built: QuestionFeatures) -> np.ndarray:
    """[windows, 2, 384] noise with some likely answers in each window and a likely [CLS]; -inf is padding."""
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
    """The windows as the usual way has them before it looks for answers."""
    places = list(zip(built.contexts.start.tolist(), built.contexts.stop.tolist(), strict=True))
    begins = built.get_context_positions(np.arange(len(built))).tolist()
    bounds = zip(begins, built.start.tolist(), built.stop.tolist(), strict=True)
    offsets = [[*repeat(None, begin), *places[start:stop], None] for begin, start, stop in bounds]
    return qa_baseline.Windows(built.question_index.tolist(), offsets)


def reduce_logits(logits: np.ndarray, built: QuestionFeatures) -> np.ndarray:
    """What scoring keeps, batch by batch, longest first, each as long as its longest window."""
    lengths = built.sequence_lengths
    order = np.argsort(-lengths, kind="stable")
    parts = [order[first : first + BATCH_SIZE] for first in range(0, len(order), BATCH_SIZE)]
    found = [
        built.reduce_logits(torch.from_numpy(logits[rows, :, : lengths[rows[0]]]), rows, {}) for rows in parts
    ]
    result = np.empty((len(order), found[0].shape[1]), np.float32)
    result[order] = torch.cat(found).numpy()
    return result


def evaluate(outputs: Outputs) -> QaEvaluation:
    """Return the answers by the rules of SQuAD v2 with a threshold of 0."""
    return QaEvaluation(outputs, "v2", 0.0)


def describe_agreement(usual: qa_baseline.BaselineAnswers, ours: Outputs) -> list[str]:
    """Count the questions with the same answer, and whose best span scores higher."""
    evaluation = evaluate(ours)
    nbest = evaluation.nbest
    same = np.equal(evaluation.answers, list(usual.predictions.values()))
    best, other = nbest.score[nbest.offsets[:-1]], np.array(usual.scores, np.float32)
    higher, lower, n = best > other, best < other, len(same)
    return [
        f"- the same answer: {same.sum()} of {n}, {sum(map(bool, usual.predictions.values()))} of the usual "
        "way's not empty",
        f"- another answer: {(~same & higher).sum()} where bertkit's best span has the higher score, "
        f"{(~same & lower).sum()} where it has the lower, {(~same & (best == other)).sum()} the same",
        f"- best span, answered or not: bertkit's higher {higher.sum()}, lower {lower.sum()}; no span at all "
        f"by the usual way {np.isinf(other).sum()}",
    ]


# ---- memory


class RandomScorer(torch.nn.Module):
    """Random scores in place of a model's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> QuestionAnsweringModelOutput:
        """Of starts and ends, [sequences, length] each."""
        start, end = self.scale * torch.rand(2, *attention_mask.shape)
        return QuestionAnsweringModelOutput(start_logits=start, end_logits=end)


def measure_memory(args: argparse.Namespace, tokenizer: Any) -> list[str]:
    """Measure how far features and scores of many windows raise the peak of this process."""
    questions, contexts = build_long_rows(args, tokenizer)
    before = read_process_memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, which an earlier one would hide
    built = build_question_features(questions, contexts, None, tokenizer, LIMITS, cache=False)
    after = read_process_memory_mb("VmHWM")
    started = time.perf_counter()
    pad = PaddingCollator(tokenizer.pad_token_id, return_token_type_ids=False)
    found = predict_logits(RandomScorer(), built, pad, BATCH_SIZE, Reporter())
    took, raised = time.perf_counter() - started, read_process_memory_mb("VmHWM") - before
    return [
        *("## Memory", ""),
        f"{len(questions):,} questions over {len(set(contexts)):,} paragraphs in {len(built):,} windows of "
        f"{built.sequence_lengths.mean():.0f} tokens on average, scored by a stand-in for a model.",
        *("", "| | MB |", "|---|---:|"),
        f"| peak, above what was there before | {raised:.0f} |",
        f"| of which, while features were made | {after - before:.0f} |",
        f"| what is kept of the scores | {found.nbytes / 1e6:.0f} |",
        *("", f"Scoring took {took:.0f} s, {took / len(built) * 1e6:.0f} us a window."),
    ]


def build_long_rows(args: argparse.Namespace, tokenizer: Any) -> tuple[list[str], list[str]]:
    """Questions and long paragraphs, over and over, until they make as many windows as asked."""
    rows: list[tuple[str, str]] = []
    for _, article in groupby(iterate_squad(args.data_dir), key=lambda row: row[1]):
        some = list(article)
        texts = list(dict.fromkeys(row[2] for row in some))
        part = {text: at // PARAGRAPHS_JOINED * PARAGRAPHS_JOINED for at, text in enumerate(texts)}
        rows += [(row[3], " ".join(texts[part[row[2]] : part[row[2]] + PARAGRAPHS_JOINED])) for row in some]
    questions, contexts = map(list, zip(*rows, strict=True))
    built = build_question_features(questions, contexts, None, tokenizer, LIMITS, cache=False)
    counts = accumulate(cycle(np.diff(built.window_offsets).tolist()))
    n = 1 + next(at for at, count in enumerate(counts) if count >= args.windows)
    return list(islice(cycle(questions), n)), list(islice(cycle(contexts), n))


def read_process_memory_mb(name: str) -> float:
    """What Linux says of this process: `VmRSS` is the memory it has, `VmHWM` the most it has had."""
    lines = (line.split() for line in PROC_STATUS.read_text(encoding="ascii").splitlines())
    return next(int(words[1]) / 1024 for words in lines if words and words[0] == f"{name}:")


PARTS = {"features": compare_features, "answers": compare_answers, "memory": measure_memory}


# ---- the report


def compare_calls(
    calls: dict[str, Callable[[], object]], args: argparse.Namespace, divisor: float, unit: str
) -> list[str]:
    """Time the calls in turn; a table of the medians beside the first, and every round."""
    seconds = time_alternating(calls, args.rounds)
    base = next(iter(seconds.values()))
    lines = [f"| | {unit} | ratio | times as fast |", "|---|---:|---:|---:|"]
    for name, runs in seconds.items():
        took, ratio = statistics.median(runs) / divisor, compute_median_ratio(runs, base)
        lines.append(f"| {name} | {took:.3g} | {ratio:.3f} | {1 / ratio:.1f} |")
    shown = {name: [f"{run:.3f}" for run in runs] for name, runs in seconds.items()}
    return [*lines, *list_rounds("Seconds", shown)]


def main() -> None:
    """Run the parts and report."""
    args = parse_args()
    torch.set_num_threads(1)  # the tensors are small, and on a busy machine threads wait for one another
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.backend_tokenizer.no_truncation()  # as bertkit loads it
    tokenizer.backend_tokenizer.no_padding()
    parts = [PARTS[name](args, tokenizer) for name in args.part or PARTS]
    about = (
        f"SQuAD 1.1, dev set; {LIMITS.max_length} tokens, a window every {LIMITS.doc_stride}; "
        f"{describe_model_and_rounds(args.model, args.rounds)}. Ratios are to the first row, taken round "
        f"by round, of "
        "which the median is shown."
    )
    own = f"qa_speed.py --data-dir SETS --rows {args.rows} --rounds {args.rounds} --windows {args.windows}"
    own += "".join(f" --part {name}" for name in args.part or [])
    results = [line for lines in parts for line in [*lines, ""]]
    title = "Speed of bertkit qa: features, answers, memory"
    publish(format_report(title, about, results[:-1], [f"python benchmarks/{own}"]), args.out)


if __name__ == "__main__":
    main()
