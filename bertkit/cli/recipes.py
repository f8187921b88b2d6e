"""`bertkit recipes`: list, show and copy the shipped recipes."""

from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.completion import make_completer
from bertkit.cli.usage_errors import CommandGroup
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.recipes import (
    find_recipe,
    list_profiles,
    list_shipped_recipes,
    read_recipe_file,
    read_recipe_task,
    read_recipe_title,
)
from bertkit.utils.files import write_text
from bertkit.utils.output_paths import check_output_file

app = typer.Typer(cls=CommandGroup, help="List, show and copy recipes: settings to start from.", no_args_is_help=True)
RecipeName = Annotated[
    str, typer.Argument(help="A shipped name, or a file.", autocompletion=make_completer("shipped"))
]


@app.command("ls")
def list_recipes(
    task: Annotated[
        str, typer.Argument(help="Those of this task alone.", autocompletion=make_completer("tasks"))
    ] = "",
) -> None:
    """Name and first line of each shipped recipe."""
    known = {
        name: path for name, path in list_shipped_recipes().items() if task in ("", read_recipe_task(path))
    }
    if not known:
        there = list(dict.fromkeys(map(read_recipe_task, list_shipped_recipes().values())))
        raise UserError(
            f"recipes ls {task}: no recipes for it{suggest_similar(task, there)} ({format_list(there)})"
        )
    width = max(map(len, known))
    for name, path in known.items():
        typer.echo(f"{name:<{width}}  {read_recipe_title(path)}")


@app.command("show")
def show_recipe(name: RecipeName) -> None:
    """Print a recipe."""
    typer.echo(_find(name).read_text("utf-8"), nl=False)


@app.command("cp")
def copy_recipe(
    name: RecipeName, file: Annotated[str, typer.Argument(help="Where to; never overwritten.")]
) -> None:
    """Copy a recipe to a file of your own."""
    source = _find(name)
    if not file:
        raise UserError("FILE: is empty; name the file to copy to, or a folder, . for this one")
    target = Path(file) / source.name if Path(file).is_dir() else Path(file)
    check_output_file(target, overwrite=False, flag="", conflict="already exists; choose another file")
    write_text(target, source.read_text("utf-8"))
    typer.echo(f"{target}", err=True)


def _find(name: str) -> Path:
    if name in list_profiles():
        return list_profiles()[name]
    path = find_recipe(name, flag="recipe")
    read_recipe_file(path)  # is it one?
    return path
