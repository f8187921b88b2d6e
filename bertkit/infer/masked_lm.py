"""A model with its head over the vocabulary, at the masked places of a text alone."""

import sys
from typing import Any

import numpy as np
import torch

from bertkit.data.collator import PaddingCollator
from bertkit.data.features import StoredFeatures, build_features
from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.infer.fill_mask import BATCH_SIZE, MASK, FillMaskResult
from bertkit.modeling.forward import compute_logits
from bertkit.modeling.loading import (
    find_model,
    get_max_positions,
    load_config,
    load_tokenizer,
    load_with_trained_head,
    takes_token_type_ids,
)
from bertkit.modeling.pooling import is_causal
from bertkit.modeling.pretraining import MASKED_POSITIONS, gather_masked_positions
from bertkit.utils.reporting import Reporter

MODEL_HINT = "name a pre-trained model (bert-base-uncased) or a run of bertkit pretrain-mlm-nsp"


class MaskFiller:
    """A model that fills masks. Texts are checked before its weights are read.

    Raises:
        UserError: a model that reads from left to right, or a tokenizer without a mask.
    """

    def __init__(self, model: str) -> None:
        self.source = find_model(model, "MODEL")
        self.config = load_config(self.source)
        if is_causal(self.config):
            raise UserError(
                f"MODEL {self.source.name}: reads from left to right and knows no masks; {MODEL_HINT}"
            )
        self.tokenizer = load_tokenizer(self.source)
        if self.tokenizer.mask_token_id is None:
            raise UserError(f"MODEL {self.source.name}: its tokenizer has no mask; {MODEL_HINT}")

    def fill(self, rows: Rows, top: int, reporter: Reporter) -> FillMaskResult:
        """The `top` words for each mask of each `text`. Raises `UserError` where one has no mask."""
        texts, features = rows["text"], self._features(rows)
        ids = [features.get_sequence(number)[0] for number in range(len(features))]
        places = [np.flatnonzero(some == self.tokenizer.mask_token_id) for some in ids]
        for number, (text, found) in enumerate(zip(texts, places, strict=True)):
            if not len(found):
                where = rows.format_location(number)
                raise UserError(f"{where}: no {MASK} in {text!r}: put one where a word is wanted")
        best = self._best(features, places, top, reporter)
        filled = [
            {"text": text, "masks": self._told(some, found, *answer)}
            for text, some, found, answer in zip(texts, ids, places, best, strict=True)
        ]
        return FillMaskResult(self.source.name, filled)

    def _features(self, rows: Rows) -> StoredFeatures:
        limit = min(get_max_positions(self.config) or sys.maxsize, self.tokenizer.model_max_length)
        named = [text.replace(MASK, self.tokenizer.mask_token) for text in rows["text"]]
        features = build_features([named], None, self.tokenizer, limit, cache=False)
        if features.num_truncated:
            number = int(features.sequence_lengths.argmax())
            text, where, longest = (
                rows["text"][number],
                rows.format_location(number),
                features.max_untruncated_length,
            )
            takes = f"{self.source.name} takes {limit}; shorten it"
            raise UserError(f"{where}: {text[:40]!r}... has {longest:,} pieces, {takes}")
        return features

    @torch.no_grad()
    def _best(
        self, features: StoredFeatures, places: list[np.ndarray], top: int, reporter: Reporter
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each text [masks, top] probabilities and the pieces they belong to, best first."""
        from transformers import AutoModelForMaskedLM

        model = load_with_trained_head(
            AutoModelForMaskedLM, self.source, self.config, "the vocabulary", MODEL_HINT
        )
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
        model = gather_masked_positions(model.eval().to(device))
        collate = PaddingCollator(self.tokenizer.pad_token_id, takes_token_type_ids(model))
        numbers = range(len(features))
        batches = [numbers[start : start + BATCH_SIZE] for start in range(0, len(numbers), BATCH_SIZE)]
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for batch in reporter.track(batches, len(batches), "filling"):
            given = collate([features[number] for number in batch])
            given[MASKED_POSITIONS] = _padded([places[number] for number in batch])
            logits = compute_logits(
                model, {name: tensor.to(device) for name, tensor in given.items()}
            ).prediction_logits
            best = logits.float().softmax(-1).topk(min(top, logits.shape[-1]))
            values, pieces = best.values.cpu().numpy(), best.indices.cpu().numpy()
            sizes = [len(places[number]) for number in batch]
            found.extend((values[row, :size], pieces[row, :size]) for row, size in enumerate(sizes))
        return found

    def _told(
        self, ids: np.ndarray, places: np.ndarray, values: np.ndarray, pieces: np.ndarray
    ) -> list[list[dict[str, Any]]]:
        """For each mask its words; the others' best ones stand in the filled text."""
        decode, told = self.tokenizer.decode, []
        for place, some, candidates in zip(places, values.tolist(), pieces.tolist(), strict=True):
            words = []
            for probability, piece in zip(some, candidates, strict=True):
                filled = ids.copy()
                filled[places] = pieces[:, 0]
                filled[place] = piece
                text = decode(filled, skip_special_tokens=True)
                words.append({"word": decode([piece]).strip(), "probability": probability, "filled": text})
            told.append(words)
        return told


def _padded(places: list[np.ndarray]) -> torch.Tensor:
    """[texts, most masks of any]; what a text has fewer of is place 0."""
    padded = np.zeros((len(places), max(map(len, places))), np.int64)
    for row, some in zip(padded, places, strict=True):
        row[: len(some)] = some
    return torch.from_numpy(padded)
