"""The training objectives of `pretrain-mlm-nsp`: their examples, models, losses and scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bertkit.data.corpus.examples import build_nsp_pairs, build_segments, build_sop_pairs
from bertkit.data.masking import (
    CausalLmCollator,
    MlmCollator,
    build_masker,
    build_special_tokens_mask,
)
from bertkit.data.wordpiece import require_analyzer
from bertkit.errors import UserError
from bertkit.models.loading import ModelSource, load_model
from bertkit.models.losses import Loss
from bertkit.models.pooling import is_causal
from bertkit.models.pretraining import PretrainingLoss, add_masked_position_hook, reduce_pretraining_logits
from bertkit.models.replaced_tokens import (
    ReplacedTokenCollator,
    ReplacedTokenLoss,
    build_replaced_token_model,
    find_generator,
    reduce_replaced_token_logits,
    score_majority,
    score_replaced_tokens,
)
from bertkit.settings.declaration import get_flag, get_settings, list_settings
from bertkit.stats.scores import Scores, score_pretraining
from bertkit.tasks.base import TransformersPipeline
from bertkit.tasks.pretrain.config import PretrainConfig
from bertkit.tasks.pretrain.minimal_pairs import has_minimal_pairs
from bertkit.utils.files import expand_home


@dataclass(frozen=True)
class Objective:
    """A training objective on plain text.

    Attributes:
        name: Value of `--objective`.
        plan_examples: Function that plans the examples of an epoch.
        model_class: Name of the auto class of transformers.
        description: What is predicted besides the masked tokens, or from what; part of the run's description.
        architectures: Model types that support the objective; None if all do.
        unsupported_message: Error message for other model types, after the name of the model.
        is_causal: Whether each token is predicted from the previous tokens.
        best_metric: Loss that selects the best checkpoint.
        predicts_tokens: Whether the trained model predicts tokens.
    """

    name: str
    plan_examples: Callable[..., Any]
    model_class: str
    description: str = ""
    architectures: frozenset[str] | None = None
    unsupported_message: str = "has no head for sentence pairs; use --objective mlm"
    is_causal: bool = False
    best_metric: str = "loss"
    predicts_tokens: bool = True

    # The class of the collators of an objective that masks tokens.
    masking_collator_class: ClassVar[Callable[..., Any]] = MlmCollator

    def build_collator(
        self, config: PretrainConfig, tokenizer: Any, pad: Callable[..., Any], max_length: int
    ) -> Any:
        """Return a collator that pads and masks examples of at most `max_length` tokens."""
        is_special = build_special_tokens_mask(tokenizer)
        if self.is_causal:
            return CausalLmCollator(pad, is_special)
        max_predictions = config.max_predictions_per_seq or max(1, round(config.mlm_probability * max_length))
        masker = build_masker(
            tokenizer, is_special, config.whole_word_masking, mlm_probability=config.mlm_probability,
            mask_replace_prob=config.mask_replace_prob, random_replace_prob=config.random_replace_prob,
            max_predictions_per_seq=max_predictions, seed=config.seed,
        )  # fmt: skip
        return self.masking_collator_class(pad, masker, is_special, config.has_pairs)

    @property
    def part(self) -> str:
        """Prefix of the scores of tokens, such as `mlm_loss`."""
        return "lm" if self.is_causal else "mlm"

    @property
    def auto_class(self) -> Any:
        """The auto class of transformers."""
        import transformers

        return getattr(transformers, self.model_class)

    def validate_config(self, config: PretrainConfig) -> None:
        """Check that the settings of the masking and the probe agree, and apply to the objective."""
        if config.generator_size is not None and config.objective != "rtd":
            raise UserError(
                f"--generator-size: --objective {config.objective} has no generator; omit it, or pass "
                "--objective rtd"
            )
        if config.probe and not self.predicts_tokens and has_minimal_pairs(expand_home(config.probe)):
            raise UserError(
                f"--probe {config.probe}: --objective {self.name} trains a model that predicts no tokens, so "
                "it cannot score minimal pairs; pass a labeled dataset, or another objective"
            )
        if config.mask_replace_prob + config.random_replace_prob > 1:
            flags = (
                f"--mask-replace-prob {config.mask_replace_prob:g} and --random-replace-prob "
                f"{config.random_replace_prob:g}"
            )
            raise UserError(f"{flags}: the sum exceeds 1; pass lower fractions")
        if not self.is_causal:
            if config.word_units != "words":
                if not config.whole_word_masking:
                    raise UserError(
                        f"--word-units {config.word_units}: applies only to whole-word masking; add "
                        "--whole-word-masking"
                    )
                require_analyzer()
            return
        for name in list_settings(type(config), "masking"):
            _, metadata, default = get_settings(type(config))[name]
            if getattr(config, name) != default:
                flag = get_flag(name, metadata)
                raise UserError(f"{flag}: --objective {self.name} masks nothing; remove one of them")

    def configure_model(self, model_config: Any, name: str, tokenizer: Any) -> Any:
        """Return the model config for this objective. A causal objective makes the model a decoder."""
        if is_causal(model_config) and not self.is_causal:
            raise UserError(f"--objective {self.name}: {name} is a left-to-right model; use --objective ltr")
        model_type = model_config.model_type
        if self.architectures is not None and model_type not in self.architectures:
            raise UserError(f"--objective {self.name}: {name} ({model_type}) {self.unsupported_message}")
        if self.is_causal:
            model_config.update({
                "is_decoder": True, "use_cache": False,
                "bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id,
            })  # fmt: skip
        return model_config

    # ---- model, loss and scores

    def build_model(self, model_config: Any, source: ModelSource, config: PretrainConfig) -> Any:
        """Return the encoder with a language modeling head and, for pairs, a classification head on [CLS]."""
        has_weights = any(source.folder.glob("*.safetensors"))
        return add_masked_position_hook(
            load_model(self.auto_class, source, model_config, may_lack_head=not source.is_run)
            if has_weights
            else self.auto_class.from_config(model_config)
        )

    def describe_model(self, source: ModelSource, config: PretrainConfig) -> str:
        """Return a note on parts of the model of `--model` that are new; empty if there are none."""
        return ""

    def make_loss(self) -> Loss:
        """Return the sum of the mean loss over predicted tokens and the mean loss over pairs."""
        return PretrainingLoss(self.part)

    @property
    def reduce_example_logits(self) -> Callable[..., Any]:
        """The function that reduces logits to sums for each example: of losses and predictions."""
        return reduce_pretraining_logits

    def score(self, sums: np.ndarray, has_pairs: bool) -> Scores:
        """Return the scores of the sums of all examples."""
        return score_pretraining(sums, has_pairs, self.part)

    def score_baselines(self, unigram: Scores, sums: np.ndarray | None) -> dict[str, Scores]:
        """Return the scores of baselines by name.

        Args:
            unigram: Scores of predicting tokens by their frequency in the training text.
            sums: The sums of the validation split; None if they are unknown.
        """
        return {"unigram": unigram}

    # ---- pipeline

    @property
    def hub_task(self) -> str:
        """The task name on the Hub and in `transformers.pipeline()`."""
        return "text-generation" if self.is_causal else "fill-mask"

    def build_pipeline(self, tokenizer: Any) -> TransformersPipeline:
        """Return the arguments of `transformers.pipeline()`.

        A causal model continues a text that starts with [CLS]. The text must not end with [SEP], so the
        pipeline adds no special tokens.
        """
        if not self.is_causal:
            return TransformersPipeline(task=self.hub_task, example_input=f"... {tokenizer.mask_token} ...")
        call_kwargs = {"add_special_tokens": False, "max_new_tokens": 20}
        example = f"{tokenizer.cls_token} ..."
        return TransformersPipeline(task=self.hub_task, call_kwargs=call_kwargs, example_input=example)


@dataclass(frozen=True)
class ReplacedTokenDetection(Objective):
    """A generator predicts masked tokens, and a discriminator detects which tokens are its samples."""

    masking_collator_class = ReplacedTokenCollator
    hub_task = "feature-extraction"

    def build_model(self, model_config: Any, source: ModelSource, config: PretrainConfig) -> Any:
        return build_replaced_token_model(model_config, source, config.generator_size)

    def describe_model(self, source: ModelSource, config: PretrainConfig) -> str:
        generator = find_generator(source)
        if generator is None:
            return "new generator"
        if config.generator_size is not None:
            raise UserError(
                f"--generator-size {config.generator_size:g}: {source.name} has a generator, "
                f"{generator.folder}; omit the flag to train it further"
            )
        return ""

    def make_loss(self) -> Loss:
        return ReplacedTokenLoss()

    @property
    def reduce_example_logits(self) -> Callable[..., Any]:
        return reduce_replaced_token_logits

    def score(self, sums: np.ndarray, has_pairs: bool) -> Scores:
        return score_replaced_tokens(sums)

    def score_baselines(self, unigram: Scores, sums: np.ndarray | None) -> dict[str, Scores]:
        """Return `unigram`, which has no total loss, and `majority`, with one probability for all tokens."""
        baselines = {"unigram": {name: value for name, value in unigram.items() if name != "loss"}}
        if sums is not None:
            baselines["majority"] = score_majority(score_replaced_tokens(sums)["replaced"])
        return baselines

    def build_pipeline(self, tokenizer: Any) -> TransformersPipeline:
        return TransformersPipeline(task=self.hub_task)


# Model types whose `AutoModelForPreTraining` has a head for sentence pairs.
PAIR_ARCHITECTURES = frozenset({"bert", "albert", "big_bird", "mobilebert", "megatron-bert"})
# Model types whose causal language model masks later tokens in the attention if `is_decoder` is set.
CAUSAL_ARCHITECTURES = frozenset({
    "bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "electra", "ernie", "megatron-bert",
    "rembert", "roformer", "roberta-prelayernorm", "data2vec-text",
})  # fmt: skip

FOR_PRETRAINING = "AutoModelForPreTraining"
OBJECTIVES = {
    objective.name: objective
    for objective in (
        Objective(
            name="mlm+nsp", plan_examples=build_nsp_pairs, model_class=FOR_PRETRAINING,
            description=", and whether B follows A", architectures=PAIR_ARCHITECTURES,
        ),
        Objective(name="mlm", plan_examples=build_segments, model_class="AutoModelForMaskedLM"),
        Objective(
            name="mlm+sop", plan_examples=build_sop_pairs, model_class=FOR_PRETRAINING,
            description=", and whether A precedes B", architectures=PAIR_ARCHITECTURES,
        ),
        Objective(
            name="ltr", plan_examples=build_segments, model_class="AutoModelForCausalLM",
            description=" from the previous ones", architectures=CAUSAL_ARCHITECTURES,
            unsupported_message="cannot be a left-to-right model; use --objective mlm", is_causal=True,
        ),
        ReplacedTokenDetection(
            name="rtd", plan_examples=build_segments, model_class=FOR_PRETRAINING,
            description=", and which tokens a generator has replaced", architectures=frozenset({"electra"}),
            unsupported_message="is not an ELECTRA model; use --objective mlm",
            # While the generator improves, its samples are harder to detect, and the total loss can rise.
            best_metric="mlm_loss", predicts_tokens=False,
        ),
    )
}  # fmt: skip
