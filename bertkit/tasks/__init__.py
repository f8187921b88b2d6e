"""The tasks by name: their definitions, which are light, and their classes, which import heavy libraries."""

from importlib import import_module
from typing import TYPE_CHECKING

from bertkit.tasks.base import TaskSpec

if TYPE_CHECKING:
    from bertkit.tasks.base import Task

# The definition and the class of each task.
TASKS = {
    "classify": ("bertkit.tasks.classify:SPEC", "bertkit.tasks.classify:Classify"),
    "ner": ("bertkit.tasks.ner:SPEC", "bertkit.tasks.ner:Ner"),
    "nli": ("bertkit.tasks.nli:SPEC", "bertkit.tasks.nli:Nli"),
    "pretrain-mlm-nsp": ("bertkit.tasks.pretrain:SPEC", "bertkit.tasks.pretrain:Pretrain"),
    "qa": ("bertkit.tasks.qa:SPEC", "bertkit.tasks.qa:Qa"),
    "swag": ("bertkit.tasks.swag:SPEC", "bertkit.tasks.swag:Swag"),
}


def _load(path: str) -> object:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def task_spec(name: str) -> TaskSpec:
    """Return the definition of a task, which is cheap to import."""
    return _load(TASKS[name][0])  # type: ignore[return-value]


def task_class(name: str) -> "type[Task]":
    """Return the class of a task."""
    return _load(TASKS[name][1])  # type: ignore[return-value]
