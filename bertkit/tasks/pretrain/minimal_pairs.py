"""Minimal pairs: an acceptable and an unacceptable sentence, which a language model must tell apart.

A masked language model scores a sentence by its pseudo-log-likelihood (Salazar et al. 2020, "Masked Language
Model Scoring"), a left-to-right model by its log-likelihood. BLiMP (Warstadt et al. 2020) has such pairs.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.data.columns import find_column, require_texts
from bertkit.data.features import build_features
from bertkit.data.masking import build_special_tokens_mask
from bertkit.data.readers.formats import Dialect, read_file
from bertkit.data.sources import is_data_file
from bertkit.data.table import Rows, fingerprint_rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.models.forward import compute_logits
from bertkit.models.loading import get_max_positions, takes_token_type_ids
from bertkit.models.pooling import is_causal
from bertkit.models.pretraining import MASKED_POSITIONS
from bertkit.stats.significance import compute_wilson_interval
from bertkit.utils.reporting import track_progress

GOOD, BAD = "sentence_good", "sentence_bad"
BATCH_TOKENS = 2_048  # larger batches of short sentences do not fit into the cache of a processor


@dataclass(frozen=True)
class MinimalPairs:
    """Pairs of sentences.

    Attributes:
        rows: The pairs, with the columns `sentence_good` and `sentence_bad`.
        phenomena: [n] what each pair tests: the column `UID`, or the name of the file.
        fields: [n] the field of linguistics of each pair; None without the column `field`.
    """

    name: str
    source: str
    rows: Rows
    phenomena: list[str]
    fields: list[str] | None

    @property
    def fingerprint(self) -> str:
        return fingerprint_rows(self.rows.replace_columns({name: self.rows[name] for name in (GOOD, BAD)}))

    def sample(self, size: int | None, seed: int) -> "MinimalPairs":
        """Return at most `size` pairs, with about equally many of each phenomenon."""
        if size is None or size >= len(self.rows):
            return self
        order = np.random.default_rng(seed).permutation(len(self.rows))
        _, codes = np.unique(np.array(self.phenomena)[order], return_inverse=True)
        # the first pair of each phenomenon, then the second ones, until there are enough
        ranks = np.empty(len(order), np.int64)
        for code in range(codes.max() + 1):
            members = np.flatnonzero(codes == code)
            ranks[members] = np.arange(len(members))
        chosen = np.sort(order[np.argsort(ranks, kind="stable")[:size]])
        fields = self.fields and [self.fields[index] for index in chosen]
        phenomena = [self.phenomena[index] for index in chosen]
        return MinimalPairs(self.name, self.source, self.rows.select(chosen), phenomena, fields)


# ---- files


def load_minimal_pairs(path: Path, flag: str, dialect: Dialect | None = None) -> MinimalPairs:
    """Read the pairs of a file, or of all files of a directory."""
    if not path.exists():
        raise UserError(f"{flag} {path}: no such file or directory; check the path")
    files = _list_files(path)
    if not files:
        raise UserError(f"{flag} {path}: has no data files; pass a file, or a directory of files")
    parts, phenomena = [], []
    for file in files:
        rows = read_file(file, dialect)
        if missing := [name for name in (GOOD, BAD) if name not in rows.columns]:
            raise UserError(
                f"{file}: has no column {format_list(missing)} (columns: {format_list(rows.columns)}); name "
                f"the columns of the sentences {GOOD} and {BAD}"
            )
        require_texts(rows, [GOOD, BAD])
        for name in (GOOD, BAD):
            for index, text in enumerate(rows[name]):
                if not text.strip():
                    location = rows.format_location(index)
                    raise UserError(f"{location}: {name} is empty; fill it in, or remove the row")
        column = find_column(rows, "uid")
        names = [file.name.split(".")[0]] * len(rows) if column is None else rows[column]
        phenomena += [str(name) for name in names]
        parts.append(rows)
    rows = Rows.concatenate(parts)
    if not len(rows):
        raise UserError(f"{flag} {path}: has no pairs; pass another file")
    column = find_column(rows, "field")
    fields = None if column is None else [str(value or "(none)") for value in rows[column]]
    return MinimalPairs(path.resolve().name.split(".")[0], str(path), rows, phenomena, fields)


def has_minimal_pairs(path: Path) -> bool:
    """Return whether a path has minimal pairs, by the columns of the first file."""
    files = _list_files(path) if path.exists() else []
    try:
        return bool(files) and {GOOD, BAD} <= set(read_file(files[0]).columns)
    except UserError:
        return False  # what it is else reports the error


def _list_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    paths = [found for found in sorted(path.rglob("*")) if found.is_file()]
    return [found for found in paths if is_data_file(found.relative_to(path))]


# ---- scores of sentences


@dataclass(frozen=True)
class TokenizedPairs:
    """The distinct sentences of pairs as tokens.

    Attributes:
        input_ids: The tokens of each sentence, with special tokens.
        token_type_ids: Their types, of the same lengths.
        good, bad: [n] index of the sentences of each pair.
        unk_fraction: Fraction of the tokens that are [UNK].
    """

    input_ids: list[np.ndarray]
    token_type_ids: list[np.ndarray]
    good: np.ndarray
    bad: np.ndarray
    unk_fraction: float


def tokenize_pairs(pairs: MinimalPairs, tokenizer: Any, model_config: Any, name: str) -> TokenizedPairs:
    """Return the tokens of pairs; a sentence that is too long for the model is an error."""
    rows = pairs.rows
    numbers: dict[str, int] = {}
    good, bad = (
        np.array([numbers.setdefault(text, len(numbers)) for text in rows[column]]) for column in (GOOD, BAD)
    )
    max_length = get_max_positions(model_config) or sys.maxsize
    features = build_features([list(numbers)], None, tokenizer, max_length, cache=False)
    if features.num_truncated:
        longest = int(np.diff(features.columns[0].offsets).argmax())
        row = int(np.flatnonzero((good == longest) | (bad == longest))[0])
        raise UserError(
            f"{rows.format_location(row)}: a sentence has {features.max_untruncated_length:,} tokens, more "
            f"than the {max_length} of {name}; shorten it, or remove the row"
        )
    sequences = [features.get_sequence(index) for index in range(len(features))]
    ids, types = ([np.asarray(part, np.int64) for part in parts] for parts in zip(*sequences, strict=True))
    return TokenizedPairs(ids, types, good, bad, features.unk_fraction)


@torch.no_grad()
def compute_log_likelihoods(
    model: Any, tokenizer: Any, tokenized: TokenizedPairs, batch_size: int | None = None
) -> np.ndarray:
    """Return the score of each sentence `[sentences]`: the sum of the log-probabilities of its tokens.

    Special tokens are not scored. A masked language model predicts each token from all others: a sentence
    with n tokens takes n copies, and each of them has one mask. The copies of a batch have the same length,
    so there is no padding. A left-to-right model reads each sentence once.

    Args:
        model: Model with the hook of `add_masked_position_hook`, in evaluation mode.
        batch_size: Number of copies in a batch; None for about `BATCH_TOKENS` tokens.
    """
    is_special = build_special_tokens_mask(tokenizer)
    has_types, causal, device = takes_token_type_ids(model), is_causal(model.config), model.device
    lengths = np.array([len(ids) for ids in tokenized.input_ids])
    scores = np.zeros(len(lengths))
    batches: list[tuple[np.ndarray, np.ndarray]] = []  # the sentence and the position of each copy
    for length in np.unique(lengths)[::-1]:
        sentences = np.flatnonzero(lengths == length)
        positions = np.zeros(len(sentences), np.int64)
        if not causal:
            is_text = ~is_special[np.stack([tokenized.input_ids[index] for index in sentences])]
            rows, positions = np.nonzero(is_text)
            sentences = sentences[rows]
        size = batch_size or max(1, BATCH_TOKENS // int(length))
        parts = [slice(start, start + size) for start in range(0, len(sentences), size)]
        batches += [(sentences[part], positions[part]) for part in parts]
    for sentences, positions in track_progress(batches, len(batches), "scoring sentences"):
        targets = np.stack([tokenized.input_ids[index] for index in sentences])
        input_ids, copies = targets.copy(), np.arange(len(sentences))
        if causal:  # the logits at a position predict the next token
            predicted = np.tile(np.arange(targets.shape[1] - 1), (len(targets), 1))
            labels = targets[:, 1:]
            is_scored = ~is_special[labels]
        else:
            input_ids[copies, positions] = tokenizer.mask_token_id
            predicted, labels = positions[:, None], targets[copies, positions][:, None]
            is_scored = np.ones(labels.shape, bool)
        batch = {
            "input_ids": input_ids, "attention_mask": np.ones_like(input_ids), MASKED_POSITIONS: predicted,
        }  # fmt: skip
        if has_types:
            batch["token_type_ids"] = np.stack([tokenized.token_type_ids[index] for index in sentences])
        inputs = {name: torch.from_numpy(values).to(device) for name, values in batch.items()}
        logits = compute_logits(model, inputs).prediction_logits.float()
        chosen = logits.gather(-1, torch.from_numpy(labels).to(device).unsqueeze(-1)).squeeze(-1)
        log_probabilities = (chosen - logits.logsumexp(-1)).double().cpu().numpy()
        np.add.at(scores, sentences, np.where(is_scored, log_probabilities, 0.0).sum(1))
    return scores


def score_pairs(
    pairs: MinimalPairs, model: Any, tokenizer: Any, name: str, batch_size: int | None = None
) -> tuple[TokenizedPairs, np.ndarray]:
    """Return the tokens of the pairs, and the score of each sentence."""
    tokenized = tokenize_pairs(pairs, tokenizer, model.config, name)
    return tokenized, compute_log_likelihoods(model, tokenizer, tokenized, batch_size)


def find_correct(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Return whether the good sentence of each pair has the higher score [n]; a tie is wrong."""
    result: np.ndarray = good > bad
    return result


