"""The flags that name the columns of new rows, derived from the settings of all tasks."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from bertkit.errors import UserError, format_list
from bertkit.setting import (
    SettingField,
    Settings,
    get_column_settings,
    get_flag,
    get_settings,
    is_column_setting,
)
from bertkit.tasks import TASKS, task_spec

if typing.TYPE_CHECKING:
    from bertkit.tasks.base import Task

COLUMN_PANEL = "Columns of the rows"
ConfigClass = TypeVar("ConfigClass", bound=type[Settings])


def add_column_settings(config: ConfigClass) -> ConfigClass:
    """Return a subclass of a config that also has the column settings of all tasks that predict rows."""
    declarations: dict[str, dict[str, SettingField]] = {}
    for task in TASKS:
        spec = task_spec(task)
        if not spec.predicts_rows:
            continue
        for name, declared in get_settings(spec.config).items():
            if is_column_setting(name):
                declarations.setdefault(name, {})[task] = declared
    fields = []
    for name, by_task in declarations.items():
        kind, metadata, default = _merge(by_task)
        fields.append((name, kind, dataclasses.field(default=default, metadata={"setting": metadata})))
    namespace = {"__doc__": config.__doc__, "__module__": config.__module__}
    return dataclasses.make_dataclass(  # type: ignore[return-value]
        config.__name__, fields, bases=(config,), frozen=True, kw_only=True, namespace=namespace
    )


def _merge(declarations: Mapping[str, SettingField]) -> SettingField:
    """Return a field whose help text combines those of several tasks, with the names of the tasks.

    Args:
        declarations: The field of the setting by task.
    """
    tasks_by_help: dict[str, list[str]] = {}
    for task, declared in declarations.items():
        tasks_by_help.setdefault(declared.metadata.help.removesuffix("."), []).append(task)
    text = " ".join(f"{text} ({', '.join(tasks)})." for text, tasks in tasks_by_help.items())
    first = next(iter(declarations.values()))
    metadata = dataclasses.replace(
        first.metadata, help=text, panel=COLUMN_PANEL, default_text="as in training"
    )
    return SettingField(first.type, metadata, default=None)


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
    for name, declared in settings.items():
        if not is_column_setting(name) or (column := getattr(config, name)) is None:
            continue
        if name not in names:
            flags = format_list(get_flag(known, settings[known].metadata) for known in names)
            fix = f"use {flags}" if names else "name the column as in training"
            flag = get_flag(name, declared.metadata)
            raise UserError(f"{flag}: does not apply to {run}, a run of {task.spec.name}; {fix}")
        columns[name] = column
    return columns
