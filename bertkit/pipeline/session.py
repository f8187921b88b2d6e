"""One training session: the model, the trainer around it, and the scores of each split."""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bertkit import run_directory
from bertkit.data.features import Features
from bertkit.data.split import sample_rows
from bertkit.errors import NAN_HINT, RunInterrupted, UserError
from bertkit.modeling.attention import enable_chunked_attention
from bertkit.modeling.dropout import enable_fast_dropout
from bertkit.modeling.layers import compile_layers, freeze_layers
from bertkit.modeling.packing import enable_packing
from bertkit.pipeline.prepare import PreparedRun
from bertkit.pipeline.upload import format_resume_command
from bertkit.tasks.base import Scores
from bertkit.tasks.evaluation import Outputs
from bertkit.training.arguments import build_training_arguments, parse_set_flag
from bertkit.training.memory import get_batch_settings, report_out_of_memory, suggest_memory_fixes
from bertkit.training.stop_signal import StopRequest
from bertkit.training.trackers import set_tensorboard_dir
from bertkit.utils import distributed
from bertkit.utils.reporting import Reporter

if TYPE_CHECKING:
    from bertkit.training.trainer import BertkitTrainer

T = TypeVar("T")
HEAD_CHECK_ROWS = 200  # validation rows by which a model's own head is judged before training


