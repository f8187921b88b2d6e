"""Declaration of settings: each setting is declared once, as a field of a frozen dataclass.

Flags, recipe keys, `run.yaml` and the documentation are derived from the declaration. A setting without a
fixed default is None until the user sets it. `fill_unset` then fills it in, first with the default of the
dataset, then with one by data and model size.

A renamed setting needs an entry in `REMOVED_SETTINGS` of `bertkit.settings.recipes`, for the recipes and the
runs that have the old name. `tests/test_interface.py` fails until its golden files have the new name, and
`tests/test_docs.py` until the documentation has it.
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from bertkit.utils.files import expand_home
from bertkit.utils.text import describe_unknown_encoding

DATA, MODEL, TRAINING, OUTPUT = "Data", "Model", "Training", "Output"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Metadata of a setting. Its name, type and default are those of the dataclass field.

    Attributes:
        help: Help text of the flag.
        panel: Heading in `--help` under which the flag is listed.
        flags: Flags of the setting. If empty, the flag is derived from the name of the field.
        min: Smallest valid value.
        max: Largest valid value.
        default_text: Default as shown in `--help`, if it differs from the default of the field.
        training_argument: Field of `TrainingArguments` that receives the value unchanged.
        replaces: Names of alternative settings. If the user sets one of two alternatives, a recipe's value
            for the other one is dropped.
        applies_to: What the setting needs to have an effect: "encoder", an encoder that is trained; "steps",
            training in optimizer steps; "masking", an objective that masks tokens; "single run", a command
            that trains one run, not several as studies and suites do. None if it always has an effect.
        is_path: Whether the value may name files. `run.yaml` saves such a value as an absolute path.
        is_positional: Whether the command line takes the value as an argument instead of a flag.
        has_flag: Whether the command line has a flag for the setting. The others are set by another command,
            by a recipe or from Python.
        has_parameter: Whether the Python function of the command has a parameter for the setting.
        is_saved: Whether `run.yaml` saves the setting. Settings of a single call, such as `--resume`, are not
            saved.
        completion: Source of values for shell completion; see `bertkit.cli.options`.
        describe_problem: Function that returns the problem with a value and the fix, or None if it is valid.
    """

    help: str
    panel: str
    flags: tuple[str, ...] = ()
    min: float | None = None
    max: float | None = None
    default_text: str | None = None
    training_argument: str | None = None
    replaces: tuple[str, ...] = ()
    applies_to: Literal["encoder", "steps", "masking", "single run"] | None = None
    is_path: bool = False
    is_positional: bool = False
    has_flag: bool = True
    has_parameter: bool = True
    is_saved: bool = True
    completion: str | None = None
    describe_problem: Callable[[Any], str | None] | None = None


def setting(default: Any, help: str, panel: str = TRAINING, **attributes: Any) -> Any:
    """Declare a setting: return a dataclass field with a `Setting` of these attributes as metadata."""
    metadata = Setting(help=help, panel=panel, **attributes)
    return dataclasses.field(default=default, metadata={"setting": metadata})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of the settings of a command."""

    excluded_settings: ClassVar[frozenset[str]] = frozenset()  # inherited fields that this command lacks


ConfigT = TypeVar("ConfigT", bound=Settings)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class SettingField(NamedTuple):
    """A field of a config."""

    type: Any  # of the value, such as `int | None`
    metadata: Setting
    default: Any


def cache_by_class(function: FunctionT) -> FunctionT:
    """Return `functools.cache(function)` with the type of the function: mypy takes no class for hashable."""
    return cache(function)  # type: ignore[return-value]


@cache_by_class
def get_settings(config: type[Settings]) -> Mapping[str, SettingField]:
    """Return the field of each setting by name, in the order of declaration."""
    types = typing.get_type_hints(config)
    return MappingProxyType(
        {
            field.name: SettingField(types[field.name], field.metadata["setting"], field.default)
            for field in dataclasses.fields(config)
            if field.name not in config.excluded_settings
        }
    )


def list_settings(config: type[Settings], *applies_to: str) -> list[str]:
    """Return the names of the settings that apply to one of these; see `Setting.applies_to`."""
    return [name for name, field in get_settings(config).items() if field.metadata.applies_to in applies_to]


def get_flag(name: str, metadata: Setting) -> str:
    """Return the flag of a setting, such as `--batch-size`; if it has several flags, the first one."""
    return metadata.flags[0].split("/")[0] if metadata.flags else "--" + name.replace("_", "-")


def is_column_setting(name: str) -> bool:
    """Return whether a setting names columns of the rows, such as `text_column` or `ending_columns`."""
    return "_column" in name


def get_column_settings(config: Settings) -> dict[str, Any]:
    """Return the settings that name columns, including those that are not set."""
    return {name: value for name, value in vars(config).items() if is_column_setting(name)}


def expand_path_settings(config: ConfigT, *names: str) -> ConfigT:
    """Replace `~` in these settings by the home directory, unless they are None."""
    paths = {name: getattr(config, name) for name in names}
    return dataclasses.replace(
        config, **{name: str(expand_home(path)) for name, path in paths.items() if path is not None}
    )


def select_unset(config: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `values` of those settings that are None in `config`."""
    return {key: value for key, value in values.items() if getattr(config, key) is None}


