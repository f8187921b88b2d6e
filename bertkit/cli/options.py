"""Build Typer commands from settings classes, in which each flag is declared once, and complete values.

Completion must be fast, so this module imports no heavy package. It reads only file names and small files.
"""

import dataclasses
import importlib.resources
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from functools import partial, update_wrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel as Box
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup, TyperOption

from bertkit.errors import UserError, suggest_similar
from bertkit.run_directory import DEFAULT_RUNS_DIR, RunDir
from bertkit.settings.declaration import Panel, Setting, Settings, get_flag, get_settings
from bertkit.settings.recipes import (
    Recipe,
    list_shipped_recipes,
    read_recipe,
    read_recipe_task,
    read_recipe_title,
)
from bertkit.settings.run_settings import PACKAGED_MODELS, TRACKERS
from bertkit.settings.validation import (
    ConvertedSettings,
    DataObject,
    DataSource,
    get_choices,
    get_command_line_name,
    list_union_members,
    parse_flag,
)
from bertkit.tasks import list_definitions
from bertkit.utils.reporting import use_reporter
from bertkit.utils.text import read_yaml

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
METAVARS = {int: "N", float: "FLOAT"}
MAX_CHOICES_LENGTH = 17  # of a metavar with all values; the help of longer ones lists them
MAX_FLAGS_WIDTH = 32  # of the column of the flags in `--help`
# The notes after the help of a parameter; typer 0.16 writes a backslash before them.
DEFAULT = re.compile(r"\s*\\?\[default: (?:\((.*)\)|(.*))\]$")
REQUIRED = re.compile(r"\s*\\?\[required\]$")
SAMPLE_DESCRIPTION = "about 40 rows for each task, for trying commands"
Completions = Iterator[tuple[str, str]]  # (value, description)


