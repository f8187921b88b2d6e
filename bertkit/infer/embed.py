"""`embed`: vectors of texts, or of one word in them, to a file; and the texts nearest to a query."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from bertkit.config import DATA, MODEL, OUTPUT, Settings, setting
from bertkit.errors import UserError
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    import numpy as np

EMBED_HELP = "Vectors of texts, or of one word in them, to a file; --query searches them."
SEARCH_PANEL = "Search"


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(Settings):
    """The settings of `bertkit embed`."""

    model: str = setting(
        dataclasses.MISSING, "A known name (minilm), a path, a run of any task, or a Hub model.", MODEL,
        is_positional=True,
        completion="models",
    )  # fmt: skip
    data: str | None = setting(
        None, "Rows to embed: a known name, a file, a folder, or a Hub data set.", DATA,
        default_text="lines, or JSON objects, on standard input",
        completion="data",
    )  # fmt: skip
    split: str = setting("train", "Which split of --data; a single file is all of one.", DATA)
    text: list[str] = setting((), "A text to embed. Repeatable.", DATA)
    text_column: str | None = setting(None, "The text.", DATA, default_text="guessed")
    text_pair_column: str | None = setting(
        None, "The second text, where rows are pairs.", DATA, default_text="guessed"
    )
    data_dir: str | None = setting(
        None, "Where data sets lie as they are distributed (environment: BERTKIT_DATA_DIR).", DATA
    )
    pooling: Literal["cls", "mean"] | None = setting(
        None,
        "The vector of [CLS], or the mean over all pieces, [CLS] and [SEP] as well, without padding.",
        MODEL,
        default_text="what a sentence-transformers model was trained with, else cls",
    )
    layer: str | None = setting(
        None,
        "0 is the embeddings, 1 the first layer, -1 the last; or concat-last-4.",
        MODEL,
        default_text="-1",
    )
    max_length: int | None = setting(
        None,
        "Longest input in pieces, special ones included; what is longer is cut.",
        MODEL,
        min=4,
        default_text="what the model takes",
    )
    normalize: bool = setting(False, "Scale each vector to length 1.", MODEL)
    batch_size: int = setting(32, "Texts at a time.", MODEL, min=1)
    query: list[str] = setting((), "Show the rows nearest to this text, by cosine. Repeatable.", SEARCH_PANEL)
    top: int = setting(10, "How many rows to show for a query.", SEARCH_PANEL, min=1)
    index: str | None = setting(
        None, "Search this file, which bertkit embed wrote, in place of rows.", SEARCH_PANEL
    )
    word: str | None = setting(
        None, "Embed this word in each text that has it, and compare its vectors.", SEARCH_PANEL
    )
    output: str | None = setting(
        None, "The file: .npy, .parquet or .safetensors.", OUTPUT, flags=("--output", "-o")
    )
    overwrite: bool = setting(False, "Replace --output.", OUTPUT)


@dataclass(frozen=True)
class EmbedResult:
    """What was embedded.

    Attributes:
        vectors: float32 [n, d] in the order of the rows, or of the occurrences of the word; memory-mapped
            where a file of them was written or read.
        figures: what is told of them: `rows`, `dimensions`, `model`, `layer`, `pooling`, ...
        results: for each query its `hits`.
        word: `occurrences`, the `similarities` of the first of them, and `static` ones.
        output: the file.
    """

    vectors: "np.ndarray"
    metadata: dict[str, Any]
    results: list[dict[str, Any]]
    word_comparison: dict[str, Any] | None
    output: Path | None


def embed(
    settings: Mapping[str, Any], reporter: Reporter | None = None, stdin: BinaryIO | None = None
) -> EmbedResult:
    """Embed texts, write their vectors, search them.

    Args:
        given: settings of `EmbedConfig`.
        piped: standard input, read where no other texts are named.

    Raises:
        UserError: anything the caller can mend, in one line; no file is written then.
    """
    from bertkit.utils.reporting import silence_libraries

    reporter = reporter or Reporter()
    config = EmbedConfig(**_known(validate_settings(EmbedConfig, settings, "embed()")))
    _check(config)
    with silence_libraries():
        from bertkit.infer.embedding import Embedder
        from bertkit.infer.vector_index import read_index

        index = read_index(Path(config.index).expanduser()) if config.index else None
        return Embedder(config, index, reporter).run(stdin)


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """The settings, where the model, which has no default, is among them."""
    if not values.get("model"):
        raise UserError("embed(): model is missing: a known name (minilm), a path, a run, or a Hub model")
    return values


def _check(config: EmbedConfig) -> None:
    """Refuse, before any work, settings that do not go together, and a file that cannot be written."""
    if config.index:
        for name in ("data", "text", "word", "output"):
            if getattr(config, name):
                raise UserError(f"--{name}: --index has the vectors already; leave one of them out")
        if not config.query:
            raise UserError("--index: say what to look for with --query")
    if config.word is not None and not config.word.strip():
        raise UserError("--word: is empty")
    if config.word and (config.query or config.text_pair_column):
        other = "--query" if config.query else "--text-pair-column"
        raise UserError(f"--word: {other} is about whole texts; leave one of them out")
    if config.output:
        from bertkit.infer.vector_files import SUFFIXES
        from bertkit.utils.output_paths import check_output_file

        check_output_file(Path(config.output).expanduser(), config.overwrite, suffixes=SUFFIXES)
