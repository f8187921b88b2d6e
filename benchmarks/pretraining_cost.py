"""Estimate what pre-training BERT-BASE on 3.3 billion words costs on 1, 8 and 64 GPUs, and what limits it.

    python benchmarks/pretraining_cost.py

Nothing is measured here. The constants are measurements in docs/benchmarks/, or assumptions that the output
marks. The schedule is that of the paper in tokens: 1,000,000 steps of 256 sequences of 512 tokens.
"""

from __future__ import annotations

import argparse
import math

from docs_page import format_table

WORDS, TOKENS = 3.3e9, 1e6 * 256 * 512
# two novels of Project Gutenberg, with `wc`
BYTES_PER_WORD = 829_070 / 147_998
# docs/benchmarks/preparation.json: seconds per MB on two cores
READ_SECONDS_PER_MB, TOKENIZE_SECONDS_PER_MB = 0.043, 2 * (0.460 - 0.043)  # on one core
# docs/benchmarks/preparation.json: one thread, with masks; of which the plan of an epoch
BUILT_TOKENS_PER_SECOND, PLAN_SECONDS_PER_TOKEN = 1.6e6, 0.06 / 9.35e6
# docs/benchmarks/gpu.json: steps of 32 and of 128 sequences of 512 tokens, bf16, --compile
STEP_SECONDS = {32: 0.0357, 128: 0.1103}
SECONDS_PER_SEQUENCE = (STEP_SECONDS[128] - STEP_SECONDS[32]) / 96
SECONDS_PER_PASS = STEP_SECONDS[32] - 32 * SECONDS_PER_SEQUENCE
MAX_SEQUENCES = 128  # per pass; more are accumulated
# Assumptions: gradients in fp32, bandwidth of an all-reduce in a host and between hosts, no overlap with the
# backward pass, cores per GPU, and the price.
GRADIENT_BYTES, GPUS_PER_HOST, CORES_PER_GPU = 110e6 * 4, 8, 8
BYTES_PER_SECOND = {"in a host": 300e9, "between hosts": 25e9}
DOLLARS_PER_HOUR = 3.0


def estimate(gpus: int, effective_batch: int) -> dict[str, float]:
    """Return the seconds of each part of the whole training."""
    steps = TOKENS / 512 / effective_batch
    sequences = effective_batch / gpus
    passes = max(1, math.ceil(sequences / MAX_SEQUENCES))
    compute = passes * SECONDS_PER_PASS + sequences * SECONDS_PER_SEQUENCE
    bandwidth = BYTES_PER_SECOND["in a host" if gpus <= GPUS_PER_HOST else "between hosts"]
    reduce = 0.0 if gpus == 1 else 2 * (gpus - 1) / gpus * GRADIENT_BYTES / bandwidth
    # The CPU builds the next batches while the GPU computes; only what takes longer is a wait.
    build = max(0.0, sequences * 512 / BUILT_TOKENS_PER_SECOND - compute)
    megabytes, cores = WORDS * BYTES_PER_WORD / 1e6, CORES_PER_GPU * min(gpus, GPUS_PER_HOST)
    return {
        "forward and backward passes": steps * compute,
        "all-reduce of the gradients": steps * reduce,
        "waiting for examples": steps * build,
        "plans of the epochs": TOKENS * PLAN_SECONDS_PER_TOKEN,
        "corpus, once per host": megabytes * max(READ_SECONDS_PER_MB, TOKENIZE_SECONDS_PER_MB / cores),
    }


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    cases = [(1, 256), (8, 256), (64, 256), (64, 8192)]
    columns = [f"{gpus} GPU{'s' if gpus > 1 else ''}, batch {batch:,}" for gpus, batch in cases]
    estimates = [estimate(*case) for case in cases]
    rows = {part: [f"{each[part] / 3600:.2f}" for each in estimates] for part in estimates[0]}
    hours = [sum(each.values()) / 3600 for each in estimates]
    rows["**hours**"] = [f"**{value:.1f}**" for value in hours]
    gpu_hours = [value * gpus for value, (gpus, _) in zip(hours, cases, strict=True)]
    rows["GPU hours"] = [f"{value:,.0f}" for value in gpu_hours]
    rows[f"price at ${DOLLARS_PER_HOUR:g} per GPU hour"] = [
        f"${value * DOLLARS_PER_HOUR:,.0f}" for value in gpu_hours
    ]
    print("\n".join(format_table(columns, rows)))


if __name__ == "__main__":
    main()
