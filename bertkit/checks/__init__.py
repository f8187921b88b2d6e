"""Data checks before training (`bertkit check`), and the classes of task-specific checks."""

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
    """Return the class with the checks of a task; tasks that are not listed in `CHECKS` use `TaskChecks`."""
    module, _, attribute = CHECKS.get(task_name, "bertkit.checks.base:TaskChecks").partition(":")
    return getattr(import_module(module), attribute)
