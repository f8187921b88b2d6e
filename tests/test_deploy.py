"""The files in deploy/: their commands, paths and flags exist, and the replica of Ray Serve predicts."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml
from test_docs import parse

import bertkit

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"


def read_instructions():
    """Return the instructions of the Dockerfile with their arguments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def test_the_image_copies_files_that_exist_and_are_sent_to_the_build():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    copies = [shlex.split(arguments) for name, arguments in read_instructions() if name == "COPY"]
    sources = [path for *paths, _ in copies for path in paths if not path.startswith(("--", "/opt"))]
    assert {"bertkit/", "recipes/", "pyproject.toml"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{Path(source).parts[0]}" in ignored
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {f"{path}/" for path in included} <= set(sources)


def test_the_image_installs_extras_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (names,) = re.findall(r"'\.\[(.*)\]'", (DEPLOY / "Dockerfile").read_text("utf-8"))
    assert set(names.split(",")) <= set(extras)


def test_the_container_serves_as_a_user_without_rights_and_is_checked_by_a_route_that_exists():
    instructions = dict(read_instructions())
    assert instructions["USER"] not in ("root", "0")
    _, *command = json.loads(instructions["ENTRYPOINT"]) + json.loads(instructions["CMD"])
    context = parse(command)
    assert list(context.params["run"]) == ["/model"]
    assert str(context.params["port"]) == instructions["EXPOSE"]
    check = json.loads(instructions["HEALTHCHECK"].partition("CMD ")[2])
    assert f"127.0.0.1:{instructions['EXPOSE']}/readyz" in check[-1]
    compile(check[-1], "HEALTHCHECK", "exec")


# ---- templates of docs/launch.md


def list_shell_scripts():
    """Return the shell scripts of the templates by name."""
    job, task = (
        yaml.safe_load((DEPLOY / f"{name}.yaml").read_text("utf-8")) for name in ("trainjob", "skypilot")
    )
    return {
        "slurm": (DEPLOY / "slurm.sbatch").read_text("utf-8"),
        "trainjob": job["spec"]["trainer"]["args"][0],
        "skypilot": task["run"],
    }


@pytest.mark.parametrize(("name", "script"), list_shell_scripts().items())
def test_the_commands_of_the_templates_parse(name, script):
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (command,) = re.findall(r"(?:-m |bin/)bertkit (.*)", script.replace("\\\n", " "))
    command = command.replace("$resume", "--resume").replace('"$SKYPILOT_NUM_GPUS_PER_NODE"', "4")
    if name == "slurm":
        command = command.replace('"${arguments[@]}" &', "classify --data a.csv --output-dir runs/a --resume")
    assert parse(shlex.split(command)).params["resume"]


@pytest.mark.slow
def test_the_train_job_has_only_fields_of_kubeflow():
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="needs kubeflow-trainer-api")
    job = yaml.safe_load((DEPLOY / "trainjob.yaml").read_text("utf-8"))
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job  # unknown fields are dropped


def identity_decorator(*args, **kwargs):
    return lambda target: target


@pytest.fixture
def replica(runs, monkeypatch):
    """The class of the replica without Ray, whose decorators only add batches and the deployment."""
    serve = types.SimpleNamespace(deployment=identity_decorator, batch=identity_decorator)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(serve=serve))
    monkeypatch.setenv("BERTKIT_RUN", str(runs / "classify"))
    source = (DEPLOY / "ray_serve.py").read_text("utf-8")
    assert source.count("Model.bind(") == 1
    spec = importlib.util.spec_from_loader("ray_serve", loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(compile(source.replace("Model.bind(", "Model("), "ray_serve.py", "exec"), module.__dict__)
    return module.app


@pytest.mark.slow
def test_the_replica_of_ray_predicts_like_bertkit(replica, runs):
    rows = [{"text": "a good film"}, {"text": "a bad film"}, {"id": 7, "text": "a bad film"}]
    records = replica._predict(rows)
    expected = list(bertkit.load(runs / "classify").predict(rows))
    assert records == [
        {**record, "id": 0} for record in expected
    ]  # not the position among other callers' rows
    json.dumps(records)


@pytest.mark.slow
def test_only_invalid_rows_of_a_batch_fail(replica):
    good, wrong, other = replica._predict([{"text": "a good film"}, {"txt": "a bad film"}, 3])
    assert good["text"] == "a good film"
    assert set(wrong) == set(other) == {"error"}
