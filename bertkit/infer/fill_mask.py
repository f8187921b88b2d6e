"""`fill-mask`: the words a pre-trained model expects in place of each [MASK]."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from bertkit.config import DATA, MODEL, OUTPUT, Settings, setting
from bertkit.errors import UserError, format_count
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    from bertkit.data.rows import Rows

FILL_MASK_HELP = "The most probable words for each [MASK] in a text."
MASK = "[MASK]"
BATCH_SIZE = 32  # texts at a time


@dataclass(frozen=True, kw_only=True)
class FillMaskConfig(Settings):
    """The settings of `bertkit fill-mask`."""

    model: str = setting(
        dataclasses.MISSING, "A pre-trained model with its head over the vocabulary: a path, a run of "
        "pretrain-mlm-nsp, or a Hub model.", MODEL, is_positional=True, completion="models",
    )  # fmt: skip
    text: list[str] = setting(
        (), "Texts with [MASK], or the model's own mask; else lines on standard input.", DATA, is_positional=True
    )
    top: int = setting(5, "How many words for each.", OUTPUT, min=1)


@dataclass(frozen=True)
class FillMaskResult:
    """What a model says.

    Attributes:
        model: its name.
        texts: for each `text` its `masks`, each a list of `word`, `probability` and `filled`: the text with
            this word, and at its other masks the most probable ones.
    """

    model: str
    texts: list[dict[str, Any]]


def fill_mask(
    settings: Mapping[str, Any], reporter: Reporter | None = None, stdin: BinaryIO | None = None
) -> FillMaskResult:
    """Find the most probable words for each mask.

    Args:
        given: settings of `FillMaskConfig`.
        piped: standard input, read where no text is given.

    Raises:
        UserError: no mask in a text, no mask or no trained head in the model, a text that is too long.
    """
    from bertkit.utils.reporting import silence_libraries

    reporter = reporter or Reporter()
    values = validate_settings(FillMaskConfig, settings, "fill_mask()")
    if not values.get("model"):
        raise UserError("fill_mask(): model is missing: a path, a run of pretrain-mlm-nsp, or a Hub model")
    config = FillMaskConfig(**values)
    with silence_libraries():
        from bertkit.infer.masked_lm import MaskFiller

        return MaskFiller(config.model).fill(_texts(config, stdin, reporter), config.top, reporter)


def _texts(config: FillMaskConfig, piped: BinaryIO | None, reporter: Reporter) -> "Rows":
    """The texts given, else those on standard input without empty lines, in the column `text`."""
    from bertkit.data.rows import Rows

    if config.text:
        return Rows.from_columns({"text": list(config.text)}, "TEXT")
    from bertkit.data.columns import guess_text_columns, require_texts
    from bertkit.infer.inputs import read_stdin_texts

    rows = read_stdin_texts(piped, "TEXT")
    column, _ = guess_text_columns(rows)
    require_texts(rows, [column])
    full = [number for number, text in enumerate(rows[column]) if text.strip()]
    if len(full) < len(rows):
        reporter.info(f"{rows.files[0]}: {format_count(len(rows) - len(full), 'empty line')} left out")
    return rows.with_column("text", rows[column]).select(full)
