"""The settings and the definition of `pretrain-mlm-nsp`. Importing this module is fast."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertkit.errors import UserError
from bertkit.settings.declaration import DATA, MODEL, OUTPUT, get_flag, get_settings, setting
from bertkit.settings.run_settings import DEFAULT_VOCAB_SIZE, RunConfig, TextConfig, WordUnits
from bertkit.tasks import TaskDef
from bertkit.utils.compat import Self

MASKING = "Masking"
# Numbers of layers, hidden units and heads. Base and large are from Devlin et al. 2018, 3; the other sizes
# are those of Google's small BERT models.
MODEL_SIZES = {
    "tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (4, 512, 8), "medium": (8, 512, 8),
    "base": (12, 768, 12), "large": (24, 1024, 16),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TextConfig, RunConfig):
    """The settings of `pretrain-mlm-nsp`."""

    excluded_settings = frozenset({"new_head", "head", "lora"})

    text_format: Literal["sentences", "prose", "wikitext"] | None = setting(
        None,
        "Format of text files: one sentence per line with blank lines between documents, prose, or WikiText.",
        DATA,
        default_text="detected from the text",
    )

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = setting(
        None, "Size of a model that is trained from scratch.", MODEL,
        default_text="tiny on a CPU, base with an accelerator", replaces=("model",),
    )  # fmt: skip
    num_layers: int | None = setting(
        None, "Number of layers, if different from --size.", MODEL, min=1, replaces=("model",)
    )
    hidden_size: int | None = setting(
        None, "Hidden size, if different from --size.", MODEL, min=2, replaces=("model",)
    )
    num_heads: int | None = setting(
        None, "Number of attention heads, if different from --size.", MODEL, min=1, replaces=("model",)
    )
    dropout: float | None = setting(
        None, "Dropout of a model from scratch during pre-training. Fine-tuning that model uses 0.1.", MODEL,
        min=0.0, max=0.9, default_text="0.1, or 0 with --time-limit", replaces=("model",),
    )  # fmt: skip
    embedding_init: Literal["random", "ppmi"] = setting(
        "random",
        "Initial token embeddings of a model from scratch: random, or computed from the training text "
        "(truncated SVD of the PPMI of pairs of tokens).",
        MODEL,
        replaces=("model",),
    )
    tokenizer: str | None = setting(
        None, "Tokenizer of a model from scratch: a directory, or a known or Hub model.", MODEL,
        default_text="a new WordPiece tokenizer", replaces=("model", "vocab_size"), is_path=True,
    )  # fmt: skip
    vocab_size: int | None = setting(
        None, "Vocabulary size of a new WordPiece tokenizer, which is trained before the model.", MODEL,
        min=6, default_text=str(DEFAULT_VOCAB_SIZE), replaces=("model",),
    )  # fmt: skip
    cased: bool = setting(
        False, "Keep capital letters in a new tokenizer.", MODEL, replaces=("model", "tokenizer")
    )
    objective: Literal["mlm+nsp", "mlm", "mlm+sop", "ltr", "rtd"] = setting(
        "mlm+nsp",
        "Training objective: masked language modeling with next sentence prediction, without it, or with "
        "sentence order prediction; left-to-right language modeling; or replaced token detection (ELECTRA).",
        MODEL,
    )
    generator_size: float | None = setting(
        None,
        "Hidden size of the generator of --objective rtd, as a fraction of the hidden size of the model.",
        MODEL, min=0.01, max=1.0, default_text="0.25",
    )  # fmt: skip
    max_length: int | None = setting(
        None, "Maximum sequence length in tokens, including special tokens.", MODEL, min=8, default_text="128"
    )

    mlm_probability: float = setting(
        0.15, "Fraction of all tokens that are predicted.", MASKING, min=0.01, max=0.9, applies_to="masking"
    )
    mask_replace_prob: float = setting(
        0.8, "Fraction of the predicted tokens that are replaced by [MASK].", MASKING, min=0.0, max=1.0,
        applies_to="masking",
    )  # fmt: skip
    random_replace_prob: float = setting(
        0.1, "Fraction of the predicted tokens that are replaced by a random token.", MASKING, min=0.0,
        max=1.0, applies_to="masking",
    )  # fmt: skip
    whole_word_masking: bool = setting(
        False, "Mask whole words: either all tokens of a word or none.", MASKING, applies_to="masking"
    )
    word_units: WordUnits = setting(
        "words", "Units of --whole-word-masking: words, or Korean morphemes (extra 'korean').", MASKING,
        applies_to="masking",
    )  # fmt: skip
    max_predictions_per_seq: int | None = setting(
        None, "Maximum number of predicted tokens per example.", MASKING, min=1,
        default_text="--mlm-probability times --max-length", applies_to="masking",
    )  # fmt: skip
    short_seq_prob: float = setting(
        0.1, "Fraction of the examples with a random, shorter target length.", MASKING, min=0.0, max=1.0
    )

    phases: str | None = setting(
        None, "Sequence lengths in tokens, each with its fraction of the steps, such as 128:0.9,512:0.1.",
        default_text="--max-length for all steps", replaces=("max_length",),
    )  # fmt: skip
    probe: str | None = setting(
        None,
        "Labeled dataset, as for classify, on which a linear probe of the encoder is scored at checkpoints.",
        DATA, is_path=True, completion="data",
    )  # fmt: skip
    time_limit: float | None = setting(
        None,
        "Minutes for training and its evaluations; sets the number of steps from a short measurement.",
        min=0.001, default_text="no limit", replaces=("max_steps", "epochs"),
    )  # fmt: skip
    preview: int | None = setting(
        None, "Print this many masked examples with their masking statistics and exit without training.",
        OUTPUT, min=1, is_saved=False,
    )  # fmt: skip
    warmup: float | None = setting(  # type: ignore[assignment]  # the default depends on `time_limit`
        None,
        "Steps of learning rate warmup: a fraction of all steps if below 1, else a number of steps.",
        min=0.0,
        training_argument="warmup_steps",
        default_text="0.01, or 0.1 with --time-limit",
    )

    @property
    def has_pairs(self) -> bool:
        """Whether an example has two texts."""
        return self.objective in ("mlm+nsp", "mlm+sop")

    @property
    def model_type(self) -> str:
        """Architecture of a model from scratch."""
        return "electra" if self.objective == "rtd" else "bert"

    def use_run_as_model(self, run_dir: Path) -> Self:
        """Return the settings for training a finished run further, without those of a model from scratch."""
        settings = get_settings(type(self))
        names = [*get_scratch_flags(type(self)), "generator_size", "probe"]
        unset: dict[str, Any] = {name: settings[name][2] for name in names}
        return dataclasses.replace(super().use_run_as_model(run_dir), **unset)

    def list_unshardable_flags(self) -> list[str]:
        flags = {"--probe": self.probe is not None, "--objective rtd": self.objective == "rtd"}
        return [flag for flag, is_used in flags.items() if is_used]

    def max_training_length(self) -> int:
        from bertkit.data.corpus.examples import parse_phases

        if self.phases is None:
            return super().max_training_length()
        return max(phase.length for phase in parse_phases(self.phases))


def get_scratch_flags(config_class: type[PretrainConfig]) -> dict[str, str]:
    """Return the flags of the settings that apply only to a model from scratch, by setting."""
    return {
        name: get_flag(name, metadata)
        for name, (_, metadata, _) in get_settings(config_class).items()
        if "model" in metadata.replaces
    }


def check_scratch_settings(config: PretrainConfig) -> None:
    """Reject settings of a model from scratch if `--model` is given."""
    if not config.model:
        return
    settings = get_settings(type(config))
    for name, flag in get_scratch_flags(type(config)).items():
        if getattr(config, name) != settings[name][2]:
            raise UserError(f"{flag}: applies only to a model from scratch; remove it or --model")


def apply_phases(config: Any) -> Any:
    """Return the settings with the length of the last phase as `max_length`.

    Evaluation and the finished model use this length.
    """
    from bertkit.data.corpus.examples import parse_phases

    last_length = parse_phases(config.phases)[-1].length
    # The settings of a saved run contain both, with equal lengths.
    if config.max_length not in (None, last_length):
        raise UserError(f"--max-length {config.max_length}: --phases sets the lengths; remove one of them")
    if any(argument.startswith("train_sampling_strategy=") for argument in config.set):
        raise UserError("--set train_sampling_strategy: --phases defines its own order; remove one of them")
    return dataclasses.replace(config, max_length=last_length)


PRETRAIN = TaskDef(
    name="pretrain-mlm-nsp",
    help="Pre-train a model on plain text: masked language modeling and next sentence prediction, or "
    "another objective.",
    config=PretrainConfig,
    checks="bertkit.tasks.pretrain.checks:CorpusChecks",
    views=("bertkit.tasks.pretrain.view:MlmView",),
    unit="text",  # a document, or a part of a document if there are few documents
    default_max_length=128,
    resamples_examples=True,
    predicts_rows=False,
    predictions_name="masked_samples",
)
