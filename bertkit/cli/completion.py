"""What a shell completes values with, by the role that a setting names as its `values`.

Only names are given here: where none begins with what was typed, the shell completes files by itself.
Nothing is read but names, and nothing heavy is imported, so that pressing TAB is no wait.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from bertkit.recipes import list_shipped_recipes, parse_recipe_task, read_recipe_title

SAMPLE_DESCRIPTION = "about 40 rows for each task, for first tries"
Completions = Iterator[tuple[str, str]]  # with what is said of each


def make_completer(source: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """What Typer calls with what was typed so far."""

    def complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        found = [
            value
            for value in COMPLETION_SOURCES[source](context, incomplete)
            if value[0].startswith(incomplete)
        ]
        return found + _here(incomplete) if found and source in SOURCES_WITH_FILES else found

    return complete


def _here(incomplete: str) -> list[tuple[str, str]]:
    """Files that begin so too: the shell adds none where there is a name. Only once something is typed."""
    if not incomplete:
        return []
    names = (path.name for path in Path().iterdir() if path.name.startswith(incomplete))
    return [(name, "") for name in sorted(names)]


def _shipped(*_: object) -> Completions:
    """All recipes, by their whole name."""
    yield from ((name, read_recipe_title(path)) for name, path in list_shipped_recipes().items())


def _recipes(context: typer.Context, incomplete: str) -> Completions:
    """Those of the task that is typed, its own folder's first."""
    known, task = list_shipped_recipes(), str(context.info_name)
    of_the_task = [name for name, path in known.items() if parse_recipe_task(path) == task]
    for name in sorted(of_the_task, key=lambda name: not name.startswith(f"{task}/")):
        short = name.rpartition("/")[2]
        clear = name == f"{task}/{short}" or sum(other.endswith(f"/{short}") for other in known) == 1
        yield short if clear and "/" not in incomplete else name, read_recipe_title(known[name])


def _data(*_: object) -> Completions:
    from bertkit.data.registry_table import load_registry

    yield "sample", SAMPLE_DESCRIPTION
    yield from ((name, about["title"]) for name, about in load_registry().items())


def _models(*_: object) -> Completions:
    from bertkit.modeling.loading import PACKAGED_MODELS

    yield from ((name, "from the package index") for name in PACKAGED_MODELS)
    yield from _runs()
    yield from ((name, "in the Hugging Face cache") for name in _cached())


def _cached() -> Iterator[str]:
    """Models in the Hugging Face cache: its folders are called after them."""
    from huggingface_hub import constants

    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        yield folder.name.removeprefix("models--").replace("--", "/")


def _runs(*_: object) -> Completions:
    from bertkit.run_directory import DEFAULT_RUNS_DIR, METRICS_FILE

    for path in sorted(Path(DEFAULT_RUNS_DIR).glob(f"*/{METRICS_FILE}")):
        yield str(path.parent), "a finished run"


def _tasks(*_: object) -> Completions:
    from bertkit.tasks import TASKS, task_class

    yield from ((name, task_class(name).spec.help) for name in TASKS)


def _trackers(*_: object) -> Completions:
    from bertkit.training.trackers import TRACKERS

    yield from ((name, "") for name in (*TRACKERS, "none"))


COMPLETION_SOURCES: dict[str, Callable[[typer.Context, str], Completions]] = {
    "data": _data, "models": _models, "recipes": _recipes, "runs": _runs, "shipped": _shipped,
    "tasks": _tasks, "trackers": _trackers,
}  # fmt: skip
SOURCES_WITH_FILES = ("data", "models", "recipes", "runs")
