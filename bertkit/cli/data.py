"""`bertkit data`: the known data sets and where each would be taken from."""

import json
from typing import Annotated

import typer

from bertkit.cli.completion import SAMPLE_DESCRIPTION
from bertkit.cli.usage_errors import CommandGroup

app = typer.Typer(cls=CommandGroup, help="The known data sets.", no_args_is_help=True)


@app.command("ls")
def list_datasets(
    data_dir: Annotated[str | None, typer.Option("--data-dir", help="As in training.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Name, where it was found, and what it is."""
    from bertkit.data.loading import describe_source
    from bertkit.data.registry import load_dataset_specs

    found = {
        known.name: (describe_source(known, data_dir), known.title) for known in load_dataset_specs().values()
    }
    found["sample"] = ("shipped with bertkit", SAMPLE_DESCRIPTION)
    if as_json:
        about = {name: {"found": where, "title": title} for name, (where, title) in found.items()}
        typer.echo(json.dumps(about, ensure_ascii=False))
        return
    for name, (where, title) in found.items():
        typer.echo(f"{name:<16} {where:<45} {title}")
