"""`fill-mask`: predict the most probable words for each [MASK] with a pre-trained model."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import torch
from rich.table import Table
from transformers import AutoModelForMaskedLM

from bertkit.commands.configs import FillMaskConfig
from bertkit.commands.inputs import read_stdin_texts
from bertkit.data.collators import PaddingCollator
from bertkit.data.columns import guess_text_columns, require_texts
from bertkit.data.features import TextFeatures, build_features
from bertkit.data.table import Rows
from bertkit.errors import UserError, format_count
from bertkit.models.forward import compute_logits, prepare_for_inference
from bertkit.models.loading import (
    find_model,
    get_max_positions,
    load_config,
    load_tokenizer,
    load_with_trained_head,
    require_embeddings,
    takes_token_type_ids,
)
from bertkit.models.pooling import is_causal
from bertkit.models.pretraining import MASKED_POSITIONS, add_masked_position_hook
from bertkit.models.replaced_tokens import find_generator
from bertkit.settings.validation import validate_settings
from bertkit.utils import devices
from bertkit.utils.console import get_piped_stdin, out_console, print_json, to_plain_text
from bertkit.utils.reporting import report_info, silence_libraries, track_progress

MASK = "[MASK]"
BATCH_SIZE = 32  # texts
MODEL_HINT = "use a pre-trained model (bert-base-uncased) or a run of bertkit pretrain-mlm-nsp"


@dataclass(frozen=True)
class FillMaskResult:
    """Predicted words for the masks of some texts.

    Attributes:
        model: Name of the model.
        texts: Each `text` with its `masks`. A mask is a list of candidates with `word`, `probability` and
            `filled`. `filled` is the text with this word, and with the most probable word at each other mask.
    """

    model: str
    texts: list[dict[str, Any]]


def fill_mask(settings: Mapping[str, Any], stdin: BinaryIO | None = None) -> FillMaskResult:
    """Predict the most probable words for each mask. Standard input is read if no text is passed."""
    values = validate_settings(FillMaskConfig, settings, "fill_mask()")
    if not values.get("model"):
        raise UserError(
            "fill_mask(): model is missing; pass a path, a run of pretrain-mlm-nsp, or a Hub model"
        )
    config = FillMaskConfig(**values)
    devices.request_device(config.device)
    with silence_libraries():
        return MaskFiller(config.model).fill(_load_rows(config, stdin), config.top)


def _load_rows(config: FillMaskConfig, stdin: BinaryIO | None) -> Rows:
    """Return the column `text` with the texts of the command line or the lines of standard input."""
    if config.text:
        return Rows.from_columns({"text": list(config.text)}, "TEXT")
    rows = read_stdin_texts(stdin, "TEXT")
    column, _ = guess_text_columns(rows)
    require_texts(rows, [column])
    non_empty = [index for index, text in enumerate(rows[column]) if text.strip()]
    if len(non_empty) < len(rows):
        report_info(f"{rows.files[0]}: {format_count(len(rows) - len(non_empty), 'empty line')} skipped")
    return rows.with_column("text", rows[column]).select(non_empty)


class MaskFiller:
    """A masked language model that fills masks. The weights are loaded after the texts are validated."""

    def __init__(self, model: str) -> None:
        # the packaged model has no masked LM head
        self.source = find_model(model, "MODEL", alternative="a path or a run of bertkit pretrain-mlm-nsp")
        self.model_config = load_config(self.source)
        if is_causal(self.model_config):
            raise UserError(
                f"MODEL {self.source.name}: is a causal (left-to-right) model without masks; {MODEL_HINT}"
            )
        self.tokenizer = load_tokenizer(self.source)
        require_embeddings(self.source, self.model_config, self.tokenizer)
        if self.tokenizer.mask_token_id is None:
            raise UserError(f"MODEL {self.source.name}: its tokenizer has no mask token; {MODEL_HINT}")

    def fill(self, rows: Rows, top: int) -> FillMaskResult:
        """Predict the `top` most probable words for each mask of each text."""
        texts = rows["text"]
        max_length = min(get_max_positions(self.model_config) or sys.maxsize, self.tokenizer.model_max_length)
        masked = [text.replace(MASK, self.tokenizer.mask_token) for text in texts]
        features = build_features([masked], None, self.tokenizer, max_length, cache=False)
        if features.num_truncated:
            longest = int(features.sequence_lengths.argmax())
            raise UserError(
                f"{rows.format_location(longest)}: {texts[longest][:40]!r}... has "
                f"{features.max_untruncated_length:,} tokens, more than the {max_length} of "
                f"{self.source.name}; shorten the text"
            )
        input_ids = [features.get_sequence(index)[0] for index in range(len(features))]
        positions = [np.flatnonzero(ids == self.tokenizer.mask_token_id) for ids in input_ids]
        for index, (text, mask_positions) in enumerate(zip(texts, positions, strict=True)):
            if not len(mask_positions):
                location = rows.format_location(index)
                raise UserError(f"{location}: no {MASK} in {text!r}; write {MASK} where a word is missing")
        predictions = self._predict(features, positions, top)
        results = [
            {"text": text, "masks": self._build_masks(ids, mask_positions, probabilities, token_ids)}
            for text, ids, mask_positions, (probabilities, token_ids) in zip(
                texts, input_ids, positions, predictions, strict=True
            )
        ]
        return FillMaskResult(self.source.name, results)

    @torch.no_grad()
    def _predict(
        self, features: TextFeatures, positions: list[np.ndarray], top: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the probabilities and token ids `[masks, top]` of each text, the most probable first."""
        generator = find_generator(self.source)
        hint = f"use its generator, {generator.folder}" if generator else MODEL_HINT
        model = load_with_trained_head(
            AutoModelForMaskedLM, self.source, self.model_config, "masked LM head", hint
        )
        model = add_masked_position_hook(prepare_for_inference(model))
        devices.report_device()
        collate = PaddingCollator(self.tokenizer.pad_token_id, takes_token_type_ids(model))
        rows = range(len(features))
        batches = [rows[start : start + BATCH_SIZE] for start in range(0, len(rows), BATCH_SIZE)]
        predictions: list[tuple[np.ndarray, np.ndarray]] = []
        for batch_rows in track_progress(batches, len(batches), "filling masks"):
            batch = collate([features[row] for row in batch_rows])
            padded = np.zeros((len(batch_rows), max(len(positions[row]) for row in batch_rows)), np.int64)
            for padded_positions, row in zip(padded, batch_rows, strict=True):
                padded_positions[: len(positions[row])] = positions[row]
            batch[MASKED_POSITIONS] = torch.from_numpy(padded)
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            logits = compute_logits(model, batch).prediction_logits
            best = logits.float().softmax(-1).topk(min(top, logits.shape[-1]))
            probabilities, token_ids = best.values.cpu().numpy(), best.indices.cpu().numpy()
            for index, row in enumerate(batch_rows):
                num_masks = len(positions[row])
                predictions.append((probabilities[index, :num_masks], token_ids[index, :num_masks]))
        return predictions

    def _build_masks(
        self, input_ids: np.ndarray, positions: np.ndarray, probabilities: np.ndarray, token_ids: np.ndarray
    ) -> list[list[dict[str, Any]]]:
        """Return the candidates of each mask, with the best words at all other masks."""
        best_input_ids = input_ids.copy()
        best_input_ids[positions] = token_ids[:, 0]
        masks = []
        for position, mask_probabilities, mask_ids in zip(
            positions, probabilities.tolist(), token_ids.tolist(), strict=True
        ):
            candidates = []
            for probability, token_id in zip(mask_probabilities, mask_ids, strict=True):
                filled_ids = best_input_ids.copy()
                filled_ids[position] = token_id
                word = self.tokenizer.decode([token_id]).strip()
                filled = self.tokenizer.decode(filled_ids, skip_special_tokens=True)
                candidates.append({"word": word, "probability": probability, "filled": filled})
            masks.append(candidates)
        return masks


# ---- command line


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    result = fill_mask(settings, get_piped_stdin())
    if as_json:
        print_json({"model": result.model, "texts": result.texts})
        return
    for text in result.texts:
        table = Table(title=to_plain_text(text["text"]), title_justify="left")
        has_several_masks = len(text["masks"]) > 1
        if has_several_masks:
            table.add_column("mask", justify="right")
        table.add_column("word")
        table.add_column("probability", justify="right")
        table.add_column("filled")
        for mask_number, candidates in enumerate(text["masks"], start=1):
            number = [str(mask_number)] if has_several_masks else []
            for candidate in candidates:
                word, filled = to_plain_text(candidate["word"]), to_plain_text(candidate["filled"])
                table.add_row(*number, word, f"{candidate['probability']:.3f}", filled)
            table.add_section()
        out_console.print(table)
