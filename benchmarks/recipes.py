"""Run the recipes that need no Hub, and print their scores, time and memory.

    BERTKIT_DATA_DIR=DATA python benchmarks/recipes.py
    python benchmarks/recipes.py classify/imdb pretrain/imdb-tiny --write

A recipe needs no Hub if it names the packaged model `minilm` or trains a model from scratch. Without names,
all of these are run one after another: hours. The data must be in a package or in BERTKIT_DATA_DIR.
With --write, the sentence `Expected` at the end of each header is replaced. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness import OUT_HELP, ROOT, describe_cores, describe_machine, publish, read_processor
from process_memory import run_sampled

WIDTH = 120  # of the lines of a header
SCORES = {
    "classify": ["accuracy"],
    "nli": ["accuracy"],
    "ner": ["f1"],
    "qa": ["exact", "f1"],
    "swag": ["accuracy"],
    "pretrain-mlm-nsp": ["mlm_loss", "lm_loss", "perplexity", "nsp_accuracy"],
}


@dataclass(frozen=True)
class Result:
    """Measurements of a run of a recipe.

    Attributes:
        metrics: Content of metrics.json.
        seconds: Time of the whole command.
        gigabytes: Largest memory of the process.
    """

    metrics: dict[str, Any]
    seconds: float
    gigabytes: float

    def format_scores(self) -> str:
        """Return the scores of the validation split with intervals and their baselines."""
        task, scored = self.metrics["task"], self.metrics["validation"]
        names = [name for name in SCORES.get(task, scored) if name in scored]
        scores = [self._format_score(name) for name in names]
        main = names[-1] if self.metrics["task"] == "qa" else names[0]
        baselines = [
            f"{name} {values[main]:.3f}"
            for name, values in self.metrics["baselines"].items()
            if main in values
        ]
        unit = "texts" if self.metrics["task"] == "pretrain-mlm-nsp" else "validation rows"
        rows = f"on {self.metrics['data']['validation']:,} {unit}"
        return f"{', '.join(scores)} {rows}" + (f"; baselines: {', '.join(baselines)}" if baselines else "")

    def _format_score(self, name: str) -> str:
        low_high = self.metrics["intervals"].get(name)
        interval = f" (95 % interval {low_high[0]:.3f} to {low_high[1]:.3f})" if low_high else ""
        return f"{name} {self.metrics['validation'][name]:.3f}{interval}"

    def format_time(self) -> str:
        """Return the time in seconds, minutes or hours."""
        minutes = self.seconds / 60
        if minutes < 2:
            return f"{self.seconds:.0f} s"
        return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"

    def describe(self) -> str:
        """Return the sentences for the header of the recipe."""
        processor, _ = read_processor()
        machine = f"{processor}, {describe_cores()}, {self.metrics['training']['precision']}"
        return (
            f"Expected: {self.format_scores()}. It takes {self.format_time()} and {self.gigabytes:.1f} GB of "
            f"memory. Measured by benchmarks/recipes.py at version {read_version()} on {machine}."
        )


def read_version() -> str:
    """Return the version of the topmost section of CHANGELOG.md."""
    found = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def find_recipes() -> list[str]:
    """Return the names of the recipes that need no Hub."""
    names = []
    for path in sorted((ROOT / "recipes").rglob("*.yaml")):
        content = yaml.safe_load(path.read_text("utf-8"))
        settings = content["settings"]
        # The recipes of the paper's large models name no data.
        is_from_scratch = (
            content["task"] == "pretrain-mlm-nsp" and "data" in settings and "model" not in settings
        )
        if settings.get("model") == "minilm" or is_from_scratch:
            names.append(str(path.relative_to(ROOT / "recipes").with_suffix("")))
    return names


def run_recipe(name: str) -> Result | str:
    """Run a recipe; return its result, or the exit status and the error line of the command."""
    task = yaml.safe_load((ROOT / "recipes" / f"{name}.yaml").read_text("utf-8"))["task"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [
            sys.executable,
            "-m",
            "bertkit",
            task,
            "--recipe",
            name,
            "--json",
            "-o",
            str(folder / "run"),
        ]
        # An empty cache: the first run of a user tokenizes, too.
        done = run_sampled(command, folder, {"BERTKIT_CACHE_DIR": str(folder / "cache")})
        if done.returncode:  # a killed command prints no error
            lines = (folder / "stderr").read_text("utf-8").strip().splitlines()
            return ": ".join([f"exit status {done.returncode}", *lines[-1:]])
        metrics = json.loads((folder / "stdout").read_text("utf-8"))
        return Result(metrics, done.seconds, max(sample.resident_mb for sample in done.samples) / 1000)


def write_header(name: str, result: Result) -> None:
    """Replace what the header of a recipe says from its line `# Expected` on."""
    path = ROOT / "recipes" / f"{name}.yaml"
    lines = path.read_text("utf-8").splitlines()
    header = [line for line in lines if line.startswith("#")]
    start = next((i for i, line in enumerate(header) if line.startswith("# Expected")), len(header))
    unbroken = re.sub(
        r"(\d) (%|s|min|h|GB)(?!\w)", "\\1\xa0\\2", result.describe()
    )  # numbers with their units
    wrapped = textwrap.wrap(unbroken, WIDTH, initial_indent="# ", subsequent_indent="# ")
    expected = [line.replace("\xa0", " ") for line in wrapped]
    path.write_text("\n".join([*header[:start], *expected, *lines[len(header) :]]) + "\n", "utf-8")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes (default: all that need no Hub)")
    parser.add_argument(
        "--write", action="store_true", help="write the results to the headers of the recipes"
    )
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    args = parser.parse_args(argv)
    if unknown := set(args.names) - set(find_recipes()):
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(find_recipes())}")
    return args


def main() -> None:
    """Run the recipes and print the table."""
    args = parse_args()
    rows, failed = [], False
    for name in args.names or find_recipes():
        result = run_recipe(name)
        if isinstance(result, str):
            failed = True
            rows.append(f"| {name} | {result} | | |")
        else:
            rows.append(
                f"| {name} | {result.format_scores()} | {result.format_time()} | {result.gigabytes:.1f} GB |"
            )
            if args.write:
                write_header(name, result)
        print(rows[-1], file=sys.stderr, flush=True)
    table = ["| recipe | scores | time | memory |", "|---|---|---|---|", *rows, "", *describe_machine()]
    publish("\n".join(table) + "\n", args.out)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
