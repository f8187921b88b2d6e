"""Recipes: YAML files with the settings of a task.

Some recipes are shipped with bertkit, and users write others. The `run.yaml` of a run is a recipe, too.
"""

import glob
import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import UserError, format_list, shorten_repr, suggest_similar
from bertkit.settings.declaration import Settings, get_settings
from bertkit.settings.run_settings import RunConfig
from bertkit.settings.validation import DataObject, validate_settings
from bertkit.utils.files import expand_home
from bertkit.utils.plugins import Kind, require_plugins
from bertkit.utils.reporting import report_warning_once
from bertkit.utils.text import read_yaml

# `study TASK` and `ladder TASK` are commands with a space, which also read the recipes of the task.
COMMAND_NAME = re.compile("((study|ladder) )?[a-z][a-z-]*")
RECIPE_KEYS = ("task", "settings", "provenance")
PASSED_DATA = "passed_data"  # key of the provenance: kinds of the data objects, by setting
# Settings of earlier versions, in whose recipes and runs they may occur -> what a warning says about them.
REMOVED_SETTINGS = {"hidden_loss_weight": "the loss on hidden states no longer exists; the key has no effect"}
EXAMPLE_HINT = "see an example with: bertkit recipes show imdb"


@dataclass(frozen=True)
class Recipe:
    """A recipe with validated settings."""

    name: str  # or path by which the user chose it
    path: Path
    settings: dict[str, Any]  # data that was passed from Python is a `DataObject` without a value
    provenance: dict[str, Any]  # of the run if the recipe is a `run.yaml`, else empty


def list_shipped_recipes(folder_name: str = "recipes") -> dict[str, Path]:
    """Return the files of the shipped recipes by name, such as `classify/imdb`.

    The folder `profiles` has configurations for `accelerate launch`.
    """
    installed = Path(str(importlib.resources.files("bertkit"))) / folder_name
    folder = installed if installed.is_dir() else Path(__file__).parents[2] / folder_name
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))
    }


def apply_overrides(
    recipe_settings: Mapping[str, Any], overrides: Mapping[str, Any], config: type[RunConfig]
) -> dict[str, Any]:
    """Return the settings of a recipe, overridden by those of the user.

    A setting of the recipe is dropped if the user sets an alternative to it; see `Setting.replaces`.
    """
    replaces = {name: setting.replaces for name, (_, setting, _) in get_settings(config).items()}
    overridden = [name for name, value in overrides.items() if value is not None]

    def is_replaced(name: str) -> bool:
        return any(name in replaces[other] or other in replaces[name] for other in overridden)

    remaining = {name: value for name, value in recipe_settings.items() if not is_replaced(name)}
    return {**remaining, **overrides}


def get_task_name(command: str) -> str:
    """Return the task of a command such as `study classify`, or the name of another command."""
    return command.rpartition(" ")[2]


def find_recipe(name: str, task: str = "", flag: str = "--recipe") -> Path:
    """Return the file of a recipe, given by its path, or by its name with or without its directory.

    If several recipes have this name, that of the task is preferred. `flag` is for the error message.
    """
    path = expand_home(name)
    if path.is_file():
        return path
    shipped = list_shipped_recipes()
    stem = name.removesuffix(".yaml")
    matches = [key for key in shipped if stem in (key, key.split("/")[-1])]
    if f"{task}/{stem}" in matches:
        matches = [f"{task}/{stem}"]
    if len(matches) > 1:
        raise UserError(f"{flag} {name}: several recipes match; choose one of {format_list(matches)}")
    if not matches:
        short_names = [key.split("/")[-1] for key in shipped]
        fix = suggest_similar(name, [*shipped, *short_names]) or "; list them with: bertkit recipes ls"
        raise UserError(f"{flag} {name or repr(name)}: is neither a file nor a shipped recipe{fix}")
    return shipped[matches[0]]


def read_recipe_task(recipe: str | Path) -> str:
    """Return the task of a shipped recipe, given by its name or its file.

    Only the line `task:` is read, because parsing all shipped recipes as YAML is slow.
    """
    path = find_recipe(recipe) if isinstance(recipe, str) else recipe
    return path.read_text("utf-8").partition("\ntask: ")[2].partition("\n")[0]


