"""Recipes: YAML files with `task` and `settings`; shipped ones, a user's own, and every `run.yaml`."""

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bertkit.checked import checked
from bertkit.config import RunConfig, settings_of
from bertkit.errors import UserError, listed, nearest

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
    installed = Path(str(importlib.resources.files("bertkit"))) / "recipes"
    folder = installed if installed.is_dir() else Path(__file__).parent.parent / "recipes"
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
            f"{flag} {name}: neither a file nor a shipped recipe{nearest(name, known)} (bertkit recipes ls)"
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


def read_recipe(name: str, task: str, config: type[RunConfig]) -> Recipe:
    """Read a recipe for `task`, whose settings are those of `config`, and check it.

    Raises:
        UserError: not YAML, another task's, or a key or value that is wrong (named with the file).
    """
    path = find_recipe(name, task)
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict) or not isinstance(content.get("settings"), dict):
        raise UserError(f"{path}: a recipe has the keys 'task' and 'settings'")
    for key in content:
        if key not in KEYS:
            raise UserError(
                f"{path}: unknown key {key!r}{nearest(key, KEYS)}; settings stand under 'settings:'"
            )
    if content.get("task", task) != task:
        raise UserError(
            f"{path}: a recipe for {content['task']}; use bertkit {content['task']} --recipe {name}"
        )
    settings = checked(config, content["settings"], str(path))
    return Recipe(path, task, settings, content.get("made_with") or {})