class CommandGroup(TyperGroup):
    """A group of commands; the error for an unknown command lists all commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        is_option = not name[:1].isalnum()  # Typer reports unknown options
        if not is_option and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            hint = f"{suggest_similar(name, self.commands)}; commands: {', '.join(self.commands)}"
            raise UserError(f"{ctx.command_path} {name}: no such command{hint}")
        return super().resolve_command(ctx, args)


class SingleCommand(TyperCommand):
    """A command that refuses a column that is named twice, of which Click would ignore the first name.

    Of other options, the last value applies, so that scripts can append options to others.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, passed = self.make_parser(ctx).parse_args(list(args))
            for option in passed:
                if passed.count(option) > 1 and (option.name or "").endswith("_column"):
                    raise UserError(f"{option.opts[0]}: passed {passed.count(option)} times; pass it once")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help with two columns, so that most of the width is left for the text.

        Typer's tables have columns of their own for types, short flags and flags such as `--no-header`.
        """
        tables: dict[str, Table] = {}
        for parameter in self.get_params(ctx):
            heading = getattr(parameter, "rich_help_panel", None) or Panel.OUTPUT.value  # None of `--help`
            if heading not in tables:
                tables[heading] = Table.grid(padding=(0, 2))
                tables[heading].add_column(max_width=MAX_FLAGS_WIDTH)
            flags, help = map(Text, describe_parameter(parameter, ctx))
            flags.highlight_regex(r"(?<!\S)--?[a-z][\w-]*", "bold cyan")
            help.highlight_regex(r"--[a-z][\w-]*", "cyan")
            help.highlight_regex(r" \(default: .*\)$", "dim")
            tables[heading].add_row(flags, help)
        console = Console(highlight=False)
        usage = Text.assemble((self.get_usage(ctx), "bold"), "\n\n", inspect.cleandoc(self.help or ""))
        console.print(Padding(usage, 1))
        for heading, table in tables.items():
            console.print(Box(table, title=Text(heading), title_align="left", border_style="dim"))


def build_command(
    config: Any, help: str, run: Callable[..., int | None], recipe_task: str | None = None
) -> Callable[..., int | None]:
    """Return a Typer command with a flag for each setting of a config, and `--json`.

    `run` is called with the settings that the user passed and with the value of `--json`. With a task whose
    recipes `--recipe` accepts, it is also called with the recipe or None. It returns the exit status, None
    for 0.
    """
    declarations = get_settings(config)
    recipes = [] if recipe_task is None else [_build_recipe_parameter(recipe_task, config)]

    def command(typer_context: typer.Context, **values: Any) -> int | None:
        from bertkit.utils.console import ConsoleReporter  # imports rich

        sources = {name: typer_context.get_parameter_source(name) for name in declarations}
        passed = {
            name: values[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"
        }
        recipe = [values["recipe"]] if recipes else []
        with use_reporter(ConsoleReporter()):
            return run(ConvertedSettings(passed), values["json"], *recipe)

    headings = list(Panel)
    declared = sorted(
        (item for item in declarations.items() if item[1].metadata.has_flag),
        key=lambda item: (headings.index(item[1].metadata.heading), not item[1].metadata.is_positional),
    )
    parameters = [
        inspect.Parameter("typer_context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *(_build_parameter(name, *declaration) for name, declaration in declared),
        *recipes,
        inspect.Parameter("json", KEYWORD_ONLY, default=False, annotation=Annotated[bool, JSON_OPTION]),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = help
    return command


JSON_OPTION = typer.Option(
    "--json", help="Print one JSON object and nothing else.", rich_help_panel=Panel.OUTPUT.value
)


def _build_parameter(name: str, kind: Any, setting: Setting, default: Any) -> inspect.Parameter:
    """Return the flag of a setting, or its argument if it is positional."""
    if kind == DataSource | None:
        kind = str | None  # only Python code can pass objects
    item_kind = _get_item_kind(kind)
    shared: dict[str, Any] = {"help": setting.help, "rich_help_panel": setting.heading.value}
    if setting.completion:
        shared["autocompletion"] = make_completer(setting.completion)
    elif choices := get_choices(kind):
        shared["autocompletion"] = lambda incomplete: [
            choice for choice in choices if choice.startswith(incomplete)
        ]
    if item_kind is not bool:  # flags are validated like recipes and Python calls
        where = get_command_line_name(name, setting)
        shared["parser"] = partial(parse_flag, kind=item_kind, setting=setting, where=where)
        update_wrapper(shared["parser"], parse_flag)  # Typer reads its name
        shared["metavar"] = name.upper() if setting.is_positional else _format_metavar(item_kind)
    if setting.is_positional:
        argument = typer.Argument(**shared)
        default = inspect.Parameter.empty if default is dataclasses.MISSING else default
        return inspect.Parameter(name, KEYWORD_ONLY, default=default, annotation=Annotated[kind, argument])
    has_default = default is not None and default != ()
    option = typer.Option(
        *(setting.flags or (get_flag(name, setting),)),
        show_default=setting.default_text or has_default,
        **shared,
    )
    return inspect.Parameter(
        name,
        KEYWORD_ONLY,
        default=default if has_default else None,
        annotation=Annotated[kind if has_default else kind | None, option],
    )


def _get_item_kind(kind: Any) -> Any:
    """Return the type of a single value: without `list[...]` and without `| None`."""
    members = [member for member in list_union_members(kind) if member is not type(None)]
    if len(members) > 1:
        return kind
    return typing.get_args(members[0])[0] if typing.get_origin(members[0]) is list else members[0]


def _format_metavar(kind: Any) -> str:
    if choices := get_choices(kind):
        joined = "|".join(choices)
        return joined if len(joined) <= MAX_CHOICES_LENGTH else "NAME"
    return METAVARS.get(kind, "TEXT")


def describe_parameter(parameter: Any, context: Any) -> tuple[str, str]:
    """Return the flags of an option with its value, or the name of an argument, and its help and default."""
    flags, help = parameter.get_help_record(context)
    if parameter.param_type_name == "argument":
        flags = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
        help = REQUIRED.sub("", help)
    return flags, DEFAULT.sub(r" (default: \1\2)", " ".join(help.split()))


def _build_recipe_parameter(task: str, config: Any) -> inspect.Parameter:
    """Return the option `--recipe`, whose value becomes a `Recipe`.

    Typer processes this option first, so that `--help` shows the values of the recipe as the defaults.
    """

    def load(context: typer.Context, value: str | None) -> Recipe | None:
        if value is None or context.resilient_parsing:
            return None
        recipe = read_recipe(value, task, config)
        context.default_map = {
            name: item for name, item in recipe.settings.items() if not isinstance(item, DataObject)
        }
        for parameter in context.command.params:
            if isinstance(parameter, TyperOption) and parameter.name in context.default_map:
                parameter.show_default = True  # the value of the recipe instead of `default_text`
        return recipe

    option = typer.Option(
        "--recipe", "-r", is_eager=True, callback=load, rich_help_panel=Panel.RUN_DIRECTORY.value,
        metavar="TEXT",
        autocompletion=make_completer("recipes"),
        help="Recipe: a file, or one of `bertkit recipes ls`; flags override it.",
    )  # fmt: skip
    return inspect.Parameter("recipe", KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option])


def list_flags(config: type[Settings]) -> list[str]:
    """Return all flags of a config. A test compares them with the documentation."""
    return [
        get_flag(name, setting) for name, (_, setting, _) in get_settings(config).items() if setting.has_flag
    ]


# ---- completion


def make_completer(source: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Return the function that Typer calls to complete a value of a key of `COMPLETION_SOURCES`.

    If it returns no completion, the shell itself completes file names.
    """

    def complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        completions = [
            (value, description)
            for value, description in COMPLETION_SOURCES[source](context, incomplete)
            if value.startswith(incomplete)
        ]
        if completions and incomplete and source in SOURCES_WITH_FILES:
            # The shell does not add file names if there is any completion.
            names = (path.name for path in Path().iterdir() if path.name.startswith(incomplete))
            completions += [(name, "") for name in sorted(names)]
        return completions

    return complete


