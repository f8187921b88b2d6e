"""Compare `evaluate --minimal-pairs` with a loop of one forward pass per mask, and with other code.

    python benchmarks/minimal_pairs.py --pairs DIR
    python benchmarks/minimal_pairs.py --pairs DIR --official CHECKOUT

The models are random BERTs with the vocabulary of `minilm`. The loop runs transformers' model on one sentence
with one mask at a time. `--random N` scores N random models of 2 x 128 on all pairs; their mean accuracy
should be 50 %. `--official` also runs babylm/evaluation-pipeline-2025 from a checkout, and compares both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from docs_page import format_table
from harness import OUT_HELP, ROOT, find_packaged_model, format_report, publish

SIZES = {"2 x 128": (2, 128, 2), "6 x 384": (6, 384, 12)}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=Path, required=True, help="directory of BLiMP's JSONL files")
    parser.add_argument("--sample", type=int, default=134, help="pairs that the loop scores")
    parser.add_argument("--random", type=int, default=0, help="random models that score all pairs")
    parser.add_argument("--official", type=Path, help="checkout of babylm/evaluation-pipeline-2025")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


def save_random_model(folder: Path, size: tuple[int, int, int], seed: int) -> Path:
    """Save a random BERT with a masked LM head."""
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    layers, hidden, heads = size
    tokenizer = AutoTokenizer.from_pretrained(find_packaged_model())
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer), num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def score_by_loop(model_folder: Path, texts: list[str]) -> tuple[np.ndarray, float]:
    """Return the score of each text from one forward pass per mask, and the seconds."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForMaskedLM.from_pretrained(model_folder).eval()
    scores, started = [], time.perf_counter()
    for text in texts:
        ids, score = tokenizer(text, return_tensors="pt")["input_ids"], 0.0
        for position in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, position] = tokenizer.mask_token_id
            logits = model(input_ids=masked).logits[0, position]
            score += float(logits.log_softmax(-1)[ids[0, position]])
        scores.append(score)
    return np.array(scores), time.perf_counter() - started


def evaluate(model_folder: Path, pairs: Path, output: Path, sample: int | None = None) -> dict:
    """Return the result of `bertkit evaluate --minimal-pairs` from this process."""
    import bertkit

    run = bertkit.evaluate(
        run=str(model_folder), minimal_pairs=str(pairs), output_dir=str(output), overwrite=True,
        max_eval_samples=sample,
    )  # fmt: skip
    lines = (output / "pairs.jsonl").read_text("utf-8").splitlines()
    return {**run.metrics, "records": [json.loads(line) for line in lines]}


def compare_with_loop(args: argparse.Namespace, scratch: Path) -> dict[str, list[str]]:
    """Return the measurements for each size."""
    rows = {}
    for name, size in SIZES.items():
        folder = save_random_model(scratch / name.replace(" ", ""), size, 0)
        evaluate(folder, args.pairs, scratch / "output", args.sample)  # the first calls of kernels are slow
        result = evaluate(folder, args.pairs, scratch / "output", args.sample)
        texts = [record[key] for record in result["records"] for key in ("sentence_good", "sentence_bad")]
        scores = [record[key] for record in result["records"] for key in ("score_good", "score_bad")]
        expected, seconds = score_by_loop(folder, texts)
        own = result["seconds"]
        rows[name] = [
            f"{len(texts) / 2 / seconds:.1f}", f"{len(texts) / 2 / own:.1f}",
            f"{seconds / own:.1f}", f"{np.abs(expected - np.array(scores)).max():.1e}",
        ]  # fmt: skip
    return rows


def score_random_models(args: argparse.Namespace, scratch: Path) -> list[str]:
    """Return a line about the accuracy of random models on all pairs."""
    values = []
    for seed in range(args.random):
        folder = save_random_model(scratch / f"random-{seed}", SIZES["2 x 128"], seed)
        values.append(100 * evaluate(folder, args.pairs, scratch / "output")["accuracy"])
    listed = ", ".join(f"{value:.1f}" for value in values)
    return ["", f"Accuracy of {len(values)} random models (2 x 128): {listed}; mean {np.mean(values):.1f}."]


def compare_with_official(args: argparse.Namespace, scratch: Path) -> list[str]:
    """Return a line on the choices of the official code and ours, for a random model on all pairs."""
    folder = save_random_model(scratch / "official", SIZES["2 x 128"], 1)
    arguments = ["--data_path", str(args.pairs.resolve()), "--task", "blimp", "--backend", "mlm"]
    arguments += ["--model_path_or_name", str(folder), "--output_dir", str(scratch / "results")]
    command = [sys.executable, "-m", "evaluation_pipeline.sentence_zero_shot.run", *arguments]
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(args.official), "HF_HUB_OFFLINE": "1"}
    subprocess.run([*command, "--save_predictions"], cwd=args.official, env=environment, check=True)
    seconds = time.perf_counter() - started
    [path] = (scratch / "results").rglob("predictions.json")
    official = json.loads(path.read_text("utf-8"))
    result = evaluate(folder, args.pairs, scratch / "output")
    equal, correct, total = 0, 0, 0
    seen: dict[str, int] = {}
    for record in result["records"]:
        name = record["phenomenon"]
        number = seen[name] = seen.get(name, -1) + 1
        chosen = official[name]["predictions"][number]["pred"].strip()
        is_correct = chosen == record["sentence_good"].strip()
        equal, correct, total = equal + (is_correct == record["correct"]), correct + is_correct, total + 1
    return [
        "",
        f"babylm/evaluation-pipeline-2025: {equal:,} of {total:,} choices are equal; accuracy "
        f"{100 * correct / total:.2f}, bertkit {100 * result['accuracy']:.2f}. Its command took "
        f"{seconds:.0f} s with its start, and bertkit scored the pairs in {result['seconds']:.0f} s.",
    ]


def main() -> None:
    """Measure, and print the report."""
    args = parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        columns = ["loop, pairs/s", "bertkit, pairs/s", "ratio", "largest difference"]
        lines = format_table(columns, compare_with_loop(args, scratch))
        if args.random:
            lines += score_random_models(args, scratch)
        if args.official:
            lines += compare_with_official(args, scratch)
    about = f"One thread, {args.sample} pairs; the difference is that of the score of a sentence, in nats."
    publish(format_report("Minimal pairs", about, lines, ["python benchmarks/minimal_pairs.py"]), args.out)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
