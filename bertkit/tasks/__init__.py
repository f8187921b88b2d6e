"""The tasks by name: their definitions, which are light, and their classes, which import heavy libraries."""

from importlib import import_module
from typing import TYPE_CHECKING

from bertkit.tasks.definition import TaskSpec

if TYPE_CHECKING:
    from bertkit.tasks.base import Task

# The definition and the class of each task.
TASKS = {
    "classify": ("bertkit.tasks.text.config:CLASSIFY", "bertkit.tasks.text.task:Classify"),
    "ner": ("bertkit.tasks.ner.config:NER", "bertkit.tasks.ner.task:Ner"),
    "nli": ("bertkit.tasks.text.config:NLI", "bertkit.tasks.text.task:Nli"),
    "pretrain-mlm-nsp": ("bertkit.tasks.pretrain.config:PRETRAIN", "bertkit.tasks.pretrain.task:Pretrain"),
    "qa": ("bertkit.tasks.qa.config:QA", "bertkit.tasks.qa.task:Qa"),
    "swag": ("bertkit.tasks.choice.config:SWAG", "bertkit.tasks.choice.task:Swag"),
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
