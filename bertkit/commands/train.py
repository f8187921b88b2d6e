"""`bertkit TASK`: train a task, and print its scores."""

from typing import Any

from bertkit.reports.terminal import print_dry_run, print_preview, print_run_json, print_scores
from bertkit.run.train import train
from bertkit.settings.recipes import Recipe
from bertkit.utils import distributed


def run_command(
    task_name: str, settings: dict[str, Any], as_json: bool, recipe: Recipe | None = None
) -> None:
    run = train(task_name, settings, recipe)
    if not distributed.is_main_process():
        return
    if as_json:
        print_run_json(run)
    elif run.samples:
        print_preview(run.metrics, run.samples)
    elif run.output_dir is None:
        print_dry_run(run.metrics)
    else:
        print_scores(run.metrics, run.output_dir)
