"""Pages with the arguments and options of each command, as `--help` prints them."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from bertkit.cli.app import app
from bertkit.cli.options import describe_parameter

Command = Any  # Typer's classes of commands have no public names
INTRODUCTION = """\
# Command reference

These pages list the arguments and options of every command. They are generated from the settings of the
commands, like `--help`. The other pages explain when to use them.

"""
SPECIAL_CHARACTERS = re.compile(r"(?=[\[\]*<])")


def build_reference_pages() -> dict[str, str]:
    """Return the Markdown of the index and of a page for each command, by path in the site."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    pages = {f"reference/{name}.md": build_command_page(name, commands[name]) for name in commands}
    index = [f"* [{name}]({name}.md): {_escape(command.help)}" for name, command in commands.items()]
    return {"reference/index.md": INTRODUCTION + "\n".join(index) + "\n", **pages}


def build_command_page(name: str, command: Command) -> str:
    """Return the page of a command. The options that all of its subcommands share are listed once."""
    link = f"The page [{name}](../{name}.md) has examples."
    lines = [f"# Reference: bertkit {name}", "", f"{_escape(command.help)} {link}", ""]
    if not hasattr(command, "commands"):
        return "\n".join([*lines, *_format_usage(name, command), *_format_options(command, "##")])
    subcommands = command.commands
    shared = set.intersection(*({param.name for param in item.params} for item in subcommands.values()))
    shared = shared if len(subcommands) > 1 else set()
    for subname, subcommand in subcommands.items():
        full_name = f"{name} {subname}"
        lines += [f"## bertkit {full_name}", "", _escape(subcommand.help), ""]
        lines += [*_format_usage(full_name, subcommand), *_format_options(subcommand, "###", excluded=shared)]
    if shared:
        lines += ["## Options of all subcommands", "", *_format_options(subcommand, "###", included=shared)]
    return "\n".join(lines)


def _format_usage(name: str, command: Command) -> Iterator[str]:
    context = command.make_context(f"bertkit {name}", [], resilient_parsing=True)
    yield from ("```text", command.get_usage(context).removeprefix("Usage: "), "```", "")


def _format_options(
    command: Command, heading: str, included: Iterable[str] | None = None, excluded: Iterable[str] = ()
) -> Iterator[str]:
    """Yield a definition list of options for each help panel."""
    context = command.make_context("bertkit", [], resilient_parsing=True)
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        if (included is None or parameter.name in included) and parameter.name not in excluded:
            default_panel = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panels.setdefault(parameter.rich_help_panel or default_panel, []).append(parameter)
    for panel, parameters in panels.items():
        yield from (f"{heading} {panel}", "")
        for parameter in parameters:
            flags, help = describe_parameter(parameter, context)
            yield from (f"`{flags}`", f":   {_escape(help)}", "")


def _escape(text: str) -> str:
    """Escape Markdown outside of `code`."""
    parts = " ".join(text.split()).split("`")
    return "`".join(
        part if index % 2 else SPECIAL_CHARACTERS.sub(r"\\", part) for index, part in enumerate(parts)
    )
