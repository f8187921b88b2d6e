"""The documentation is true: its commands parse, its names exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from bertkit.cli.app import app
from bertkit.data.registry import load_dataset_specs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    (page.name, line.strip())
    for page in PAGES
    for block in re.findall(r"```(?:console|bash)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if re.match(r"(\$ )?([A-Z_]+=\S+ )*bertkit ", line.strip())
]


def parse(words):
    """The real parser, running nothing."""
    command = typer.main.get_command(app)
    context = command.make_context("bertkit", words)
    while hasattr(command, "resolve_command"):
        words = context._protected_args + context.args
        name, command, words = command.resolve_command(context, words)
        context = command.make_context(name, words, parent=context)
    return context


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_parse(page, line):
    words = shlex.split(line.removeprefix("$ "), comments=True)
    assert parse(words[words.index("bertkit") + 1 :]) is not None


def test_there_are_commands_and_a_wrong_one_would_be_seen():
    assert len(COMMANDS) > 10
    with pytest.raises(Exception, match="No such option"):
        parse(["classify", "--dta", "imdb"])


TABLE = typer.main.get_command(app).commands


def test_each_command_has_a_page():
    assert [name for name in TABLE if not (ROOT / "docs" / f"{name}.md").exists()] == []


@pytest.mark.parametrize("name", [name for name, one in TABLE.items() if not hasattr(one, "commands")])
def test_each_flag_that_a_page_names_exists(name):
    flags = {flag for option in TABLE[name].params for flag in (*option.opts, *option.secondary_opts)}
    named = set(re.findall(r"`(--[a-z][a-z0-9-]+)", (ROOT / "docs" / f"{name}.md").read_text("utf-8")))
    assert named
    assert named <= flags | {"--help", "--version"}


def test_make_targets_in_the_readme_exist():
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_the_data_page_lists_every_known_set_and_where_it_was_tested():
    page = (ROOT / "docs" / "data.md").read_text("utf-8")
    for known in load_dataset_specs().values():
        tested = ", ".join(known.tested_sources) or "not tested"
        assert f"| `{known.name}` | {known.title} | {tested} | `{known.hub['id']}` |" in page


def test_the_data_page_lists_the_files_of_every_layout():
    page = (ROOT / "docs" / "data.md").read_text("utf-8")
    for known in load_dataset_specs().values():
        for layout in known.layouts:
            files = ", ".join(f"`{file}`" for file in dict.fromkeys(part.file for part in layout.values()))
            assert f"| `{known.name}` | {files} " in page


def test_relative_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
