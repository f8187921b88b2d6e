"""Check that `bertkit export --quantize --max-drop` and `serve --verify` accept sound exports of real models.

    python benchmarks/export_gate.py --data-dir DATA --write

Models of several tasks are trained briefly on random rows of public datasets. Each is exported with
`--max-drop`, judged on other labeled rows with `--data`. The exported models are then loaded and verified.
Finished runs and exports in --work are kept, so an interrupted benchmark resumes. Progress goes to standard
error, the table to standard output, or with --write to docs/export.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import bertkit
from bertkit.commands.export import QualityGateError
from bertkit.data.sources import find_dataset_spec, load_dataset
from bertkit.run.predictor import load_predictor
from bertkit.run.verification import verify_outputs
from bertkit.settings.declaration import get_settings
from bertkit.tasks import task_definition
from docs_page import format_table, replace_section
from harness import ROOT
from label_ranking import load_pairs

MAX_DROP = 0.5
TRAINING_ROWS = 6_000  # at most; the other rows judge the export
COLUMNS = ["rows", "score", "drop", "bound", "exported", "verified"]
REFUSED = re.compile(r"(\w+) drops by (-?[\d.]+) points on ([\d,]+).* up to (-?[\d.]+) at a confidence")

FEWER_ANSWERS = re.compile(r"it answers ([\d.]+)% of the rows instead of ([\d.]+)%")


@dataclass(frozen=True)
class Export:
    """An export of a run.

    Attributes:
        data: Name of a known dataset, or of one of `label_ranking.DATASETS`.
        run: Name of the run; exports of the same run share it.
        settings: Settings of the training.
        calibration: Settings of `calibrate`; None leaves the run as it is.
        quantize: Format of the exported model.
        limit: Rows that judge the export; None takes `--rows`.
    """

    data: str
    run: str
    task: str = "classify"
    settings: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] | None = None
    quantize: str = "int8"
    limit: int | None = None


EXPORTS = {
    "SST-2": Export("sst2", "sst2"),
    "SST-2, fp16": Export("sst2", "sst2", quantize="fp16"),
    "SST-2, calibrated with a coverage of 0.8": Export(
        "sst2", "sst2-calibrated", calibration={"coverage": 0.8}, settings={"validation_fraction": 0.3}
    ),
    "SST-2, linear probe": Export("sst2", "sst2-probe", settings={"method": "linear-probe"}),
    "SST-2, contrastive, 32 rows per class": Export(
        "sst2", "sst2-contrastive", settings={"method": "contrastive", "shots": 32, "max_steps": 100}
    ),
    "AG News": Export("ag_news", "ag_news", settings={"max_length": 64}),
    "AG News, windows of 32 tokens": Export(
        "ag_news", "ag_news-windows", settings={"max_length": 32, "long_texts": "windows"}
    ),
    "CLINC150": Export("clinc150", "clinc150", settings={"max_steps": 600}),
    "TweetEval emotion": Export("emotion", "emotion", settings={"max_steps": 300}),
    "MRPC": Export("mrpc", "mrpc"),
    "STS-B": Export("stsb", "stsb"),
    "MNLI": Export("mnli", "mnli", "nli", {"max_steps": 400}),
    "WNUT-17": Export("wnut17", "wnut17", "ner"),
    "CODAH": Export("codah", "codah", "swag"),
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=4_000, help="labeled rows that judge an export, at most")
    parser.add_argument("--steps", type=int, help="steps of each training; by default, those of its entry")
    parser.add_argument("--only", nargs="*", metavar="RUN", help="run only the exports of these runs")
    parser.add_argument("--work", type=Path, default=Path("export_gate_benchmark"))
    parser.add_argument("--write", action="store_true", help="write the table to docs/export.md")
    return parser.parse_args(argv)


def load_rows(export: Export, args: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return all labeled rows in random order, and the settings that name their columns."""
    spec = find_dataset_spec(export.data)
    if export.data in ("ag_news", "clinc150", "emotion") or spec is None:
        parts = load_pairs(export.data, args.data_dir, 10**6, 10**6)
        rows = [{"text": text, "label": label} for part in parts for text, label in part]
        columns: dict[str, Any] = {}
    else:
        splits = load_dataset(export.data, export.task, str(args.data_dir)).splits
        settings = get_settings(task_definition(export.task).config)
        columns = {name: value for name, value in spec.defaults.items() if name in settings}
        label = columns.get("label_column", columns.get("tag_column"))
        rows = [row for part in splits.values() if label in part.columns for row in part]
    order = np.random.default_rng(0).permutation(len(rows))
    return [rows[index] for index in order], columns


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def train(export: Export, args: argparse.Namespace) -> tuple[Path, Path]:
    """Train the run unless it is finished, and return its directory and the file with the other rows."""
    folder = args.work / export.run
    train_file, others = args.work / f"{export.run}-train.jsonl", args.work / f"{export.run}-others.jsonl"
    if not (folder / "metrics.json").exists():
        rows, columns = load_rows(export, args)
        size = min(TRAINING_ROWS, max(len(rows) - (export.limit or args.rows), len(rows) // 3))
        write_rows(others, rows[size : size + (export.limit or args.rows)])
        settings = {"max_steps": args.steps or 200, **columns, **export.settings}
        if args.steps:
            settings["max_steps"] = args.steps
        if export.settings.get("method") == "linear-probe":
            del settings["max_steps"]
        getattr(bertkit, export.task)(
            model=args.model, data=write_rows(train_file, rows[:size]), output_dir=str(folder),
            overwrite=True, **settings,
        )  # fmt: skip
        if export.calibration is not None:
            bertkit.calibrate(folder, **export.calibration)
    return folder, others


def check_export(name: str, export: Export, args: argparse.Namespace) -> list[str]:
    """Return the cells of an export."""
    result = args.work / f"{export.run}-{export.quantize}.json"
    if not result.exists():
        print(f"{name} ...", file=sys.stderr, flush=True)
        run, rows = train(export, args)
        folder = args.work / f"{export.run}-{export.quantize}"
        try:
            exported = bertkit.export(
                run, quantize=export.quantize, max_drop=MAX_DROP, data=str(rows), output_dir=str(folder),
                overwrite=True,
            )  # fmt: skip
        except QualityGateError as error:
            if found := REFUSED.search(str(error)):
                metric, drop, count, bound = found.groups()
            elif found := FEWER_ANSWERS.search(str(error)):
                after, before = map(float, found.groups())
                metric, drop, count, bound = "coverage", f"{before - after:.2f}", "", ""
            else:
                raise
            record = {"metric": metric, "drop": drop, "bound": bound, "rows": count, "refused": str(error)}
        else:
            measured = exported.measurements
            metric = next(iter(measured["drop"]))
            points = {key: f"{value:.2f}" for key, value in measured["drop"][metric].items()}
            variants = [exported.output_dir, exported.output_dir / export.quantize]
            record = {
                "metric": metric, "drop": points["points"], "bound": points["bound"],
                "rows": f"{measured['rows']:,}", "score": measured["scores"]["pytorch"][metric],
                "verified": sum(verify_outputs(each, load_predictor(each)) > 0 for each in variants),
            }  # fmt: skip
        result.write_text(json.dumps(record), "utf-8")
    record = json.loads(result.read_text("utf-8"))
    score = f"{record['metric']} {record['score']:.3f}" if "score" in record else record["metric"]
    is_exported = "refused" not in record
    verified = f"{record['verified']} of 2" if is_exported else ""
    return [
        record["rows"], score, record["drop"], record["bound"], "yes" if is_exported else "no", verified,
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    args.work = args.work.resolve()
    exports = {name: each for name, each in EXPORTS.items() if not args.only or each.run in args.only}
    rows = {name: check_export(name, export, args) for name, export in exports.items()}
    text = "\n".join(format_table(COLUMNS, rows))
    if args.write:
        replace_section("export_gate.py", text, ROOT / "docs" / "export.md")
    else:
        print(text)


if __name__ == "__main__":
    main()
