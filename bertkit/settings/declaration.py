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
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from bertkit.errors import format_list
from bertkit.utils.files import expand_home
from bertkit.utils.plugins import Kind, list_plugin_names
from bertkit.utils.text import describe_unknown_encoding


class Panel(Enum):
    """The headings of `--help`, in their order. A heading says when one needs the flags below it."""

    COMMON = "Most used"
    RUNS = "To plan the runs"
    DISTILLATION = "To weigh the teacher against the labels"
    TEXTS = "If a row has other texts than --text"
    SEARCH = "To search the vectors"
    VECTORS = "To get other vectors"
    COLUMNS = "If a column or a label is guessed wrongly"
    RENAMED_COLUMNS = "If the columns have other names than in training"
    FILES = "If a file is read wrongly or not found"
    ROWS = "To choose the rows for training and evaluation"
    LONG_TEXTS = "If texts or answers are long"
    FEW_LABELS = "If labels are few, rare or noisy"
    SCRATCH = "To train from scratch, or with another objective"
    MASKING = "To change the masking, or the lengths of the examples"
    VOCABULARY = "For languages other than English"
    SPEED = "If it is too slow or memory runs out"
    ACCESS = "If others can reach the server"
    MODEL = "To train another head, or only a part of the model"
    TUNING = "To tune the training: schedule, optimizer, dropout, seed"
    SCORES = "To choose the best checkpoint, or to add scores"
    RUN_DIRECTORY = "To start from a recipe, or to try, resume or replace a run"
    OUTPUT = "If you need other output"


# The panels of the settings that determine the rows, and of those that determine the model and its input.
# `check` has both kinds. A study does not search the first kind.
DATA_PANELS = frozenset({Panel.COLUMNS, Panel.FILES, Panel.ROWS})
MODEL_PANELS = frozenset({Panel.LONG_TEXTS, Panel.MODEL, Panel.SCRATCH})


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Metadata of a setting. Its name, type and default are those of the dataclass field.

    Attributes:
        help: Help text of the flag.
        panel: Heading in `--help` under which the flag is listed.
        is_common: Whether `--help` lists the flag under the first heading instead.
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
        plugins: Kind of the plugins whose names are further values of a `Literal`. A setting with a single
            value has neither flag nor parameter.
        parse_text: Function that returns the value of a text that the type does not parse, or None.
        describe_problem: Function that returns the problem with a value and the fix, or None if it is valid.
    """

    help: str
    panel: Panel
    is_common: bool = False
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
    plugins: Kind | None = None
    parse_text: Callable[[str], Any] | None = None
    describe_problem: Callable[[Any], str | None] | None = None

    @property
    def heading(self) -> Panel:
        """The panel that lists the flag."""
        return Panel.COMMON if self.is_common else self.panel


def setting(default: Any, help: str, panel: Panel, **attributes: Any) -> Any:
    """Declare a setting: return a dataclass field with a `Setting` of these attributes as metadata."""
    metadata = Setting(help=help, panel=panel, **attributes)
    return dataclasses.field(default=default, metadata={"setting": metadata})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of the settings of a command."""

    excluded_settings: ClassVar[frozenset[str]] = frozenset()  # inherited fields that this command lacks
    default_texts: ClassVar[Mapping[str, str]] = {}  # `default_text` of inherited fields


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
    kinds = typing.get_type_hints(config)
    return MappingProxyType(
        {
            field.name: _add_plugins(
                SettingField(kinds[field.name], _get_metadata(config, field), field.default)
            )
            for field in dataclasses.fields(config)
            if field.name not in config.excluded_settings
        }
    )


def _get_metadata(config: type[Settings], field: dataclasses.Field[Any]) -> Setting:
    metadata: Setting = field.metadata["setting"]
    text = config.default_texts.get(field.name, metadata.default_text)
    return dataclasses.replace(metadata, default_text=text)


def _add_plugins(field: SettingField) -> SettingField:
    """Return a field with the names of the installed plugins among its values; see `Setting.plugins`."""
    metadata = field.metadata
    if metadata.plugins is None:
        return field
    names = list_plugin_names(metadata.plugins)
    choices = (*typing.get_args(field.type), *names)
    help = f"{metadata.help} Installed: {format_list(names)}." if names else metadata.help
    has_choice = len(choices) > 1
    metadata = dataclasses.replace(metadata, help=help, has_flag=has_choice, has_parameter=has_choice)
    return SettingField(Literal[choices], metadata, field.default)  # type: ignore[valid-type]


