"""Recipes: YAML files with `task` and `settings`; shipped ones, a user's own, and every `run.yaml`."""

import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.checked import checked
from bertkit.config import RunConfig, settings_of
from bertkit.errors import UserError, listed, nearest, short
from bertkit.yaml_text import read_yaml

COMMAND = re.compile("[a-z][a-z-]*")
KEYS = ("task", "settings", "made_with")


@dataclass(frozen=True)
class Recipe:
    """A recipe as read: its settings are checked against the task's config."""

    path: Path
    task: str
    settings: dict[str, Any]
    made_with: dict[str, Any]


def shipped() -> dict[str, Path]:
    """Name (`classify/imdb`) -> file of each shipped recipe, from the checkout or the installed package."""
    return _files("recipes")


def profiles() -> dict[str, Path]:
    """Name (`profiles/ddp`) -> file of each shipped configuration of `accelerate launch`."""
    return {f"profiles/{name}": path for name, path in _files("profiles").items()}


def _files(folder_name: str) -> dict[str, Path]:
    installed = Path(str(importlib.resources.files("bertkit"))) / folder_name
    folder = installed if installed.is_dir() else Path(__file__).parent.parent / folder_name
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))
    }


def behind(recipe: Mapping[str, Any], given: Mapping[str, Any], config: type[RunConfig]) -> dict[str, Any]:
    """The settings of a recipe with those given before them, which drop what they are said instead of."""
    known = settings_of(config)
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
    known = shipped()
    wanted = name.removesuffix(".yaml")
    matches = [key for key in known if wanted in (key, key.split("/")[-1])]
    if f"{task}/{wanted}" in matches:
        matches = [f"{task}/{wanted}"]
    if len(matches) > 1:
        raise UserError(f"{flag} {name}: there are {listed(matches)}; name one of them")
    if not matches:
        raise UserError(
            f"{flag} {name or repr(name)}: neither a file nor a shipped recipe{nearest(name, known)} "
            "(bertkit recipes ls)"
        )
    return known[matches[0]]


def read_task(name: str) -> str:
    """The task that a shipped recipe is for."""
    return task_of(find_recipe(name))


def task_of(path: Path) -> str:
    """The task of a shipped recipe, which has a line that says so; to read all as YAML takes its time."""
    return path.read_text("utf-8").partition("\ntask: ")[2].partition("\n")[0]


def first_line(path: Path) -> str:
    """What a shipped recipe says it is."""
    return path.read_text("utf-8").partition("\n")[0].lstrip("# ")


def read_content(path: Path) -> dict[str, Any]:
    """What a recipe's file says, whatever its task. Raises `UserError` where it is no recipe."""
    way_out = "bertkit recipes show imdb is an example of one"
    content = read_yaml(path, "recipe", way_out)
    if not isinstance(content, dict) or not isinstance(content.get("settings"), dict):
        raise UserError(f"{path}: no recipe, which has the keys 'task' and 'settings'; {way_out}")
    for key in content:
        if key not in KEYS:
            raise UserError(
                f"{path}: unknown key {key!r}{nearest(key, KEYS)}; settings stand under 'settings:'"
            )
    return content


def read_recipe(name: str, task: str, config: type[RunConfig]) -> Recipe:
    """Read a recipe for `task`, whose settings are those of `config`, and check it.

    Raises:
        UserError: not YAML, another task's, or a key or value that is wrong (named with the file).
    """
    path = find_recipe(name, task)
    content = read_content(path)
    named, made_with = content.get("task", task), content.get("made_with") or {}
    if not isinstance(named, str) or not COMMAND.fullmatch(named):
        raise UserError(f"{path}: task: {named!r} is no command's name; this is read for {task}")
    if not isinstance(made_with, dict):
        raise UserError(f"{path}: made_with: {short(made_with)} is no list of keys and values; leave it out")
    if named != task:
        raise UserError(f"{path}: a recipe for {named}; use bertkit {named} --recipe {name}")
    settings = checked(config, content["settings"], str(path))
    if "nproc" in settings:
        raise UserError(f"{path}: nproc: is said on the command line alone; leave it out and give --nproc")
    return Recipe(path, task, settings, made_with)
