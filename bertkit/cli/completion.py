"""Shell completion of values. A setting declares the source of its completions as `completion`.

Completion must be fast, so this module imports no heavy package. It reads only file names and small files.
If it returns no completion, the shell itself completes file names.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from bertkit.settings.recipes import list_shipped_recipes, read_recipe_task, read_recipe_title

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
        # The shell does not add file names if there is any completion.
        return (
            completions + _list_files(incomplete)
            if completions and source in SOURCES_WITH_FILES
            else completions
        )

    return complete


def _list_files(incomplete: str) -> list[tuple[str, str]]:
    if not incomplete:
        return []
    names = (path.name for path in Path().iterdir() if path.name.startswith(incomplete))
    return [(name, "") for name in sorted(names)]


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
    from bertkit.data.sources import load_registry

    yield "sample", SAMPLE_DESCRIPTION
    yield from ((name, entry["title"]) for name, entry in load_registry().items())


def _complete_models(*_: object) -> Completions:
    from bertkit.models.loading import PACKAGED_MODELS

    yield from ((name, "from the package index") for name in PACKAGED_MODELS)
    yield from _complete_runs()
    yield from ((name, "in the Hugging Face cache") for name in _list_cached_models())


def _list_cached_models() -> Iterator[str]:
    from huggingface_hub import constants

    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        yield folder.name.removeprefix("models--").replace("--", "/")


def _complete_runs(*_: object) -> Completions:
    from bertkit.run_directory import DEFAULT_RUNS_DIR, METRICS_FILE

    for path in sorted(Path(DEFAULT_RUNS_DIR).glob(f"*/{METRICS_FILE}")):
        yield str(path.parent), "finished run"


def _complete_tasks(*_: object) -> Completions:
    from bertkit.tasks import TASKS, task_spec

    yield from ((name, task_spec(name).help) for name in TASKS)


def _complete_trackers(*_: object) -> Completions:
    from bertkit.training.arguments import TRACKERS

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