def fill_unset(config: ConfigT, values: Mapping[str, Any]) -> ConfigT:
    """Fill in `values` for those settings that are None in `config`."""
    return dataclasses.replace(config, **select_unset(config, values))


Pooling = Literal["cls", "mean"]


def data_dir_setting() -> Any:
    """Declare `data_dir`, which commands for training and for prediction have."""
    return setting(
        None,
        "Directory that holds the original dataset files (environment: BERTKIT_DATA_DIR).",
        DATA,
        is_path=True,
    )


def encoding_setting() -> Any:
    """Declare `encoding`, which all commands that read data files have."""
    return setting(
        None,
        "Encoding of text files, such as cp949 or latin-1; Parquet files have none.",
        DATA,
        default_text="UTF-8, or UTF-16 with a byte order mark",
        describe_problem=describe_unknown_encoding,
    )


def delimiter_setting() -> Any:
    """Declare `delimiter`, which commands that read tables have."""
    return setting(
        None, "Character between the fields of a table in a text file; \\t is a TAB.", DATA,
        default_text="detected", describe_problem=describe_bad_delimiter,
    )  # fmt: skip


def describe_bad_delimiter(text: str) -> str | None:
    """Return the problem with a value of `--delimiter` and the fix, or None if it is valid."""
    return None if len(text) == 1 or text == r"\t" else "is not one character; pass one, such as ';'"


def header_setting() -> Any:
    """Declare `header`, which commands that read tables have."""
    return setting(
        None, "Whether the first line of a table in a text file names the columns; otherwise they are 0, "
        "1, ...", DATA, flags=("--header/--no-header",), default_text="detected",
    )  # fmt: skip


def describe_unknown_device(name: str) -> str | None:
    """Return the problem with a value of `--device` and the fix, or None if it is valid."""
    if re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", name):
        return None
    return f"unknown device {name!r}; pass cpu, cuda, cuda:N, mps or auto"


def device_setting(panel: str = MODEL) -> Any:
    """Declare `device`, which all commands that run a model have."""
    return setting(
        "auto",
        "Device that runs the model: cpu, cuda, cuda:N, mps, or auto for a GPU if there is one. auto uses "
        "MPS only after a check of its results.",
        panel,
        is_saved=False,
        describe_problem=describe_unknown_device,
    )


def pooling_setting() -> Any:
    """Declare `pooling`, for commands whose head reads one vector per text."""
    return setting(
        "cls",
        "Input of the head: the vector of [CLS] (in left-to-right models, of the last token), or the mean "
        "over all tokens except padding.",
        MODEL,
    )


def metric_setting() -> Any:
    """Declare `metric`, which commands that score predictions have."""
    return setting(
        (),
        "Also score with a module of the library evaluate: the path of its code, or a name on the Hub. "
        "NAME:KEY=VALUE passes arguments (f1:average=macro). Repeatable.",
    )
