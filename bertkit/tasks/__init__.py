"""The tasks by name: their definitions, which are light, and their classes, which import heavy libraries."""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from bertkit.settings.run_settings import RunConfig

if TYPE_CHECKING:
    from bertkit.data.readers.formats import Dialect
    from bertkit.tasks.base import Task
    from bertkit.tasks.checks import TaskChecks
    from bertkit.tasks.view import View

# The definition and the class of each task.
TASKS = {
    "classify": ("bertkit.tasks.text.config:CLASSIFY", "bertkit.tasks.text.task:Classify"),
    "ner": ("bertkit.tasks.ner.config:NER", "bertkit.tasks.ner.task:Ner"),
    "nli": ("bertkit.tasks.text.config:NLI", "bertkit.tasks.text.task:Nli"),
    "pretrain-mlm-nsp": ("bertkit.tasks.pretrain.config:PRETRAIN", "bertkit.tasks.pretrain.task:Pretrain"),
    "qa": ("bertkit.tasks.qa.config:QA", "bertkit.tasks.qa.task:Qa"),
    "swag": ("bertkit.tasks.choice.config:SWAG", "bertkit.tasks.choice.task:Swag"),
}


def task_definition(name: str) -> "TaskDef":
    """Return the definition of a task, which is cheap to import."""
    definition: TaskDef = _load(TASKS[name][0])
    return definition


def task_class(name: str) -> "type[Task]":
    """Return the class of a task."""
    task: type[Task] = _load(TASKS[name][1])
    return task


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


@dataclass(frozen=True, kw_only=True)
class TaskDef:
    """What a task is, independent of any run. What depends on the settings is a property of `Task`.

    Attributes:
        name: Name of the task, which is also its command.
        help: Help text of the command.
        config: Class of the settings.
        checks: Path `module:class` of the data checks (`bertkit check`), which are imported when used.
        views: Paths of the views for the kinds of prediction records that the task writes.
        unit: Noun for one row in messages.
        default_max_length: `max_length` in tokens if neither the user nor the dataset sets it.
        reads_conll: Whether plain text files are in the CoNLL format, with one word per line.
        resamples_examples: Whether new examples of at most `max_length` tokens are sampled in each epoch.
        scores_tokens: Whether the logits belong to tokens, so that they depend on the tokenizer.
        labeled_unit: What a label belongs to; None if the rows have no labels. A label of a "text", which may
            be a pair of texts, is also predicted from vectors by a linear model, and explained by its words.
        predicts_rows: Whether there is one prediction per row, which is written with the columns of the row.
        predictions_name: File name of the predictions, without extension.
    """

    name: str
    help: str
    config: type[RunConfig]
    checks: str
    views: tuple[str, ...]
    unit: str = "row"
    default_max_length: int = 256
    reads_conll: bool = False
    resamples_examples: bool = False
    scores_tokens: bool = False
    labeled_unit: Literal["text", "word", "ending", "answer"] | None = None
    predicts_rows: bool = True
    predictions_name: str = "predictions"

    def make_dialect(self, config: Any) -> "Dialect":
        """Return how text files are read, given the settings `encoding`, `delimiter` and `header`."""
        from bertkit.data.readers.formats import Dialect

        return replace(Dialect.from_settings(config), conll=self.reads_conll, task=self.name)

    def load_checks(self) -> "type[TaskChecks]":
        """Import the class of the data checks."""
        checks: type[TaskChecks] = _load(self.checks)
        return checks

    def load_views(self) -> "list[type[View]]":
        """Import the classes of the views."""
        return [_load(path) for path in self.views]
