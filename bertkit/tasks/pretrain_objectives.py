"""The training objectives of `pretrain-mlm-nsp`."""

from bertkit.tasks.objective import Objective
from bertkit.tasks.replaced_token_detection import ReplacedTokenDetection

# Model types whose `AutoModelForPreTraining` has a next sentence prediction head.
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
            "mlm+nsp", "build_nsp_pairs", FOR_PRETRAINING, ", and whether B follows A", PAIR_ARCHITECTURES
        ),
        Objective("mlm", "build_segments", "AutoModelForMaskedLM"),
        Objective(
            "mlm+sop", "build_sop_pairs", FOR_PRETRAINING, ", and whether A precedes B", PAIR_ARCHITECTURES
        ),
        Objective(
            "ltr", "build_segments", "AutoModelForCausalLM", " from the previous ones", CAUSAL_ARCHITECTURES,
            "cannot be a left-to-right model; use --objective mlm", is_causal=True,
        ),
        ReplacedTokenDetection(
            "rtd", "build_segments", FOR_PRETRAINING, ", and which tokens a generator has replaced",
            frozenset({"electra"}), "is not an ELECTRA model; use --objective mlm",
            # While the generator improves, its samples are harder to detect, and the total loss can rise.
            best_metric="mlm_loss",
        ),
    )
}  # fmt: skip
