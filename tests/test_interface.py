"""The Python API and the command line are those of the files in `golden/`: a difference is a decision.

`python tests/test_interface.py` writes the files again.
"""

import ast
import difflib
import importlib
import inspect
import sys
import typing
from pathlib import Path

import pytest
import typer

import bertkit
from bertkit.cli.app import app
from bertkit.settings.validation import get_choices

GOLDEN = Path(__file__).parent / "golden"
REWRITE = "python tests/test_interface.py"
# Classes that are not in `bertkit.__all__`, but in examples of the documentation.
DOCUMENTED = ["bertkit.utils.reporting.Reporter"]
COMPLETION_FLAGS = ("--install-completion", "--show-completion")  # Typer's own


# ---- the Python API


def describe_api():
    """Return the functions with their parameters, and then the classes of the objects that they return."""
    functions = {name: getattr(bertkit, name) for name in sorted(bertkit.__all__)}
    classes = {name: value for name, value in functions.items() if inspect.isclass(value)}
    lines = []
    for name, function in functions.items():
        if name not in classes:
            result = find_result_class(function)
            classes[result.__name__] = result
            lines += [f"bertkit.{name} -> {result.__name__}", *describe_parameters(function), ""]
    for path in DOCUMENTED:
        module, _, name = path.rpartition(".")
        classes[path] = getattr(importlib.import_module(module), name)
    for name, value in sorted(classes.items()):
        lines += [f"class {name}{describe_bases(value)}", *describe_members(value), ""]
    return "\n".join(lines)


def find_result_class(function):
    """Return the class that the annotation of a function names; its module may import it for typing only."""
    name, module = function.__annotations__["return"], sys.modules[function.__module__]
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return getattr(importlib.import_module(node.module), name)
    return getattr(module, name)


def describe_parameters(function):
    """Yield the parameters with their defaults, and `*` before those that are passed by name."""
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    for index, parameter in enumerate(parameters):
        is_first = index == 0 or parameters[index - 1].kind != parameter.kind
        if parameter.kind == parameter.KEYWORD_ONLY and is_first:
            yield "    *"
        value = parameter.default
        text = "<function>" if inspect.isfunction(value) else repr(value)
        default = "" if value is parameter.empty else f" = {text}"
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        yield f"    {stars}{parameter.name}{default}"


def describe_bases(value):
    """Return the base classes that are exceptions: callers catch them."""
    bases = [base.__name__ for base in value.__mro__[1:] if issubclass(base, Exception)]
    return f": {', '.join(bases)}" if bases else ""


def describe_members(value):
    """Yield the public attributes and methods, without those of the classes of Python and scikit-learn."""
    others = ("builtins", "typing", "abc", "sklearn")
    owners = [owner for owner in value.__mro__ if owner.__module__.partition(".")[0] not in others]
    names = {name for owner in owners for name in [*vars(owner), *inspect.get_annotations(owner)]}
    special = {"__iter__", "__len__", "__getitem__", "__enter__", "__exit__", "__call__"}
    for name in sorted(name for name in names if name in special or not name.startswith("_")):
        member = inspect.getattr_static(value, name, None)
        if inspect.isfunction(member):
            yield f"    {name}()"
            yield from (f"    {line}" for line in describe_parameters(member))
        else:
            yield f"    {name}"


# ---- the command line


def describe_commands():
    """Return each command with its panel and help, and its flags by panel."""
    return "\n".join(describe_command("bertkit", typer.main.get_command(app)))


def describe_command(path, command):
    panel = getattr(command, "rich_help_panel", None)
    is_panel = isinstance(panel, str)  # else Typer's placeholder for no panel
    yield f"{path} [{panel}]" if is_panel else path
    yield from (f"  {line}".rstrip() for line in inspect.cleandoc(command.help or "").split("\n"))
    panels = {}
    for parameter in command.params:
        title = getattr(parameter, "rich_help_panel", None)
        title = title if isinstance(title, str) else "Arguments" if is_argument(parameter) else "Options"
        panels.setdefault(title, []).append(parameter)
    for title, parameters in panels.items():
        yield f"  {title}:"
        for parameter in parameters:
            yield from describe_flag(command, parameter)
    yield ""
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from describe_command(f"{path} {name}", subcommand)


def is_argument(parameter):
    return parameter.param_type_name == "argument"


def find_parser(command, name):
    """Return the parser of a parameter, which knows its setting and the type of the values, or None."""
    declared = inspect.signature(command.callback).parameters.get(name)
    metadata = typing.get_args(declared.annotation)[1:] if declared else ()
    return getattr(metadata[0], "parser", None) if metadata else None


def describe_flag(command, parameter):
    """Yield the flag with its values and default, and its help."""
    if set(parameter.opts) & set(COMPLETION_FLAGS):
        yield f"    {' '.join(parameter.opts)}"
        return
    names = " / ".join(filter(None, (", ".join(parameter.opts), ", ".join(parameter.secondary_opts))))
    words = [parameter.metavar or names if is_argument(parameter) else names]
    if not is_argument(parameter) and not getattr(parameter, "is_flag", False):
        words.append(parameter.metavar or "TEXT")
    notes = [
        name
        for name, applies in (
            ("required", parameter.required),
            ("repeatable", getattr(parameter, "multiple", False) or parameter.nargs == -1),
            ("hidden", getattr(parameter, "hidden", False)),
        )
        if applies
    ]
    parser = find_parser(command, parameter.name)
    if parser is not None:
        choices, setting = get_choices(parser.keywords["kind"]), parser.keywords["setting"]
        bounds = {"at least": setting.min, "at most": setting.max}
        notes += [f"one of {', '.join(choices)}"] if choices else []
        notes += [f"{name} {bound:.10g}" for name, bound in bounds.items() if bound is not None]
    if parameter.envvar:
        notes.append(f"environment variable {parameter.envvar}")
    show_default, default = parameter.show_default, parameter.default
    if isinstance(show_default, str):
        notes.append(f"default: {show_default}")
    elif isinstance(default, (int, float, str)) and not (default is False and not parameter.secondary_opts):
        notes.append(f"default: {default!r}")
    yield "    " + " ".join([*words, *(f"[{note}]" for note in notes)])
    if parameter.help:
        yield f"        {parameter.help}"


# ---- tests


def has_argument_help():
    """Return whether arguments keep their help, which they lose with typer 0.16 and click 8.5."""

    def command(argument: str = typer.Argument(help="help")):
        pass

    probe = typer.Typer()
    probe.command()(command)
    [argument] = typer.main.get_command(probe).params[:1]
    return argument.help == "help"


SNAPSHOTS = {"python_api.txt": describe_api, "command_line.txt": describe_commands}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_interface_is_that_of_the_golden_file(name):
    if name == "command_line.txt" and not has_argument_help():
        pytest.skip("this version of typer loses the help of arguments with this version of click")
    expected, found = (GOLDEN / name).read_text("utf-8"), SNAPSHOTS[name]()
    lines = difflib.unified_diff(
        expected.split("\n"), found.split("\n"), f"tests/golden/{name}", "this code", lineterm="", n=2
    )
    difference = "\n".join(lines)
    message = f"The interface has changed. If this is intended, run `{REWRITE}` and commit the file."
    assert not difference, f"{message}\n{difference}"


if __name__ == "__main__":
    for file_name, describe in SNAPSHOTS.items():
        (GOLDEN / file_name).write_text(describe(), "utf-8")
