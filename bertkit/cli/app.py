"""The Typer app with its commands by help panel, and the exit statuses."""

import io
import sys
from contextlib import suppress
from typing import Any

import typer

from bertkit._version import __version__
from bertkit.cli import check, info_commands, model_commands, study, usage_errors
from bertkit.cli.distill import distill
from bertkit.cli.embed import embed
from bertkit.cli.label_issues import label_issues
from bertkit.cli.launch import handle_signals
from bertkit.cli.predict import predict
from bertkit.cli.serve import serve
from bertkit.cli.streams import guard_streams, replace_control_characters
from bertkit.cli.training_commands import SUITE_COMMANDS, TASK_COMMANDS
from bertkit.errors import UserError
from bertkit.tasks import TASKS, task_definition
from bertkit.utils import distributed, system
from bertkit.utils.reporting import Reporter, use_reporter
from bertkit.utils.system import postpone_collection

app = typer.Typer(
    cls=usage_errors.CommandGroup,
    name="bertkit",
    help="Pre-train, fine-tune, evaluate and use BERT models. Options: `bertkit COMMAND --help`.",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
)
# Help panels.
FINE_TUNE = "Fine-tune"
PRE_TRAIN = "Pre-train"
BEFORE_TRAINING = "Before training"
AFTER_TRAINING = "After training"
DISTILL = "distill"  # trains, as the tasks do


class WarningReporter(Reporter):
    """The reporter of a command before it begins to report its progress: of recipes and settings."""

    def warn(self, message: str) -> None:
        """Print a warning, unless another rank prints it."""
        from bertkit.cli.console import ConsoleReporter

        if distributed.is_main_process():
            ConsoleReporter().warn(message)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"bertkit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(  # noqa: ARG001
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
) -> None:
    """Handle the options before a command, and refuse a launcher for commands that run in one process."""
    command = context.invoked_subcommand
    if system.get_launched_world_size() > 1 and command not in (*TASKS, DISTILL, None):
        raise UserError(
            f"{command}: runs in one process; start it without a launcher (torchrun, accelerate launch)"
        )
    context.with_resource(use_reporter(WarningReporter()))


def _list_commands() -> dict[str, dict[str, Any]]:
    """Return the commands by help panel. Tasks that predict rows are fine-tuning tasks."""
    fine_tuning = {name: TASK_COMMANDS[name] for name in TASKS if task_definition(name).predicts_rows}
    pretraining = {name: TASK_COMMANDS[name] for name in TASKS if name not in fine_tuning}
    fine_tuning_suites = {name: command for name, command in SUITE_COMMANDS.items() if name != "ablation"}
    return {
        FINE_TUNE: {**fine_tuning, **fine_tuning_suites, "study": study.app},
        PRE_TRAIN: {
            **pretraining, "train-tokenizer": model_commands.train_tokenizer,
            "ablation": SUITE_COMMANDS["ablation"],
        },
        BEFORE_TRAINING: {
            "check": check.app, "recipes": info_commands.recipes, "data": info_commands.data,
            "env": info_commands.env,
        },
        AFTER_TRAINING: {
            "predict": predict, "serve": serve, "evaluate": model_commands.evaluate,
            "calibrate": model_commands.calibrate, "report": model_commands.report, "embed": embed,
            "fill-mask": model_commands.fill_mask, "export": model_commands.export,
            "label-issues": label_issues, DISTILL: distill,
        },
    }  # fmt: skip


for _panel, _commands in _list_commands().items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


def main() -> None:
    """Run the app and exit.

    The exit status is 0 for success, 1 for a bug (with its traceback) and 2 for an error that the user can
    fix. It is 130 after an interrupt, and 141 if the reader of the output has closed the pipe.
    """
    postpone_collection()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the encoding of the terminal lacks must not raise an error.
            stream.reconfigure(errors="backslashreplace" if stream.encoding.lower() == "utf-8" else "replace")
    with guard_streams(), handle_signals():
        status = _run_app()
    sys.exit(status)


def _run_app() -> int:
    try:
        status = app(standalone_mode=False) or 0
        print(end="", flush=True)
        # Typer returns 130 if it caught an interrupt itself.
        return _report_error("interrupted; nothing was saved", 130) if status == 130 else status
    except UserError as error:
        return _report_error(str(error), error.exit_code, error.should_report)
    except usage_errors.CommandError as error:
        return _report_error(usage_errors.format_usage_error(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _report_error("interrupted", 130)


def _report_error(message: str, status: int, should_report: bool | None = None) -> int:
    """Print an error message as one line, and return `status`.

    Args:
        message: The message; empty if help was printed instead.
        status: The exit status.
        should_report: Whether this process prints the message; by default, one process per machine does.
    """
    should_report = distributed.is_local_main_process() if should_report is None else should_report
    if message and should_report:
        with suppress(UserError):  # standard error is closed; the exit status still reports the failure
            print(f"bertkit: {replace_control_characters(' '.join(message.split()))}", file=sys.stderr)
    return status
