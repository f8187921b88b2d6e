"""The tasks by name: their definitions, which are light, and their classes, which import heavy libraries."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from bertkit.errors import UserError
from bertkit.settings.run_settings import RunConfig
from bertkit.settings.validation import find_undeclarable
from bertkit.utils.plugins import find_plugin, list_plugin_names, load_object

if TYPE_CHECKING:
    from bertkit.data.readers.formats import Dialect
    from bertkit.tasks.base import Task
    from bertkit.tasks.checks import TaskChecks
    from bertkit.tasks.view import View

# The definitions of bertkit's own tasks; other packages add theirs by entry points.
TASKS = {
    "classify": "bertkit.tasks.text.config:CLASSIFY",
    "ner": "bertkit.tasks.ner.config:NER",
    "nli": "bertkit.tasks.text.config:NLI",
    "pretrain-mlm-nsp": "bertkit.tasks.pretrain.config:PRETRAIN",
    "qa": "bertkit.tasks.qa.config:QA",
    "swag": "bertkit.tasks.choice.config:SWAG",
}


def list_tasks() -> list[str]:
    """Return the names of all tasks, bertkit's own first."""
    return [*TASKS, *list_plugin_names("task")]


@cache
def task_definition(name: str) -> "TaskDef":
    """Return the definition of a task, which is cheap to import.

    Raises:
        UserError: The task is that of a plugin, which cannot be imported or is not valid.
    """
    plugin = find_plugin("task", name)
    definition: TaskDef = load_object(TASKS[name]) if plugin is None else plugin.load()
    if plugin is not None and (problem := _describe_invalid(definition, name)):
        raise plugin.make_error(problem)
    return definition


def _describe_invalid(definition: object, name: str) -> str | None:
    """Return why a plugin's definition of a task is not valid, or None."""
    if not isinstance(definition, TaskDef):
        return "is not a bertkit.tasks.TaskDef"
    if definition.name != name:
        return f"its TaskDef has the name {definition.name!r}, not that of the entry point"
    if not (isinstance(definition.config, type) and issubclass(definition.config, RunConfig)):
        return "the config of its TaskDef does not extend RunConfig"
    if setting := find_undeclarable(definition.config):
        return f"{setting} of its config is not declared by setting() with a type that flags can have"
    return None


@cache
def list_definitions() -> tuple[Mapping[str, "TaskDef"], Mapping[str, str]]:
    """Return the definitions of all tasks by name, and why those plugins cannot be used that have none."""
    definitions, problems = {}, {}
    for name in list_tasks():
        try:
            definitions[name] = task_definition(name)
        except UserError as error:
            problems[name] = str(error)
    return definitions, problems


def task_class(name: str) -> "type[Task]":
    """Return the class of a task."""
    definition = task_definition(name)
    task: type[Task] = definition.load(definition.task)
    if getattr(task, "definition", None) is not definition:
        plugin = find_plugin("task", name)
        assert plugin is not None
        raise plugin.make_error(f"{definition.task} is no Task whose attribute `definition` is its TaskDef")
    return task


@dataclass(frozen=True, kw_only=True)
class TaskDef:
    """What a task is, independent of any run. What depends on the settings is a property of `Task`.

    Attributes:
        name: Name of the task, which is also its command.
        help: Help text of the command.
        config: Class of the settings.
        task: Path `module:class` of the task, which is imported when it is used.
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
    task: str
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
        checks: type[TaskChecks] = self.load(self.checks)
        return checks

    def load_views(self) -> "list[type[View]]":
        """Import the classes of the views."""
        return [self.load(path) for path in self.views]

    def load(self, path: str) -> Any:
        """Import a class of the task; an error names the plugin that has it."""
        plugin = find_plugin("task", self.name)
        return load_object(path) if plugin is None else plugin.load(path)
