"""The functions that read what a user hands in, each by the one way in which commands call it."""

from collections.abc import Callable
from pathlib import Path

from bertkit.commands.embed import read_index
from bertkit.run.prepare import prepare
from bertkit.settings.recipes import read_recipe
from bertkit.tasks import TASKS, task_class

Reader = Callable[[Path, Path], int]  # a file, and a model: how many rows there are


def make_training_reader(task: str) -> Reader:
    """What a training command would train and validate on."""

    def read(path: Path, model: Path) -> int:
        config = task_class(task).definition.config(
            data=str(path), model=str(model), batch_size=8, epochs=1.0
        )
        return sum(map(len, prepare(task, config).splits.values()))

    return read


def count_recipe_settings(path: Path, model: Path) -> int:
    """The settings of a recipe for classify."""
    return len(read_recipe(str(path), "classify", task_class("classify").definition.config).settings)


def count_vectors(path: Path, model: Path) -> int:
    """The vectors of a file that `embed` wrote."""
    return len(read_index(path).vectors)


READERS: dict[str, Reader] = {
    **{task: make_training_reader(task) for task in TASKS},
    "recipe": count_recipe_settings,
    "index": count_vectors,
}
