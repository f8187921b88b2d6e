"""Data checks before training (`bertkit check`), and the list of those that belong to one task."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertkit.checks.base import TaskChecks

CHECKS = {
    "classify": "bertkit.checks.classification:SequenceChecks",
    "ner": "bertkit.checks.ner:NerChecks",
    "nli": "bertkit.checks.classification:SequenceChecks",
    "pretrain-mlm-nsp": "bertkit.checks.corpus:CorpusChecks",
    "qa": "bertkit.checks.qa:QaChecks",
    "swag": "bertkit.checks.classification:ChoiceChecks",
}


def checks_class(task_name: str) -> "type[TaskChecks]":
    """Return the class with the checks of a task; `TaskChecks` if the task has none of its own."""
    module, _, attribute = CHECKS.get(task_name, "bertkit.checks.base:TaskChecks").partition(":")
    return getattr(import_module(module), attribute)
