"""Replaced token detection (Clark et al. 2020): a generator and a discriminator that share embeddings.

Masked batches, the model, its loss and its scores. The method needs long training: for short runs, choose
masked language modeling.
"""

import copy
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining
from transformers.models.electra.modeling_electra import ElectraPreTrainedModel

from bertkit.data.masking import IGNORE_INDEX, ORIGINAL_IDS, MlmCollator, hashed_uniform
from bertkit.errors import UserError
from bertkit.models.loading import ModelSource, load_config, load_model
from bertkit.models.packing import get_lengths, provide_lengths
from bertkit.models.pretraining import add_masked_position_hook, set_masked_positions, sum_per_example
from bertkit.models.scratch import compute_initializer_range
from bertkit.stats.scores import score_pretraining

GENERATOR_FOLDER = "generator"  # subdirectory of a run
DEFAULT_GENERATOR_SIZE = 0.25  # Clark et al. 2020, 3.2: the best generators have 1/4 to 1/2 of the size
# Factor of the discriminator's loss (Clark et al. 2020, section 2 and appendix A).
DISCRIMINATOR_WEIGHT = 50.0
SAMPLING_STREAM = 19  # random stream of `hashed_uniform`; the masker has 16 to 18
NUM_COUNTS = 2**30  # resolution of the probabilities of sampled tokens; their sum fits into 32 bits
MAX_UNIFORM = 1 - 2**-22  # in fp32, its product with a sum of counts is below this sum


class ReplacedTokenLogits(NamedTuple):
    """Output of a `ReplacedTokenModel`."""

    prediction_logits: torch.Tensor  # [batch, P, vocabulary], of the generator at the masked positions
    replaced_logits: torch.Tensor  # [batch, seq_len], of the discriminator: whether a token is replaced
    is_replaced: torch.Tensor  # [batch, seq_len] bool, whether the token differs from the original one

    def float(self) -> "ReplacedTokenLogits":
        return ReplacedTokenLogits(
            self.prediction_logits.float(), self.replaced_logits.float(), self.is_replaced
        )


class ReplacedTokenModel(ElectraPreTrainedModel):
    """A discriminator, and the generator whose samples replace the masked tokens of its input.

    The generator has the embeddings of the discriminator, and its output layer has their weights. As in
    google-research/electra, each of the two has its own projection from the embeddings to its hidden size.
    """

    base_model_prefix = "discriminator.electra"
    # weights of the generator that are those of the discriminator; a checkpoint contains them once
    _tied_weights_keys = {
        r"generator\.electra\.embeddings\..*": r"discriminator.electra.embeddings",
        r"generator\.generator_lm_head\.weight": "discriminator.electra.embeddings.word_embeddings.weight",
    }

    def __init__(self, discriminator: Any, generator: Any) -> None:
        super().__init__(discriminator.config)
        generator.electra.embeddings = discriminator.electra.embeddings
        generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
        self.discriminator = discriminator
        self.generator = add_masked_position_hook(generator)

    @property
    def base_model(self) -> Any:
        return self.discriminator.electra

    @property
    def submodels(self) -> dict[str, Any]:
        """The models that are saved, by subdirectory."""
        return {"": self.discriminator, GENERATOR_FOLDER: self.generator}

    def resize_token_embeddings(self, num_tokens: int) -> None:
        """Change the number of word embeddings, which both models share, and of the predicted tokens."""
        self.generator.resize_token_embeddings(num_tokens)
        self.discriminator.config.vocab_size = num_tokens

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, masked_lm_positions: torch.Tensor,
        original_ids: torch.Tensor, sampling_uniform: torch.Tensor, is_masked: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> ReplacedTokenLogits:  # fmt: skip
        """Predict the masked tokens, replace them by samples, and detect the replaced tokens.

        Args:
            input_ids: [batch, seq_len] masked tokens, which the generator reads.
            masked_lm_positions: [batch, P] positions to predict.
            original_ids: [batch, seq_len] tokens without masks.
            sampling_uniform: [batch, P] uniform random numbers in [0, 1).
            is_masked: [batch, P] bool, whether a prediction is used.
        """
        inputs = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        set_masked_positions(self.generator, masked_lm_positions)
        with provide_lengths(self.generator, get_lengths(self.base_model)):
            prediction_logits = self.generator(input_ids=input_ids, **inputs).logits
        sampled = sample_tokens(prediction_logits.detach(), sampling_uniform)
        seq_len = original_ids.shape[1]
        # unused predictions write to a further column
        positions = masked_lm_positions.masked_fill(~is_masked, seq_len)
        replaced_ids = F.pad(original_ids, (0, 1)).scatter(1, positions, sampled)[:, :seq_len]
        replaced_logits = self.discriminator(input_ids=replaced_ids, **inputs).logits
        return ReplacedTokenLogits(prediction_logits, replaced_logits, replaced_ids != original_ids)


