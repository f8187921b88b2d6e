"""The tasks by name, and the function that imports them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertkit.tasks.base import Task

TASKS = {
    "classify": "bertkit.tasks.classify:Classify",
    "ner": "bertkit.tasks.ner:Ner",
    "nli": "bertkit.tasks.nli:Nli",
    "pretrain-mlm-nsp": "bertkit.tasks.pretrain:Pretrain",
    "qa": "bertkit.tasks.qa:Qa",
    "swag": "bertkit.tasks.swag:Swag",
}


def task_class(name: str) -> "type[Task]":
    """Return the class of a task.

    Task modules import heavy libraries inside of functions, so `bertkit --help` can load all tasks.
    """
    module, _, attribute = TASKS[name].partition(":")
    return getattr(import_module(module), attribute)