def read_recipe_title(path: Path) -> str:
    """Return the title of a shipped recipe, which is a comment in its first line."""
    return path.read_text("utf-8").partition("\n")[0].lstrip("# ")


def read_recipe_file(path: Path) -> dict[str, Any]:
    """Return the content of a recipe file for any task, without validating the settings."""
    content = read_yaml(path, "recipe", EXAMPLE_HINT)
    if not isinstance(content, dict) or not isinstance(content.get("settings"), dict):
        raise UserError(
            f"{path}: is not a recipe; expected a mapping with the keys 'task' and 'settings'; {EXAMPLE_HINT}"
        )
    for key in content:
        if key not in RECIPE_KEYS:
            hint = f"{suggest_similar(key, RECIPE_KEYS)}; write settings under 'settings:'"
            raise UserError(f"{path}: unknown key {key!r}{hint}")
    return content


def read_recipe(name: str, task: str, config: type[RunConfig]) -> Recipe:
    """Read and validate a recipe for a task, given by its path or name."""
    path = find_recipe(name, get_task_name(task))
    content = read_recipe_file(path)
    recipe_task, provenance = content.get("task", task), content.get("provenance") or {}
    if not isinstance(recipe_task, str) or not COMMAND_NAME.fullmatch(recipe_task):
        raise UserError(f"{path}: task: {recipe_task!r} is not the name of a command; write 'task: {task}'")
    if not isinstance(provenance, dict):
        raise UserError(
            f"{path}: provenance: expected a mapping, found {shorten_repr(provenance)}; remove it"
        )
    require_recorded_plugins(content, path)
    if recipe_task not in (task, get_task_name(task)):
        raise UserError(f"{path}: is a recipe for {recipe_task}; use bertkit {recipe_task} --recipe {name}")
    for key in REMOVED_SETTINGS.keys() & content["settings"].keys():
        report_warning_once(f"{path}: {key}: {REMOVED_SETTINGS[key]}")
    current = {key: value for key, value in content["settings"].items() if key not in REMOVED_SETTINGS}
    settings = validate_settings(config, current, str(path))
    if "nproc" in settings:
        raise UserError(f"{path}: nproc: is not a setting of recipes; remove it and pass --nproc")
    for key, value in settings.items():
        if isinstance(value, DataObject):
            raise UserError(f"{path}: {key}: expected a text, found a list; write the rows to a file")
    kinds = provenance.get(PASSED_DATA, {})
    if not isinstance(kinds, dict) or not kinds.keys() <= get_settings(config).keys():
        raise UserError(f"{path}: provenance: {PASSED_DATA}: expected kinds of data by setting; remove it")
    passed_data = {key: DataObject(kind) for key, kind in kinds.items()}
    return Recipe(name, path, settings | passed_data, provenance)


def require_recorded_plugins(
    content: Mapping[str, Any], path: Path, kinds: tuple[Kind, ...] = ("task", "method")
) -> None:
    """Refuse the `run.yaml` of a run that used plugins of these kinds which are not installed.

    Metrics are not needed to use the model.
    """
    provenance = content.get("provenance")
    if isinstance(provenance, dict) and "plugins" in provenance:
        require_plugins(provenance["plugins"], path, kinds)


def serialize_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings for `run.yaml`, as plain values.

    Defaults, settings of a single call and data objects are left out. Paths are absolute, because the file
    may be used from another working directory.
    """
    serialized: dict[str, Any] = {}
    for name, (_, metadata, default) in get_settings(type(config)).items():
        value: Any = getattr(config, name)
        value = list(value) if isinstance(value, (tuple, list)) else value
        if isinstance(value, DataObject):
            continue  # see `list_passed_data`
        if not metadata.is_saved or value == default or value in (None, []):
            continue
        serialized[name] = value
        if metadata.is_path and "://" not in value:  # a file, a directory, a glob pattern, or another name
            path = expand_home(value)
            if path.exists():
                serialized[name] = str(path.resolve())
            elif glob.has_magic(value):
                serialized[name] = str(path.absolute())
    return serialized


def list_passed_data(config: Settings) -> dict[str, str]:
    """Return the kinds of the data objects among the settings, by setting."""
    return {name: value.kind for name, value in vars(config).items() if isinstance(value, DataObject)}
