"""Commands import only the libraries that they need, and garbage is collected only after the imports."""

import importlib.metadata
import json
import subprocess
import sys

import pytest
import transformers
from conftest import make_toy_rows, write_rows
from packaging.requirements import Requirement
from packaging.version import Version

from bertkit.utils.system import SPIN_LIMITS, USER_VARIABLES

pytestmark = pytest.mark.slow

RESULT_MODULES = ["evaluate", "matplotlib", "scipy.stats", "sklearn", "bertkit.charts"]
OPTIONAL_MODULES = ["onnx", "onnxruntime", "tensorboard", "torchvision"]  # Trainer imports peft
# pandas and datasets need as long as all modules of bertkit; Trainer imports them, prediction does not.
TRAINING_MODULES = ["bertkit.training.trainer", "datasets", "pandas", "pyarrow", "transformers.trainer"]

OPTIONAL_PACKAGES = [
    "aiohttp", "fastapi", "kiwipiepy", "matplotlib", "ipywidgets", "onnx", "onnxruntime", "onnxscript",
    "optuna", "orjson", "peft", "prometheus_client", "ray", "requests", "uvicorn",
]  # fmt: skip

# Each program runs in a fork of one process, in which the command line has been called, and torch imported.
RUN_EACH = """
import gc, json, os, sys, tempfile
from bertkit.cli.app import main

def run(arguments):
    sys.argv = ["bertkit", *arguments]
    try: main()
    except SystemExit as exit: assert exit.code == 0, exit.code

def describe_process():
    state = {"full_collections": gc.get_stats()[2]["collections"], "frozen": gc.get_freeze_count(),
             "thresholds": gc.get_threshold()}
    return sorted(sys.modules), state

output, sys.stdout = sys.stdout, sys.stderr
run(["--version"])
import torch
for line in sys.stdin:
    program, argument = json.loads(line)
    error = tempfile.TemporaryFile()
    if not (pid := os.fork()):
        os.dup2(error.fileno(), 2)
        exec(program)
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    error.seek(0)
    print(json.dumps([status, error.read().decode()]), file=output, flush=True)
"""

COMMAND = """
run(argument)
print(json.dumps([describe_process()]), file=sys.stderr)
"""

# A check of data, then the first step of a command, that of a function, and a dry run; then imports.
FIRST_STEPS = """
from bertkit.utils.reporting import Reporter, use_reporter
folder, settings = argument
os.chdir(folder)
run(["check", "classify", "--data", settings["data"]])
processes = [describe_process()]

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
for name in ("bertkit.commands.report", "bertkit.commands.predict", "bertkit.experiments.study"):
    __import__(name)
    processes.append(describe_process())
print(json.dumps(processes), file=sys.stderr)
"""

WITHOUT_PACKAGES = """
packages, arguments = argument
assert not {*packages} & {*sys.modules}
sys.modules |= dict.fromkeys(packages)
run(arguments)
"""


@pytest.fixture(scope="module")
def run_program(tmp_path_factory):
    """Return a function that runs a program in a new process, and returns what it prints to standard error.

    With OMP_DISPLAY_ENV, OpenMP prints its settings when torch loads it; they are in `run_program.openmp`.
    """
    file = tmp_path_factory.mktemp("openmp") / "settings"
    with pytest.MonkeyPatch.context() as monkeypatch, file.open("w") as error:
        for name in (*SPIN_LIMITS, *USER_VARIABLES):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("OMP_DISPLAY_ENV", "verbose")
        command = [sys.executable, "-c", RUN_EACH]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": error}
        process = subprocess.Popen(command, text=True, **pipes)

    def run(program, argument):
        print(json.dumps([program, argument]), file=process.stdin, flush=True)
        status, printed = json.loads(process.stdout.readline())
        assert status == 0, printed
        return printed

    run.openmp = file
    yield run
    process.communicate()


def read_processes(printed):
    """Return the names of the imported modules and the state of the collector, as often as described."""
    return [(set(modules), state) for modules, state in json.loads(printed.splitlines()[-1])]


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
def processes(run_program, tiny, tmp_path_factory):
    """The modules and the state of the collector after `bertkit check`, and in later steps of its process.

    These are `bertkit classify`, `train`, `classify --dry-run`, and the imports of three modules.
    """
    folder = tmp_path_factory.mktemp("startup")
    write_rows(folder / "toy.jsonl", make_toy_rows(80))
    settings = {"data": "toy.jsonl", "model": str(tiny), "max_steps": 1}
    return read_processes(run_program(FIRST_STEPS, [str(folder), settings]))


@pytest.fixture(scope="module")
def first_steps(processes):
    return processes[1:]


def test_first_step_and_dry_run_import_nothing_for_results(first_steps):
    assert len(first_steps) == 6
    for modules, _ in first_steps[:3]:
        assert "transformers.trainer" in modules
        assert find_imported(modules, [*RESULT_MODULES, *OPTIONAL_MODULES]) == set()


def test_matplotlib_is_imported_only_for_pages(first_steps):
    modules, _ = first_steps[3]
    assert {"bertkit.commands.report", "bertkit.run.train"} <= modules
    assert find_imported(modules, ["matplotlib"]) == set()


def test_ray_is_imported_only_with_its_flag(first_steps):
    modules, _ = first_steps[5]
    assert {"bertkit.commands.predict", "bertkit.experiments.study"} <= modules
    assert "ray" not in modules


@pytest.mark.cpu  # CUDA freezes objects, too
def test_callers_of_the_python_function_decide_about_their_own_garbage(first_steps):
    _, state = first_steps[1]
    assert state["frozen"] == 0


@pytest.fixture(scope="module")
def prediction(run_program, runs):
    """The modules and the state of the collector after `bertkit predict`."""
    command = ["predict", str(runs / "classify"), "--text", "a good film"]
    [process] = read_processes(run_program(COMMAND, command))
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
def test_check_imports_no_model_code(processes):
    modules, _ = processes[0]
    unused = {"transformers.modeling_utils", "transformers.trainer", "torch._dynamo", "scipy", "sklearn"}
    assert not modules & {*unused, *RESULT_MODULES, *OPTIONAL_MODULES}


def test_a_run_needs_no_optional_package(run_program, toy, tiny, tmp_path):
    requirements = [Requirement(text) for text in importlib.metadata.requires("datasets")]
    required = {requirement.name for requirement in requirements if requirement.marker is None}
    optional = sorted(set(OPTIONAL_PACKAGES) - required)  # datasets 3.0 requires aiohttp and requests
    args = ["classify", "--data", toy, "--model", tiny, "-o", tmp_path / "run", "--max-steps", 1]
    run_program(WITHOUT_PACKAGES, [optional, [*map(str, args)]])
    assert "bertkit[report]" in (tmp_path / "run/report.html").read_text("utf-8")


def test_the_runtime_of_torch_reads_the_limit_of_spinning(run_program):
    run_program("", None)  # torch is imported
    printed = run_program.openmp.read_text("utf-8")
    if "GOMP_SPINCOUNT" not in printed:
        pytest.skip("torch uses another runtime than libgomp")
    assert "GOMP_SPINCOUNT = '1000'" in printed
