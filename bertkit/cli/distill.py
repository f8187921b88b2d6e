"""`bertkit distill RUN`: train a student, and print its scores beside those of its teacher."""

from typing import Any

from bertkit.cli.options import build_command
from bertkit.cli.training_commands import run_task
from bertkit.commands.configs import DISTILL_HELP, DistillConfig
from bertkit.commands.distill import resolve_student_settings


def _run(settings: dict[str, Any], as_json: bool) -> None:
    task_name, student_settings = resolve_student_settings(settings)
    run_task(task_name, student_settings, None, as_json)


distill = build_command(DistillConfig, DISTILL_HELP, _run)
