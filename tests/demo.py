"""Train, predict, evaluate and report in new processes, on systems without make: `python tests/demo.py`.

The recipe is that of `make demo`, with fewer steps unless `--full` is passed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path


def list_commands(folder, is_full):
    """Return the command lines, without the program."""
    reviews, sample = str(folder / "film reviews"), str(folder / "sample")
    steps = [] if is_full else ["--max-steps", "10", "--max-train-samples", "200", "--max-eval-samples", "50"]
    return [
        ["classify", "--recipe", "rotten-tomatoes", "-o", reviews, *steps],
        ["predict", reviews, "--text", "A warm and funny film."],
        ["report", reviews],
        ["ner", "--data", "sample", "-o", sample, "--max-steps", "4", "--device", "cpu"],
        ["evaluate", sample, "-o", str(folder / "scores")],
    ]


def main():
    """Run the commands; stop at the first one that fails."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for arguments in list_commands(Path(folder), "--full" in sys.argv):
            print("bertkit", *arguments, flush=True)
            subprocess.run([sys.executable, "-m", "bertkit", *arguments], check=True)


if __name__ == "__main__":
    main()