def compute_unigram_scores(
    tokenized: TokenizedPairs, tokenizer: Any, counts: np.ndarray | None
) -> np.ndarray:
    """Return the log-likelihood of each sentence [sentences] under a unigram model with add-one smoothing.

    `counts` [vocabulary] are the frequencies of the tokens. If they are None, those of the sentences of both
    kinds are counted.
    """
    is_special = build_special_tokens_mask(tokenizer)
    texts = [ids[~is_special[ids]] for ids in tokenized.input_ids]
    if counts is None:
        pair_tokens = [texts[index] for index in [*tokenized.good, *tokenized.bad]]
        counts = np.bincount(np.concatenate(pair_tokens), minlength=len(is_special))
    frequencies = np.zeros(len(is_special)) + 1.0
    frequencies[: len(counts)] += counts[: len(is_special)]
    log_probabilities = np.log(frequencies / frequencies.sum())
    return np.array([log_probabilities[ids].sum() for ids in texts])


# ---- summary


def summarize_correct(is_correct: np.ndarray) -> dict[str, Any]:
    """Return the accuracy of pairs with Wilson's 95 % interval."""
    interval = compute_wilson_interval(int(is_correct.sum()), len(is_correct))
    return {"accuracy": float(is_correct.mean()), "interval": interval, "pairs": len(is_correct)}


def summarize_groups(is_correct: np.ndarray, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the accuracy of the pairs of each group, by its name."""
    members = np.array(names)
    return {name: summarize_correct(is_correct[members == name]) for name in sorted(set(names))}


def describe_minimal_pairs(pairs: MinimalPairs) -> str:
    """Return a line about the pairs for the console."""
    count = format_count(len(pairs.rows), "pair")
    num_phenomena = len(set(pairs.phenomena))
    noun = "phenomenon" if num_phenomena == 1 else "phenomena"
    return f"{pairs.name} from {pairs.source}; {count} of {num_phenomena} {noun}"
