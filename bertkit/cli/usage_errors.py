"""What was typed wrong, in our words: Typer's name neither what is near nor, of commands, what there is."""

import re
from typing import Any

from typer.exceptions import TyperException

from bertkit.errors import format_list, suggest_similar

UNKNOWN_COMMAND = re.compile(r"No such command '(.*?)'\.")
INVALID_VALUE = re.compile(r"Invalid value for (?P<where>.+?): (Value error, )?(?P<what>.+)", re.DOTALL)
VALUE_PROBLEMS = {
    "Input should be greater than or equal to": "is out of bounds; it must be at least",
    "Input should be less than or equal to": "is out of bounds; it must be at most",
    "Input should be a valid integer.*": "is not a whole number",
    "Input should be a valid number.*": "is not a number",
}
UNKNOWN_OPTION = "No such option"
INVALID_CHOICE = re.compile(r"'(.*)' is not one of (.+)\.", re.DOTALL)


def format_usage_error(error: TyperException) -> str:
    """One line that names the command or the flag, what it takes, and what may have been meant."""
    message = getattr(error, "format_message", error.__str__)()
    if found := UNKNOWN_COMMAND.match(message):
        group = error.ctx  # type: ignore[attr-defined]
        there = list(group.command.commands)
        way = suggest_similar(found[1], there)
        return f"{group.command_path} {found[1]}: no such command{way}; there are {', '.join(there)}"
    if found := INVALID_VALUE.fullmatch(message):
        return f"{found['where'].replace(chr(39), '')}: {_worded(_with_nearest(found['what']))}"
    if flag := getattr(error, "option_name", None) if message.startswith(UNKNOWN_OPTION) else None:
        return _unknown(flag, error.ctx)  # type: ignore[attr-defined]
    return message


def _worded(what: str) -> str:
    """Typer hands on the words of the library that converts; recipes say it in these."""
    for theirs, ours in VALUE_PROBLEMS.items():
        what = re.sub(theirs, ours, what)
    return what


def _unknown(flag: str, context: Any) -> str:
    """A flag that a command has not: which one is near, or which commands have it."""
    own = [name for param in context.command.params for name in (*param.opts, *param.secondary_opts)]
    elsewhere = _commands_with(flag, context)
    way = f"; it is a flag of {format_list(elsewhere)}" if elsewhere else suggest_similar(flag, own)
    return f"{flag}: no such option of {context.command_path}{way}"


def _commands_with(flag: str, context: Any) -> list[str]:
    beside = context.parent.command.commands if context.parent else {}
    return [name for name, command in beside.items() if any(flag in param.opts for param in command.params)]


def _with_nearest(what: str) -> str:
    found = INVALID_CHOICE.fullmatch(what)
    return what.rstrip(".") + suggest_similar(found[1], re.findall("'([^']*)'", found[2])) if found else what
