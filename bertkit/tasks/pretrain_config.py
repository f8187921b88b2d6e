"""The settings of `pretrain-mlm-nsp`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from bertkit.config import DATA, MODEL, OUTPUT, RunConfig, get_flag, get_settings, setting
from bertkit.errors import UserError
from bertkit.text_config import TextConfig

MASKING = "Masking"
MODEL_SIZES = {  # layers, width, heads: Devlin et al. 2018, 3; the small ones are google's
    "tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (4, 512, 8), "medium": (8, 512, 8),
    "base": (12, 768, 12), "large": (24, 1024, 16),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TextConfig, RunConfig):
    """The settings of `pretrain-mlm-nsp` beside the shared ones."""

    excluded_settings = frozenset({"new_head", "head"})

    text_format: Literal["sentences", "prose", "wikitext"] | None = setting(
        None,
        "Of running text: a sentence a line and blank lines between documents, or prose, or WikiText.",
        DATA,
        default_text="seen from the text",
    )

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = setting(
        None, "Of a model from scratch.", MODEL, default_text="tiny on a CPU, base with an accelerator",
        instead_of=("model",),
    )  # fmt: skip
    num_layers: int | None = setting(
        None, "Layers, where not those of --size.", MODEL, min=1, instead_of=("model",)
    )
    hidden_size: int | None = setting(
        None, "Width, where not that of --size.", MODEL, min=2, instead_of=("model",)
    )
    num_heads: int | None = setting(
        None, "Attention heads, where not those of --size.", MODEL, min=1, instead_of=("model",)
    )
    dropout: float | None = setting(
        None, "Of a model from scratch, in pre-training alone; fine-tuning has 0.1.", MODEL, min=0.0, max=0.9,
        default_text="0.1", instead_of=("model",),
    )  # fmt: skip
    tokenizer: str | None = setting(
        None,
        "Of a model from scratch: a folder, a known or Hub model.",
        MODEL,
        default_text="a new WordPiece",
        instead_of=("model", "vocab_size"),
        path=True,
    )
    vocab_size: int | None = setting(
        None, "Pieces of a new WordPiece tokenizer, trained first.", MODEL, min=6, default_text="30000",
        instead_of=("model",),
    )  # fmt: skip
    cased: bool = setting(False, "Keep capital letters, in a new tokenizer.", MODEL)
    objective: Literal["mlm+nsp", "mlm", "mlm+sop", "ltr"] = setting(
        "mlm+nsp",
        "Masked words, and with it next sentence, nothing, or sentence order; or words from left to right.",
        MODEL,
    )
    max_length: int | None = setting(
        None, "Longest input in pieces, special ones included.", MODEL, min=8, default_text="128"
    )

    mlm_probability: float = setting(0.15, "Share of the pieces to predict.", MASKING, min=0.01, max=0.9)
    mask_replace_prob: float = setting(
        0.8, "Of these, the share that [MASK] replaces.", MASKING, min=0.0, max=1.0
    )
    random_replace_prob: float = setting(
        0.1, "Of these, the share that a random piece replaces.", MASKING, min=0.0, max=1.0
    )
    whole_word_masking: bool = setting(False, "Mask all pieces of a word or none.", MASKING)
    max_predictions_per_seq: int | None = setting(
        None, "Most pieces to predict in an example.", MASKING, min=1, default_text="what --max-length needs"
    )
    short_seq_prob: float = setting(
        0.1, "Share of the examples that are shorter on purpose.", MASKING, min=0.0, max=1.0
    )

    phases: str | None = setting(
        None,
        "Lengths and their shares of the steps, such as 128:0.9,512:0.1.",
        default_text="--max-length alone",
        instead_of=("max_length",),
    )
    preview: int | None = setting(
        None, "Show this many masked examples and what was measured over them; write nothing.", OUTPUT,
        min=1, saved=False,
    )  # fmt: skip

    warmup: float = setting(
        0.01,
        "A share of the steps if below 1, else a number of steps.",
        min=0.0,
        argument="warmup_steps",
    )

    @property
    def has_pairs(self) -> bool:
        """Whether an example has two texts."""
        return self.objective in ("mlm+nsp", "mlm+sop")

    def continued_from(self, run_dir: Path) -> Self:
        """Return the settings with a finished run as the model, without those of a model from scratch."""
        scratch: dict[str, Any] = dict.fromkeys(get_scratch_flags(type(self)))
        return replace(super().continued_from(run_dir), **scratch)

    def train_max_length(self) -> int:
        """Return the length of the longest phase in tokens."""
        from bertkit.data.corpus.phases import parse_phases

        if self.phases is None:
            return super().train_max_length()
        return max(phase.length for phase in parse_phases(self.phases))


def get_scratch_flags(config_class: type[PretrainConfig]) -> dict[str, str]:
    """Return the settings of a model from scratch: name -> flag."""
    settings = get_settings(config_class).items()
    return {name: get_flag(name, about) for name, (_, about, _) in settings if "model" in about.instead_of}


def check_scratch_settings(config: PretrainConfig) -> None:
    """Refuse settings of a model from scratch beside `--model`.

    Raises:
        UserError: such a setting is given; the message names its flag.
    """
    for name, flag in get_scratch_flags(type(config)).items() if config.model else ():
        if getattr(config, name) is not None:
            raise UserError(f"{flag}: belongs to a model from scratch; omit it, or omit --model")
