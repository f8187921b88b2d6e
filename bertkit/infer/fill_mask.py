"""`fill-mask`: the words a pre-trained model expects in place of each [MASK]."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from bertkit.checked import checked
from bertkit.config import DATA, MODEL, OUTPUT, Settings, setting
from bertkit.errors import UserError
from bertkit.reporter import Reporter

HELP = "The most probable words for each [MASK] in a text."
MASK = "[MASK]"
BATCH = 32  # texts at a time


@dataclass(frozen=True, kw_only=True)
class FillMaskConfig(Settings):
    """The settings of `bertkit fill-mask`."""

    model: str = setting(
        dataclasses.MISSING, "A pre-trained model with its head over the vocabulary: a path, a run of "
        "pretrain-mlm-nsp, or a Hub model.", MODEL, positional=True, values="models",
    )  # fmt: skip
    text: list[str] = setting(
        (), "Texts with [MASK], or the model's own mask; else lines on standard input.", DATA, positional=True
    )
    top: int = setting(5, "How many words for each.", OUTPUT, min=1)


@dataclass(frozen=True)
class Filled:
    """What a model says.

    Attributes:
        model: its name.
        texts: for each `text` its `masks`, each a list of `word`, `probability` and `filled`: the text with
            this word, and at its other masks the most probable ones.
    """

    model: str
    texts: list[dict[str, Any]]


def fill_mask(
    given: Mapping[str, Any], reporter: Reporter | None = None, piped: BinaryIO | None = None
) -> Filled:
    """Find the most probable words for each mask.

    Args:
        given: settings of `FillMaskConfig`.
        piped: standard input, read where no text is given.

    Raises:
        UserError: no mask in a text, no mask or no trained head in the model, a text that is too long.
    """
    from bertkit.quiet import quiet_libraries

    reporter = reporter or Reporter()
    values = checked(FillMaskConfig, given, "fill_mask()")
    if not values.get("model"):
        raise UserError("fill_mask(): model is missing: a path, a run of pretrain-mlm-nsp, or a Hub model")
    config = FillMaskConfig(**values)
    with quiet_libraries():
        from bertkit.infer.masked import MaskedWords

        return MaskedWords(config.model).fill(_texts(config, piped), config.top, reporter)


def _texts(config: FillMaskConfig, piped: BinaryIO | None) -> list[str]:
    """The texts given, else those on standard input without empty lines."""
    if config.text:
        return list(config.text)
    from bertkit.data.columns import guess_texts, require_texts
    from bertkit.infer.inputs import piped_texts

    rows = piped_texts(piped, "TEXT")
    column, _ = guess_texts(rows)
    require_texts(rows, [column])
    return [text for text in rows[column] if text.strip()]