def list_settings(config: type[Settings], *applies_to: str) -> list[str]:
    """Return the names of the settings that apply to one of these; see `Setting.applies_to`."""
    return [name for name, field in get_settings(config).items() if field.metadata.applies_to in applies_to]


def get_flag(name: str, metadata: Setting) -> str:
    """Return the flag of a setting, such as `--batch-size`; if it has several flags, the first one."""
    return metadata.flags[0].split("/")[0] if metadata.flags else "--" + name.replace("_", "-")


# They name columns by which rows are split or weighted, which new rows may lack.
OPTIONAL_COLUMN_SETTINGS = frozenset({"group_column", "time_column", "weight_column"})


def is_column_setting(name: str) -> bool:
    """Return whether a setting names columns that the task reads, such as `text_column`, `ending_columns`."""
    return "_column" in name and name not in OPTIONAL_COLUMN_SETTINGS


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
        None, "Directory with the files of known datasets.", Panel.FILES,
        default_text="$BERTKIT_DATA_DIR", is_path=True,
    )  # fmt: skip


def encoding_setting() -> Any:
    """Declare `encoding`, which all commands that read data files have."""
    return setting(
        None, "Encoding of text files, such as cp949 or latin-1.", Panel.FILES,
        default_text="UTF-8, or UTF-16 with a byte order mark", describe_problem=describe_unknown_encoding,
    )  # fmt: skip


def delimiter_setting() -> Any:
    """Declare `delimiter`, which commands that read tables have."""
    return setting(
        None, "Character between the fields of a row; \\t is a TAB.", Panel.FILES, default_text="detected",
        describe_problem=describe_bad_delimiter,
    )  # fmt: skip


def describe_bad_delimiter(text: str) -> str | None:
    """Return the problem with a value of `--delimiter` and the fix, or None if it is valid."""
    return None if len(text) == 1 or text == r"\t" else "is not one character; pass one, such as ';'"


def header_setting() -> Any:
    """Declare `header`, which commands that read tables have."""
    return setting(
        None, "Whether the first line of a table names the columns; otherwise they are 0, 1, ...",
        Panel.FILES, flags=("--header/--no-header",), default_text="detected",
    )  # fmt: skip


def describe_unknown_device(name: str) -> str | None:
    """Return the problem with a value of `--device` and the fix, or None if it is valid."""
    if re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", name):
        return None
    return f"unknown device {name!r}; pass cpu, cuda, cuda:N, mps or auto"


@dataclass(frozen=True, kw_only=True)
class RaySettings(Settings):
    """The settings of a Ray cluster, which experiments and `predict` have."""

    ray: str | None = setting(
        None, "Use a Ray cluster: auto, local, or its address, such as HOST:6379.", Panel.SPEED,
        is_saved=False, default_text="processes of this machine",
    )  # fmt: skip
    num_cpus: int | None = setting(
        None, "CPUs and threads of a task of --ray.", Panel.SPEED, min=1, is_saved=False,
        default_text="OMP_NUM_THREADS, else 1",
    )  # fmt: skip
    num_gpus: float | None = setting(
        None, "GPUs of a task of --ray; with 0.25, four tasks share one.", Panel.SPEED, min=0.0,
        is_saved=False, default_text="1 if the cluster has GPUs",
    )  # fmt: skip


RAY_SETTINGS = tuple(get_settings(RaySettings))


def device_setting() -> Any:
    """Declare `device`, which all commands that run a model have."""
    return setting(
        "auto", "cpu, cuda, cuda:N, mps or auto (a GPU if any).", Panel.SPEED,
        is_saved=False, describe_problem=describe_unknown_device,
    )  # fmt: skip


def pooling_setting() -> Any:
    """Declare `pooling`, for commands whose head reads one vector per text."""
    return setting(
        "cls",
        "Vector for the head: that of [CLS] (of the last token in left-to-right models), or the mean over "
        "all tokens.",
        Panel.MODEL,
    )


def metric_setting(panel: Panel = Panel.SCORES) -> Any:
    """Declare `metric`, which commands that score predictions have."""
    return setting(
        (),
        "Also score with a module of the library evaluate: a name or path, such as f1:average=macro. "
        "Repeatable.",
        panel,
    )
