"""Commands import only the libraries that they need, and garbage is collected only after the imports."""

import json
import subprocess
import sys

import pytest
import transformers
from packaging.version import Version

RESULT_MODULES = ["evaluate", "matplotlib", "scipy.stats", "sklearn", "bertkit.reports.charts"]
OPTIONAL_MODULES = ["onnx", "onnxruntime", "tensorboard", "torchvision"]  # Trainer imports peft
# pandas and datasets need as long as all modules of bertkit; Trainer imports them, prediction does not.
TRAINING_MODULES = ["bertkit.training.trainer", "datasets", "pandas", "pyarrow", "transformers.trainer"]

COMMAND = """
import gc, json, sys
sys.argv = ["bertkit", *json.loads(sys.argv[1])]
from bertkit.cli.app import main
try: main()
except SystemExit as exit: assert exit.code == 0, exit.code
state = {"full_collections": gc.get_stats()[2]["collections"], "frozen": gc.get_freeze_count(),
         "thresholds": gc.get_threshold()}
print(json.dumps([sorted(sys.modules), state]), file=sys.stderr)
"""

FIRST_STEP = """
import gc, json, sys
from bertkit.pipeline.run import train
from bertkit.utils.reporting import Reporter

class ModuleReporter(Reporter):
    def on_step_end(self, *args, **kwargs):
        print(json.dumps([sorted(sys.modules), {"frozen": gc.get_freeze_count()}]), file=sys.stderr)
        sys.exit()

train("classify", json.loads(sys.argv[1]), reporter=ModuleReporter())
"""


def run_in_new_process(code, argument):
    """Return the names of the imported modules at the end of the process, and the state of the collector."""
    command = [sys.executable, "-c", code, json.dumps(argument)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules, state = json.loads(done.stderr.splitlines()[-1])
    return set(modules), state


@pytest.fixture(scope="module")
def result_modules():
    """The modules that are needed only for results, without those that transformers itself imports.

    Old versions of transformers import scipy and scikit-learn.
    """
    code = "import sys, transformers.trainer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {*RESULT_MODULES, *OPTIONAL_MODULES} - set(done.stdout.split())


def test_dry_run_imports_nothing_for_results(tiny, toy, result_modules):
    modules, _ = run_in_new_process(
        COMMAND, ["classify", "--data", str(toy), "--model", str(tiny), "--dry-run"]
    )
    assert not modules & result_modules


def test_first_step_is_reached_without_libraries_for_results(tiny, toy, result_modules):
    settings = {"data": str(toy), "model": str(tiny), "max_steps": 1}
    modules, state = run_in_new_process(FIRST_STEP, settings)
    assert "transformers.trainer" in modules
    assert not modules & result_modules
    assert state["frozen"] == 0  # the caller of the Python function decides about its own garbage


@pytest.fixture(scope="module")
def prediction(runs):
    """The modules and the state of the collector after `bertkit predict`."""
    return run_in_new_process(COMMAND, ["predict", str(runs / "classify"), "--text", "a good film"])


def test_predict_imports_nothing_for_training(prediction, result_modules):
    modules, _ = prediction
    assert "transformers.modeling_utils" in modules
    assert not modules & {*result_modules, *TRAINING_MODULES}


def assert_collection_was_postponed(state):
    assert state["thresholds"] == [700, 10, 10]
    assert state["frozen"] > 100_000  # the objects of the libraries


def test_predict_collects_garbage_after_the_imports_and_not_during_them(prediction):
    _, state = prediction
    assert_collection_was_postponed(state)
    assert state["full_collections"] == 0


def test_classify_collects_garbage_after_the_imports_and_not_during_them(tiny, toy):
    args = ["classify", "--data", str(toy), "--model", str(tiny), "--max-steps", "1"]
    assert_collection_was_postponed(run_in_new_process(COMMAND, args)[1])


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"),
    reason="older tokenizers import model code",
)
def test_check_imports_no_model_code(toy):
    modules, _ = run_in_new_process(COMMAND, ["check", "classify", "--data", str(toy)])
    unused = {"transformers.modeling_utils", "transformers.trainer", "torch._dynamo", "scipy", "sklearn"}
    assert not modules & {*unused, *RESULT_MODULES, *OPTIONAL_MODULES}
