"""The package: its version in every kind of source tree, its contents, and the files about a release."""

import email
import importlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
RELEASES = re.findall(
    r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
)


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def git(*args, cwd):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return run("git", *identity, *args, cwd=cwd)


def read_version(tree):
    return run(sys.executable, "-m", "hatchling", "version", cwd=tree)


@pytest.fixture
def tree(tmp_path):
    """A source tree that consists of the files that its version depends on."""
    folder = tmp_path / "tree"
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def repository(tree):
    """The tree as a repository with one commit."""
    git("init", "-q", cwd=tree)
    git("add", ".", cwd=tree)
    git("commit", "-qm", "first", cwd=tree)
    return tree


def test_the_version_is_that_of_the_tag(repository):
    git("tag", "v9.8.7", cwd=repository)
    assert read_version(repository) == "9.8.7"
    git("commit", "-q", "--allow-empty", "-m", "second", cwd=repository)
    assert re.fullmatch(r"9\.8\.8\.dev1\+g[0-9a-f]+", read_version(repository))


def test_a_clone_without_tags_has_a_development_version(repository):
    major, minor, patch = RELEASES[1][0].split(".")
    expected = rf"{major}\.{minor}\.{int(patch) + 1}\.dev1\+g[0-9a-f]+"
    assert re.fullmatch(expected, read_version(repository))


def test_a_tree_without_git_has_the_version_of_the_previous_release(tree):
    assert read_version(tree) == RELEASES[1][0]


def test_the_files_about_a_release_name_the_same_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert RELEASES[0] == (citation["version"], str(citation["date-released"]))
    assert PROJECT["tool"]["hatch"]["version"]["fallback-version"] == RELEASES[1][0]
    headings = re.findall("^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert len(RELEASES) == len(headings) > 1
    assert citation["license"] == PROJECT["project"]["license"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of an sdist of the checkout, and of the wheel that is built from the sdist, without git."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), cwd=ROOT)
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=unpacked)
    return folder


def read_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_of_an_sdist_has_the_version_of_the_sdist(built):
    [wheel], [sdist] = built.glob("*.whl"), built.glob("*.tar.gz")
    version = read_metadata(wheel)["Version"]
    assert sdist.name == f"bertkit-{version}.tar.gz"
    assert wheel.name == f"bertkit-{version}-py3-none-any.whl"


def test_the_wheel_contains_the_package_and_its_data_and_nothing_else(built):
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = [path for path in (ROOT / "bertkit").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    data = [path for name in ("recipes", "profiles") for path in (ROOT / name).rglob("*.yaml")]
    expected = {path.relative_to(ROOT).as_posix() for path in sources}
    expected |= {f"bertkit/{path.relative_to(ROOT).as_posix()}" for path in data}
    assert len(data) > 20
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_the_installed_wheel_has_its_recipes_and_its_samples(built, tmp_path):
    """The wheel runs from another folder, where no checkout can be found."""
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import bertkit\n"
        f"assert bertkit.__file__.startswith({str(tmp_path)!r}), bertkit.__file__\n"
        "from bertkit.cli.app import main\n"
        "sys.argv = ['bertkit', 'recipes', 'ls']; main()"
    )
    printed = run(sys.executable, "-I", "-c", code, cwd=tmp_path)
    assert len(printed.splitlines()) == len(list((ROOT / "recipes").rglob("*.yaml")))
    assert "classify/imdb" in printed


def test_the_release_workflow_publishes_without_a_stored_token():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    [fetched] = [step["with"] for step in jobs["build"]["steps"] if "checkout" in step.get("uses", "")]
    assert fetched["fetch-depth"] == 0  # without the tag, the version would be a development version
    assert (jobs["install"]["needs"], jobs["publish"]["needs"]) == ("build", ["install", "test"])
