"""The Typer app: a command for each task, thin functions over the Python API, and exit codes."""

import io
import json
import sys
from contextlib import suppress
from typing import Any

import typer
from typer.exceptions import TyperException

from bertkit import __version__
from bertkit.cli import check, data, environment, recipes, usage_errors
from bertkit.cli.ablation import ablation
from bertkit.cli.embed import embed
from bertkit.cli.escape import replace_control_characters
from bertkit.cli.evaluate import evaluate
from bertkit.cli.export import export
from bertkit.cli.feature_based import feature_based
from bertkit.cli.fill_mask import fill_mask
from bertkit.cli.glue import glue
from bertkit.cli.launch import exit_with_launcher, launch
from bertkit.cli.options import build_training_command
from bertkit.cli.output import guard_streams
from bertkit.cli.predict import predict
from bertkit.cli.report import report
from bertkit.cli.signals import handle_signals
from bertkit.cli.train_tokenizer import train_tokenizer
from bertkit.errors import UserError
from bertkit.tasks import TASKS, task_class
from bertkit.utils import distributed

app = typer.Typer(
    name="bertkit",
    help="BERT from one command: fine-tune, score and look. `bertkit COMMAND --help` tells more.",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bertkit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(  # noqa: ARG001
        False, "--version", is_eager=True, callback=_version, help="Print the version."
    ),
) -> None:
    """Options that belong to no command."""
    if distributed.get_launched_world_size() > 1 and context.invoked_subcommand not in (*TASKS, None):
        raise UserError(f"{context.invoked_subcommand}: works in one process; leave out what starts several")


def run_task(task: str, settings: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    """Train, and print the scores: as a table, or as one JSON object."""
    from bertkit.cli.console import ConsoleReporter, print_dry_run, print_preview, print_scores
    from bertkit.pipeline.run import train

    if settings.get("nproc", 1) > 1 and distributed.get_launched_world_size() == 1:
        sys.exit(launch(settings["nproc"]))
    exit_with_launcher()
    run = train(task, settings, recipe, ConsoleReporter())
    if not distributed.is_main_process():
        return
    if as_json:
        where = {"output_dir": str(run.output_dir)} if run.output_dir else {}
        typer.echo(json.dumps({**run.metrics, **where}, ensure_ascii=False))
    elif run.samples:
        print_preview(run.metrics, run.samples)
    elif run.output_dir is None:
        print_dry_run(run.metrics)
    else:
        print_scores(run.metrics, run.output_dir)


FINE_TUNE, PRE_TRAIN, BEFORE_TRAINING, AFTER_TRAINING = (
    "Fine-tune",
    "Pre-train",
    "Before training",
    "After training",
)
for _task in TASKS:
    _about = task_class(_task).spec
    _panel = FINE_TUNE if _about.row_level else PRE_TRAIN  # on rows, or on running text
    app.command(_task, rich_help_panel=_panel)(
        build_training_command(_task, _about.config, _about.help, run_task)
    )
COMMANDS: dict[str, dict[str, Any]] = {
    FINE_TUNE: {"glue": glue, "feature-based": feature_based},
    PRE_TRAIN: {"train-tokenizer": train_tokenizer, "ablation": ablation},
    BEFORE_TRAINING: {"check": check.app, "recipes": recipes.app, "data": data.app, "env": environment.env},
    AFTER_TRAINING: {
        "predict": predict, "evaluate": evaluate, "report": report, "embed": embed, "fill-mask": fill_mask,
        "export": export,
    },
}  # fmt: skip
for _panel, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


def main() -> None:
    """Run the app: 0 done, 1 a bug (its traceback), 2 mendable, 130 stopped, 141 nobody reads its output."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 stops nothing; in UTF-8 half a surrogate pair is \ud800, as in JSON.
            stream.reconfigure(errors="backslashreplace" if stream.encoding.lower() == "utf-8" else "replace")
    with guard_streams(), handle_signals():
        status = _status()
    sys.exit(status)


def _status() -> int:
    try:
        status = app(standalone_mode=False) or 0
        print(end="", flush=True)
        # 130 is Typer's own way to say that it was interrupted
        return _complain("stopped; nothing was kept", 130) if status == 130 else status
    except UserError as error:
        return _complain(str(error), error.exit_code, error.should_report)
    except TyperException as error:
        return _complain(usage_errors.format_usage_error(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("stopped", 130)


def _complain(message: str, status: int, here: bool | None = None) -> int:
    said = distributed.is_local_main_process() if here is None else here  # of several processes one is enough
    if not message or not said:  # a group of commands without one: its help was printed
        return status
    with suppress(UserError):  # there is no other place to complain in
        print(f"bertkit: {replace_control_characters(' '.join(message.split()))}", file=sys.stderr)
    return status
