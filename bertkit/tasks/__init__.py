"""The tasks: one file each, and the only list of them."""

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
    """The class of a task; its file is light, so the command line may load it for `--help`."""
    module, _, attribute = TASKS[name].partition(":")
    return getattr(import_module(module), attribute)