class Session:
    """One training: the model, the trainer around it, and the scores of each split.

    Args:
        prepared: all but the weights.
        folder: the run directory; nothing is written before `train`.
    """

    def __init__(self, prepared: PreparedRun, folder: Path, reporter: Reporter) -> None:
        self.prepared, self.folder, self.reporter = prepared, folder, reporter
        self.stop_request = StopRequest()
        self.set_up()

    def set_up(self) -> None:
        """Model and trainer, as they are before the first step."""
        from transformers import set_seed

        prepared = self.prepared
        self.features = dict(prepared.features)
        self.best_logits: dict[int, Any] = {}  # step -> validation logits, of the best step so far
        checkpoints = self.folder / run_directory.CHECKPOINTS_DIR
        self.training_args = build_training_arguments(prepared.config, checkpoints, prepared.precision)
        set_seed(prepared.config.seed)
        self.model = prepared.task.build_model(prepared.model_config, prepared.model_source)
        freeze_layers(self.model, prepared.config.freeze)
        self._speed_up()
        self.collator = prepared.task.collator(prepared.tokenizer, self.model)
        self.trainer = self._trainer()
        if distributed.get_rank():  # weights begin alike on all, dropout does not
            set_seed((prepared.config.seed + distributed.get_rank()) % 2**32)

    def _speed_up(self) -> None:
        """The ways to compute the same that were asked for, or that a CPU is better off with."""
        if not self.prepared.config.compile:
            enable_chunked_attention(self.model)
            enable_fast_dropout(self.model)
        if self.prepared.config.pack:
            enable_packing(self.model)
        if self.prepared.config.compile:
            compile_layers(self.model)
            self.reporter.info("the encoder is compiled when it is first used: the first steps take longer")

    def _trainer(self) -> "BertkitTrainer":
        from transformers import PrinterCallback

        from bertkit.training.callbacks import EvaluateAndSaveCallback, FirstStepTimer, ReporterCallback
        from bertkit.training.trainer import BertkitTrainer

        config, train = self.prepared.config, self.prepared.features["train"]
        trainer = self._accepted(lambda: BertkitTrainer(
            model=self.model, args=self.training_args, train_dataset=train, data_collator=self.collator,
            loss=self.prepared.task.loss(train), evaluate_fn=self._validate, best_metric=self.prepared.task.spec.best_metric,
            early_stopping=config.early_stopping, layer_decay=config.layer_decay,
            tokens_per_batch=config.tokens_per_batch,
            use_own_sampler="train_sampling_strategy" not in parse_set_flag(config),
        ))  # fmt: skip
        self._accepted(trainer.validate_optimizer)
        trainer.remove_callback(PrinterCallback)
        set_tensorboard_dir(trainer, self.folder / run_directory.TENSORBOARD_DIR)
        self.first_step = FirstStepTimer()
        trainer.add_callback(self.first_step)
        trainer.add_callback(
            EvaluateAndSaveCallback(trainer.steps_per_epoch, config.save_steps, self.stop_request)
        )
        trainer.add_callback(
            ReporterCallback(self.reporter, trainer.build_batch_sampler().list_phase_changes())
        )
        return trainer

    def _accepted(self, make: Callable[[], T]) -> T:
        """What `make` makes; what Trainer refuses of the settings that are its own is the user's to mend."""
        config = self.prepared.config
        named = {"--set": config.set, "--optim": config.optim, "--lr-scheduler": config.lr_scheduler}
        usual = {"--set": [], "--optim": type(config).optim, "--lr-scheduler": type(config).lr_scheduler}
        theirs = [f"{flag} {value}" for flag, value in named.items() if value and value != usual[flag]]
        try:
            return make()
        except (ValueError, TypeError, KeyError, ImportError, RuntimeError, OSError) as error:
            if not theirs:
                raise
            reason = " ".join(str(error).split())
            raise UserError(f"{', '.join(theirs)}: Trainer refuses it ({reason})") from error

    def verify_label_order(self) -> None:
        """Where the model brings a head of its own, see that it means what its config says.

        Raises:
            UserError: its labels stand in another order.
        """
        if not self.prepared.task.has_new_head:
            self.prepared.task.verify_label_order(self._some_scored)

    def _some_scored(self) -> Outputs:
        prepared = self.prepared
        rows = sample_rows(prepared.splits["validation"], HEAD_CHECK_ROWS, prepared.config.seed)
        features = prepared.task.featurize(rows, prepared.tokenizer)
        return Outputs(self._scored(features), features, rows)

    def train(self, resume: bool) -> dict[str, Any]:
        """Train to the end, put the best weights back, and tell the figures of `metrics.json`.

        Args:
            go_on: from the last checkpoint, where there is one.

        Raises:
            RunInterrupted: asked to by a signal; the last checkpoint is what --resume goes on from.
            OutOfMemory: there is not memory enough for the batches.
        """
        checkpoint = run_directory.last_checkpoint(self.folder) if resume else None
        self._compute()
        started = time.perf_counter()
        try:
            with self.stop_request, report_out_of_memory(suggest_memory_fixes(self.prepared.config)):
                self.trainer.train_or_resume(checkpoint)
        finally:
            self.reporter.on_train_end()
        seconds = time.perf_counter() - started - self.trainer.evaluation_seconds
        state = self.trainer.state
        if self.stop_request.is_requested_on_any_rank():
            raise RunInterrupted(
                f"stopped at step {state.global_step} of {state.max_steps}; {self.resume_hint}"
            )
        self._restore_best()
        return self._figures(seconds, int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0)

    def _compute(self) -> None:
        """What a part of the model that never changes gives, once for all of training and scoring."""
        prepared = self.prepared
        for split, features in prepared.features.items():
            self.features[split] = distributed.main_process_first(
                prepared.task.precompute_features, self.model, features, self.collator, self.reporter
            )
        self.trainer.train_dataset = self.features["train"]

    @property
    def resume_hint(self) -> str:
        """How to go on with a run that was stopped."""
        return (
            f"go on with: {format_resume_command(self.prepared.task.spec.name, self.folder, self.prepared.config)}"
        )

    def _figures(self, seconds: float, before: int) -> dict[str, Any]:
        """Throughput counts the training loop with its first step and checkpoints, without evaluation."""
        state, batches = self.trainer.state, self.trainer.build_batch_sampler()
        feed = self.trainer.input_stats
        examples = len(self.trainer.train_dataset) * (state.global_step - before) / batches.steps_per_epoch
        return {
            "seconds": seconds,
            "steps": state.global_step,
            "examples_per_second": examples / seconds,
            "tokens_per_second": batches.count_tokens(before, state.global_step) / seconds,
            "first_step_seconds": self.first_step.seconds,
            "peak_memory_mb": get_peak_memory_mb(),
            "loss": self.trainer.compute_mean_loss(),
            "precision": self.prepared.precision,
            "padding": 0.0 if self.prepared.config.pack else feed.padding_fraction,
            "data_wait": feed.wait_seconds / seconds,
            **get_batch_settings(self.prepared.config),
            "resumed_from": before or None,
            **({"processes": distributed.get_world_size()} if distributed.get_world_size() > 1 else {}),
        }

    def _restore_best(self) -> None:
        """Load the weights of the best evaluation, where training went on after it."""
        best = self.trainer.state.best_global_step
        if best is not None and best != self.trainer.state.global_step:
            self.trainer.load_weights(self.folder / run_directory.CHECKPOINTS_DIR / f"checkpoint-{best}")
            self.reporter.info(f"the best weights are those of step {best}")

    def _validate(self) -> Scores:
        outputs = self._outputs("validation")
        task = self.prepared.task
        scores = distributed.on_main_process(lambda: task.evaluate(outputs).scores)
        name, sign = task.spec.best_metric
        best = self.trainer.state.best_metric
        if best is None or sign * scores[name] > sign * best:
            self.best_logits = {self.trainer.state.global_step: outputs.logits}
        return scores

    def predict_split(self, split: str) -> Outputs:
        """A split scored by the best weights; validation logits are reused where they are theirs."""
        logits = self.best_logits.get(self.trainer.state.best_global_step) if split == "validation" else None
        return self._outputs(split, logits)

    def _scored(self, features: Features) -> np.ndarray:
        from bertkit.training.scoring import predict_logits

        size = self.prepared.config.eval_batch_size
        in_shards = self.trainer.is_sharded
        model = self.trainer.model_wrapped if in_shards else self.model
        return predict_logits(model, features, self.collator, size, self.reporter, is_sharded=in_shards)

    def _outputs(self, split: str, logits: Any = None) -> Outputs:
        features = self.features[split]
        if logits is None:
            logits = self._scored(features)
            if not np.isfinite(logits.max(-1)).all():  # the maximum of a row with NaN is NaN
                step = self.trainer.state.global_step
                raise UserError(f"the scores of the {split} rows are no numbers at step {step}; {NAN_HINT}")
        return Outputs(logits, features, self.prepared.splits[split])


def get_peak_memory_mb() -> float:
    """The most memory used so far: the device's where there is one, else this process's."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
