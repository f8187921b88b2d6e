"""The documentation is correct: its commands parse, and its flags, links, modules and functions exist."""

import json
import re
import shlex
import subprocess
import urllib.request
from pathlib import Path

import pytest
import typer
from conftest import make_toy_rows, write_rows
from new_process import start_server

from bertkit.cli.app import app

ROOT = Path(__file__).parent.parent
KOREAN_PAGES = [ROOT / "README.ko.md", *sorted((ROOT / "docs" / "ko").glob("*.md"))]
PAGES = [
    *(ROOT / name for name in ("README.md", "README.ko.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SKILL = ROOT / "bertkit" / "SKILL.md"


def find_commands(page):
    """Return the command lines in the blocks of a page."""
    return [
        line.strip()
        for block in re.findall(r"```(?:console|bash)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if re.match(r"(\$ )?([A-Z_]+=\S+ )*bertkit ", line.strip())
    ]


COMMAND_LINE = typer.main.get_command(app)
TABLE = COMMAND_LINE.commands


def parse(words):
    """Parse a command line with the real parser, without running the command."""
    command = COMMAND_LINE
    context = command.make_context("bertkit", words)
    while hasattr(command, "resolve_command"):
        words = context._protected_args + context.args
        name, command, words = command.resolve_command(context, words)
        context = command.make_context(name, words, parent=context)
    return context


@pytest.mark.parametrize("page", [*PAGES, SKILL], ids=lambda page: f"{page.parent.name}/{page.name}")
def test_commands_in_the_docs_parse(page):
    for line in find_commands(page):
        words = shlex.split(line.removeprefix("$ "), comments=True)
        assert parse(words[words.index("bertkit") + 1 :]) is not None, line


def test_commands_in_the_table_for_agents_parse():
    commands = re.findall(r"^\|.*\| `(bertkit .*)` \|$", SKILL.read_text("utf-8"), re.MULTILINE)
    assert commands
    for command in commands:
        assert parse(shlex.split(command)[1:]) is not None, command


def test_the_page_for_agents_lists_the_present_commands(capsys):
    from skill import update  # docs/site is on the path of the tests

    text = SKILL.read_text("utf-8")
    assert text == update(text), "run: python docs/site/skill.py"
    assert {f"`{name}`" for name in TABLE} <= set(re.findall(r"^\* (`[a-z-]+`):", text, re.MULTILINE))


@pytest.mark.slow
def test_the_commands_for_agents_lead_from_a_file_to_a_server(
    cli, tiny, tmp_path, monkeypatch, onnx_exporter
):
    write_rows(tmp_path / "reviews.csv", make_toy_rows(120))  # formats are detected by content
    monkeypatch.chdir(tmp_path)
    section = SKILL.read_text("utf-8").split("## From a CSV to a served int8 model")[1]
    block = re.search(r"```console\n(.*?)```", section, re.DOTALL)[1]
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    added = {"classify": ["--model", tiny], "ladder": ["--models", tiny, "--dry-run"]}
    assert len(commands) <= 12
    for words in commands[:-1]:
        status, printed, error = cli(*words, *added.get(words[0], []))
        assert status == 0, error
        assert json.loads(printed)
    with start_server(*commands[-1][1:-2]) as (*_, url):  # on a free port instead of 8000
        request = urllib.request.Request(
            f"{url}/predict", b'{"text": "very good"}', {"Content-Type": "application/json"}
        )
        assert json.loads(urllib.request.urlopen(request).read())["predicted"] in ("negative", "positive")


def test_the_docs_have_commands_and_a_wrong_flag_is_found():
    assert sum(len(find_commands(page)) for page in PAGES) > 10
    with pytest.raises(Exception, match="No such option"):
        parse(["classify", "--dta", "imdb"])


def test_each_command_has_a_page():
    assert [name for name in TABLE if not (ROOT / "docs" / f"{name}.md").exists()] == []


@pytest.mark.parametrize(
    "name", [name for name, command in TABLE.items() if not hasattr(command, "commands")]
)
def test_flags_named_on_a_page_exist(name):
    flags = {flag for option in TABLE[name].params for flag in (*option.opts, *option.secondary_opts)}
    named = set(re.findall(r"`(--[a-z][a-z0-9-]+)", (ROOT / "docs" / f"{name}.md").read_text("utf-8")))
    assert named
    assert named <= flags | {"--help", "--version"}


ALL_FLAGS = {
    flag
    for name in TABLE
    for command in (TABLE[name], *getattr(TABLE[name], "commands", {}).values())
    for option in command.params
    for flag in (*option.opts, *option.secondary_opts)
}


@pytest.mark.parametrize("page", KOREAN_PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_flags_named_on_a_korean_page_exist(page):
    named = set(re.findall(r"`[^`\n]*?(--[a-z][a-z0-9-]+)", page.read_text("utf-8")))
    assert named <= ALL_FLAGS | {"--extra-index-url"}  # which is a flag of pip


def test_each_korean_page_is_listed_in_the_korean_index():
    index = (ROOT / "docs" / "ko" / "README.md").read_text("utf-8")
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", index))
    assert listed == {page.name for page in KOREAN_PAGES} - {"README.md", "README.ko.md"}


@pytest.mark.slow
def test_make_help_lists_every_target_with_its_description():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = [re.match(r"  make ([\w-]+) +", line) for line in done.stdout.splitlines()]
    assert [match[1] for match in listed] == targets
    assert len({match.end() for match in listed}) == 1  # the descriptions are aligned


def test_make_targets_in_the_readme_exist():
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = "\n".join(
        (ROOT / name).read_text("utf-8") for name in ("README.md", "README.ko.md", "CONTRIBUTING.md")
    )
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", pages, re.MULTILINE))
    assert {"demo", "test", "test-fast", "check"} <= named <= targets


def test_relative_links_point_to_existing_files():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def find_anchors(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_anchors_of_links_exist(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text("utf-8")):
        linked = page.parent / target if target else page
        assert anchor in find_anchors(linked), f"{target}#{anchor}"


SOURCE_PATH = re.compile(r"`((?:bertkit|tests|benchmarks|recipes|profiles)/[\w./-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_paths_exist(page):
    named = [path for path in SOURCE_PATH.findall(page.read_text("utf-8")) if "NAME" not in path]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_functions_on_the_architecture_page_exist():
    """Each table row that names a function and a module is true: the module defines the function."""
    rows = re.findall(
        r"\|([^|\n]*`bertkit/[^|\n]*)\|\n", (ROOT / "docs" / "architecture.md").read_text("utf-8")
    )
    pairs = [
        pair for row in rows for pair in re.findall(r"`([\w.]+)`(?: and `\w+`)? in `(bertkit/[\w/.]+)`", row)
    ]
    assert len(pairs) > 10
    for name, path in pairs:
        files = (ROOT / path).rglob("*.py") if (ROOT / path).is_dir() else [ROOT / path]
        source = "\n".join(file.read_text("utf-8") for file in files)
        assert re.search(rf"(?:def|class) {name.split('.')[-1]}\b", source), f"{path}: {name}"


def test_methods_on_the_architecture_page_exist():
    from bertkit.tasks.base import Task

    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.split("| methods of `Task` |")[1].split("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    public = {name for name in vars(Task) if not name.startswith("_")} - {"state_class", "label_setting"}
    assert named == public
