"""The search space: parsing of `--search`, and the default space."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.settings.run_settings import SINGLE_RUN_SETTINGS, RunConfig
from bertkit.settings.setting import DATA, OUTPUT, SettingField, get_settings
from bertkit.settings.validation import parse_flag
from bertkit.studies.config import STUDY_SETTINGS

# Settings that change what is compared, and not how well it is learned.
FIXED_SETTINGS = {
    "context", "greater_is_better", "metric", "metric_for_best_model", "report_to", "seed", "set",
}  # fmt: skip
WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None}
FORMS = "NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C"
MAX_INTEGER = 2**31 - 1  # of a range; optuna cannot sample from much larger ones
RATE_FACTOR = 3.0  # the default space has learning rates from a third to three times the default


@dataclass(frozen=True)
class Dimension:
    """A setting of the search space: a range of numbers, or a list of values.

    Attributes:
        name: The setting.
        values: The values to choose from; empty for a range.
        low: Smallest value of a range.
        high: Largest value of a range.
        is_log: Whether values are sampled uniformly in the logarithm.
        is_integer: Whether the values of a range are integers.
    """

    name: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    is_integer: bool = False

    def contains(self, value: Any) -> bool:
        """Return whether a value is in the space."""
        if self.values:
            return value in self.values
        return value is not None and self.low <= value <= self.high

    def __str__(self) -> str:
        if self.values:
            return f"{self.name}={','.join(map(format_value, self.values))}"
        return f"{self.name}={self.low:g}..{self.high:g}{':log' if self.is_log else ''}"


def format_value(value: Any) -> str:
    """Format a value as `--search` accepts it."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def format_settings(settings: Mapping[str, Any]) -> str:
    """Format settings in one line, such as `learning_rate 3e-05, epochs 3`."""
    return ", ".join(f"{name} {format_value(value)}" for name, value in settings.items())


def parse_space(items: Sequence[str], config_class: type[RunConfig]) -> list[Dimension]:
    """Parse the values of `--search`.

    Raises:
        UserError: A value cannot be parsed, or names a setting that cannot be searched.
    """
    space = [_parse_dimension(item, config_class) for item in items]
    names = [dimension.name for dimension in space]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--search {name}: is given {names.count(name)} times; pass it once")
    return space


def check_space(space: Sequence[Dimension], config: RunConfig) -> None:
    """Check that the settings in the space have an effect together with the settings of the user.

    Raises:
        UserError: A setting has no effect.
    """
    reasons = config.list_ineffective_settings()
    for dimension in space:
        if dimension.name in reasons:
            raise UserError(f"--search {dimension}: {reasons[dimension.name]}; omit it")


def _parse_dimension(item: str, config_class: type[RunConfig]) -> Dimension:
    name, separator, text = item.partition("=")
    if not (separator and name and text):
        raise UserError(f"--search {item}: cannot be parsed; write {FORMS}")
    name = name.lstrip("-").replace("-", "_")
    field = _find_setting(name, config_class)
    if ".." in text:
        return _parse_range(name, field, text, item)
    texts = [value.strip() for value in text.split(",")]
    values = tuple(_parse_value(value, field, f"--search {name}") for value in texts)
    if len(set(values)) < len(values):
        raise UserError(f"--search {item}: a value occurs twice; list each value once")
    return Dimension(name, values)


def _find_setting(name: str, config_class: type[RunConfig]) -> SettingField:
    """Return the declaration of a setting that can be searched."""
    settings = get_settings(config_class)
    searchable = [
        other
        for other, field in settings.items()
        if field.metadata.panel not in (DATA, OUTPUT)
        and other not in FIXED_SETTINGS
        and other not in {*STUDY_SETTINGS, *SINGLE_RUN_SETTINGS}
    ]
    if name in searchable:
        return settings[name]
    if name in settings:
        raise UserError(f"--search {name}: cannot be searched; choose from {', '.join(searchable)}")
    named = [other for other in searchable if f"--{name.replace('_', '-')}" in settings[other].metadata.flags]
    hint = suggest_similar(named[0] if named else name, searchable)
    hint = hint or f" (choose from {', '.join(searchable)})"
    raise UserError(f"--search {name}: unknown setting{hint}")


def _parse_range(name: str, field: SettingField, text: str, item: str) -> Dimension:
    kinds = {field.type, *get_args(field.type)}
    if not kinds & {int, float}:
        raise UserError(f"--search {item}: {name} is not a number; list its values: {name}=A,B,C")
    bounds, colon, scale = text.partition(":")
    low_text, _, high_text = bounds.partition("..")
    if not (low_text and high_text):
        raise UserError(f"--search {item}: a bound is missing; write {name}=LOW..HIGH")
    if colon and scale != "log":
        raise UserError(f"--search {item}: unknown scale {scale!r}; write :log or leave it out")
    low, high = (_parse_value(value, field, f"--search {name}") for value in (low_text, high_text))
    if low is None or high is None or low >= high:
        raise UserError(f"--search {item}: {low_text} is not below {high_text}; write the lower bound first")
    if float not in kinds and high > MAX_INTEGER:
        raise UserError(f"--search {item}: {high_text} is too large; use at most {MAX_INTEGER}")
    if scale == "log" and low <= 0:
        raise UserError(f"--search {item}: a logarithmic range needs a lower bound above 0; raise it")
    return Dimension(name, low=low, high=high, is_log=scale == "log", is_integer=float not in kinds)


def _parse_value(text: str, field: SettingField, where: str) -> Any:
    if text.lower() in WORDS and {bool, type(None)} & {field.type, *get_args(field.type)}:
        value = WORDS[text.lower()]
        is_valid = isinstance(value, bool) or type(None) in get_args(field.type)
        if is_valid:
            return value
    return parse_flag(text, field.type, field.metadata, where)


def make_default_space(config: RunConfig, defaults: RunConfig) -> list[Dimension]:
    """Return a small space around the default learning rate and number of epochs.

    The defaults depend on the task and on the sizes of the data and the model. Settings of the user are not
    searched.

    Args:
        config: The settings of the user.
        defaults: The resolved settings.

    Raises:
        UserError: The user has set all of these settings, or they have no effect.
    """
    space = []
    if config.learning_rate is None and defaults.learning_rate:
        rate = defaults.learning_rate
        low, high = _round(rate / RATE_FACTOR), _round(rate * RATE_FACTOR)
        space.append(Dimension("learning_rate", low=low, high=high, is_log=True))
    if config.epochs is None and config.max_steps is None and defaults.epochs:
        epochs = defaults.epochs
        fewer, more = max(1.0, float(math.floor(epochs * 2 / 3))), float(math.ceil(epochs * 4 / 3))
        space.append(Dimension("epochs", tuple(dict.fromkeys([fewer, epochs, more]))))
    if not space:
        if reason := config.list_ineffective_settings().get("learning_rate"):
            raise UserError(f"--trials: {reason}, so the default space is empty; pass --search {FORMS}")
        names = format_list(["--learning-rate", "--epochs or --max-steps"])
        raise UserError(f"--trials: {names} are set, so nothing is left to search; pass --search {FORMS}")
    return space


def _round(value: float) -> float:
    """Round to two significant digits."""
    return float(f"{value:.1e}")
