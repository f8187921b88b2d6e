"""Shell completion of values. A setting declares the source of its completions as `completion`.

Completion must be fast, so this module imports no heavy package. It reads only file names and small files.
If it returns no completion, the shell itself completes file names.
"""

import importlib.resources
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from bertkit.run_directory import DEFAULT_RUNS_DIR, RunDir
from bertkit.settings.recipes import list_shipped_recipes, read_recipe_task, read_recipe_title
from bertkit.settings.run_settings import PACKAGED_MODELS, TRACKERS
from bertkit.tasks import TASKS, task_definition
from bertkit.utils.text import read_yaml

SAMPLE_DESCRIPTION = "about 40 rows for each task, for trying commands"
Completions = Iterator[tuple[str, str]]  # (value, description)


def make_completer(source: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Return the function that Typer calls to complete a value.

    Args:
        source: A key of `COMPLETION_SOURCES`.
    """

    def complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        completions = [
            (value, description)
            for value, description in COMPLETION_SOURCES[source](context, incomplete)
            if value.startswith(incomplete)
        ]
        if completions and incomplete and source in SOURCES_WITH_FILES:
            # The shell does not add file names if there is any completion.
            names = (path.name for path in Path().iterdir() if path.name.startswith(incomplete))
            completions += [(name, "") for name in sorted(names)]
        return completions

    return complete


def _complete_shipped_recipes(*_: object) -> Completions:
    yield from ((name, read_recipe_title(path)) for name, path in list_shipped_recipes().items())


def _complete_task_recipes(context: typer.Context, incomplete: str) -> Completions:
    """Yield the recipes of the task on the command line; those in the folder `TASK/` come first."""
    recipes, task = list_shipped_recipes(), str(context.info_name)
    names = [name for name, path in recipes.items() if read_recipe_task(path) == task]
    for name in sorted(names, key=lambda name: not name.startswith(f"{task}/")):
        short_name = name.rpartition("/")[2]
        names_with_short_name = [other for other in recipes if other.endswith(f"/{short_name}")]
        is_unambiguous = name == f"{task}/{short_name}" or len(names_with_short_name) == 1
        value = short_name if is_unambiguous and "/" not in incomplete else name
        yield value, read_recipe_title(recipes[name])


def _complete_data(*_: object) -> Completions:
    yield "sample", SAMPLE_DESCRIPTION
    registry = Path(str(importlib.resources.files("bertkit.data"))) / "registry.yaml"
    yield from ((name, entry["title"]) for name, entry in read_yaml(registry).items())


def _complete_models(*_: object) -> Completions:
    yield from ((name, "from the package index") for name in PACKAGED_MODELS)
    yield from _complete_runs()
    from huggingface_hub import constants

    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        yield folder.name.removeprefix("models--").replace("--", "/"), "in the Hugging Face cache"


def _complete_runs(*_: object) -> Completions:
    for path in sorted(Path(DEFAULT_RUNS_DIR).glob(f"*/{RunDir.METRICS_FILE}")):
        yield str(path.parent), "finished run"


def _complete_tasks(*_: object) -> Completions:
    yield from ((name, task_definition(name).help) for name in TASKS)


def _complete_trackers(*_: object) -> Completions:
    yield from ((name, "") for name in (*TRACKERS, "none"))


COMPLETION_SOURCES: dict[str, Callable[[typer.Context, str], Completions]] = {
    "data": _complete_data,
    "models": _complete_models,
    "recipes": _complete_task_recipes,
    "runs": _complete_runs,
    "shipped": _complete_shipped_recipes,
    "tasks": _complete_tasks,
    "trackers": _complete_trackers,
}
SOURCES_WITH_FILES = ("data", "models", "recipes", "runs")
