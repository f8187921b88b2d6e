"""The interface between a run and its methods of training."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertkit.data.features import Features
from bertkit.data.table import Rows
from bertkit.models.losses import Loss
from bertkit.tasks.base import Evaluation

if TYPE_CHECKING:
    from bertkit.run.prepare import PreparedRun as PreparedRun
else:
    PreparedRun = Any  # a run imports its methods


class TrainingInputs(NamedTuple):
    """Training examples, the function that turns them into a batch, and the loss of a batch."""

    examples: Features
    collator: Callable[..., Any]
    loss: Loss


class Method:
    """How the model of a run is trained.

    A run calls the hooks of its methods in the order in which they are here. Those of this class change
    nothing: encoder and head are trained together, on the training rows, by the loss of the predictions. To
    add a method, write a subclass in a module of its own, and let `choose_methods` choose it by the settings.

    Attributes:
        flag: The flag that selects the method, for messages.
        default_hyperparameters: Hyperparameters that replace those of the task, and those suggested from the
            sizes of the data and of the model.
        has_training_steps: Whether gradients train the model. Otherwise, `before_evaluation` is the training.
        trains_adapters: Whether adapters are trained in place of the weights of the encoder.
        needs_all_weights: Whether each process needs all weights, so that they cannot be sharded.
        unlabeled_rows: Rows that `prepare` adds to the training rows.
    """

    flag = ""
    default_hyperparameters: Mapping[str, float] = {}
    has_training_steps = True
    trains_adapters = False
    needs_all_weights = False
    unlabeled_rows: Rows | None = None

    def prepare(self, run: PreparedRun) -> None:
        """Check the run, and change its training features, before weights are loaded.

        Raises:
            UserError: The method cannot train this run.
        """

    def adapt_model(self, run: PreparedRun, model: Any) -> None:
        """Change the loaded model in place, before the layers of `--freeze` are frozen."""

    def convert(self, run: PreparedRun, inputs: TrainingInputs) -> TrainingInputs:
        """Return what the model is trained on, given the training rows and the loss of the predictions."""
        return inputs

    def precompute(
        self, run: PreparedRun, model: Any, features: dict[str, Features], collator: Any
    ) -> dict[str, Features]:
        """Return the features by split with what can be computed once, before the first step."""
        return features

    def before_evaluation(self, run: PreparedRun, model: Any, features: Features, collator: Any) -> None:
        """Complete the current weights before they are evaluated, given the training features.

        All ranks call this.
        """

    def finish(self, run: PreparedRun, model: Any) -> bool:
        """Complete the best weights after training, and return whether their logits have changed.

        All ranks call this.
        """
        return False

    def summarize(self, run: PreparedRun, evaluation: Evaluation, folder: Path) -> dict[str, Any]:
        """Return further sections of `metrics.json`, given the evaluation on the validation split.

        The directory of the run has the model.
        """
        return {}
