"""The data checks of all tasks: empty texts, duplicates, overlap, scripts, lengths, and [UNK] tokens."""

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from bertkit.checks.base import Finding, Level, TaskChecks, format_fraction, locate_rows
from bertkit.data.column_types import number_groups
from bertkit.data.ner.tags import OUTSIDE
from bertkit.data.rows import Rows
from bertkit.data.token_counts import TokenCounts
from bertkit.modeling import loading
from bertkit.modeling.loading import ModelSource
from bertkit.pipeline.prepare import UNK_ERROR_FRACTION, UNK_WARNING_FRACTION, resolve_max_length
from bertkit.tasks.base import Task

# Above these fractions of the rows, the finding is a warning instead of a note.
MAX_DUPLICATE_FRACTION = 0.01
MAX_TRUNCATED_FRACTION = 0.05
MAX_LABEL_CHARS = 40  # longer labels are shortened in locations

# ---- rows


@dataclass(frozen=True)
class CheckedSplit:
    """A split with the keys and labels by which rows are compared.

    Attributes:
        name: Name of the split.
        rows: The parsed rows.
        identity: [n] key of each row; equal examples have equal keys.
        gold: Label of each row; None without labels.
        unit: Noun for one row in messages.
        conflict_severity: See `TaskChecks.conflict_severity`.
    """

    name: str
    rows: Rows
    identity: np.ndarray
    gold: Sequence[Hashable] | None
    unit: str
    conflict_severity: tuple[Level, str]

    @classmethod
    def from_checks(cls, name: str, rows: Rows, checks: TaskChecks) -> "CheckedSplit":
        """Collect the keys and labels of the rows."""
        task = checks.task
        identity = task.split_keys(rows).identity
        return cls(name, rows, identity, checks.extract_gold(rows), task.spec.unit, checks.conflict_severity)

    def format_fraction(self, indices: Sequence[int]) -> str:
        """Format the number of these rows, such as `3 of 60 (5.0%) train rows`."""
        return f"{format_fraction(len(indices), len(self.rows))} {self.name} {self.unit}s"


