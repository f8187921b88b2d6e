"""The model of a finished run, with its task and its tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.data.rows import Rows
from bertkit.modeling import loading
from bertkit.modeling.loading import ModelSource
from bertkit.pipeline.finished_run import load_run_task
from bertkit.tasks.base import Task
from bertkit.tasks.evaluation import Outputs
from bertkit.utils.garbage_collection import resume_collection
from bertkit.utils.reporting import Reporter, silence_libraries


@dataclass(frozen=True)
class TrainedModel:
    """A task with its trained model and its tokenizer.

    Attributes:
        task: The task, with the settings of the run.
        model: The model, in evaluation mode. If its head reads [CLS], its last hidden states are valid only
            there; see `bertkit.modeling.first_position`.
        tokenizer: The tokenizer of the model.
    """

    task: Task
    model: Any
    tokenizer: Any

    def compute_outputs(
        self, rows: Rows, reporter: Reporter | None = None, description: str = "scoring"
    ) -> Outputs:
        """Compute the logits of parsed rows. The outputs include the gold labels of labeled rows."""
        from bertkit.pipeline.load_check import report_length_errors
        from bertkit.training.scoring import predict_logits

        features = self.task.featurize(rows, self.tokenizer)
        collator = self.task.make_collator(self.tokenizer, self.model)
        batch_size = self.task.config.eval_batch_size
        with report_length_errors(self.model, features):
            logits = predict_logits(
                self.model, features, collator, batch_size, reporter or Reporter(), description
            )
        return Outputs(logits, features, rows)


def load_trained_model(run: Path, keep_stock_layers: bool = False) -> TrainedModel:
    """Load the model of a finished run.

    Args:
        run: The run directory.
        keep_stock_layers: Whether the model stays as transformers builds it, on the CPU.

    Raises:
        UserError: The directory is not a finished run.
    """
    return build_trained_model(load_run_task(run), loading.find_run_model(run), keep_stock_layers)


def build_trained_model(task: Task, source: ModelSource, keep_stock_layers: bool = False) -> TrainedModel:
    """Build the model that a run saved.

    Args:
        task: The task of the run, which receives the labels and the fitted parameters of the model.
        source: The directory of the run.
        keep_stock_layers: Whether the model stays as transformers builds it, on the CPU.
    """
    from bertkit.modeling.inference import prepare_for_inference

    task.use_cache = False
    with silence_libraries():
        config, tokenizer = loading.load_config(source), loading.load_tokenizer(source)
        loading.require_embeddings(source, config, tokenizer)
        task.load_state(config)
        model = task.build_model(config, source)
        model = model if keep_stock_layers else prepare_for_inference(model)
    resume_collection()
    return TrainedModel(task, model.eval(), tokenizer)


def serialize_tokenizer(tokenizer: Any) -> str:
    """Return a text that is equal for tokenizers that make the same tokens."""
    serialized: str = tokenizer.backend_tokenizer.to_str()
    return serialized
