"""The settings and the definition of `pretrain-mlm-nsp`. Importing this module is fast."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertkit.errors import UserError
from bertkit.settings.declaration import Panel, get_flag, get_settings, setting
from bertkit.settings.run_settings import DEFAULT_VOCAB_SIZE, RunConfig, TextConfig, WordUnits
from bertkit.tasks import TaskDef
from bertkit.utils.compat import Self

# Numbers of layers, hidden units and heads. Base and large are from Devlin et al. 2018, 3; the other sizes
# are those of Google's small BERT models.
MODEL_SIZES = {
    "tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (4, 512, 8), "medium": (8, 512, 8),
    "base": (12, 768, 12), "large": (24, 1024, 16),
}  # fmt: skip


MILLION = 1_000_000
WORD_UNITS = {"k": 1_000, "M": MILLION}


def parse_word_count(text: str) -> int | None:
    """Return a number of words such as `2M` or `500k`, or None if the text is none."""
    units = {name.lower(): count for name, count in WORD_UNITS.items()}
    unit = units.get(text[-1:].lower(), 1)
    number = text[:-1] if unit > 1 else text
    return int(number) * unit if number.isdecimal() else None


def format_word_count(count: int) -> str:
    """Return a number of words as the settings take it, such as `2M`."""
    unit = next((unit for unit in ("M", "k") if count % WORD_UNITS[unit] == 0), "")
    return f"{count // WORD_UNITS.get(unit, 1)}{unit}"


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TextConfig, RunConfig):
    """The settings of `pretrain-mlm-nsp`."""

    excluded_settings = frozenset({"new_head", "head", "lora"})

    text_format: Literal["sentences", "prose", "wikitext"] | None = setting(
        None,
        "Format of text files: sentences (one per line, a blank line between documents), prose or wikitext.",
        Panel.FILES, default_text="detected",
    )  # fmt: skip

    model: str | None = setting(
        None, "Pre-trained model to train further: a name on the Hub, or a path.", Panel.MODEL,
        is_common=True, flags=("--model", "-m"), completion="models", default_text="a model from scratch",
        is_path=True,
    )  # fmt: skip
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = setting(
        None, "Model from scratch: tiny, mini, small, medium, base or large.", Panel.SCRATCH,
        is_common=True, default_text="tiny on a CPU, base with an accelerator", replaces=("model",),
    )  # fmt: skip
    num_layers: int | None = setting(
        None, "Number of layers.", Panel.SCRATCH, min=1, default_text="by --size", replaces=("model",)
    )
    hidden_size: int | None = setting(
        None, "Hidden size.", Panel.SCRATCH, min=2, default_text="by --size", replaces=("model",)
    )
    num_heads: int | None = setting(
        None, "Number of attention heads.", Panel.SCRATCH, min=1, default_text="by --size",
        replaces=("model",),
    )  # fmt: skip
    dropout: float | None = setting(
        None, "Dropout in pre-training; fine-tuning the model uses 0.1.", Panel.SCRATCH, min=0.0, max=0.9,
        default_text="0.1, or 0 with --time-limit", replaces=("model",),
    )  # fmt: skip
    embedding_init: Literal["random", "ppmi"] = setting(
        "random",
        "Initial token embeddings: random, or computed from the text (truncated SVD of the PPMI of tokens).",
        Panel.SCRATCH, replaces=("model",),
    )  # fmt: skip
    tokenizer: str | None = setting(
        None, "Tokenizer of a model from scratch: a directory, or a model.", Panel.SCRATCH,
        default_text="a new WordPiece tokenizer", replaces=("model", "vocab_size"), is_path=True,
    )  # fmt: skip
    vocab_size: int | None = setting(
        None, "Vocabulary size of a new tokenizer.", Panel.SCRATCH, min=6,
        default_text=str(DEFAULT_VOCAB_SIZE), replaces=("model",),
    )  # fmt: skip
    cased: bool = setting(
        False, "Keep capital letters in a new tokenizer.", Panel.SCRATCH, replaces=("model", "tokenizer")
    )
    objective: Literal["mlm+nsp", "mlm", "mlm+sop", "ltr", "rtd"] = setting(
        "mlm+nsp",
        "MLM with next sentence (mlm+nsp) or sentence order prediction (mlm+sop); mlm; ltr; rtd, in an hour "
        "on a CPU no better than mlm.",
        Panel.SCRATCH,
    )
    generator_size: float | None = setting(
        None, "Hidden size of the generator of rtd, as a fraction of that of the model.", Panel.SCRATCH,
        min=0.01, max=1.0, default_text="0.25",
    )  # fmt: skip
    max_length: int | None = setting(
        None, "Maximum length of an input in tokens, including special tokens.", Panel.LONG_TEXTS,
        is_common=True, min=8, default_text="128",
    )  # fmt: skip

    mlm_probability: float = setting(
        0.15, "Fraction of all tokens that are predicted.", Panel.MASKING, min=0.01, max=0.9,
        applies_to="masking",
    )  # fmt: skip
    mask_replace_prob: float = setting(
        0.8, "Fraction of the predicted tokens that become [MASK].", Panel.MASKING, min=0.0, max=1.0,
        applies_to="masking",
    )  # fmt: skip
    random_replace_prob: float = setting(
        0.1, "Fraction of the predicted tokens that become a random token.", Panel.MASKING, min=0.0,
        max=1.0, applies_to="masking",
    )  # fmt: skip
    whole_word_masking: bool = setting(
        False, "Mask all tokens of a word or none.", Panel.MASKING, applies_to="masking"
    )
    word_units: WordUnits = setting(
        "words", "Units of --whole-word-masking; morphemes are Korean (extra 'korean').", Panel.MASKING,
        applies_to="masking",
    )  # fmt: skip
    max_predictions_per_seq: int | None = setting(
        None, "Maximum number of predicted tokens per example.", Panel.MASKING, min=1,
        default_text="--mlm-probability times --max-length", applies_to="masking",
    )  # fmt: skip
    short_seq_prob: float = setting(
        0.1, "Fraction of the examples with a random, shorter length.", Panel.MASKING, min=0.0, max=1.0
    )

    phases: str | None = setting(
        None, "Lengths in tokens, each with its fraction of the steps, such as 128:0.9,512:0.1.",
        Panel.MASKING, default_text="--max-length for all steps", replaces=("max_length",),
    )  # fmt: skip
    probe: str | None = setting(
        None,
        "Scores the model at each checkpoint: a labeled dataset (linear probe of the encoder) or minimal "
        "pairs.",
        Panel.ROWS,
        is_path=True, completion="data",
    )  # fmt: skip
    time_limit: float | None = setting(
        None, "Minutes for training and evaluation; sets the number of steps.", Panel.SPEED, min=0.001,
        default_text="no limit", replaces=("max_steps", "epochs"),
    )  # fmt: skip
    word_budget: int | None = setting(
        None, "Words of the training text to read, such as 10M; sets the number of steps.", Panel.SPEED,
        min=1, default_text="no limit", replaces=("max_steps", "epochs", "time_limit"),
        parse_text=parse_word_count,
    )  # fmt: skip
    save_words: str | None = setting(
        None, "Numbers of words after which the model is evaluated and kept in RUN/words/, such as 1M,2M.",
        Panel.RUN_DIRECTORY, default_text="1M,2M,...,10M,20M,...,100M up to --word-budget",
    )  # fmt: skip
    preview: int | None = setting(
        None, "Print N masked examples and the statistics of the masking, and exit.", Panel.RUN_DIRECTORY,
        min=1,
        is_saved=False,
    )  # fmt: skip
    warmup: float | None = setting(  # type: ignore[assignment]  # the default depends on `time_limit`
        None, "Warmup steps, or their fraction of all steps if below 1.", Panel.TUNING, min=0.0,
        training_argument="warmup_steps", default_text="0.01, or 0.1 with --time-limit",
    )  # fmt: skip

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
        names = [*get_scratch_flags(type(self)), "generator_size", "probe", "word_budget", "save_words"]
        unset: dict[str, Any] = {name: settings[name][2] for name in names}
        return dataclasses.replace(super().use_run_as_model(run_dir), **unset)

    def list_unshardable_flags(self) -> list[str]:
        flags = {
            "--probe": self.probe is not None, "--objective rtd": self.objective == "rtd",
            "--word-budget": self.word_budget is not None,
        }  # fmt: skip
        return [flag for flag, is_used in flags.items() if is_used]

    def list_word_checkpoints(self) -> dict[str, int]:
        """Return the numbers of words of `--save-words` by name, ascending; the last is `--word-budget`.

        The default has the numbers of the BabyLM challenge up to the budget.
        """
        budget, text = self.word_budget, self.save_words
        if budget is None:
            if text is not None:
                raise UserError(f"--save-words {text}: applies only to --word-budget; pass both or neither")
            return {}
        if self.phases is not None and "," in self.phases:
            raise UserError(f"--phases {self.phases}: --word-budget needs a single length; omit one of them")
        if any(argument.startswith("train_sampling_strategy=") for argument in self.set):
            raise UserError(
                "--set train_sampling_strategy: --word-budget defines its own order; omit one of them"
            )
        counts = [*range(MILLION, 10 * MILLION, MILLION), *range(10 * MILLION, 101 * MILLION, 10 * MILLION)]
        if text is not None:
            counts = []
            for part in text.split(","):
                if (count := parse_word_count(part.strip())) is None:
                    raise UserError(
                        f"--save-words {text}: cannot parse it; write numbers of words such as 500k,1M,2M"
                    )
                counts.append(count)
            if not 0 < min(counts) <= max(counts) <= budget:
                raise UserError(
                    f"--save-words {text}: has numbers outside of 1 to --word-budget {budget:,}; omit them"
                )
        kept = sorted({budget, *(count for count in counts if count < budget)})
        return {format_word_count(count): count for count in kept}

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
    task="bertkit.tasks.pretrain.task:Pretrain",
    checks="bertkit.tasks.pretrain.checks:CorpusChecks",
    views=("bertkit.tasks.pretrain.view:MlmView",),
    unit="text",  # a document, or a part of a document if there are few documents
    default_max_length=128,
    resamples_examples=True,
    predicts_rows=False,
    predictions_name="masked_samples",
)
