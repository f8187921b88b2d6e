"""Recipes: YAML files with `task` and `settings`; shipped ones, a user's own, and every `run.yaml`."""

import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import RunConfig, get_settings
from bertkit.errors import UserError, format_list, shorten_repr, suggest_similar
from bertkit.utils.yaml import read_yaml
from bertkit.validation import validate_settings

COMMAND_NAME = re.compile("[a-z][a-z-]*")
RECIPE_KEYS = ("task", "settings", "provenance")


@dataclass(frozen=True)
class Recipe:
    """A recipe as read: its settings are checked against the task's config."""

    path: Path
    task: str
    settings: dict[str, Any]
    provenance: dict[str, Any]


def list_shipped_recipes() -> dict[str, Path]:
    """Name (`classify/imdb`) -> file of each shipped recipe, from the checkout or the installed package."""
    return _files("recipes")


def list_profiles() -> dict[str, Path]:
    """Name (`profiles/ddp`) -> file of each shipped configuration of `accelerate launch`."""
    return {f"profiles/{name}": path for name, path in _files("profiles").items()}


def _files(folder_name: str) -> dict[str, Path]:
    installed = Path(str(importlib.resources.files("bertkit"))) / folder_name
    folder = installed if installed.is_dir() else Path(__file__).parent.parent / folder_name
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))
    }


def apply_overrides(
    recipe: Mapping[str, Any], given: Mapping[str, Any], config: type[RunConfig]
) -> dict[str, Any]:
    """The settings of a recipe with those given before them, which drop what they are said instead of."""
    known = get_settings(config)
    said = {name for name, value in given.items() if value is not None}
    kept = {
        name: value
        for name, value in recipe.items()
        if not said & set(known[name][1].instead_of)
        and not any(name in known[other][1].instead_of for other in said)
    }
    return {**kept, **given}


def find_recipe(name: str, task: str = "", flag: str = "--recipe") -> Path:
    """A recipe by path, or by shipped name with or without its folder; that of `task` goes first.

    Raises:
        UserError: neither a file nor a shipped name, or the name of several.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known = list_shipped_recipes()
    wanted = name.removesuffix(".yaml")
    matches = [key for key in known if wanted in (key, key.split("/")[-1])]
    if f"{task}/{wanted}" in matches:
        matches = [f"{task}/{wanted}"]
    if len(matches) > 1:
        raise UserError(f"{flag} {name}: there are {format_list(matches)}; name one of them")
    if not matches:
        raise UserError(
            f"{flag} {name or repr(name)}: neither a file nor a shipped recipe{suggest_similar(name, known)} "
            "(bertkit recipes ls)"
        )
    return known[matches[0]]


def read_recipe_task(name: str) -> str:
    """The task that a shipped recipe is for."""
    return parse_recipe_task(find_recipe(name))


def parse_recipe_task(path: Path) -> str:
    """The task of a shipped recipe, which has a line that says so; to read all as YAML takes its time."""
    return path.read_text("utf-8").partition("\ntask: ")[2].partition("\n")[0]


def read_recipe_title(path: Path) -> str:
    """What a shipped recipe says it is."""
    return path.read_text("utf-8").partition("\n")[0].lstrip("# ")


def read_recipe_file(path: Path) -> dict[str, Any]:
    """What a recipe's file says, whatever its task. Raises `UserError` where it is no recipe."""
    fix = "bertkit recipes show imdb is an example of one"
    content = read_yaml(path, "recipe", fix)
    if not isinstance(content, dict) or not isinstance(content.get("settings"), dict):
        raise UserError(f"{path}: no recipe, which has the keys 'task' and 'settings'; {fix}")
    for key in content:
        if key not in RECIPE_KEYS:
            raise UserError(
                f"{path}: unknown key {key!r}{suggest_similar(key, RECIPE_KEYS)}; settings stand under 'settings:'"
            )
    return content


def read_recipe(name: str, task: str, config: type[RunConfig]) -> Recipe:
    """Read a recipe for `task`, whose settings are those of `config`, and check it.

    Raises:
        UserError: not YAML, another task's, or a key or value that is wrong (named with the file).
    """
    path = find_recipe(name, task)
    content = read_recipe_file(path)
    named, provenance = content.get("task", task), content.get("provenance") or {}
    if not isinstance(named, str) or not COMMAND_NAME.fullmatch(named):
        raise UserError(f"{path}: task: {named!r} is no command's name; this is read for {task}")
    if not isinstance(provenance, dict):
        raise UserError(
            f"{path}: provenance: {shorten_repr(provenance)} is no list of keys and values; leave it out"
        )
    if named != task:
        raise UserError(f"{path}: a recipe for {named}; use bertkit {named} --recipe {name}")
    settings = validate_settings(config, content["settings"], str(path))
    if "nproc" in settings:
        raise UserError(f"{path}: nproc: is said on the command line alone; leave it out and give --nproc")
    return Recipe(path, task, settings, provenance)