def sample_tokens(logits: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Sample a token from each distribution [..., vocabulary] by the inverse CDF of a number [...] in [0, 1).

    A sample depends only on its logits and its random number, so it is the same in any batch.
    """
    # Sums of integers do not depend on their order; those of floats have no deterministic kernel on GPUs.
    counts = (logits.float().softmax(-1) * NUM_COUNTS).to(torch.int32)
    cumulative = counts.cumsum(-1, dtype=torch.int32)
    below_one = uniform.float().clamp(max=MAX_UNIFORM)
    thresholds = (below_one.unsqueeze(-1) * cumulative[..., -1:]).to(torch.int32)
    ids = torch.searchsorted(cumulative, thresholds, right=True).squeeze(-1)
    return ids.clamp(max=logits.shape[-1] - 1)  # NaN logits must not give an invalid token


# ---- the loss


@dataclass(frozen=True)
class ReplacedTokenLoss:
    """Mean loss of the generator, and 50 times the mean loss of the discriminator.

    This is the loss of Clark et al. 2020, section 2, with the factor of appendix A. The generator's part
    "mlm" is over the masked tokens. The discriminator's part "rtd" is over all tokens, including special
    tokens, and not over padding.
    """

    part_weights: dict[str, float] = field(default_factory=lambda: {"rtd": DISCRIMINATOR_WEIGHT})

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        is_predicted = batch["masked_lm_labels"] != IGNORE_INDEX
        return {"mlm": is_predicted.sum().float(), "rtd": batch["attention_mask"].sum().float()}

    def sum_losses(
        self, logits: ReplacedTokenLogits, batch: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        predictions = logits.prediction_logits.float().flatten(0, 1)
        labels = batch["masked_lm_labels"].flatten()
        return {
            "mlm": F.cross_entropy(predictions, labels, ignore_index=IGNORE_INDEX, reduction="sum"),
            "rtd": _compute_token_losses(logits, batch["attention_mask"]).sum(),
        }

    def count_correct(
        self, logits: ReplacedTokenLogits, batch: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        is_correct = (logits.replaced_logits > 0) == logits.is_replaced
        return {
            "mlm": (logits.prediction_logits.argmax(-1) == batch["masked_lm_labels"]).sum(),
            "rtd": (is_correct & batch["attention_mask"].bool()).sum(),
        }


def reduce_replaced_token_logits(
    logits: ReplacedTokenLogits, batch: dict[str, torch.Tensor], num_examples: int
) -> torch.Tensor:
    """Return sums of each example, `[examples, 9]`.

    They are loss, correct predictions and predictions of the generator; loss, correct decisions and decisions
    of the discriminator; and numbers of true positives, of tokens that are predicted to be replaced, and of
    tokens that are replaced.
    """
    mask = batch["attention_mask"].bool()
    is_positive, is_replaced = logits.replaced_logits > 0, logits.is_replaced
    values = (
        _compute_token_losses(logits, batch["attention_mask"]), (is_positive == is_replaced) & mask, mask,
        is_positive & is_replaced & mask, is_positive & mask, is_replaced & mask,
    )  # fmt: skip
    predictions = sum_per_example(
        logits.prediction_logits.flatten(0, 1), batch["masked_lm_labels"].flatten(), num_examples
    )
    return torch.cat([predictions, torch.stack([value.float().sum(1) for value in values], 1)], 1)


def _compute_token_losses(logits: ReplacedTokenLogits, mask: torch.Tensor) -> torch.Tensor:
    """Return the loss of the discriminator for each token, 0 at padding, [batch, seq_len]."""
    losses = F.binary_cross_entropy_with_logits(
        logits.replaced_logits.float(), logits.is_replaced.float(), reduction="none"
    )
    return losses * mask


# ---- masked batches


@dataclass(frozen=True)
class ReplacedTokenCollator(MlmCollator):
    """Collator that also adds the inputs with which a `ReplacedTokenModel` samples tokens.

    * `original_ids` [batch, seq_len]: the tokens without masks.
    * `is_masked` [batch, P]: whether the position is predicted, or only fills the row.
    * `sampling_uniform` [batch, P]: uniform random numbers in [0, 1). They depend on the key of the example,
      so resumed runs and other batch sizes sample the same tokens.
    """

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = super().__call__(items)
        keys = np.array([item["key"] for item in items])
        num_predictions = batch["masked_lm_labels"].shape[1]
        uniform = hashed_uniform(self.masker.seed, keys, num_predictions, SAMPLING_STREAM)
        batch[ORIGINAL_IDS] = self.pad(items)["input_ids"]
        batch["is_masked"] = batch["masked_lm_labels"] != IGNORE_INDEX
        batch["sampling_uniform"] = torch.from_numpy(uniform.astype(np.float32))
        return batch


# ---- scores


def score_replaced_tokens(sums: np.ndarray) -> dict[str, float]:
    """Return the scores of replaced token detection: mean losses in nats, and how well tokens are classified.

    `replaced` is the fraction of tokens that are replaced. Precision, recall and F1 are those of the replaced
    tokens.

    Args:
        sums: [n, 9] sums of each example, see `reduce_replaced_token_logits`.
    """
    # The columns of the discriminator are in the place of those of the pairs.
    scores = score_pretraining(sums[:, :6], has_pairs=True)
    rtd_loss, rtd_accuracy = scores.pop("nsp_loss"), scores.pop("nsp_accuracy")
    num_tokens, num_true_positives, num_positives, num_replaced = sums[:, 5:].sum(0, dtype=np.float64)
    return {
        **scores,
        "loss": scores["mlm_loss"] + DISCRIMINATOR_WEIGHT * rtd_loss,
        "rtd_loss": rtd_loss,
        "rtd_accuracy": rtd_accuracy,
        "rtd_precision": float(num_true_positives / max(num_positives, 1)),
        "rtd_recall": float(num_true_positives / max(num_replaced, 1)),
        "rtd_f1": float(2 * num_true_positives / max(num_positives + num_replaced, 1)),
        "replaced": float(num_replaced / max(num_tokens, 1)),
    }


def score_majority(replaced: float) -> dict[str, float]:
    """Return the scores of a discriminator that gives each token the same probability of being replaced."""
    entropy = -sum(p * math.log(p) for p in (replaced, 1 - replaced) if p > 0)
    return {"rtd_loss": entropy, "rtd_accuracy": max(replaced, 1 - replaced)}


# ---- creation and loading


def build_generator_config(config: Any, size: float) -> Any:
    """Return the config of a generator with `size` times the hidden size of the discriminator.

    As in google-research/electra, the generator has the same number of layers, 64 hidden units per attention
    head, and the embedding size of the discriminator.
    """
    hidden = max(1, round(config.hidden_size * size))
    heads = max(count for count in range(1, max(1, hidden // 64) + 1) if hidden % count == 0)
    generator_config = copy.deepcopy(config)
    generator_config.update({
        "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": 4 * hidden,
        "initializer_range": compute_initializer_range(hidden),
    })  # fmt: skip
    return generator_config


def find_generator(source: ModelSource) -> ModelSource | None:
    """Return the generator that was saved with a run, or None."""
    folder = source.folder / GENERATOR_FOLDER
    if not folder.is_dir():
        return None
    return dataclasses.replace(source, name=f"{source.name}/{GENERATOR_FOLDER}", folder=folder)


def build_replaced_token_model(
    config: Any, source: ModelSource, generator_size: float | None
) -> ReplacedTokenModel:
    """Return the discriminator of a source with its generator; what the source lacks is initialized."""
    has_weights = any(source.folder.glob("*.safetensors"))
    discriminator = (
        load_model(AutoModelForPreTraining, source, config, may_lack_head=not source.is_run)
        if has_weights
        else AutoModelForPreTraining.from_config(config)
    )
    saved = find_generator(source)
    if saved is None:
        generator_config = build_generator_config(config, generator_size or DEFAULT_GENERATOR_SIZE)
        return ReplacedTokenModel(discriminator, AutoModelForMaskedLM.from_config(generator_config))
    saved_config = load_config(saved)
    if saved_config.model_type != config.model_type:
        raise UserError(
            f"{saved.folder}: is a {saved_config.model_type} model, not an ELECTRA generator; remove this "
            "directory to start with a new generator"
        )
    generator = load_model(AutoModelForMaskedLM, saved, saved_config)
    sizes = [(model.config.vocab_size, model.config.embedding_size) for model in (discriminator, generator)]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"{saved.folder}: its embeddings differ in size from those of {source.name}; remove this "
            "directory to start with a new generator"
        )
    return ReplacedTokenModel(discriminator, generator)
