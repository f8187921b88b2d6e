"""What was typed wrong, in our words: Typer's name neither what is near nor, of commands, what there is."""

import re

from typer.exceptions import TyperException

from bertkit.errors import nearest

COMMAND = re.compile(r"No such command '(.*?)'\.")
VALUE = re.compile(r"Invalid value for (?P<where>.+?): (Value error, )?(?P<what>.+)", re.DOTALL)
CHOICES = re.compile(r"'(.*)' is not one of (.+)\.", re.DOTALL)


def told(error: TyperException) -> str:
    """One line that names the command or the flag, what it takes, and what may have been meant."""
    message = getattr(error, "format_message", error.__str__)()
    if found := COMMAND.match(message):
        group = error.ctx  # type: ignore[attr-defined]
        there = list(group.command.commands)
        way = nearest(found[1], there)
        return f"{group.command_path} {found[1]}: no such command{way}; there are {', '.join(there)}"
    if found := VALUE.fullmatch(message):
        return f"{found['where'].replace(chr(39), '')}: {_with_nearest(found['what'])}"
    return message


def _with_nearest(what: str) -> str:
    found = CHOICES.fullmatch(what)
    return what.rstrip(".") + nearest(found[1], re.findall("'([^']*)'", found[2])) if found else what
