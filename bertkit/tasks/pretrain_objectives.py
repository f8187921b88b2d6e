"""What the objectives of `pretrain-mlm-nsp` differ in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertkit.config import get_flag, get_settings
from bertkit.errors import UserError
from bertkit.tasks.base import Pipeline
from bertkit.tasks.pretrain_config import PretrainConfig

PAIR_ARCHITECTURES = frozenset(
    {"bert", "albert", "big_bird", "mobilebert", "megatron-bert"}
)  # their models judge pairs
# With `is_decoder` no place sees a later one, and there is a head that predicts the next piece.
CAUSAL_ARCHITECTURES = frozenset({
    "bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "electra", "ernie", "megatron-bert",
    "rembert", "roformer", "roberta-prelayernorm", "data2vec-text",
})  # fmt: skip
MASKING_SETTINGS = [
    "mlm_probability", "mask_replace_prob", "random_replace_prob", "whole_word_masking", "max_predictions_per_seq",
]  # fmt: skip


@dataclass(frozen=True)
class Objective:
    """What is learned from plain text, by which model.

    Attributes:
        name: as `--objective` has it.
        drawn: the function of `bertkit.data.corpus.pairs` that plans an epoch.
        model: the class of transformers.
        learned: in words, behind what is predicted of the pieces.
        architectures: whose models can do it; None: all.
        unable: what the others lack, and the way out.
        causal: whether each piece is predicted from those before it, in place of masked ones from all.
    """

    name: str
    builder_name: str
    model_class: str
    description: str = ""
    architectures: frozenset[str] | None = None
    unsupported_hint: str = "judges no pairs; use --objective mlm"
    is_causal: bool = False

    @property
    def build_examples(self) -> Callable[..., Any]:
        """See `drawn`."""
        from bertkit.data.corpus import pairs

        return getattr(pairs, self.builder_name)

    def build_collator(
        self, config: PretrainConfig, tokenizer: Any, pad: Callable[..., Any], max_length: int
    ) -> Any:
        """Pads, and says of examples of at most `max_length` pieces what is to be predicted."""
        from bertkit.masking.collator import (
            CausalLmCollator,
            MlmCollator,
            build_masker,
            build_special_tokens_mask,
        )

        special = build_special_tokens_mask(tokenizer)
        if self.is_causal:
            return CausalLmCollator(pad, special)
        most = config.max_predictions_per_seq or max(1, round(config.mlm_probability * max_length))
        masking = build_masker(
            tokenizer, special, config.whole_word_masking, mlm_probability=config.mlm_probability,
            mask_replace_prob=config.mask_replace_prob, random_replace_prob=config.random_replace_prob, max_predictions_per_seq=most,
            seed=config.seed,
        )  # fmt: skip
        return MlmCollator(pad, masking, special, config.has_pairs)

    @property
    def auto_class(self) -> Any:
        """See `model`."""
        import transformers

        return getattr(transformers, self.model_class)

    def validate_config(self, config: PretrainConfig) -> None:
        """Refuse settings of masks that together make none, or where nothing is masked.

        A setting that was given as it is by default is as good as not given.
        """
        if config.mask_replace_prob + config.random_replace_prob > 1:
            shares = f"--mask-replace-prob {config.mask_replace_prob:g} and --random-replace-prob {config.random_replace_prob:g}"
            raise UserError(f"{shares}: together at most 1")
        known = get_settings(type(config))
        for name in MASKING_SETTINGS if self.is_causal else []:
            if getattr(config, name) != known[name][2]:
                flag = get_flag(name, known[name][1])
                raise UserError(f"{flag}: --objective {self.name} masks nothing; leave one of them out")

    def configure_model(self, model_config: Any, name: str, tokenizer: Any) -> Any:
        """The config of a model that does this objective: that given, for `ltr` read from left to right.

        Raises:
            UserError: the architecture cannot, or the model was trained to read from left to right.
        """
        from bertkit.modeling.pooling import is_causal

        if is_causal(model_config) and not self.is_causal:
            raise UserError(f"--objective {self.name}: {name} reads from left to right; use --objective ltr")
        kind = model_config.model_type
        if self.architectures is not None and kind not in self.architectures:
            raise UserError(f"--objective {self.name}: {name} ({kind}) {self.unsupported_hint}")
        if self.is_causal:
            ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
            model_config.update({"is_decoder": True, "use_cache": False, **ends})
        return model_config

    @property
    def hub_task(self) -> str:
        """What the Hub, and `transformers.pipeline()`, call what the model does."""
        return "text-generation" if self.is_causal else "fill-mask"

    def build_pipeline(self, tokenizer: Any) -> Pipeline:
        """Return how transformers runs the model; a causal one continues a text without its [SEP]."""
        if not self.is_causal:
            return Pipeline(task=self.hub_task, example_input=f"... {tokenizer.mask_token} ...")
        call_kwargs = {"add_special_tokens": False, "max_new_tokens": 20}
        example = f"{tokenizer.cls_token} ..."
        return Pipeline(task=self.hub_task, call_kwargs=call_kwargs, example_input=example)


_PAIRS = "AutoModelForPreTraining"
OBJECTIVES = {
    some.name: some
    for some in (
        Objective("mlm+nsp", "build_nsp_pairs", _PAIRS, ", and whether B follows A", PAIR_ARCHITECTURES),
        Objective("mlm", "build_segments", "AutoModelForMaskedLM"),
        Objective("mlm+sop", "build_sop_pairs", _PAIRS, ", and whether B goes before A", PAIR_ARCHITECTURES),
        Objective(
            "ltr", "build_segments", "AutoModelForCausalLM", " from those before it", CAUSAL_ARCHITECTURES,
            "cannot read from left to right alone; use --objective mlm", is_causal=True,
        ),
    )
}  # fmt: skip
