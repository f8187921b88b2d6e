"""Decorators of the Python API: the signature with the settings of a config, and progress in notebooks."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from bertkit.setting import Settings, get_settings

if TYPE_CHECKING:
    from bertkit.utils.reporting import Reporter

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


def reports_in_notebooks(function: Callable[P, R_co]) -> Callable[P, R_co]:
    """Return a function that shows messages and progress if it is called in Jupyter without a reporter."""

    @functools.wraps(function)
    def call(*args: P.args, **arguments: P.kwargs) -> R_co:
        if arguments.get("reporter") is None:
            arguments["reporter"] = _create_notebook_reporter()
        return function(*args, **arguments)

    return call


def _create_notebook_reporter() -> "Reporter | None":
    """Return the reporter of the command line, whose progress bars Jupyter shows; None outside of Jupyter."""
    if "IPython" not in sys.modules:
        return None
    if not hasattr(sys.modules["IPython"].get_ipython(), "kernel"):  # IPython in a terminal, or only imported
        return None
    from bertkit.cli.console import ConsoleReporter

    return ConsoleReporter()


class ApiFunction(Protocol[P, R_co]):
    """The signature that type checkers and IDEs see: the settings of a config as keyword arguments."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: Any, reporter: "Reporter | None" = None, **kwargs: Any) -> R_co: ...


def accepts(
    config: Callable[P, Settings], hidden: tuple[str, ...] = ()
) -> Callable[[Callable[..., R_co]], ApiFunction[P, R_co]]:
    """Return a decorator that adds the settings of `config` to the signature and to the docstring.

    Args:
        config: Settings class of the command.
        hidden: Settings of the command that the function does not accept.
    """

    def decorate(api_function: Callable[..., R_co]) -> Any:
        function = reports_in_notebooks(api_function)
        signature = inspect.signature(function)
        own_parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind != parameter.VAR_KEYWORD
        ]
        fields = inspect.signature(config).parameters
        settings = {
            name: setting
            for name, (_, setting, _) in get_settings(config).items()  # type: ignore[arg-type]
            if name not in hidden and name not in signature.parameters
        }
        parameters = [*own_parameters, *(fields[name] for name in settings)]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        lines = "\n".join(f"    {name}: {setting.help}" for name, setting in settings.items())
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nSettings:\n{lines}\n"
        return function

    return decorate
