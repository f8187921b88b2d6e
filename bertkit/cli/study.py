"""`bertkit study TASK`: one command for each task that can be studied."""

import typer

from bertkit.cli.options import build_training_command
from bertkit.cli.training_commands import run_experiment_command
from bertkit.cli.usage_errors import CommandGroup
from bertkit.experiments.config import STUDY_HELP, list_study_tasks, make_study_config
from bertkit.settings.recipes import STUDY_PREFIX

app = typer.Typer(cls=CommandGroup, help=STUDY_HELP, no_args_is_help=True)

for _task_name in list_study_tasks():
    app.command(_task_name)(
        build_training_command(
            STUDY_PREFIX + _task_name, make_study_config(_task_name),
            f"Study `bertkit {_task_name}` over folds, seeds and hyperparameter trials.",
            run_experiment_command,
        )
    )  # fmt: skip
