"""Measure what the tests find: small changes of `bertkit/`, each run against the tests that cover its line.

    pip install cosmic-ray pytest-cov
    python -m pytest --cov=bertkit --cov-branch --cov-context=test --cov-report=
    python tests/mutations.py draw --seed 0 --count 100 > candidates.json
    python tests/mutations.py run candidates.json --until-killed 40 --output tests/mutations.json
    python tests/mutations.py run tests/mutations.json

`draw` samples changes of covered lines in turn from each package of `bertkit/`. `run` prints the results,
and exits with 1 if a change survives. A change is killed if one of the tests that run its line fails; of
these, the --max-tests that cover the fewest lines are run.
A change whose tests do not end within the time limit does not count as killed.
"""

import argparse
import difflib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
TIME_LIMIT = 400  # seconds of a call of pytest

# Operators of cosmic-ray whose changes are rarely equivalent to the original.
SWAPS = [
    "BinaryOperator_Add_Sub", "BinaryOperator_Sub_Add", "BinaryOperator_Mul_Div", "BinaryOperator_Div_Mul",
    "BinaryOperator_FloorDiv_Mul", "BinaryOperator_Mod_Add", "ComparisonOperator_Eq_NotEq",
    "ComparisonOperator_NotEq_Eq", "ComparisonOperator_Lt_LtE", "ComparisonOperator_LtE_Lt",
    "ComparisonOperator_Gt_GtE", "ComparisonOperator_GtE_Gt", "ComparisonOperator_Lt_GtE",
    "ComparisonOperator_Gt_LtE", "ComparisonOperator_Is_IsNot", "ComparisonOperator_IsNot_Is",
    "TrueWithFalse", "FalseWithTrue",
    "AndWithOr", "OrWithAnd", "BreakWithContinue", "ContinueWithBreak", "UnaryOperator_USub_UAdd",
    "UnaryOperator_Delete_Not",
]  # fmt: skip
OPERATORS = [f"core/Replace{swap}" for swap in SWAPS] + ["core/AddNot", "core/NumberReplacer"]


def read_tests_by_line(data_file):
    """Return for each file, relative to the root, the tests that ran each of its lines."""
    from coverage import CoverageData

    data = CoverageData(str(data_file))
    data.read()
    tests_by_line = {}
    for path in sorted((ROOT / "bertkit").rglob("*.py")):
        lines = {
            line: {name.rpartition("|")[0] for name in names if "|" in name}
            for line, names in data.contexts_by_lineno(str(path)).items()
        }
        tests_by_line[path.relative_to(ROOT).as_posix()] = {
            line: tests for line, tests in lines.items() if tests
        }
    return tests_by_line


def list_occurrences(path, operator, covered):
    """Return the occurrences of an operator in the covered lines of a file."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator

    positions = get_operator(operator)().mutation_positions
    lines = [
        start[0] for node in ast_nodes(get_ast((ROOT / path).read_text())) for start, _ in positions(node)
    ]
    return [occurrence for occurrence, line in enumerate(lines) if line in covered]


def make_change(path, operator, occurrence):
    """Return a change, or None if it does not change just one line."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code = (ROOT / path).read_text()
    before, after = code.splitlines(), mutate_code(code, get_operator(operator)(), occurrence).splitlines()
    changed = [line for line, pair in enumerate(zip(before, after, strict=False), 1) if len(set(pair)) == 2]
    if len(before) != len(after) or len(changed) != 1:
        return None
    line = changed[0]
    return {"file": path, "line": line, "before": before[line - 1], "after": after[line - 1]}


def draw(args):
    """Print candidates: one change of a random file of each package in turn."""
    tests_by_line, rng = read_tests_by_line(args.coverage), random.Random(args.seed)
    packages = {}
    for path in sorted(tests_by_line):
        parts = Path(path).parts
        packages.setdefault(parts[1] if len(parts) > 2 else "top level", []).append(path)
    chosen, lines, turns = [], set(), itertools.cycle(sorted(packages))
    while len(chosen) < args.count:
        path, operator = rng.choice(packages[next(turns)]), rng.choice(OPERATORS)
        covered = tests_by_line[path].keys() - {line for file, line in lines if file == path}
        occurrences = list_occurrences(path, operator, covered)
        change = make_change(path, operator, rng.choice(occurrences)) if occurrences else None
        if change and change["line"] in covered:
            chosen.append(change)
            lines.add((path, change["line"]))
    json.dump(chosen, sys.stdout, indent=1, ensure_ascii=False)


