"""A model with its head over the vocabulary, at the masked places of a text alone."""

import sys
from typing import Any

import numpy as np
import torch

from bertkit.data.features import StoredFeatures, build_features
from bertkit.data.padding import Pad
from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.infer.fill_mask import BATCH, MASK, Filled
from bertkit.modeling.forward import logits_of
from bertkit.modeling.loading import (
    find_model,
    load_config,
    load_tokenizer,
    load_trained,
    takes_token_type_ids,
    usable_positions,
)
from bertkit.modeling.pretraining import PLACES, predict_at_masked
from bertkit.modeling.reading import is_causal
from bertkit.reporter import Reporter

WAYS = "name a pre-trained model (bert-base-uncased) or a run of bertkit pretrain-mlm-nsp"


class MaskedWords:
    """A model that fills masks. Texts are checked before its weights are read.

    Raises:
        UserError: a model that reads from left to right, or a tokenizer without a mask.
    """

    def __init__(self, model: str) -> None:
        self.source = find_model(model, "MODEL")
        self.config = load_config(self.source)
        if is_causal(self.config):
            raise UserError(f"MODEL {self.source.name}: reads from left to right and knows no masks; {WAYS}")
        self.tokenizer = load_tokenizer(self.source)
        if self.tokenizer.mask_token_id is None:
            raise UserError(f"MODEL {self.source.name}: its tokenizer has no mask; {WAYS}")

    def fill(self, rows: Rows, top: int, reporter: Reporter) -> Filled:
        """The `top` words for each mask of each `text`. Raises `UserError` where one has no mask."""
        texts, features = rows["text"], self._features(rows)
        ids = [features.sequence(number)[0] for number in range(len(features))]
        places = [np.flatnonzero(some == self.tokenizer.mask_token_id) for some in ids]
        for number, (text, found) in enumerate(zip(texts, places, strict=True)):
            if not len(found):
                where = rows.where(number)
                raise UserError(f"{where}: no {MASK} in {text!r}: put one where a word is wanted")
        best = self._best(features, places, top, reporter)
        filled = [
            {"text": text, "masks": self._told(some, found, *answer)}
            for text, some, found, answer in zip(texts, ids, places, best, strict=True)
        ]
        return Filled(self.source.name, filled)

    def _features(self, rows: Rows) -> StoredFeatures:
        limit = min(usable_positions(self.config) or sys.maxsize, self.tokenizer.model_max_length)
        named = [text.replace(MASK, self.tokenizer.mask_token) for text in rows["text"]]
        features = build_features([named], None, self.tokenizer, limit, cache=False)
        if features.truncated:
            number = int(features.sequence_lengths.argmax())
            text, where, longest = rows["text"][number], rows.where(number), features.longest
            takes = f"{self.source.name} takes {limit}; shorten it"
            raise UserError(f"{where}: {text[:40]!r}... has {longest:,} pieces, {takes}")
        return features

    @torch.no_grad()
    def _best(
        self, features: StoredFeatures, places: list[np.ndarray], top: int, reporter: Reporter
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each text [masks, top] probabilities and the pieces they belong to, best first."""
        from transformers import AutoModelForMaskedLM

        model = load_trained(AutoModelForMaskedLM, self.source, self.config, "the vocabulary", WAYS)
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
        model = predict_at_masked(model.eval().to(device))
        collate = Pad(self.tokenizer.pad_token_id, takes_token_type_ids(model))
        numbers = range(len(features))
        batches = [numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH)]
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for batch in reporter.track(batches, len(batches), "filling"):
            given = collate([features[number] for number in batch])
            given[PLACES] = _padded([places[number] for number in batch])
            logits = logits_of(model, {name: tensor.to(device) for name, tensor in given.items()}).words
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
