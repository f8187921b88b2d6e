"""`bertkit data`: the known data sets and where each would be taken from."""

from typing import Annotated

import typer

app = typer.Typer(help="The known data sets.", no_args_is_help=True)


@app.command("ls")
def list_data(
    data_dir: Annotated[str | None, typer.Option("--data-dir", help="As in training.")] = None,
) -> None:
    """Name, where it was found, and what it is."""
    from bertkit.data.known import known_sets
    from bertkit.data.sources import locate

    for known in known_sets().values():
        typer.echo(f"{known.name:<16} {locate(known, data_dir):<45} {known.title}")
    typer.echo(f"{'sample':<16} {'shipped with bertkit':<45} about 40 rows for each task, for first tries")
