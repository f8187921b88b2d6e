"""`bertkit TASK`: train a task, and print its scores."""

from typing import Any

from bertkit.data.sources import fetch_dataset
from bertkit.settings.recipes import Recipe
from bertkit.tasks import task_definition
from bertkit.utils import distributed


def run_command(
    task_name: str, settings: dict[str, Any], as_json: bool, recipe: Recipe | None = None
) -> None:
    definition = task_definition(task_name)
    data = definition.config(**(recipe.settings if recipe else {}) | settings).resolve_data_name()
    # A missing dataset is reported before slow imports; a directory named like the data is refused later.
    if definition.predicts_rows and isinstance(data, str) and settings.get("output_dir") != data:
        fetch_dataset(data, settings.get("data_dir"))
    from bertkit.reports.terminal import print_dry_run, print_preview, print_run_json, print_scores
    from bertkit.run.train import train

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
