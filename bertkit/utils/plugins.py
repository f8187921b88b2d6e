"""Plugins: tasks, methods and metrics of other installed packages, which their entry points name.

The names are read from the metadata of the packages, which is fast. The code of a plugin is imported when it
is used, except for the definition of a task, which `--help` needs: it imports nothing heavy.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal

from bertkit.errors import UserError, shorten_repr
from bertkit.utils.reporting import report_warning_once

Kind = Literal["task", "method", "metric"]  # `bertkit.tasks` is the group of the entry points of tasks
KINDS: tuple[Kind, ...] = ("task", "method", "metric")
# The commands of bertkit, also planned ones, and the values of `--method`. A test compares them.
BUILT_IN_NAMES: Mapping[Kind, Container[str]] = {
    "task": frozenset({
        "classify", "ner", "nli", "pretrain-mlm-nsp", "qa", "swag", "glue", "klue", "feature-based", "study",
        "train-tokenizer", "ablation", "check", "recipes", "data", "env", "predict", "serve", "evaluate",
        "calibrate", "report", "embed", "fill-mask", "export", "label-issues", "distill", "fetch", "ladder",
        "skill",
    }),
    "method": frozenset(
        {"finetune", "contrastive", "linear-probe", "tfidf", "tfidf-chars", "static", "hybrid"}
    ),
    "metric": frozenset(),
}  # fmt: skip
NAME_PATTERNS: Mapping[Kind, str] = {"task": r"[a-z][a-z-]*", "method": r"[a-z][\w-]*", "metric": r"[a-z]\w*"}
REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.+!]+", re.ASCII)
MAX_REASON_LENGTH = 300


@dataclass(frozen=True)
class Plugin:
    """A task, a method or a metric of another package.

    Attributes:
        kind: What it adds.
        name: The name by which users select it.
        path: Path `module:attribute` of its definition or its class.
        distribution: Name of the package, as pip lists it.
        version: Version of the package.
    """

    kind: Kind
    name: str
    path: str
    distribution: str
    version: str

    def __str__(self) -> str:
        group = f"bertkit.{self.kind}s"
        return f"{self.distribution} {self.version}: entry point {self.name} = {self.path} of {group}"

    def load(self, path: str | None = None) -> Any:
        """Import the definition or the class of the plugin, or another part of its package."""
        try:
            return load_object(path or self.path)
        except (Exception, SystemExit) as error:  # arbitrary code of the package
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON_LENGTH]
            raise self.make_error(f"cannot be imported ({reason})") from error

    def make_error(self, problem: str) -> UserError:
        return UserError(f"{self}: {problem}; update the package, or run pip uninstall {self.distribution}")

    def describe_clash(self) -> str | None:
        """Return why the name cannot be used or means another thing, and the fix; None if it is unique."""
        if self.name in BUILT_IN_NAMES[self.kind]:
            what = "a command" if self.kind == "task" else f"a {self.kind}"
            return (
                f"{self}: bertkit itself has {what} of this name, which is used; rename the entry point, or "
                f"run pip uninstall {self.distribution}"
            )
        same = [one.distribution for one in list_plugins() if (one.kind, one.name) == (self.kind, self.name)]
        if len(same) == 1:
            return None
        return (
            f"{self.kind} {self.name}: is a plugin of {' and '.join(same)}; keep one of them: run "
            f"pip uninstall {same[-1]}"
        )


def load_object(path: str) -> Any:
    """Import `module:attribute`."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


@cache
def list_plugins() -> tuple[Plugin, ...]:
    """Return the plugins of all installed packages, including those whose names clash."""
    points = entry_points()
    return tuple(
        Plugin(kind, point.name, point.value, point.dist.name, point.dist.version)
        for kind in KINDS
        for point in sorted(points.select(group=f"bertkit.{kind}s"), key=lambda point: point.name)
        if point.dist is not None
    )


def list_plugin_names(kind: Kind) -> list[str]:
    """Return the names of the plugins of a kind that are not hidden by bertkit's own names."""
    names = (one.name for one in list_plugins() if one.kind == kind and one.name not in BUILT_IN_NAMES[kind])
    return list(dict.fromkeys(names))


def find_plugin(kind: Kind, name: str) -> Plugin | None:
    """Return the plugin of a name, or None if bertkit itself or no package has it.

    Raises:
        UserError: Two packages have a plugin of this name, or the name is no valid one.
    """
    if name not in list_plugin_names(kind):
        return None
    plugin = next(one for one in list_plugins() if (one.kind, one.name) == (kind, name))
    if clash := plugin.describe_clash():
        raise UserError(clash)
    if not re.fullmatch(NAME_PATTERNS[kind], name, re.ASCII):
        raise plugin.make_error(f"its name does not match {NAME_PATTERNS[kind]}")
    return plugin


def warn_about_hidden(kind: Kind, name: str | None) -> None:
    """Warn if a package has a plugin with the name of a command or method of bertkit that is used now."""
    for plugin in list_plugins():
        if (plugin.kind, plugin.name) == (kind, name) and name in BUILT_IN_NAMES[kind]:
            report_warning_once(str(plugin.describe_clash()))


# ---- the plugins of a run, as `run.yaml` records them


def describe_used_plugins(used: Mapping[Kind, Container[str]]) -> dict[str, str]:
    """Return the requirement of each plugin among these names by kind, such as `task rate: stars==1.0`."""
    return {
        f"{plugin.kind} {plugin.name}": f"{plugin.distribution}=={plugin.version}"
        for plugin in list_plugins()
        if plugin.name in used[plugin.kind] and plugin.name not in BUILT_IN_NAMES[plugin.kind]
    }


def require_plugins(recorded: Any, origin: object, kinds: Container[Kind]) -> None:
    """Refuse a run that used plugins of these kinds which are not installed; `origin` is its file.

    The file may come from somebody else, so it decides neither what is installed nor what is imported.
    """
    is_valid = isinstance(recorded, dict) and all(
        isinstance(requirement, str) and REQUIREMENT.fullmatch(requirement)
        for requirement in recorded.values()
    )
    if not is_valid:
        raise UserError(f"{origin}: provenance: plugins: is {shorten_repr(recorded)}; train the run again")
    for used, requirement in recorded.items():
        kind, _, name = str(used).partition(" ")
        is_installed = any((one.kind, one.name) == (kind, name) for one in list_plugins())
        if kind in kinds and not is_installed:
            raise UserError(
                f"{origin}: uses the {kind} {shorten_repr(name)} of {requirement}, which is not installed; "
                f"if you trust the package, run pip install {requirement}"
            )
