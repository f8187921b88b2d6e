"""Commands import only the libraries that they need, and garbage is collected only after the imports."""

import json
import subprocess
import sys

import pytest
import transformers
from conftest import make_toy_rows, write_rows
from packaging.version import Version

pytestmark = pytest.mark.slow

RESULT_MODULES = ["evaluate", "matplotlib", "scipy.stats", "sklearn", "bertkit.charts"]
OPTIONAL_MODULES = ["onnx", "onnxruntime", "tensorboard", "torchvision"]  # Trainer imports peft
# pandas and datasets need as long as all modules of bertkit; Trainer imports them, prediction does not.
TRAINING_MODULES = ["bertkit.training.trainer", "datasets", "pandas", "pyarrow", "transformers.trainer"]

RUN_COMMAND = """
import gc, json, sys
from bertkit.cli.app import main

def run(arguments):
    sys.argv = ["bertkit", *arguments]
    try: main()
    except SystemExit as exit: assert exit.code == 0, exit.code

def describe_process():
    state = {"full_collections": gc.get_stats()[2]["collections"], "frozen": gc.get_freeze_count(),
             "thresholds": gc.get_threshold()}
    return sorted(sys.modules), state
"""

COMMAND = f"""{RUN_COMMAND}
run(json.loads(sys.argv[1]))
print(json.dumps([describe_process()]), file=sys.stderr)
"""

# The first step of a command, then that of a function, then a dry run; the first one imports the libraries.
FIRST_STEPS = f"""{RUN_COMMAND}
from bertkit.utils.reporting import Reporter, use_reporter
settings, processes = json.loads(sys.argv[1]), []

def record(*args, **kwargs):
    processes.append(describe_process())
    sys.exit(0)

import bertkit.utils.console
bertkit.utils.console.ConsoleReporter.on_step_end = Reporter.on_step_end = record
options = [word for name, value in settings.items() for word in ("--" + name.replace("_", "-"), str(value))]
run(["classify", *options])
gc.unfreeze()

from bertkit.run.train import train
try:
    with use_reporter(Reporter()): train("classify", settings)
except SystemExit: pass
run(["classify", *options, "--dry-run"])
processes.append(describe_process())
import bertkit.commands.report
print(json.dumps([*processes, describe_process()]), file=sys.stderr)
"""


def run_in_new_process(code, argument, folder=None):
    """Return the names of the imported modules and the state of the collector, as often as described."""
    command = [sys.executable, "-c", code, json.dumps(argument)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [(set(modules), state) for modules, state in json.loads(done.stderr.splitlines()[-1])]


def find_imported(modules, unwanted):
    """Return the unwanted modules among these, without those that transformers itself imports.

    Old versions of transformers import scipy and scikit-learn.
    """
    found = modules & {*unwanted}
    if found:
        code = "import sys, transformers.trainer; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        found -= set(done.stdout.split())
    return found


@pytest.fixture(scope="module")
def first_steps(tiny, tmp_path_factory):
    """The modules and the state of the collector in `bertkit classify`, `train` and `classify --dry-run`.

    The last modules are those after the import of `bertkit report`.
    """
    folder = tmp_path_factory.mktemp("startup")
    write_rows(folder / "toy.jsonl", make_toy_rows(80))
    return run_in_new_process(FIRST_STEPS, {"data": "toy.jsonl", "model": str(tiny), "max_steps": 1}, folder)


def test_first_step_and_dry_run_import_nothing_for_results(first_steps):
    assert len(first_steps) == 4
    for modules, _ in first_steps[:3]:
        assert "transformers.trainer" in modules
        assert find_imported(modules, [*RESULT_MODULES, *OPTIONAL_MODULES]) == set()


def test_matplotlib_is_imported_only_for_pages(first_steps):
    modules, _ = first_steps[3]
    assert {"bertkit.commands.report", "bertkit.run.train"} <= modules
    assert find_imported(modules, ["matplotlib"]) == set()


@pytest.mark.cpu  # CUDA freezes objects, too
def test_callers_of_the_python_function_decide_about_their_own_garbage(first_steps):
    _, state = first_steps[1]
    assert state["frozen"] == 0


@pytest.fixture(scope="module")
def prediction(runs):
    """The modules and the state of the collector after `bertkit predict`."""
    [process] = run_in_new_process(COMMAND, ["predict", str(runs / "classify"), "--text", "a good film"])
    return process


def test_predict_imports_nothing_for_training_or_results(prediction):
    modules, _ = prediction
    assert "transformers.modeling_utils" in modules
    assert not modules & {*TRAINING_MODULES}
    assert find_imported(modules, [*RESULT_MODULES, *OPTIONAL_MODULES]) == set()


def assert_collection_was_postponed(state):
    assert state["thresholds"] == [700, 10, 10]
    assert state["frozen"] > 100_000  # the objects of the libraries


def test_predict_collects_garbage_after_the_imports_and_not_during_them(prediction):
    _, state = prediction
    assert_collection_was_postponed(state)
    assert state["full_collections"] == 0


def test_classify_collects_garbage_after_the_imports_and_not_during_them(first_steps):
    _, state = first_steps[0]
    assert_collection_was_postponed(state)


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"),
    reason="older tokenizers import model code",
)
def test_check_imports_no_model_code(toy):
    [(modules, _)] = run_in_new_process(COMMAND, ["check", "classify", "--data", str(toy)])
    unused = {"transformers.modeling_utils", "transformers.trainer", "torch._dynamo", "scipy", "sklearn"}
    assert not modules & {*unused, *RESULT_MODULES, *OPTIONAL_MODULES}