def find_empty_texts(split: CheckedSplit, texts: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Find rows in which a text is empty or only white space; training does not refuse these rows."""
    row_texts = zip(*texts, strict=True)
    empty = [index for index, values in enumerate(row_texts) if not all(map(str.strip, values))]
    if empty:
        yield Finding(
            "warning", "empty", f"{split.format_fraction(empty)} have an empty text",
            "remove them, or fill in the text; training and evaluation use them unchanged", len(empty),
            locate_rows(split.rows, empty),
        )  # fmt: skip


def find_duplicates(split: CheckedSplit) -> Iterator[Finding]:
    """Find copies of earlier rows, and copies with another label than the earlier row."""
    groups, first = number_groups(split.identity)
    first_index = first[groups]  # of the rows with the same key
    copies = np.flatnonzero(first_index != np.arange(len(groups))).tolist()
    rows, gold = split.rows, split.gold
    if copies:
        originals = first_index[copies].tolist()
        yield Finding(
            "warning" if len(copies) > MAX_DUPLICATE_FRACTION * len(rows) else "note", "duplicates",
            f"{split.format_fraction(copies)} are copies of an earlier one",
            "remove them, since copies count more than once; keep short texts that are equal by chance",
            len(copies), _locate_pairs(rows, copies, originals),
        )  # fmt: skip
    if not gold:
        return
    conflicts = [index for index in copies if gold[index] != gold[first_index[index]]]
    if conflicts:
        originals = first_index[conflicts].tolist()
        level, fix = split.conflict_severity
        yield Finding(
            level, "conflicts", f"{split.format_fraction(conflicts)} are copies with another label", fix,
            len(conflicts), _locate_pairs(rows, conflicts, originals, gold),
        )  # fmt: skip


def _locate_pairs(
    rows: Rows, copies: Sequence[int], originals: Sequence[int], gold: Sequence[Hashable] | None = None
) -> list[str]:
    """Return locations such as `train.csv: row 9 copies row 3` for the first few pairs.

    Args:
        rows: The rows of the split.
        copies: Indices of the copies.
        originals: Index of the earlier row for each copy.
        gold: Labels to append to the locations; None to append none.
    """
    locations = []
    for copy_location, original_location, duplicate, original in zip(
        locate_rows(rows, copies), locate_rows(rows, originals), copies, originals, strict=False
    ):
        if rows.file_index[duplicate] == rows.file_index[original]:
            file = rows.files[rows.file_index[original]]
            original_location = original_location.removeprefix(f"{file}: ")
        if gold:
            copy_location += f" ({_shorten_label(gold[duplicate])})"
            original_location += f" ({_shorten_label(gold[original])})"
        locations.append(f"{copy_location} copies {original_location}")
    return locations


def _shorten_label(label: Hashable) -> str:
    """Format a label in at most `MAX_LABEL_CHARS` characters; of tags, only those other than O."""
    if isinstance(label, tuple):  # the tags of a sentence, or a label set
        label = " ".join(str(part) for part in label if part != OUTSIDE) or OUTSIDE
    text = f"{label:g}" if isinstance(label, float) else str(label)
    return text if len(text) <= MAX_LABEL_CHARS else f"{text[: MAX_LABEL_CHARS - 3]}..."


def find_overlap(splits: Sequence[CheckedSplit]) -> Iterator[Finding]:
    """Find examples that occur in two splits."""
    for earlier, later in combinations(splits, 2):
        shared = np.flatnonzero(np.isin(later.identity, earlier.identity)).tolist()
        if shared:
            yield Finding(
                "warning", "overlap",
                f"{later.format_fraction(shared)} are also in the {earlier.name} split",
                "check how the splits were made; scores on examples seen before say little", len(shared),
                locate_rows(later.rows, shared),
            )  # fmt: skip


def find_script_mismatch(scripts: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    """Find splits with another main script than the training texts.

    Args:
        scripts: Fraction of the letters by split and script; scripts are in descending order.
    """
    main_scripts = {name: next(iter(fractions), "") for name, fractions in scripts.items()}
    train_script = main_scripts.get("train")
    for name, script in main_scripts.items():
        if train_script is not None and script != train_script:
            yield Finding(
                "warning", "script",
                f"the {name} texts are mostly {script}, the training texts {train_script}",
                "check whether the files belong together", 0,
            )  # fmt: skip


# ---- tokens


@dataclass(frozen=True)
class TokenizerInfo:
    """A tokenizer and the limits of its model.

    Attributes:
        name: Name of the model.
        is_model_requested: Whether the user named the model.
        tokenizer: The tokenizer.
        max_positions: Maximum sequence length of the model in tokens; None for no limit.
        trained_length: Length up to which the positions of the model were trained; None for a new model.
        num_token_ids: Largest token id of the tokenizer plus 1.
        num_embeddings: Number of token embeddings of the model; None if it is unknown.
    """

    name: str
    is_model_requested: bool
    tokenizer: Any
    max_positions: int | None
    trained_length: int | None
    num_token_ids: int
    num_embeddings: int | None

    @classmethod
    def load(
        cls, task: Task, source: ModelSource, is_model_requested: bool, requested_length: int | None
    ) -> "TokenizerInfo":
        """Load the tokenizer and the config of a model, and set the task's `max_length`.

        Args:
            task: The task; its setting `max_length` is changed.
            source: The model; its weights are not loaded.
            is_model_requested: Whether the user named the model.
            requested_length: Value of `--max-length`, if the user passed the flag.
        """
        has_config = (source.folder / "config.json").exists()  # a folder may hold only a tokenizer
        config = loading.load_config(source) if has_config else None
        tokenizer = loading.load_tokenizer(source)
        loading.require_token_types(source, config, tokenizer)
        num_token_ids = loading.count_token_ids(tokenizer)
        loading.add_tokens(tokenizer, task.new_tokens)
        is_new_model = getattr(task.config, "tokenizer", None) is not None
        trained_length = None if is_new_model else loading.get_trained_length(config, tokenizer)
        max_length = resolve_max_length(task, source, config, requested_length, trained_length)
        task.config = dataclasses.replace(task.config, max_length=max_length)
        max_positions = loading.get_max_positions(config)
        return cls(
            source.name, is_model_requested, tokenizer, max_positions, trained_length, num_token_ids,
            getattr(config, "vocab_size", None),
        )  # fmt: skip


def find_missing_embeddings(info: TokenizerInfo) -> Iterator[Finding]:
    """Report tokens of the tokenizer for which the model has no embedding; training adds them."""
    if info.num_embeddings is not None and info.num_token_ids > info.num_embeddings:
        yield Finding(
            "note", "embeddings",
            f"the tokenizer of {info.name} has {info.num_token_ids:,} token ids, but its weights only "
            f"{info.num_embeddings:,} embeddings",
            "training adds the others; if you did not add tokens, check whether the files belong together",
        )  # fmt: skip


def summarize_lengths(task: Task, counts: TokenCounts) -> dict[str, Any]:
    """Return statistics of the lengths in tokens, and the fractions of long rows and of [UNK] tokens."""
    unknown = {"unknown": counts.unk_fraction}
    if task.spec.resamples_examples:
        return unknown
    median, percentile_95 = np.percentile(counts.lengths, [50, 95], method="nearest").tolist()
    lengths = {"median": int(median), "95%": int(percentile_95), "longest": int(counts.lengths.max())}
    return {"lengths": lengths, "over": float((counts.lengths > task.config.max_length).mean()), **unknown}


def find_long_rows(
    name: str, rows: Rows, counts: TokenCounts, task: Task, info: TokenizerInfo
) -> Iterator[Finding]:
    """Find rows that are longer than `--max-length`, except if examples are sampled to fit."""
    limit, longest = task.config.max_length, int(counts.lengths.max())
    long = (counts.lengths > limit).nonzero()[0]
    if task.spec.resamples_examples or not len(long):
        return
    message = f"{format_fraction(len(long), len(rows))} {name} rows are longer than {limit} tokens and are"
    locations = locate_rows(rows, long)
    if task.spec.uses_windows:
        yield Finding("note", "windows", f"{message} split into windows", "", len(long), locations)
        return
    if info.max_positions and longest > info.max_positions:
        fixes = [f"--max-length {info.max_positions} is the maximum"]
    else:
        fixes = [f"--max-length {longest} avoids truncation"]
    if hasattr(task.config, "long_texts"):
        fixes.append("--long-texts windows reads the whole texts")
    level: Level = "warning" if len(long) > MAX_TRUNCATED_FRACTION * len(rows) else "note"
    yield Finding(level, "truncated", f"{message} truncated", "; ".join(fixes), len(long), locations)


def find_unk_tokens(name: str, rows: Rows, counts: TokenCounts, info: TokenizerInfo) -> Iterator[Finding]:
    """Report a high fraction of [UNK] tokens.

    As in training, a very high fraction is an error, unless the user chose the model.
    """
    if counts.unk_fraction <= UNK_WARNING_FRACTION:
        return
    is_error = name == "train" and counts.unk_fraction > UNK_ERROR_FRACTION and not info.is_model_requested
    by_fraction = np.argsort(-counts.unk_counts / counts.lengths, kind="stable")  # highest first
    yield Finding(
        "error" if is_error else "warning", "unknown",
        f"{counts.unk_fraction:.0%} of the tokens of the {name} texts are [UNK] for {info.name}",
        "name a model for their language with --model", int((counts.unk_counts > 0).sum()),
        locate_rows(rows, by_fraction),
    )  # fmt: skip
