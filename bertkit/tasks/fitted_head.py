"""`--method contrastive` and `--method linear-probe`: a head that is fitted to the vectors of texts."""

from typing import TYPE_CHECKING, Any

from bertkit.tasks.training_method import TrainingInputs, TrainingMethod

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.features import Features
    from bertkit.metrics.linear_probe import LinearProbe
    from bertkit.tasks.sequence import SequenceTask
    from bertkit.utils.reporting import Reporter


class ContrastiveMethod(TrainingMethod):
    """The encoder is trained on pairs of rows, and the head is fitted to its vectors (Tunstall et al. 2022).

    Args:
        task: The task, with its labels.
    """

    fits_head = True

    def __init__(self, task: "SequenceTask") -> None:
        self.task = task

    def convert_inputs(self, inputs: TrainingInputs) -> TrainingInputs:
        """Return pairs of rows with the cosine similarity of their vectors."""
        from bertkit.data.collator import VectorCollator
        from bertkit.data.few_labels import to_membership
        from bertkit.data.similarity_pairs import PairFeatures
        from bertkit.modeling.losses import CosineSimilarityLoss

        membership = to_membership(_require_labels(inputs.examples), len(self.task.labels))
        pairs = PairFeatures.from_rows(inputs.examples, membership, self.task.config.seed)
        return TrainingInputs(pairs, VectorCollator(inputs.collator), CosineSimilarityLoss())

    def fit_head(self, model: Any, features: "Features", collator: Any, reporter: "Reporter") -> None:
        """Fit a head by logistic regression to the vectors of the current weights."""
        from bertkit.data.collator import VectorCollator
        from bertkit.metrics.linear_layer import fit_linear_layer
        from bertkit.training.scoring import predict_logits
        from bertkit.utils import distributed

        config = self.task.config
        vectors = predict_logits(
            model, features, VectorCollator(collator), config.eval_batch_size, reporter, "computing vectors"
        )
        layer = distributed.on_main_process(
            fit_linear_layer, vectors, _require_labels(features), len(self.task.labels),
            balanced=config.class_weights == "balanced",
        )  # fmt: skip
        model.set_output_layer(layer.weight, layer.bias)


class LinearProbeMethod(TrainingMethod):
    """The encoder is not trained, and the head is fitted to its vectors.

    Args:
        task: The task, with its labels.
    """

    fits_head = True

    def __init__(self, task: "SequenceTask") -> None:
        self.task = task

    def fit_head(self, model: Any, features: Any, collator: Any, reporter: "Reporter") -> None:
        """Fit a head to the vectors of the encoder as it was loaded, and choose the pooling."""
        from bertkit.modeling.frozen_encoder import POOLINGS, FrozenEncoder
        from bertkit.tasks.sequence_baselines import fit_probe
        from bertkit.utils import distributed

        config = self.task.config
        encoder = FrozenEncoder(config.model, collator.pad_token_id, reporter)

        def fit() -> "LinearProbe":
            vectors = encoder.compute_vectors(features)
            balanced = config.class_weights == "balanced"
            return fit_probe(self.task, vectors, _require_labels(features), balanced)

        probe = distributed.on_main_process(fit)
        pooling = POOLINGS[probe.pooling]
        reporter.info(f"linear probe: {pooling} pooling, penalty {probe.penalty:g}")
        model.set_pooling(pooling, normalize=False)
        model.set_output_layer(*probe.layer)


METHODS = {"contrastive": ContrastiveMethod, "linear-probe": LinearProbeMethod}


def _require_labels(features: "Features") -> "np.ndarray":
    assert features.labels is not None
    return features.labels
