"""`bertkit recipes`: list, show and copy the shipped recipes."""

from pathlib import Path
from typing import Annotated

import typer

from bertkit.errors import UserError
from bertkit.files import write_text
from bertkit.recipes import find_recipe, shipped

app = typer.Typer(help="List, show and copy recipes: settings to start from.", no_args_is_help=True)


@app.command("ls")
def list_recipes() -> None:
    """Name and first line of each shipped recipe."""
    known = shipped()
    width = max(map(len, known))
    for name, path in known.items():
        first = path.read_text("utf-8").splitlines()[0].lstrip("# ")
        typer.echo(f"{name:<{width}}  {first}")


@app.command("show")
def show(name: str) -> None:
    """Print a recipe."""
    typer.echo(find_recipe(name).read_text("utf-8"), nl=False)


@app.command("cp")
def copy(name: str, file: Annotated[Path, typer.Argument(help="Where to; never overwritten.")]) -> None:
    """Copy a recipe to a file of your own."""
    source = find_recipe(name)
    target = file / source.name if file.is_dir() else file
    if target.exists():
        raise UserError(f"{target}: is there already; name another file")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: no such folder")
    write_text(target, source.read_text("utf-8"))
    typer.echo(f"{target}", err=True)
