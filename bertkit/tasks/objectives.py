"""What the objectives of `pretrain-mlm-nsp` differ in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertkit.config import flag_of, settings_of
from bertkit.errors import UserError
from bertkit.tasks.base import Pipeline
from bertkit.tasks.pretraining import PretrainConfig

WITH_PAIRS = frozenset(
    {"bert", "albert", "big_bird", "mobilebert", "megatron-bert"}
)  # their models judge pairs
# With `is_decoder` no place sees a later one, and there is a head that predicts the next piece.
CAUSAL = frozenset({
    "bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "electra", "ernie", "megatron-bert",
    "rembert", "roformer", "roberta-prelayernorm", "data2vec-text",
})  # fmt: skip
OF_MASKS = [
    "mlm_probability", "mask_share", "random_share", "whole_word_masking", "max_predictions_per_seq",
]  # fmt: skip


@dataclass(frozen=True)
class Objective:
    """What is learned from plain text, by which model.

    Attributes:
        name: as `--objective` has it.
        drawn: the function of `bertkit.masking.pairs` that plans an epoch.
        model: the class of transformers.
        learned: in words, behind what is predicted of the pieces.
        architectures: whose models can do it; None: all.
        unable: what the others lack, and the way out.
        causal: whether each piece is predicted from those before it, in place of masked ones from all.
    """

    name: str
    drawn: str
    model: str
    learned: str = ""
    architectures: frozenset[str] | None = None
    unable: str = "judges no pairs; use --objective mlm"
    causal: bool = False

    @property
    def draw(self) -> Callable[..., Any]:
        """See `drawn`."""
        from bertkit.masking import pairs

        return getattr(pairs, self.drawn)

    def collator(
        self, config: PretrainConfig, tokenizer: Any, pad: Callable[..., Any], max_length: int
    ) -> Any:
        """Pads, and says of examples of at most `max_length` pieces what is to be predicted."""
        from bertkit.masking.collator import MaskedPad, NextPiece, masking_of, special_pieces

        special = special_pieces(tokenizer)
        if self.causal:
            return NextPiece(pad, special)
        most = config.max_predictions_per_seq or max(1, round(config.mlm_probability * max_length))
        masking = masking_of(
            tokenizer, special, config.whole_word_masking, mlm_probability=config.mlm_probability,
            mask_share=config.mask_share, random_share=config.random_share, max_predictions_per_seq=most,
            seed=config.seed,
        )  # fmt: skip
        return MaskedPad(pad, masking, special, config.pairs)

    @property
    def auto_class(self) -> Any:
        """See `model`."""
        import transformers

        return getattr(transformers, self.model)

    def check(self, config: PretrainConfig) -> None:
        """Refuse settings of masks that together make none, or where nothing is masked.

        A setting that was given as it is by default is as good as not given.
        """
        if config.mask_share + config.random_share > 1:
            shares = f"--mask-share {config.mask_share:g} and --random-share {config.random_share:g}"
            raise UserError(f"{shares}: together at most 1")
        known = settings_of(type(config))
        for name in OF_MASKS if self.causal else []:
            if getattr(config, name) != known[name][2]:
                flag = flag_of(name, known[name][1])
                raise UserError(f"{flag}: --objective {self.name} masks nothing; leave one of them out")

    def adopt(self, model_config: Any, name: str, tokenizer: Any) -> Any:
        """The config of a model that does this objective: that given, for `ltr` read from left to right.

        Raises:
            UserError: the architecture cannot, or the model was trained to read from left to right.
        """
        from bertkit.modeling.reading import is_causal

        if is_causal(model_config) and not self.causal:
            raise UserError(f"--objective {self.name}: {name} reads from left to right; use --objective ltr")
        kind = model_config.model_type
        if self.architectures is not None and kind not in self.architectures:
            raise UserError(f"--objective {self.name}: {name} ({kind}) {self.unable}")
        if self.causal:
            ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
            model_config.update({"is_decoder": True, "use_cache": False, **ends})
        return model_config

    @property
    def hub_task(self) -> str:
        """What the Hub, and `transformers.pipeline()`, call what the model does."""
        return "text-generation" if self.causal else "fill-mask"

    def pipeline(self, tokenizer: Any) -> Pipeline:
        """A text is gone on with behind its first piece, without the last one."""
        if not self.causal:
            return Pipeline(self.hub_task, {}, {}, f"... {tokenizer.mask_token} ...")
        called_with = {"add_special_tokens": False, "max_new_tokens": 20}
        return Pipeline(self.hub_task, {}, called_with, f"{tokenizer.cls_token} ...")


_PAIRS = "AutoModelForPreTraining"
OBJECTIVES = {
    some.name: some
    for some in (
        Objective("mlm+nsp", "pairs", _PAIRS, ", and whether B follows A", WITH_PAIRS),
        Objective("mlm", "runs", "AutoModelForMaskedLM"),
        Objective("mlm+sop", "in_order", _PAIRS, ", and whether B goes before A", WITH_PAIRS),
        Objective(
            "ltr", "runs", "AutoModelForCausalLM", " from those before it", CAUSAL,
            "cannot read from left to right alone; use --objective mlm", causal=True,
        ),
    )
}  # fmt: skip
