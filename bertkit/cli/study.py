"""`bertkit study TASK`: a study of a task, printed as a table with the result of the paired test."""

from functools import partial
from typing import Any

import typer

from bertkit.cli.options import build_training_command
from bertkit.cli.training_commands import print_plan, print_result_table
from bertkit.cli.usage_errors import CommandGroup
from bertkit.settings.recipes import STUDY_PREFIX
from bertkit.studies.config import STUDY_HELP, list_study_tasks, make_study_config

app = typer.Typer(cls=CommandGroup, help=STUDY_HELP, no_args_is_help=True)


def _run(task_name: str, _: str, settings: dict[str, Any], recipe: str | None, as_json: bool) -> None:
    from bertkit.cli.console import out_console, print_run_json
    from bertkit.studies.run import run_study
    from bertkit.studies.tables import build_study_table, build_trial_table

    run = run_study(task_name, settings, recipe)
    if as_json:
        print_run_json(run)
    elif run.output_dir is None:
        print_plan(run.metrics)
    else:
        if run.metrics["search"]:
            print_result_table(build_trial_table(run.metrics))
        print_result_table(build_study_table(run.metrics, run.output_dir))
        out_console.print(f"study: {run.output_dir}", markup=False, soft_wrap=True)


for _task_name in list_study_tasks():
    app.command(_task_name)(
        build_training_command(
            STUDY_PREFIX + _task_name, make_study_config(_task_name),
            f"Study `bertkit {_task_name}` over folds, seeds and hyperparameter trials.",
            partial(_run, _task_name),
        )
    )  # fmt: skip
