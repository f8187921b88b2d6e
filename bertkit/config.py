"""Settings: each is declared once, here or at the top of a task's file, and everything else is derived.

Command-line flags, recipe keys, the saved `run.yaml` and the documentation all come from the fields
of these frozen dataclasses. `None` means "not said": lower layers (data-set defaults, advice by data
size) fill in what is None, so the precedence is one rule, `fill`.
"""

import dataclasses
import glob
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

MAX_SEED = 2**32 - 1  # NumPy's
Head = Literal["linear", "bilstm"]
DATA, MODEL, TRAINING, OUTPUT = "Data", "Model", "Training", "Output"
SINGLE_RUN_SETTINGS = frozenset(
    {"push_to_hub", "hub_model_id", "hub_private_repo", "nproc"}
)  # not of a suite


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a field says of itself beside its name, type and default."""

    help: str
    panel: str
    flags: tuple[str, ...] = ()
    min: float | None = None
    max: float | None = None
    default_text: str | None = None
    argument: str | None = None  # the TrainingArguments field it becomes, unchanged
    instead_of: tuple[str, ...] = ()  # settings it takes the place of: either drops the other of a recipe
    path: bool = False  # may name files: saved so that it names them from any folder
    positional: bool = False  # given by its place, not by a flag; without a default it must be given
    saved: bool = True  # False: belongs to one call, not to the run (--resume, --json)
    values: str | None = None  # what a shell completes it with; see `bertkit.cli.completion`


def setting(default: Any, help: str, panel: str = TRAINING, **more: Any) -> Any:
    """A dataclass field that carries its `Setting`; `more` are `Setting`'s other fields."""
    flags = more.pop("flags", ())
    flags = (flags,) if isinstance(flags, str) else tuple(flags)
    meta = {"setting": Setting(help=help, panel=panel, flags=flags, **more)}
    return dataclasses.field(default=default, metadata=meta)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a command can be told.

    Attributes:
        without: inherited settings that a subclass does not have.
    """

    excluded_settings: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """The settings that all training commands share; each task adds its own few in a subclass."""

    def resolve_data_name(self) -> str | None:
        """What names the data."""
        return self.data

    data: str | None = setting(
        None,
        "A known name, a file, a folder, or a Hub data set (ORG/NAME[:CONFIG]).",
        DATA,
        values="data",
        path=True,
    )
    validation: str | None = setting(None, "File of validation rows.", DATA, path=True)
    test: str | None = setting(None, "File of test rows, with or without labels.", DATA, path=True)
    validation_fraction: float | None = setting(
        None,
        "Share of the training rows to set aside, where there is no validation file.",
        DATA,
        min=0.0,
        max=0.9,
        default_text="0.1",
        instead_of=("validation",),
    )
    max_train_samples: int | None = setting(None, "Train on this many rows, drawn by seed.", DATA, min=1)
    max_eval_samples: int | None = setting(
        None, "Validate and test on this many rows, drawn by seed.", DATA, min=1
    )
    split_seed: int | None = setting(
        None,
        "Fixes the share set aside and the rows drawn, where --seed should not.",
        DATA,
        min=0,
        max=MAX_SEED,
        default_text="--seed",
    )
    data_dir: str | None = setting(
        None, "Where data sets lie as they are distributed (environment: BERTKIT_DATA_DIR).", DATA, path=True
    )

    model: str | None = setting(
        None,
        "A known name (minilm), a path, or a Hub model.",
        MODEL,
        flags=("--model", "-m"),
        values="models",
        default_text="bert-base-uncased with an accelerator, else minilm",
        path=True,
    )
    max_length: int | None = setting(
        None,
        "Longest input in pieces, special ones included.",
        MODEL,
        min=4,
        default_text="what the texts need, at most 256",
    )
    new_head: bool = setting(False, "Start the head afresh, whatever the model's own was trained for.", MODEL)
    head: Head = setting(
        "linear", "What decides on the vectors: an output layer alone, or behind a two-layer BiLSTM.", MODEL
    )
    freeze: int = setting(0, "Freeze the embeddings and this many of the lowest layers.", MODEL, min=0)

    epochs: float | None = setting(
        None,
        "Passes over the training rows.",
        min=0.0,
        argument="num_train_epochs",
        default_text="by data size",
    )
    max_steps: int | None = setting(
        None,
        "Stop after this many optimizer steps, whatever --epochs says.",
        min=1,
        argument="max_steps",
    )
    batch_size: int | None = setting(
        None,
        "Examples a device takes at a time.",
        min=1,
        argument="per_device_train_batch_size",
        default_text="by data size",
    )
    tokens_per_batch: int | None = setting(
        None,
        "Pieces a device takes at a time, padding counted: few long examples or many short ones.",
        min=4,
        instead_of=("batch_size",),
    )
    eval_batch_size: int | None = setting(
        None,
        "Examples scored at a time.",
        min=1,
        argument="per_device_eval_batch_size",
        default_text="twice --batch-size, or what --tokens-per-batch takes of the longest",
    )
    learning_rate: float | None = setting(
        None,
        "Peak learning rate.",
        flags=("--learning-rate", "--lr"),
        min=0.0,
        argument="learning_rate",
        default_text="by data and model size",
    )
    layer_decay: float | None = setting(
        None, "Factor on the learning rate for each layer further down.", min=0.0, max=1.0
    )
    warmup: float = setting(
        0.1,
        "A share of the steps if below 1, else a number of steps.",
        min=0.0,
        argument="warmup_steps",
    )
    weight_decay: float = setting(
        0.01, "Decay of all weights but biases and LayerNorm.", min=0.0, argument="weight_decay"
    )
    lr_scheduler: str = setting(
        "linear", "Shape of the learning rate after the warm-up.", argument="lr_scheduler_type"
    )
    gradient_accumulation_steps: int = setting(
        1,
        "Batches to an optimizer step: 8 x 4 trains exactly as 32 x 1.",
        min=1,
        argument="gradient_accumulation_steps",
    )
    gradient_checkpointing: bool = setting(
        False,
        "Recompute activations: about half their memory, a third more time.",
        argument="activation_checkpointing",
    )
    fp16: bool = setting(False, "Half precision with loss scaling; needs an accelerator.", argument="fp16")
    bf16: bool | None = setting(
        None,
        "bfloat16 in training; scores are always fp32.",
        argument="bf16",
        flags=("--bf16/--no-bf16",),
        default_text="where the device makes it faster",
    )
    nproc: int | None = setting(
        None,
        "Processes on this machine, one a GPU, or several on a CPU.",
        min=1,
        default_text="1",
        saved=False,
    )
    compile: bool = setting(
        False, "torch.compile the encoder's layers, once for all shapes; on a CPU it needs a C++ compiler."
    )
    pack: bool = setting(
        False, "Train on the pieces of a batch in one row, without padding; the losses are the same."
    )
    optim: str = setting("adamw_torch_fused", "Optimizer, by Trainer's names.", argument="optim")
    seed: int = setting(
        0, "Fixes split, order, new weights and dropout.", min=0, max=MAX_SEED, argument="seed"
    )
    early_stopping: int | None = setting(None, "Stop after N evaluations without a better score.", min=1)
    save_steps: int | None = setting(
        None, "Also checkpoint every N steps.", min=1, default_text="at the end of each epoch"
    )
    set: list[str] = setting(
        (), "KEY=VALUE: any TrainingArguments field that has no flag of its own. Repeatable."
    )

    output_dir: str | None = setting(
        None,
        "The run directory.",
        OUTPUT,
        flags=("--output-dir", "-o"),
        saved=False,
        default_text="runs/TASK-DATA-MODEL",
    )
    overwrite: bool = setting(False, "Replace the run in --output-dir.", OUTPUT, saved=False)
    resume: bool = setting(False, "Go on from the last checkpoint in --output-dir.", OUTPUT, saved=False)
    dry_run: bool = setting(
        False,
        "Load, check, tokenize, one step on the longest batch; write nothing.",
        OUTPUT,
        saved=False,
    )
    report_to: str | None = setting(
        None,
        "Log to tensorboard, trackio or wandb, or another of Trainer's trackers; none: to no tracker.",
        OUTPUT,
        argument="report_to",
        values="trackers",
    )
    push_to_hub: bool = setting(
        False, "Upload the finished run to the Hugging Face Hub.", OUTPUT, saved=False
    )
    hub_model_id: str | None = setting(
        None,
        "Where --push-to-hub uploads to: NAME or ORG/NAME.",
        OUTPUT,
        saved=False,
        default_text="the run directory's name, in your own account",
    )
    hub_private_repo: bool = setting(
        False,
        "Make the repository of --push-to-hub private; else it is public, or as its organization has it.",
        OUTPUT,
        saved=False,
    )

    def continued_from(self, run_dir: Path) -> Self:
        """Return the settings with a finished run as the model, in full precision."""
        return dataclasses.replace(self, model=str(run_dir), new_head=False, fp16=False, bf16=False)

    def train_max_length(self) -> int:
        """Return the length of the longest training sequence in tokens; `max_length` must be set."""
        assert self.max_length is not None
        return self.max_length


ConfigT = TypeVar("ConfigT", bound=Settings)


def get_settings(config: type[Settings]) -> dict[str, tuple[Any, Setting, Any]]:
    """Name -> (type, `Setting`, default) for each field, in the order of declaration."""
    hints = typing.get_type_hints(config)
    return {
        field.name: (hints[field.name], field.metadata["setting"], field.default)
        for field in dataclasses.fields(config)
        if field.name not in config.excluded_settings
    }


def get_flag(name: str, about: Setting) -> str:
    """The flag of a setting, as a user would type it."""
    return about.flags[0].split("/")[0] if about.flags else "--" + name.replace("_", "-")


def fill_unset(config: ConfigT, values: Mapping[str, Any]) -> ConfigT:
    """`config` with `values` where it says nothing (None)."""
    unsaid = {key: value for key, value in values.items() if getattr(config, key) is None}
    return dataclasses.replace(config, **unsaid)


def serialize_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that make the run again, as plain values: what `run.yaml` holds.

    Paths are made absolute, so that the file repeats the run from any folder.
    """
    plain: dict[str, Any] = {}
    for name, (_, about, default) in get_settings(type(config)).items():
        value: Any = getattr(config, name)
        value = list(value) if isinstance(value, (tuple, list)) else value
        if about.saved and value != default and value not in (None, []):
            plain[name] = _from_anywhere(value) if about.path else value
    return plain


def _from_anywhere(name: str) -> str:
    """The whole path of what is a file, a folder or a pattern of files; a name or an address as it is."""
    if "://" in name:
        return name
    path = Path(name).expanduser()
    if path.exists():
        return str(path.resolve())
    return str(path.absolute()) if glob.has_magic(name) else name
