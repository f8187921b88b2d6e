"""`--objective rtd`: replaced token detection, the objective of ELECTRA (Clark et al. 2020)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError
from bertkit.tasks.base import Scores, TransformersPipeline
from bertkit.tasks.objective import Objective
from bertkit.tasks.pretrain_config import PretrainConfig

if TYPE_CHECKING:
    import numpy as np

    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss


@dataclass(frozen=True)
class ReplacedTokenDetection(Objective):
    """A generator predicts masked tokens, and a discriminator detects which tokens are its samples."""

    @property
    def masking_collator_class(self) -> Callable[..., Any]:
        """The class of collators that also sample random numbers for the generator."""
        from bertkit.masking.collator import ReplacedTokenCollator

        return ReplacedTokenCollator

    # ---- model, loss and scores

    def build_model(self, model_config: Any, source: "ModelSource", config: PretrainConfig) -> Any:
        """Return the discriminator with its generator."""
        from bertkit.modeling.replaced_tokens import build_replaced_token_model

        return build_replaced_token_model(model_config, source, config.generator_size)

    def describe_model(self, source: "ModelSource", config: PretrainConfig) -> str:
        """Return a note on a new generator of a model with weights; empty for a saved generator.

        Raises:
            UserError: `--generator-size` is set for a saved generator.
        """
        from bertkit.modeling.replaced_tokens import find_generator

        generator = find_generator(source)
        if generator is None:
            return "new generator"
        if config.generator_size is not None:
            raise UserError(
                f"--generator-size {config.generator_size:g}: {source.name} has a generator, "
                f"{generator.folder}; leave out the flag to train it further"
            )
        return ""

    def make_loss(self) -> "Loss":
        """Return the mean loss of the generator plus 50 times the mean loss of the discriminator."""
        from bertkit.modeling.replaced_token_loss import ReplacedTokenLoss

        return ReplacedTokenLoss()

    @property
    def reduce_example_logits(self) -> Callable[..., Any]:
        """The function that reduces logits to sums for each example: of losses, predictions and decisions."""
        from bertkit.modeling.replaced_token_loss import reduce_replaced_token_logits

        return reduce_replaced_token_logits

    def score(self, sums: "np.ndarray", has_pairs: bool) -> Scores:
        """Return the scores of generator and discriminator."""
        from bertkit.metrics.pretraining import score_replaced_tokens

        return score_replaced_tokens(sums)

    def score_baselines(self, unigram: Scores, sums: "np.ndarray | None") -> dict[str, Scores]:
        """Return `unigram`, which has no total loss, and `majority`.

        `majority` predicts the same probability for each token: the fraction of replaced tokens, which
        depends on the generator.
        """
        from bertkit.metrics.pretraining import score_majority, score_replaced_tokens

        baselines = {"unigram": {name: value for name, value in unigram.items() if name != "loss"}}
        if sums is not None:
            baselines["majority"] = score_majority(score_replaced_tokens(sums)["replaced"])
        return baselines

    # ---- pipeline

    @property
    def hub_task(self) -> str:
        """A task of the Hub and of `transformers.pipeline()`; none is for replaced token detection."""
        return "feature-extraction"

    def build_pipeline(self, tokenizer: Any) -> TransformersPipeline:
        """Return the arguments of a pipeline that returns the vectors of tokens."""
        return TransformersPipeline(task=self.hub_task)
