"""The training objectives of `pretrain-mlm-nsp`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertkit.config import get_flag, get_settings
from bertkit.errors import UserError
from bertkit.tasks.base import Pipeline
from bertkit.tasks.pretrain_config import PretrainConfig

# Architectures with a head over pairs in `AutoModelForPreTraining`.
PAIR_ARCHITECTURES = frozenset({"bert", "albert", "big_bird", "mobilebert", "megatron-bert"})
# Architectures with a causal language model, in which `is_decoder` hides later tokens.
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
    """A training objective on plain text and the model class for it.

    Attributes:
        name: Value of `--objective`.
        builder_name: Function of `bertkit.data.corpus.pairs` that plans an epoch.
        model_class: Auto class of transformers.
        description: Continues the description of the predicted tokens.
        architectures: Model types that support it; None: all.
        unsupported_hint: What other architectures lack, and the fix.
        is_causal: Whether each token is predicted from the previous ones.
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
        num_predictions = config.max_predictions_per_seq or max(1, round(config.mlm_probability * max_length))
        masker = build_masker(
            tokenizer, is_special, config.whole_word_masking, mlm_probability=config.mlm_probability,
            mask_replace_prob=config.mask_replace_prob, random_replace_prob=config.random_replace_prob,
            max_predictions_per_seq=num_predictions, seed=config.seed,
        )  # fmt: skip
        return MlmCollator(pad, masker, is_special, config.has_pairs)

    @property
    def auto_class(self) -> Any:
        """The auto class of transformers."""
        import transformers

        return getattr(transformers, self.model_class)

    def validate_config(self, config: PretrainConfig) -> None:
        """Refuse masking settings that contradict each other or the objective.

        A setting with its default value counts as not passed.
        """
        if config.mask_replace_prob + config.random_replace_prob > 1:
            flags = (
                f"--mask-replace-prob {config.mask_replace_prob:g} and --random-replace-prob "
                f"{config.random_replace_prob:g}"
            )
            raise UserError(f"{flags}: the sum exceeds 1; pass lower fractions")
        settings = get_settings(type(config))
        for name in MASKING_SETTINGS if self.is_causal else []:
            _, setting, default = settings[name]
            if getattr(config, name) != default:
                flag = get_flag(name, setting)
                raise UserError(f"{flag}: --objective {self.name} masks nothing; remove one of them")

    def configure_model(self, model_config: Any, name: str, tokenizer: Any) -> Any:
        """Return the config of a model for this objective; `ltr` makes the model a decoder.

        Raises:
            UserError: The architecture does not support the objective, or the model is causal.
        """
        from bertkit.modeling.pooling import is_causal

        if is_causal(model_config) and not self.is_causal:
            raise UserError(f"--objective {self.name}: {name} is a left-to-right model; use --objective ltr")
        model_type = model_config.model_type
        if self.architectures is not None and model_type not in self.architectures:
            raise UserError(f"--objective {self.name}: {name} ({model_type}) {self.unsupported_hint}")
        if self.is_causal:
            ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
            model_config.update({"is_decoder": True, "use_cache": False, **ends})
        return model_config

    @property
    def hub_task(self) -> str:
        """The task name on the Hub and in `transformers.pipeline()`."""
        return "text-generation" if self.is_causal else "fill-mask"

    def build_pipeline(self, tokenizer: Any) -> Pipeline:
        """Return how to use the model; a text to continue has the first special token but not the last."""
        if not self.is_causal:
            return Pipeline(task=self.hub_task, example_input=f"... {tokenizer.mask_token} ...")
        call_kwargs = {"add_special_tokens": False, "max_new_tokens": 20}
        example = f"{tokenizer.cls_token} ..."
        return Pipeline(task=self.hub_task, call_kwargs=call_kwargs, example_input=example)


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
