"""`bertkit check TASK`: a look at the data before training, for each task."""

import json
from functools import partial
from typing import Any

import typer

from bertkit.checks.config import CHECK_HELP, make_check_config
from bertkit.cli.options import build_command
from bertkit.errors import UserError
from bertkit.tasks import TASKS, task_class

app = typer.Typer(help=CHECK_HELP, no_args_is_help=True)


def _run(task: str, given: dict[str, Any], as_json: bool) -> None:
    from bertkit.checks.engine import check
    from bertkit.cli.check_page import print_check_report
    from bertkit.cli.console import ConsoleReporter

    strict = given.pop("strict", False)
    seen = check(task, given, ConsoleReporter())
    if as_json:
        typer.echo(json.dumps(seen.as_dict(), ensure_ascii=False))
    else:
        print_check_report(seen)
    errors, warnings = seen.count("error"), seen.count("warning")
    if errors:
        raise UserError(f"{_counted(errors, 'error')} in the data; training would stop (see above)")
    if strict and warnings:
        raise UserError(f"{_counted(warnings, 'warning')} in the data (see above), and --strict was given")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


for _task in TASKS:
    _about = f"The data of `bertkit {_task}`, as training would read it."
    app.command(_task)(
        build_command(make_check_config(task_class(_task).spec.config), _about, partial(_run, _task))
    )
