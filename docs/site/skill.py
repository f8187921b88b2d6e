"""The list of commands in `bertkit/SKILL.md`, the page for coding agents, from the settings of the commands.

Run as a program, this module writes it.
"""

from pathlib import Path
from typing import Any

import typer

from bertkit.cli.app import app
from bertkit.cli.options import describe_parameter

PAGE = Path(__file__).parents[2] / "bertkit" / "SKILL.md"
BEGIN, END = "<!-- commands -->\n", "<!-- /commands -->"
PANEL = "Most used"


def update(text: str) -> str:
    """Return the page with the present list of commands."""
    before, rest = text.split(BEGIN)
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    lines = [_describe(name, command) for name, command in commands.items()]
    return f"{before}{BEGIN}{chr(10).join(lines)}\n{END}{rest.split(END)[1]}"


def _describe(name: str, command: Any) -> str:
    """Return the purpose of a command, and its most used flags or its subcommands."""
    if hasattr(command, "commands"):
        names = [f"`{name} {subcommand}`" for subcommand in command.commands]
    else:
        context = command.make_context(f"bertkit {name}", [], resilient_parsing=True)
        names = [
            f"`{describe_parameter(parameter, context)[0]}`"
            for parameter in command.params
            if parameter.rich_help_panel == PANEL
        ]
    return f"* `{name}`: {command.help} {', '.join(names)}".rstrip()


if __name__ == "__main__":
    PAGE.write_text(update(PAGE.read_text("utf-8")), "utf-8")
