"""Commands that print information: `recipes`, `data`, `env` and `skill`."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import SAMPLE_DESCRIPTION, CommandGroup, make_completer
from bertkit.errors import UserError, format_count, format_list, suggest_similar
from bertkit.run_directory import RECORDED_PACKAGES, get_installed_versions
from bertkit.settings.recipes import (
    find_recipe,
    list_shipped_recipes,
    read_recipe_file,
    read_recipe_task,
    read_recipe_title,
)
from bertkit.settings.run_settings import TRACKERS
from bertkit.utils.files import check_output_file, write_text
from bertkit.utils.plugins import Plugin, list_plugins

recipes = typer.Typer(
    cls=CommandGroup,
    help="List, print and copy recipes: files with recommended settings.",
    no_args_is_help=True,
)
data = typer.Typer(
    cls=CommandGroup, help="List the known datasets, and the layouts of files.", no_args_is_help=True
)
RecipeName = Annotated[
    str, typer.Argument(help="Name of a shipped recipe, or a file.", autocompletion=make_completer("shipped"))
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


# ---- recipes


@recipes.command("ls")
def list_recipes(
    task: Annotated[
        str,
        typer.Argument(
            help="List only the recipes of this task, or of a directory such as glue.",
            autocompletion=make_completer("tasks"),
        ),
    ] = "",
) -> None:
    """List the shipped recipes with their titles."""
    files = list_shipped_recipes()
    tasks = {name: read_recipe_task(path) for name, path in files.items()}
    titles = {
        name: read_recipe_title(path)
        for name, path in files.items()
        if task in ("", tasks[name], name.split("/")[0])
    }
    if not titles:
        choices = list(dict.fromkeys([*tasks.values(), *(name.split("/")[0] for name in tasks)]))
        fix = suggest_similar(task, choices) or f"; choose one of {format_list(choices)}"
        raise UserError(f"recipes ls {task}: there are no recipes for this task{fix}")
    width = max(map(len, titles))
    for name, title in titles.items():
        typer.echo(f"{name:<{width}}  {title}")


@recipes.command("show")
def show_recipe(name: RecipeName) -> None:
    """Print a recipe."""
    typer.echo(_find_recipe(name).read_text("utf-8"), nl=False)


@recipes.command("cp")
def copy_recipe(
    name: RecipeName,
    file: Annotated[str, typer.Argument(help="Target file or directory; existing files are kept.")],
) -> None:
    """Copy a recipe to edit it."""
    source = _find_recipe(name)
    if not file:
        raise UserError("FILE: is empty; pass a file or a directory (. for the current one)")
    target = Path(file) / source.name if Path(file).is_dir() else Path(file)
    check_output_file(target, overwrite=False, flag="", conflict="already exists; pass another file")
    write_text(target, source.read_text("utf-8"))
    typer.echo(f"{target}", err=True)


def _find_recipe(name: str) -> Path:
    profiles = list_shipped_recipes("profiles")
    if (profile := name.removeprefix("profiles/")) != name and profile in profiles:
        return profiles[profile]
    path = find_recipe(name, flag="recipe")
    read_recipe_file(path)  # raises an error for a file that is not a recipe
    return path


# ---- datasets


@data.command("layouts")
def list_layouts(as_json: JsonFlag = False) -> None:
    """List the layouts of annotation tools and public datasets: how each is recognized and read."""
    from dataclasses import fields

    from bertkit.data.readers.layouts import LAYOUTS, FileLayout
    from bertkit.utils.console import print_json

    if as_json:
        names = [item.name for item in fields(FileLayout)]
        print_json({"layouts": [{name: getattr(layout, name) for name in names} for layout in LAYOUTS]})
        return
    for layout in LAYOUTS:
        tasks = f" ({', '.join(layout.tasks)})" if layout.tasks else ""
        typer.echo(f"{layout.name}{tasks}\n    {layout.shape}\n    {layout.reading}")


@data.command("ls")
def list_datasets(
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", help="Directory that holds the original dataset files, as in training."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the known datasets: name, source and title."""
    from bertkit.data.sources import describe_source, load_dataset_specs
    from bertkit.utils.console import print_json

    datasets = {
        spec.name: {"found": describe_source(spec, data_dir), "title": spec.title}
        for spec in load_dataset_specs().values()
    }
    datasets["sample"] = {"found": "shipped with bertkit", "title": SAMPLE_DESCRIPTION}
    if as_json:
        print_json(datasets)
        return
    for name, dataset in datasets.items():
        typer.echo(f"{name:<16} {dataset['found']:<45} {dataset['title']}")


# ---- coding agents


def skill() -> None:
    """Print the path of a page for coding agents: which command to use, its JSON and exit statuses."""
    typer.echo(Path(__file__).parents[1] / "SKILL.md")


# ---- environment


def describe_plugin_problem(plugin: Plugin) -> str | None:
    """Return why a plugin cannot be used, or None; this imports it."""
    from bertkit.methods import load_method
    from bertkit.stats.metric_modules import load_module
    from bertkit.tasks import task_class

    load: dict[str, Callable[[str], Any]] = {"task": task_class, "method": load_method, "metric": load_module}
    if clash := plugin.describe_clash():
        return clash
    try:
        load[plugin.kind](plugin.name)
    except UserError as error:
        return str(error)
    return None


def env(as_json: JsonFlag = False) -> None:
    """Print the environment for a bug report: versions, device, access to the Hub, caches and plugins."""
    import torch
    from huggingface_hub import constants, get_token

    from bertkit.data.hub import explain_unreachable
    from bertkit.utils import devices
    from bertkit.utils.cache import get_cache_directory, get_cache_size
    from bertkit.utils.console import print_json

    environment = {
        "python": f"{platform.python_version()} on {platform.platform()}",
        **get_installed_versions([*RECORDED_PACKAGES, "huggingface-hub", *TRACKERS]),
    }
    threads = f"CPU, {format_count(torch.get_num_threads(), 'thread')}"
    environment["device"] = devices.describe_device() if devices.has_accelerator() else threads
    environment["bf16"] = "native" if devices.is_bf16_faster() else "not native; training uses fp32"
    if torch.backends.mps.is_available():  # whether MPS computes what the CPU computes
        errors = devices.find_errors(torch.device("mps"))
        environment["MPS"] = f"wrong results ({', '.join(errors)})" if errors else "computes correctly"
    if get_cache_directory().is_file():
        cache = "is a file, so nothing is cached; set BERTKIT_CACHE_DIR to a directory"
    else:
        cache = f"{get_cache_size() / 1e6:,.0f} MB, safe to delete"
    environment |= {
        "Hub": explain_unreachable() or f"{constants.ENDPOINT} is reachable",
        "Hub token": "set" if get_token() else "none",
        "Hub cache": constants.HF_HUB_CACHE,
        **{name: os.environ.get(name) or "unset" for name in ("BERTKIT_DATA_DIR", "BERTKIT_OFFLINE_DIR")},
        "cache": f"{get_cache_directory()} ({cache})",
    }
    plugins = [{**vars(plugin), "problem": describe_plugin_problem(plugin)} for plugin in list_plugins()]
    if as_json:
        print_json({**environment, "plugins": plugins})
        return
    for name, value in environment.items():
        typer.echo(f"{name:<19} {value}")
    for plugin in plugins:
        problem = plugin["problem"] or f"of {plugin['distribution']} {plugin['version']}"
        typer.echo(f"{plugin['kind'] + ' ' + plugin['name']:<19} {problem}")