def _complete_task_recipes(context: typer.Context, incomplete: str) -> Completions:
    """Yield the recipes of the task on the command line; those in the folder `TASK/` come first."""
    recipes, task = list_shipped_recipes(), str(context.info_name)
    names = [name for name, path in recipes.items() if read_recipe_task(path) == task]
    for name in sorted(names, key=lambda name: not name.startswith(f"{task}/")):
        short_name = name.rpartition("/")[2]
        names_with_short_name = [other for other in recipes if other.endswith(f"/{short_name}")]
        is_unambiguous = name == f"{task}/{short_name}" or len(names_with_short_name) == 1
        value = short_name if is_unambiguous and "/" not in incomplete else name
        yield value, read_recipe_title(recipes[name])


def _complete_data(*_: object) -> Completions:
    yield "sample", SAMPLE_DESCRIPTION
    registry = Path(str(importlib.resources.files("bertkit.data"))) / "known_datasets.yaml"
    yield from ((name, entry["title"]) for name, entry in read_yaml(registry).items())


def _complete_models(*_: object) -> Completions:
    yield from ((name, "from the package index") for name in PACKAGED_MODELS)
    yield from _complete_runs()
    from huggingface_hub import constants

    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        yield folder.name.removeprefix("models--").replace("--", "/"), "in the Hugging Face cache"


def _complete_runs(*_: object) -> Completions:
    for path in sorted(Path(DEFAULT_RUNS_DIR).glob(f"*/{RunDir.METRICS_FILE}")):
        yield str(path.parent), "finished run"


COMPLETION_SOURCES: dict[str, Callable[[typer.Context, str], Completions]] = {
    "data": _complete_data,
    "models": _complete_models,
    "recipes": _complete_task_recipes,
    "runs": _complete_runs,
    "shipped": lambda *_: ((name, read_recipe_title(path)) for name, path in list_shipped_recipes().items()),
    "tasks": lambda *_: ((name, task.help) for name, task in list_definitions()[0].items()),
    "trackers": lambda *_: ((name, "") for name in (*TRACKERS, "none")),
}
SOURCES_WITH_FILES = ("data", "models", "recipes", "runs")
