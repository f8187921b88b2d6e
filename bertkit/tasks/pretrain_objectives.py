"""The training objectives of `pretrain-mlm-nsp`."""

from bertkit.tasks.objective import Objective
from bertkit.tasks.replaced_token_detection import ReplacedTokenDetection

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
            name="mlm+nsp", planner_name="build_nsp_pairs", model_class=FOR_PRETRAINING,
            description=", and whether B follows A", architectures=PAIR_ARCHITECTURES,
        ),
        Objective(name="mlm", planner_name="build_segments", model_class="AutoModelForMaskedLM"),
        Objective(
            name="mlm+sop", planner_name="build_sop_pairs", model_class=FOR_PRETRAINING,
            description=", and whether A precedes B", architectures=PAIR_ARCHITECTURES,
        ),
        Objective(
            name="ltr", planner_name="build_segments", model_class="AutoModelForCausalLM",
            description=" from the previous ones", architectures=CAUSAL_ARCHITECTURES,
            unsupported_message="cannot be a left-to-right model; use --objective mlm", is_causal=True,
        ),
        ReplacedTokenDetection(
            name="rtd", planner_name="build_segments", model_class=FOR_PRETRAINING,
            description=", and which tokens a generator has replaced", architectures=frozenset({"electra"}),
            unsupported_message="is not an ELECTRA model; use --objective mlm",
            # While the generator improves, its samples are harder to detect, and the total loss can rise.
            best_metric="mlm_loss",
        ),
    )
}  # fmt: skip
