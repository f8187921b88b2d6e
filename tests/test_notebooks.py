"""The notebooks: the quickstart is executed; the one for Colab needs a GPU, so only its code is checked."""

import ast
import copy
import inspect
import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from new_process import NewProcess
from test_docs import parse

import bertkit
from bertkit.api import _create_notebook_reporter
from bertkit.run.results import Run

nbformat = pytest.importorskip("nbformat", reason="the notebooks need nbclient and ipykernel (extra dev)")
ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PARAMETERS = {"num_rows = 800": "num_rows = 48"}  # a few steps are enough to execute every cell
# The kernel is a fork that imports the console again, because it is in a notebook now.
# It computes the charts, but no other costly parts of a run.
PREPARE = """
import sys
sys.modules.pop("bertkit.utils.console", None)
import pytest
import conftest
conftest.make_runs_cheap(pytest.MonkeyPatch())
with_charts = conftest.costly_parts("charts")
with_charts.__enter__()
"""
FEWER = {"max_eval_samples=200": "max_eval_samples=24", "max_length=48": "max_length=16"}


def read_notebook(path):
    return nbformat.read(path, as_version=4)


def list_code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def has_tag(cell, tag):
    return tag in cell.metadata.get("tags", ())


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The outputs of the quickstart, in a kernel with few rows and without the cell that installs bertkit."""
    client = pytest.importorskip("nbclient")
    notebook = copy.deepcopy(read_notebook(ROOT / "examples" / "quickstart.ipynb"))
    notebook.cells = [cell for cell in notebook.cells if not has_tag(cell, "install")]
    [parameters] = [cell for cell in notebook.cells if has_tag(cell, "parameters")]
    parameters.source = PARAMETERS[parameters.source]
    training = find_cell(notebook, "bertkit.classify(")
    for text, shorter in FEWER.items():
        assert text in training.source
        training.source = training.source.replace(text, shorter)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(PREPARE))
    resources = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("jupyter_client.launcher.Popen", NewProcess)
        client.NotebookClient(notebook, timeout=300, resources=resources).execute()
    return notebook


def find_cell(notebook, text):
    [cell] = [cell for cell in list_code_cells(notebook) if text in cell.source]
    return cell


def join_outputs(cell, mime_type):
    return "\n".join(output.get("data", {}).get(mime_type, "") for output in cell.outputs)


@pytest.mark.slow
def test_a_run_displays_its_scores_and_charts(executed):
    html = join_outputs(find_cell(executed, "bertkit.classify("), "text/html")
    assert "<th>accuracy</th>" in html
    assert "tfidf" in html
    assert html.count("<svg") >= 4
    for title in ("Loss", "Validation scores", "Confusion matrix"):
        assert title in html
    assert "Click a cell" not in html
    assert 'href="runs/quickstart/report.html"' in html


@pytest.mark.slow
def test_training_shows_messages_and_a_progress_bar(executed):
    cell = find_cell(executed, "bertkit.classify(")
    assert "rotten_tomatoes" in join_outputs(cell, "text/html")  # a message about the data
    widgets = executed.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert "training" in json.dumps(widgets)
    assert "steps/s" in json.dumps(widgets)
    assert not [output for output in cell.outputs if output.get("name") == "stderr"]


@pytest.mark.slow
def test_predictions_and_findings_are_displayed(executed):
    table = join_outputs(find_cell(executed, "model.predict"), "text/html")
    assert table.count("<tr") == 3
    assert "a warm and funny film" in table
    printed = find_cell(executed, "bertkit.check").outputs
    assert "error" in "".join(output.get("text", "") for output in printed)


def to_python(source):
    """Replace magics and shell commands, which are not Python, by `pass`."""
    lines = ["pass" if line.startswith(("!", "%")) else line for line in source.splitlines()]
    return "\n".join(lines)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_no_outputs_and_their_python_compiles(path):
    notebook = read_notebook(path)
    nbformat.validate(notebook)
    assert len(list_code_cells(notebook)) > 4
    for cell in list_code_cells(notebook):
        assert (cell.outputs, cell.execution_count) == ([], None)
        ast.parse(to_python(cell.source))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_calls_in_notebooks_have_arguments_that_exist(path):
    source = "\n".join(to_python(cell.source) for cell in list_code_cells(read_notebook(path)))
    tree = ast.parse(source)
    keys = [
        key.value for node in ast.walk(tree) if isinstance(node, ast.Dict) and len(node.keys) > 4
        for key in node.keys
    ]  # fmt: skip
    calls = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name) and node.func.value.id == "bertkit"
    ]  # fmt: skip
    assert len(calls) >= 2
    for call in calls:
        names = {keyword.arg for keyword in call.keywords if keyword.arg}
        names |= {*keys} if any(keyword.arg is None for keyword in call.keywords) else set()
        function = getattr(bertkit, call.func.attr)
        accepted = inspect.signature(bertkit.classify if function is bertkit.check else function).parameters
        assert names <= accepted.keys()


def test_commands_in_notebooks_parse():
    commands = [
        line.removeprefix("!").replace("{folder}", "runs/a").replace("{model}", "bert-base-uncased")
        for path in NOTEBOOKS
        for cell in list_code_cells(read_notebook(path))
        for line in cell.source.splitlines()
        if line.startswith("!")
    ]
    assert len(commands) > 3
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "bertkit"
        assert parse(words) is not None


def test_other_results_display_their_table_or_their_values(tmp_path):
    (tmp_path / "README.md").write_text("# GLUE\n\n| task | score |\n")
    suite = Run(tmp_path, {"task": "glue"})
    assert suite._repr_mimebundle_(include=None, exclude=None) == {
        "text/markdown": "# GLUE\n\n| task | score |\n"
    }
    dry_run = Run(None, {"task": "classify", "steps": 12})
    assert '"steps": 12' in dry_run._repr_mimebundle_()["text/markdown"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["ner", "qa", "swag", "pretrain-mlm-nsp"])
def test_runs_of_other_tasks_are_displayed(runs, task):
    folder = runs / task
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    html = Run(folder, metrics)._repr_mimebundle_()["text/html"]
    assert all(f"<th>{name}</th>" in html for name in metrics["validation"])


@pytest.mark.slow
def test_a_deleted_run_displays_its_scores(runs, tmp_path):
    metrics = json.loads((runs / "classify" / "metrics.json").read_text("utf-8"))
    html = Run(tmp_path / "deleted", metrics)._repr_mimebundle_()["text/html"]
    assert "<th>accuracy</th>" in html
    assert "report.html" not in html


@pytest.mark.slow
def test_data_in_a_displayed_run_is_escaped(runs):
    metrics = json.loads((runs / "classify" / "metrics.json").read_text("utf-8"))
    metrics["model"] = "<img src=x onerror=alert(1)>"
    assert "<img" not in Run(runs / "classify", metrics)._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["only imported", "terminal"])
def test_without_a_kernel_nothing_is_reported(monkeypatch, shell):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert _create_notebook_reporter() is None


def test_a_kernel_gets_the_reporter_of_the_command_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # the console keeps the width of its first import; see `cli`
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert type(_create_notebook_reporter()).__name__ == "ConsoleReporter"
