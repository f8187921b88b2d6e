"""Messages for unknown commands and flags, with the valid names and with suggestions."""

from typing import Any

from typer.core import TyperGroup

from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.utils.compat import get_command_error

CommandError = get_command_error()


class CommandGroup(TyperGroup):
    """A group of commands; the error for an unknown command lists all commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that `args` start with.

        Raises:
            UserError: There is no such command.
        """
        name = args[0]
        is_option = not name[:1].isalnum()  # Typer reports unknown options
        if not is_option and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            hint = f"{suggest_similar(name, self.commands)}; commands: {', '.join(self.commands)}"
            raise UserError(f"{ctx.command_path} {name}: no such command{hint}")
        return super().resolve_command(ctx, args)


def format_usage_error(error: Exception) -> str:
    """Format an error of Typer as one line; for an unknown flag, suggest a similar flag or command."""
    if hasattr(error, "possibilities"):  # only NoSuchOption has it
        return _format_unknown_flag(error)
    message = str(getattr(error, "format_message", error.__str__)())
    context = getattr(error, "ctx", None)
    if context is None or not message:  # the message is empty if help was printed instead
        return message
    problem = message[0].lower() + message[1:].rstrip(".")
    return f"{context.command_path}: {problem}; see {context.command_path} --help"


def _format_unknown_flag(error: Any) -> str:
    flag, context = error.option_name, error.ctx
    known_flags = [name for param in context.command.params for name in (*param.opts, *param.secondary_opts)]
    commands = _find_commands_with(flag, context)
    hint = f"; it is a flag of {format_list(commands)}" if commands else suggest_similar(flag, known_flags)
    return f"{flag}: no such option of {context.command_path}{hint}"


def _find_commands_with(flag: str, context: Any) -> list[str]:
    commands = context.parent.command.commands if context.parent else {}
    return [name for name, command in commands.items() if any(flag in param.opts for param in command.params)]
