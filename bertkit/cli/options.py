"""From a config's declared settings to a Typer command: no flag is written twice."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperOption

from bertkit.cli.completion import make_completer
from bertkit.config import OUTPUT, RunConfig, Setting, Settings, get_flag, get_settings
from bertkit.recipes import read_recipe
from bertkit.validation import validate_settings

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


def build_training_command(
    name: str, config: type[RunConfig], help: str, run: Callable[..., None]
) -> Callable[..., None]:
    """A command with a flag for each setting of `config`, which calls `run(name, given, recipe, json)`.

    `given` has only what the user said; what the recipe says and lower layers fill in goes behind it.
    """

    def with_recipe(given: dict[str, Any], as_json: bool, recipe: str | None) -> None:
        run(name, given, recipe, as_json)

    return build_command(config, help, with_recipe, _recipe_parameter(name, config))


def build_command(
    config: type[Settings], help: str, run: Callable[..., None], *extra_parameters: inspect.Parameter
) -> Callable[..., None]:
    """The same without a recipe: it calls `run(given, json)`, and with the values of `more` by name."""

    def command(typer_context: typer.Context, **values: Any) -> None:
        as_json, others = values.pop("json"), {one.name: values.pop(one.name) for one in extra_parameters}
        given = {name: value for name, value in values.items() if _was_set(typer_context, name)}
        given = validate_settings(config, given)  # once more below; here flags are named, not Python's names
        run(given, as_json, **others)

    parameters = [
        inspect.Parameter("typer_context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *(_parameter(setting, *about) for setting, about in get_settings(config).items()),
        *extra_parameters,
        _json_parameter(),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = help
    return command


def _was_set(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameter(name: str, kind: Any, about: Setting, default: Any) -> inspect.Parameter:
    if about.positional:
        return _positional(name, kind, about, default)
    unsaid = default is None or default == ()
    option = typer.Option(
        *(about.flags or (get_flag(name, about),)),
        help=about.help,
        min=about.min,
        max=about.max,
        rich_help_panel=about.panel,
        show_default=about.default_text or (not unsaid),
        autocompletion=make_completer(about.values) if about.values else None,
    )
    return inspect.Parameter(
        name,
        KEYWORD_ONLY,
        default=None if unsaid else default,
        annotation=Annotated[_optional(kind, unsaid), option],
    )


def _positional(name: str, kind: Any, about: Setting, default: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is dataclasses.MISSING else default
    complete = make_completer(about.values) if about.values else None
    argument = typer.Argument(help=about.help, metavar=name.upper(), autocompletion=complete)
    return inspect.Parameter(name, KEYWORD_ONLY, default=default, annotation=Annotated[kind, argument])


def _optional(kind: Any, unsaid: bool) -> Any:
    return kind | None if unsaid else kind


def _recipe_parameter(task: str, config: type[RunConfig]) -> inspect.Parameter:
    """An eager option: the parser itself then puts flags before the recipe, and --help shows its values."""

    def load(context: typer.Context, value: str | None) -> str | None:
        if value is not None and not context.resilient_parsing:
            context.default_map = read_recipe(value, task, config).settings
            for parameter in context.command.params:
                if isinstance(parameter, TyperOption) and parameter.name in context.default_map:
                    parameter.show_default = True  # --help shows the recipe's value, not how one is found
        return value

    option = typer.Option(
        "--recipe", "-r", is_eager=True, callback=load, rich_help_panel=OUTPUT,
        autocompletion=make_completer("recipes"),
        help="A recipe, by file or shipped name (bertkit recipes ls); flags go before it.",
    )  # fmt: skip
    return inspect.Parameter("recipe", KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option])


def _json_parameter() -> inspect.Parameter:
    option = typer.Option("--json", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT)
    return inspect.Parameter("json", KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])


def list_flags(config: type[Settings]) -> list[str]:
    """Every flag of a config, as typed: what documentation is tested against."""
    return [get_flag(name, about) for name, (_, about, _) in get_settings(config).items()]
