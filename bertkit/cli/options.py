"""Build Typer commands from settings classes, in which each flag is declared once."""

import dataclasses
import inspect
import typing
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Annotated, Any

import typer
from typer.core import TyperOption

from bertkit.cli.completion import make_completer
from bertkit.settings.recipes import read_recipe
from bertkit.settings.run_settings import RunConfig
from bertkit.settings.setting import OUTPUT, Setting, Settings, get_flag, get_settings
from bertkit.settings.validation import DataObject, DataSource, get_choices, get_command_line_name, parse_flag
from bertkit.utils.reporting import use_reporter

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
METAVARS = {int: "INTEGER", float: "FLOAT", str: "TEXT"}


def build_training_command(
    name: str, config: type[RunConfig], help: str, run: Callable[..., None]
) -> Callable[..., None]:
    """Return a Typer command with a flag for each setting of `config`, and `--recipe`.

    The command calls `run(name, overrides, recipe, json)`. `overrides` has only settings that were passed.
    """

    def run_with_recipe(overrides: dict[str, Any], as_json: bool, recipe: str | None) -> None:
        run(name, overrides, recipe, as_json)

    return build_command(config, help, run_with_recipe, _build_recipe_parameter(name, config))


def build_command(
    config: type[Settings], help: str, run: Callable[..., None], *extra_parameters: inspect.Parameter
) -> Callable[..., None]:
    """Return a Typer command with a flag for each setting of `config`.

    The command calls `run(overrides, json)` with the values of `extra_parameters` as keyword arguments.
    """

    def command(typer_context: typer.Context, **values: Any) -> None:
        as_json = values.pop("json")
        extra_values = {parameter.name: values.pop(parameter.name) for parameter in extra_parameters}
        overrides = {name: value for name, value in values.items() if _was_set(typer_context, name)}
        from bertkit.cli.console import ConsoleReporter  # imports rich

        with use_reporter(ConsoleReporter()):
            run(overrides, as_json, **extra_values)

    parameters = [
        inspect.Parameter("typer_context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *(
            _build_parameter(name, *declaration)
            for name, declaration in get_settings(config).items()
            if declaration.metadata.has_flag
        ),
        *extra_parameters,
        _build_json_parameter(),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = help
    return command


def _was_set(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _build_parameter(name: str, kind: Any, setting: Setting, default: Any) -> inspect.Parameter:
    if kind == DataSource | None:
        kind = str | None  # only Python code can pass objects
    if setting.is_positional:
        return _build_argument(name, kind, setting, default)
    has_default = default is not None and default != ()
    option = typer.Option(
        *(setting.flags or (get_flag(name, setting),)),
        help=setting.help,
        rich_help_panel=setting.panel,
        show_default=setting.default_text or has_default,
        autocompletion=_build_completer(kind, setting),
        **_build_parser(name, kind, setting),
    )
    return inspect.Parameter(
        name,
        KEYWORD_ONLY,
        default=default if has_default else None,
        annotation=Annotated[kind if has_default else kind | None, option],
    )


def _build_argument(name: str, kind: Any, setting: Setting, default: Any) -> inspect.Parameter:
    argument = typer.Argument(
        help=setting.help,
        autocompletion=_build_completer(kind, setting),
        **_build_parser(name, kind, setting) | {"metavar": name.upper()},
    )
    default = inspect.Parameter.empty if default is dataclasses.MISSING else default
    return inspect.Parameter(name, KEYWORD_ONLY, default=default, annotation=Annotated[kind, argument])


def _build_parser(name: str, kind: Any, setting: Setting) -> dict[str, Any]:
    """Return `parser` and `metavar` for Typer. Flags are thus validated like recipes and Python calls."""
    item_kind = _get_item_kind(kind)
    if item_kind is bool:
        return {}
    parser = partial(parse_flag, kind=item_kind, setting=setting, where=get_command_line_name(name, setting))
    update_wrapper(parser, parse_flag)  # Typer reads its name
    return {"parser": parser, "metavar": _format_metavar(item_kind, setting)}


def _get_item_kind(kind: Any) -> Any:
    """Return the type of a single value: without `list[...]` and without `| None`."""
    if typing.get_origin(kind) is typing.Literal:
        return kind
    if typing.get_origin(kind) is list:
        return typing.get_args(kind)[0]
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    if not members:
        return kind
    return _get_item_kind(members[0]) if len(members) == 1 else kind


def _format_metavar(kind: Any, setting: Setting) -> str:
    if choices := get_choices(kind):
        return "|".join(choices)
    metavar = METAVARS.get(kind, "TEXT")
    if setting.min is None:
        return metavar
    low, high = f"{setting.min:g}", "" if setting.max is None else f"{setting.max:.10g}"
    return f"{metavar} {low}..{high}" if high else f"{metavar} >= {low}"


def _build_completer(kind: Any, setting: Setting) -> Callable[..., Any] | None:
    if setting.completion:
        return make_completer(setting.completion)
    choices = get_choices(kind)
    if not choices:
        return None
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def _build_recipe_parameter(task: str, config: type[RunConfig]) -> inspect.Parameter:
    """Return the option `--recipe`.

    Typer processes this option first. The values of the recipe become the defaults of the other flags, so
    flags override them, and `--help` shows them.
    """

    def load(context: typer.Context, value: str | None) -> str | None:
        if value is not None and not context.resilient_parsing:
            settings = read_recipe(value, task, config).settings
            context.default_map = {
                name: item for name, item in settings.items() if not isinstance(item, DataObject)
            }
            for parameter in context.command.params:
                if isinstance(parameter, TyperOption) and parameter.name in context.default_map:
                    parameter.show_default = True  # the value of the recipe instead of `default_text`
        return value

    option = typer.Option(
        "--recipe", "-r", is_eager=True, callback=load, rich_help_panel=OUTPUT,
        autocompletion=make_completer("recipes"),
        help="Recipe with settings: a file, or a shipped name (bertkit recipes ls); flags override it.",
    )  # fmt: skip
    return inspect.Parameter("recipe", KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option])


def _build_json_parameter() -> inspect.Parameter:
    option = typer.Option("--json", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT)
    return inspect.Parameter("json", KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])


def list_flags(config: type[Settings]) -> list[str]:
    """Return all flags of a config. A test compares them with the documentation."""
    return [
        get_flag(name, setting) for name, (_, setting, _) in get_settings(config).items() if setting.has_flag
    ]