def find_line(change, tests_by_line):
    """Return path and number of the changed line, which may have moved to another line or file."""
    for path in (change["file"], *sorted(tests_by_line)):
        file = ROOT / path
        lines = file.read_text().splitlines() if file.exists() else []
        found = [number for number, line in enumerate(lines, 1) if line == change["before"]]
        if found:
            return path, min(found, key=lambda number: abs(number - change["line"]))
    sys.exit(f"{change['file']}: has no line {change['before']!r}")


def copy_project(folder):
    """Copy the project without what tests do not read."""
    ignored = shutil.ignore_patterns(
        ".venv*", ".git", "runs", "build", ".*_cache", "__pycache__", ".hypothesis"
    )
    return Path(shutil.copytree(ROOT, folder, ignore=ignored))


def find_failing_test(project, tests):
    """Run tests in a copy of the project up to the first that fails; return it, or None."""
    environment = os.environ | {"PYTHONPATH": str(project)}
    options = "-m pytest -x -n0 -p no:cacheprovider --no-header -W ignore"
    command = [sys.executable, *options.split()]
    done = subprocess.run(
        [*command, *tests], cwd=project, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT
    )
    for row in done.stdout.splitlines():
        if row.startswith(("FAILED ", "ERROR ")):
            return row.split(" ", 1)[1].partition(" - ")[0]
    if done.returncode:
        raise RuntimeError(f"pytest failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return None


def run_change(change, tests_by_line, widths, original, max_tests):
    """Run the tests of the line in a copy of the project with the change; return the result."""
    path, line = find_line(change, tests_by_line)
    # The tests that cover the fewest lines come first, because they are the most specific.
    tests = sorted(tests_by_line[path].get(line, ()), key=lambda test: (widths[test], test))[:max_tests]
    result, by = "survived", None
    with tempfile.TemporaryDirectory() as folder:
        changed = copy_project(Path(folder) / "project")
        lines = (changed / path).read_text().splitlines(keepends=True)
        lines[line - 1] = lines[line - 1].replace(change["before"], change["after"])
        (changed / path).write_text("".join(lines))
        try:
            while (failing := find_failing_test(changed, tests)) is not None:
                if failing not in tests or find_failing_test(original, [failing]) is None:
                    result, by = "killed", failing
                    break
                tests.remove(failing)  # it fails without the change, too
        except subprocess.TimeoutExpired:
            result = "time limit"
    return {**change, "tests": len(tests), "result": result, "by": by}


def run(args):
    """Run the changes of a file and print their results."""
    tests_by_line, changes = read_tests_by_line(args.coverage), json.loads(Path(args.changes).read_text())
    widths = {}
    for lines in tests_by_line.values():
        for tests in lines.values():
            for test in tests:
                widths[test] = widths.get(test, 0) + 1
    results = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        original = copy_project(Path(folder) / "project")
        waiting = [
            pool.submit(run_change, change, tests_by_line, widths, original, args.max_tests)
            for change in changes
        ]
        for future in waiting:
            result = future.result()
            results.append(result)
            killed = sum(each["result"] == "killed" for each in results)
            print(
                f"{killed}/{len(results)} {result['result']}: {result['file']}:{result['line']}", flush=True
            )
            print(*difflib.ndiff([result["before"]], [result["after"]]), sep="\n", flush=True)
            print(f"    {result['tests']} tests, by {result['by']}", flush=True)
            if args.output:
                Path(args.output).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
            if killed == args.until_killed:
                break
        for future in waiting:
            future.cancel()
    return int(any(each["result"] != "killed" for each in results))


def main():
    """Parse the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--coverage", default=".coverage", help="coverage data with the contexts of tests")
    commands = parser.add_subparsers(required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--count", type=int, default=100)
    drawing.set_defaults(action=draw)
    running = commands.add_parser("run")
    running.add_argument("changes")
    running.add_argument("--until-killed", type=int)
    running.add_argument("--output")
    running.add_argument("--max-tests", type=int, default=100, help="of each change, the most specific ones")
    running.add_argument("--jobs", type=int, default=2)
    running.set_defaults(action=run)
    args = parser.parse_args()
    sys.exit(args.action(args))


if __name__ == "__main__":
    main()
