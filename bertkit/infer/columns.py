"""The flags that name the columns of new rows, derived from the settings of all tasks."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from bertkit.errors import UserError, format_list
from bertkit.setting import Setting, Settings, get_column_settings, get_flag, get_settings, is_column_setting
from bertkit.tasks import TASKS, task_class

if typing.TYPE_CHECKING:
    from bertkit.tasks.base import Task

COLUMN_PANEL = "Columns of the rows"
ConfigClass = TypeVar("ConfigClass", bound=type[Settings])


def add_column_settings(config: ConfigClass) -> ConfigClass:
    """Return a subclass of a config that also has the column settings of all tasks that predict rows."""
    declarations: dict[str, list[tuple[str, Any, Setting]]] = {}
    for task in TASKS:
        spec = task_class(task).spec
        for name, (kind, metadata, _) in get_settings(spec.config).items() if spec.predicts_rows else ():
            if is_column_setting(name):
                declarations.setdefault(name, []).append((task, kind, metadata))
    fields = [
        (name, declared[0][1], dataclasses.field(default=None, metadata={"setting": _merge(declared)}))
        for name, declared in declarations.items()
    ]
    namespace = {"__doc__": config.__doc__, "__module__": config.__module__}
    return dataclasses.make_dataclass(  # type: ignore[return-value]
        config.__name__, fields, bases=(config,), frozen=True, kw_only=True, namespace=namespace
    )


def _merge(declarations: Sequence[tuple[str, Any, Setting]]) -> Setting:
    """Return a setting whose help text combines those of the tasks, with the names of the tasks."""
    tasks_by_help: dict[str, list[str]] = {}
    for task, _, metadata in declarations:
        tasks_by_help.setdefault(metadata.help.removesuffix("."), []).append(task)
    text = " ".join(f"{text} ({', '.join(tasks)})." for text, tasks in tasks_by_help.items())
    _, _, metadata = declarations[0]
    return dataclasses.replace(metadata, help=text, panel=COLUMN_PANEL, default_text="as in training")


def collect_passed_columns(config: Settings, task: "Task", run: str) -> dict[str, Any]:
    """Return the columns that the user named, by setting.

    Args:
        config: Settings of the command, of a class that `add_column_settings` returned.
        task: The task of the run.
        run: The run, for error messages.

    Raises:
        UserError: The run does not read a column that the user named.
    """
    settings = get_settings(type(config))
    # The settings of a finished run name all columns that it reads.
    column_settings = get_column_settings(task.config) if task.spec.predicts_rows else {}
    names = [name for name, column in column_settings.items() if column]
    columns = {}
    for name, (_, metadata, _) in settings.items():
        if not is_column_setting(name) or (column := getattr(config, name)) is None:
            continue
        if name not in names:
            flags = format_list(get_flag(known, settings[known][1]) for known in names)
            fix = f"use {flags}" if names else "name the column as in training"
            raise UserError(
                f"{get_flag(name, metadata)}: does not apply to {run}, a run of {task.spec.name}; {fix}"
            )
        columns[name] = column
    return columns
