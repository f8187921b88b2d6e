"""The training objectives of `pretrain-mlm-nsp`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertkit.errors import UserError
from bertkit.setting import get_flag, get_settings
from bertkit.tasks.base import TransformersPipeline
from bertkit.tasks.pretrain_config import PretrainConfig

# Model types whose `AutoModelForPreTraining` has a next sentence prediction head.
PAIR_ARCHITECTURES = frozenset({"bert", "albert", "big_bird", "mobilebert", "megatron-bert"})
# Model types whose causal language model masks later tokens in the attention if `is_decoder` is set.
CAUSAL_ARCHITECTURES = frozenset({
    "bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "electra", "ernie", "megatron-bert",
    "rembert", "roformer", "roberta-prelayernorm", "data2vec-text",
})  # fmt: skip
MASKING_SETTINGS = [
    "mlm_probability", "mask_replace_prob", "random_replace_prob", "whole_word_masking",
    "max_predictions_per_seq",
]  # fmt: skip


@dataclass(frozen=True)
class Objective:
    """A training objective on plain text.

    Attributes:
        name: Value of `--objective`.
        builder_name: Name of the function in `bertkit.data.corpus.pairs` that plans the examples of an epoch.
        model_class: Name of the auto class of transformers.
        description: End of the run's description, which begins with the predicted tokens.
        architectures: Model types that support the objective; None if all do.
        unsupported_hint: Error message for other model types, after the name of the model.
        is_causal: Whether each token is predicted from the previous tokens.
    """

    name: str
    builder_name: str
    model_class: str
    description: str = ""
    architectures: frozenset[str] | None = None
    unsupported_hint: str = "has no head over pairs; use --objective mlm"
    is_causal: bool = False

    @property
    def build_examples(self) -> Callable[..., Any]:
        """The function that plans the examples of an epoch."""
        from bertkit.data.corpus import pairs

        return getattr(pairs, self.builder_name)

    def build_collator(
        self, config: PretrainConfig, tokenizer: Any, pad: Callable[..., Any], max_length: int
    ) -> Any:
        """Return a collator that pads and masks examples of at most `max_length` tokens."""
        from bertkit.masking.collator import (
            CausalLmCollator,
            MlmCollator,
            build_masker,
            build_special_tokens_mask,
        )

        is_special = build_special_tokens_mask(tokenizer)
        if self.is_causal:
            return CausalLmCollator(pad, is_special)
        max_predictions = config.max_predictions_per_seq or max(1, round(config.mlm_probability * max_length))
        masker = build_masker(
            tokenizer, is_special, config.whole_word_masking, mlm_probability=config.mlm_probability,
            mask_replace_prob=config.mask_replace_prob, random_replace_prob=config.random_replace_prob,
            max_predictions_per_seq=max_predictions, seed=config.seed,
        )  # fmt: skip
        return MlmCollator(pad, masker, is_special, config.has_pairs)

    @property
    def auto_class(self) -> Any:
        """The auto class of transformers."""
        import transformers

        return getattr(transformers, self.model_class)

    def validate_config(self, config: PretrainConfig) -> None:
        """Check that the masking settings agree with each other and apply to the objective.

        Raises:
            UserError: The probabilities sum to more than 1, or a setting differs from its default for an
                objective that masks nothing.
        """
        if config.mask_replace_prob + config.random_replace_prob > 1:
            flags = (
                f"--mask-replace-prob {config.mask_replace_prob:g} and --random-replace-prob "
                f"{config.random_replace_prob:g}"
            )
            raise UserError(f"{flags}: the sum exceeds 1; pass lower fractions")
        if not self.is_causal:
            return
        settings = get_settings(type(config))
        for name in MASKING_SETTINGS:
            _, metadata, default = settings[name]
            if getattr(config, name) != default:
                flag = get_flag(name, metadata)
                raise UserError(f"{flag}: --objective {self.name} masks nothing; remove one of them")

    def configure_model(self, model_config: Any, name: str, tokenizer: Any) -> Any:
        """Return the model config for this objective. A causal objective makes the model a decoder.

        Raises:
            UserError: The model type does not support the objective, or the model is causal.
        """
        from bertkit.modeling.pooling import is_causal

        if is_causal(model_config) and not self.is_causal:
            raise UserError(f"--objective {self.name}: {name} is a left-to-right model; use --objective ltr")
        model_type = model_config.model_type
        if self.architectures is not None and model_type not in self.architectures:
            raise UserError(f"--objective {self.name}: {name} ({model_type}) {self.unsupported_hint}")
        if self.is_causal:
            model_config.update({
                "is_decoder": True, "use_cache": False,
                "bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id,
            })  # fmt: skip
        return model_config

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


_PAIRS = "AutoModelForPreTraining"
OBJECTIVES = {
    objective.name: objective
    for objective in (
        Objective("mlm+nsp", "build_nsp_pairs", _PAIRS, ", and whether B follows A", PAIR_ARCHITECTURES),
        Objective("mlm", "build_segments", "AutoModelForMaskedLM"),
        Objective("mlm+sop", "build_sop_pairs", _PAIRS, ", and whether A precedes B", PAIR_ARCHITECTURES),
        Objective(
            "ltr", "build_segments", "AutoModelForCausalLM", " from the previous ones", CAUSAL_ARCHITECTURES,
            "cannot be a left-to-right model; use --objective mlm", is_causal=True,
        ),
    )
}  # fmt: skip
