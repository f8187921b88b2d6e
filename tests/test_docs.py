"""The documentation is true: its commands parse, its names exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from bertkit.cli.app import app
from bertkit.config import flag_of, settings_of
from bertkit.data.known import known_sets
from bertkit.suite.config import AblationConfig, FeatureBasedConfig, GlueConfig
from bertkit.tasks import TASKS, task_class
from bertkit.vocabulary import TokenizerConfig

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


OTHERS = {
    "glue": GlueConfig, "feature-based": FeatureBasedConfig, "ablation": AblationConfig,
    "train-tokenizer": TokenizerConfig,
}  # fmt: skip
CONFIGS = {task: task_class(task).Config for task in TASKS} | OTHERS


@pytest.mark.parametrize("task", CONFIGS)
def test_each_flag_that_a_page_names_exists(task):
    known = {flag_of(name, about) for name, (_, about, _) in settings_of(CONFIGS[task]).items()}
    known |= {"--help", "--recipe", "--json", "--lr", "--version", "--no-bf16", "--no-strip-accents"}
    named = set(re.findall(r"`(--[a-z][a-z0-9-]+)", (ROOT / "docs" / f"{task}.md").read_text("utf-8")))
    assert len(named) > 5
    assert named <= known


def test_make_targets_in_the_readme_exist():
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_the_data_page_lists_every_known_set_and_where_it_was_tried():
    page = (ROOT / "docs" / "data.md").read_text("utf-8")
    for known in known_sets().values():
        tried = ", ".join(known.tried) or "not tried"
        assert f"| `{known.name}` | {known.title} | {tried} | `{known.hub['id']}` |" in page


def test_the_data_page_lists_the_files_of_every_layout():
    page = (ROOT / "docs" / "data.md").read_text("utf-8")
    for known in known_sets().values():
        for layout in known.layouts:
            files = ", ".join(f"`{file}`" for file in dict.fromkeys(part.file for part in layout.values()))
            assert f"| `{known.name}` | {files} " in page


def test_relative_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
