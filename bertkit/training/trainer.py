"""Hugging Face's Trainer with bertkit's loss scaling, batch samplers, evaluation and checkpoints."""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import safetensors
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import send_to_device
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerState, set_seed
from transformers.trainer import TRAINER_STATE_NAME

from bertkit.data.corpus.examples import PhasedFeatures
from bertkit.errors import UserError, format_list
from bertkit.models.cpu import GradientClipper
from bertkit.models.forward import compute_logits
from bertkit.models.layers import map_parameters_to_layers
from bertkit.models.loading import WEIGHTS_FILE, read_weights
from bertkit.models.losses import Loss, LossWithAccuracy, sum_parts
from bertkit.training.callbacks import InputStats, LossMeter, TrainBeginCallback, compute_part_metrics
from bertkit.training.failures import RESTART_HINT, LossCheck, explain_runtime_error, raise_if_not_finite
from bertkit.training.samplers import (
    DUMMY_BATCH,
    LengthGroupedBatchSampler,
    LengthPadding,
    PhasedBatchSampler,
    TokenBudgetBatchSampler,
    TrainingCollator,
)
from bertkit.training.step_graphs import CaptureError, StepGraphs, can_record
from bertkit.utils import devices, distributed
from bertkit.utils.files import PARTIAL, replace_path, verify_checksums, write_checksums
from bertkit.utils.reporting import report_info

MAX_EVALUATIONS = (
    10  # of the validation split, during training; one after each epoch if there are fewer epochs
)
# Key under which `trainer_state.json` stores the statistics since the last log entry.
UNLOGGED_KEY = "unlogged"
RANDOM_STATE = "random_state"  # name of the state in its file
# Checkpoints of earlier versions have the names of the file that was loaded; these are old ones of BERT.
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class PassResult(NamedTuple):
    """What a batch adds to the mean loss of the effective batch, and sums by part of the loss, on the device.

    `correct` and `counts` are empty if the loss counts no correct predictions.
    """

    loss: torch.Tensor
    sums: dict[str, torch.Tensor]
    correct: dict[str, torch.Tensor]
    counts: dict[str, torch.Tensor]


class BertkitTrainer(Trainer):
    """Trainer for all tasks.

    A checkpoint has the names that the weights have in the model. transformers renames weights when it loads
    a model, and `save_pretrained`, which Trainer calls, writes the names of the loaded file again.

    Args:
        loss: Returns sums and counts; see `bertkit.models.losses`.
        best_metric: Name of the score that selects the best checkpoint, and +1 if higher is better, else -1.
        early_stopping: Number of evaluations without a better score after which training stops.
        layer_decay: Ratio of a layer's learning rate to that of the layer above it.
        tokens_per_batch: Token budget of a batch, including padding; replaces the batch size.
        use_own_sampler: Whether bertkit's batch samplers replace Trainer's `train_sampling_strategy`.
    """

    _is_writing = False  # a checkpoint
    loss_is_scaled_for_ga = True  # compute_loss divides by the counts of the effective batch

    # Declarations for mypy of attributes that Trainer defines and this class assigns.
    state: Any
    control: Any
    optimizer: Any
    _tr_loss: torch.Tensor
    _total_loss_scalar: float
    _globalstep_last_logged: int

    def __init__(
        self, *, loss: Loss, evaluate_fn: Callable[[], dict[str, float]], best_metric: tuple[str, int],
        early_stopping: int | None = None, layer_decay: float | None = None,
        tokens_per_batch: int | None = None, use_own_sampler: bool = True, use_graphs: bool = False,
        has_compiled_layers: bool = False, pad_token_id: int = 0, **trainer: Any,
    ) -> None:  # fmt: skip
        super().__init__(**trainer)
        self.loss = loss
        self.evaluate_fn = evaluate_fn
        self.best_metric = best_metric
        self.early_stopping = early_stopping
        self.layer_decay = layer_decay
        self.tokens_per_batch = tokens_per_batch
        self.use_own_sampler = use_own_sampler
        self.use_graphs = use_graphs
        self.has_compiled_layers = has_compiled_layers
        self.pad_token_id = pad_token_id
        self.step_graphs: StepGraphs | None = None
        self.evaluation_seconds = 0.0
        self.loss_check = LossCheck()
        self.gradient_clipper: GradientClipper | None = None
        self.loss_meter = LossMeter()
        self.input_stats = InputStats()
        self.add_callback(TrainBeginCallback(self._restore_logging))

    # ---- training and resuming

    def train_or_resume(self, checkpoint: Path | None) -> None:
        """Train to the end, from the start or from a checkpoint.

        `Trainer` restores, in this order, its state, the weights, the optimizer with its schedule, the next
        batch (which follows from the step), and the random state. If training had already ended at the
        checkpoint, its weights are loaded without further steps.
        """
        if checkpoint is not None:
            verify_checkpoint(checkpoint)
        self.remove_unfinished_checkpoints()
        self.step_graphs = None  # steps that measured the time may have recorded graphs of another model
        try:
            if checkpoint is None:
                self.train()
                return
            # A run may have been interrupted after its last step. Trainer itself would run another step if
            # --max-steps or early stopping had ended training within an epoch.
            initial_state = self.state
            self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
            if self.state.global_step >= self.state.max_steps or self._is_out_of_patience():
                self._load_from_checkpoint(str(checkpoint))
            else:
                self.state = initial_state
                self.train(resume_from_checkpoint=str(checkpoint))
        except UnpicklingError as error:  # Trainer loads with weights_only=True, which executes no code
            raise UserError(
                f"{checkpoint}: contains pickled objects other than tensors; {RESTART_HINT}"
            ) from error
        except RuntimeError as error:
            if problem := explain_runtime_error(str(error), checkpoint):
                raise UserError(problem) from error
            raise

    def _restore_logging(self) -> None:
        """Restore the statistics since the last log entry, which the next entry must include."""
        if unlogged := self.state.stateful_callbacks.get(UNLOGGED_KEY):
            losses, parts, rank = unlogged["loss"], unlogged["parts"], distributed.get_rank()
            if len(losses) != (world_size := distributed.get_world_size()):
                # The log has the mean of the losses of all ranks, and the sums of all other values.
                losses = [sum(losses) / len(losses)] * world_size
                parts = {
                    part: [[sum(values) / world_size for values in zip(*sums, strict=True)]] * world_size
                    for part, sums in parts.items()
                }
            self._globalstep_last_logged = unlogged["step"]
            self._tr_loss += losses[rank]
            self.loss_meter.load_sums(parts, rank, self.args.device)

    # ---- sharded weights

    @property
    def is_sharded(self) -> bool:
        """Whether each rank holds only a part of the weights (FSDP or DeepSpeed ZeRO)."""
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def gather_weights(self) -> dict[str, torch.Tensor] | None:
        """Return the complete state dict if the weights are sharded, else None; all ranks must call this."""
        return self.accelerator.get_state_dict(self.model_wrapped) if self.is_sharded else None

    def load_weights(self, checkpoint: Path) -> None:
        if self.is_sharded:
            # this method of Trainer also loads sharded weights; it reads the path from the state
            self.state.best_model_checkpoint = str(checkpoint)
            self._load_best_model()
        else:
            self._load_from_checkpoint(str(checkpoint))

    # ---- logging

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self.loss_check.raise_if_recorded()
        super().log(logs, start_time)

    def _maybe_log_save_evaluate(
        self, tr_loss: torch.Tensor, grad_norm: Any, model: Any, trial: Any, epoch: float, ignore_keys: Any,
        start_time: float, learning_rate: float | None = None,
    ) -> None:  # fmt: skip
        """Log a step first, so that Trainer finds nothing to log: it reads each value on its own."""
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            self._log_step(grad_norm, start_time, learning_rate)
        super()._maybe_log_save_evaluate(
            tr_loss, grad_norm, model, trial, epoch, ignore_keys, start_time, learning_rate
        )

    def _log_step(self, grad_norm: Any, start_time: float, learning_rate: float | None) -> None:
        """Log the means since the last log entry, with a single read, which waits for all pending kernels."""
        values = {"loss": self._tr_loss}
        if (recorded := self.loss_check.recorded) is not None:
            values["recorded"] = recorded
        if isinstance(grad_norm, torch.Tensor) and not self.is_sharded:
            values["grad_norm"] = grad_norm
        sums = self._read_on_all_ranks(values | self.loss_meter.sums)  # by part, after the values are removed
        losses = sums.pop("loss")
        for step, loss in sums.pop("recorded", []):
            raise_if_not_finite(loss, int(step))
        total_loss = float(torch.tensor(losses).mean())
        logs = {"loss": total_loss / (self.state.global_step - self._globalstep_last_logged)}
        if grad_norm is not None:
            logs["grad_norm"] = sums.pop("grad_norm")[0][0] if "grad_norm" in sums else float(grad_norm)
        logs["learning_rate"] = self._get_learning_rate() if learning_rate is None else learning_rate
        self._tr_loss.zero_()
        self.loss_meter.sums = {}
        self._total_loss_scalar += total_loss
        self._globalstep_last_logged = self.state.global_step
        self.store_flos()
        super().log(logs | compute_part_metrics(sums), start_time)

    def _read_on_all_ranks(self, values: dict[str, torch.Tensor]) -> dict[str, list[list[float]]]:
        """Return the elements of small tensors with a single read: by name, one list per rank."""
        flat = torch.cat([value.detach().float().flatten() for value in values.values()])
        ranks = self.accelerator.gather(flat).view(-1, len(flat)).cpu()
        elements = ranks.split([value.numel() for value in values.values()], dim=1)
        return {name: part.tolist() for name, part in zip(values, elements, strict=True)}

    def compute_mean_loss(self) -> float:
        """Return the mean loss of all logged steps, including steps before a resume."""
        total, previous_step = 0.0, 0
        for entry in self.state.log_history:
            if "loss" in entry:  # the mean loss since the previous entry
                total += entry["loss"] * (entry["step"] - previous_step)
                previous_step = entry["step"]
        return total / max(1, previous_step)

    # ---- batches

    def build_batch_sampler(self) -> LengthGroupedBatchSampler:
        """Create the batch sampler of this rank for the training examples."""
        batch_size, features = self.args.per_device_train_batch_size, self.train_dataset
        batches_per_step = self.args.gradient_accumulation_steps * distributed.get_world_size()
        options = (batches_per_step, self.args.seed)
        if self.tokens_per_batch is not None:
            # Examples of a fixed length need no token budget: each batch holds the same number of them.
            fixed_batch_size = features.batch_size_for(self.tokens_per_batch)
            if fixed_batch_size is None:
                return TokenBudgetBatchSampler(features, self.tokens_per_batch, *options)
            batch_size = fixed_batch_size
        sampler = LengthGroupedBatchSampler(features, batch_size, *options)
        if not isinstance(features, PhasedFeatures):
            return sampler
        total_steps = self._compute_total_steps(sampler.steps_per_epoch)
        return PhasedBatchSampler(features, batch_size, *options, total_steps)

    def get_train_dataloader(self) -> DataLoader:
        """Create the data loader of the training batches.

        The batch sampler yields only the batches of this rank. `num_processes=1` keeps accelerate from
        distributing these batches over the ranks again.
        """
        if not self.use_own_sampler:
            return super().get_train_dataloader()
        loader = DataLoader(
            self.train_dataset, batch_sampler=self.build_batch_sampler(),
            collate_fn=self.build_training_collator(),
            num_workers=self.args.dataloader_num_workers, pin_memory=self.args.dataloader_pin_memory,
        )  # fmt: skip
        return prepare_data_loader(
            loader,
            self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            non_blocking=devices.copies_asynchronously(),
        )

    def build_training_collator(self) -> TrainingCollator:
        """Create the collator of the training batches; for CUDA graphs, it pads them to a few lengths."""
        padding = None
        if devices.supports_graphs():  # also if they are off, so that dropout is the same
            features = self.train_dataset
            parts = features.phase_features if isinstance(features, PhasedFeatures) else [features]
            longest = max(int(part.sequence_lengths.max()) for part in parts)
            padding = LengthPadding(longest, self.pad_token_id)
        return TrainingCollator(self.data_collator, self.train_dataset, padding)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        return super().get_batch_samples(self.input_stats.track_batches(epoch_iterator), num_batches, device)

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps per epoch, including the last one with fewer examples."""
        return self.build_batch_sampler().steps_per_epoch

    @property
    def total_steps(self) -> int:
        return self._compute_total_steps(self.steps_per_epoch)

    @property
    def evaluation_steps(self) -> int:
        """Steps from one evaluation to the next: an epoch, or several so that there are at most ten."""
        epochs = self.total_steps / self.steps_per_epoch
        return self.steps_per_epoch * max(1, math.ceil(epochs / MAX_EVALUATIONS))

    def _compute_total_steps(self, steps_per_epoch: int) -> int:
        if self.args.max_steps > 0:
            return self.args.max_steps
        return math.ceil(self.args.num_train_epochs * steps_per_epoch)

    # ---- loss

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Any:
        """Return the number of items for each part of the loss, in one optimizer step of all ranks."""
        batch_counts = [
            _zero_if_dummy(self.loss.count_items(batch), DUMMY_BATCH in batch) for batch in batch_samples
        ]
        parts = batch_counts[0].keys() if batch_counts else ()
        totals = {
            part: torch.as_tensor(sum(counts[part] for counts in batch_counts), device=device)
            for part in parts
        }
        if distributed.get_world_size() > 1:
            totals = {part: self.accelerator.gather(total).sum() for part, total in totals.items()}
        return totals

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        inputs = send_to_device(inputs, self.args.device)
        if not (self.use_graphs and can_record(inputs)):
            return super().training_step(model, inputs, num_items_in_batch)
        if self.step_graphs is None:
            parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            run_pass = partial(self._run_pass, model)
            self.step_graphs = StepGraphs(run_pass, parameters, self.has_compiled_layers)
        if not model.training:
            model.train()
        if callable(train := getattr(self.optimizer, "train", None)):  # schedule-free optimizers
            train()
        try:
            result = self.step_graphs.run(inputs, num_items_in_batch)
        except CaptureError as error:
            report_info(
                f"CUDA graphs are not used: the model or the loss reads values from the GPU ({error})"
            )
            self.use_graphs, self.step_graphs = False, None
            return super().training_step(model, inputs, num_items_in_batch)
        self._record(result)
        return result.loss

    def _run_pass(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: dict[str, torch.Tensor]
    ) -> PassResult:
        with self.compute_loss_context_manager():
            result, _ = self._compute_pass(model, inputs, num_items_in_batch)
        self.accelerator.backward(result.loss)
        sums = {part: value.detach() for part, value in result.sums.items()}
        return result._replace(loss=result.loss.detach(), sums=sums)  # without the autograd graph

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the contribution of this batch to the mean loss of the effective batch."""
        result, logits = self._compute_pass(model, inputs, num_items_in_batch)
        self._record(result)
        return (result.loss, logits) if return_outputs else result.loss

    def _compute_pass(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: dict[str, torch.Tensor]
    ) -> tuple[PassResult, Any]:
        """Return the loss of a batch with its statistics, and the logits; nothing is read from the device."""
        is_dummy = inputs.pop(DUMMY_BATCH, None) is not None
        logits = compute_logits(model, inputs)
        sums = _zero_if_dummy(self.loss.sum_losses(logits, inputs), is_dummy)
        correct: dict[str, torch.Tensor] = {}
        counts: dict[str, torch.Tensor] = {}
        if isinstance(self.loss, LossWithAccuracy):
            correct = _zero_if_dummy(self.loss.count_correct(logits, inputs), is_dummy)
            counts = _zero_if_dummy(self.loss.count_items(inputs), is_dummy)
        # The loss is 0 if the effective batch has no items, for example if all labeled words are truncated.
        divisors = {part: torch.where(count > 0, count, 1) for part, count in num_items_in_batch.items()}
        # DDP averages gradients over ranks, but the mean over the effective batch needs their sum.
        mean_loss = sum_parts(self.loss, {part: sums[part] / divisors[part] for part in sums})
        return PassResult(mean_loss * distributed.get_world_size(), sums, correct, counts), logits

    def _record(self, result: PassResult) -> None:
        """Add the losses of a batch to the statistics, and check the loss."""
        if result.correct:
            self.loss_meter.add(result.sums, result.correct, result.counts)
        self.loss_check.add(result.loss, self.state.global_step + 1)

    # ---- optimizer

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None and self.layer_decay is not None:
            optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            layer_of_parameter = map_parameters_to_layers(self.model, "--layer-decay")
            names_with_weight_decay = set(self.get_decay_parameter_names(self.model))
            head_layer = max(layer_of_parameter.values())
            groups: dict[tuple[int, bool], list[Any]] = {}
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    key = layer_of_parameter[name], name in names_with_weight_decay
                    groups.setdefault(key, []).append(parameter)
            parameter_groups = [
                {
                    "params": parameters,
                    "lr": options["lr"] * self.layer_decay ** (head_layer - layer),
                    "weight_decay": self.args.weight_decay if has_weight_decay else 0.0,
                }
                for (layer, has_weight_decay), parameters in groups.items()
            ]
            self.optimizer = optimizer_class(parameter_groups, **options)
        return super().create_optimizer(model)

    def _clip_grad_norm(self, model: Any) -> torch.Tensor:
        """Clip the gradients to the norm `max_grad_norm`, and return their norm before that.

        `GradientClipper` reads the norm. On an accelerator, this would wait for all pending kernels.
        """
        if not (devices.runs_asynchronously() or self.is_sharded):
            if self.gradient_clipper is None:
                self.gradient_clipper = GradientClipper(self.accelerator.unwrap_model(model))
            return self.gradient_clipper.clip(self.args.max_grad_norm)
        return super()._clip_grad_norm(model)

    def validate_optimizer(self) -> None:
        """Create an optimizer and a schedule, to detect invalid settings before anything is written."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps=10)  # any number
        self.lr_scheduler, self._created_lr_scheduler = None, False
        if self.is_sharded:  # sharding will replace the parameters that the optimizer refers to
            self.optimizer = None

    # ---- evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict:
        self.loss_check.raise_if_recorded()
        started = time.perf_counter()
        metrics = self.evaluate_fn()
        scores = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.evaluation_seconds += time.perf_counter() - started
        if self.is_new_best(metrics):
            self.state.best_metric = metrics[self.best_metric[0]]
            self.state.best_global_step = self.state.global_step
        self.log(scores)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        if self._is_out_of_patience():
            self.control.should_training_stop = True
        return scores

    def is_new_best(self, metrics: dict[str, float]) -> bool:
        """Return whether `metrics` are better than those of all previous evaluations.

        Of two equal scores, the one with the lower validation loss is better.
        """
        name, sign = self.best_metric
        if name not in metrics:  # a module of --metric gave no finite score
            return False
        best_score = self.state.best_metric
        if best_score is None or metrics[name] != best_score:
            return best_score is None or sign * metrics[name] > sign * best_score
        best_loss = self._get_logged_evaluations("loss")[self.state.best_global_step]
        return metrics["loss"] < best_loss

    def _get_logged_evaluations(self, name: str) -> dict[int, float]:
        """Return a score of all evaluations by step, in order; checkpoints contain this history."""
        key = f"eval_{name}"
        return {entry["step"]: entry[key] for entry in self.state.log_history if key in entry}

    def _is_out_of_patience(self) -> bool:
        """Return whether the last `early_stopping` evaluations had no better score than those before them.

        Here, a lower loss does not make an equal score better. Otherwise, training would never stop after a
        perfect score.
        """
        if self.early_stopping is None:
            return False
        name, sign = self.best_metric
        best_score, patience = -math.inf, self.early_stopping
        for score in self._get_logged_evaluations(name).values():
            is_better = sign * score > best_score
            best_score = max(best_score, sign * score)
            patience = self.early_stopping if is_better else patience - 1
        return patience <= 0

    # ---- checkpoints: added and removed by renaming, so that a killed process never leaves a partial one

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights and the config of a checkpoint. FSDP and DeepSpeed have formats of their own."""
        if self.is_sharded:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            assert output_dir is not None
            self.model.config.save_pretrained(output_dir)
            save_weights(self.model, Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_sharded:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            load_weights(self.model, Path(resume_from_checkpoint))

    def remove_unfinished_checkpoints(self) -> None:
        """Remove the staging directory, which a killed process may have left."""
        distributed.on_main_process(shutil.rmtree, self._staging, ignore_errors=True)

    @property
    def _staging(self) -> Path:
        """Directory that holds the checkpoint being written, and the checkpoints being removed."""
        return Path(self.args.output_dir) / PARTIAL

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging) if self._is_writing else super()._get_output_dir(trial)

    def _save_rng_state(self, output_dir: str) -> None:
        """Also save the random state of the device. Trainer leaves out that of MPS, XPU and others."""
        super()._save_rng_state(output_dir)
        if devices.has_accelerator():
            state = torch.get_device_module(self.args.device).get_rng_state()
            save_file({RANDOM_STATE: state}, self._get_device_state_path(output_dir))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        if len(list(Path(checkpoint).glob("rng_state*.pth"))) != (count := distributed.get_world_size()):
            # other ranks wrote the checkpoint: dropout continues with new masks, not with those of step 0
            numbers = [self.args.seed, count, distributed.get_rank(), self.state.global_step]
            set_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))
            return
        super()._load_rng_state(checkpoint)
        if not devices.has_accelerator():
            return
        path = self._get_device_state_path(checkpoint)
        if path.exists():  # not in checkpoints of earlier versions
            torch.get_device_module(self.args.device).set_rng_state(load_file(path)[RANDOM_STATE])

    def _get_device_state_path(self, checkpoint: str) -> Path:
        return Path(checkpoint) / f"device_rng_state_{distributed.get_rank()}.safetensors"

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.loss_check.raise_if_recorded()
        parts = self._read_on_all_ranks({"loss": self._tr_loss} | self.loss_meter.sums)
        loss = [value for (value,) in parts.pop("loss")]
        unlogged = {"step": self._globalstep_last_logged, "loss": loss, "parts": parts}
        self.state.stateful_callbacks[UNLOGGED_KEY] = unlogged
        self.remove_unfinished_checkpoints()
        self._is_writing = True
        try:
            with distributed.raise_on_all_ranks(), self._report_write_errors():
                # Rank 0 writes the weights, and each rank writes its random state.
                super()._save_checkpoint(model, trial)
            distributed.on_main_process(self._publish, f"checkpoint-{self.state.global_step}")
        finally:
            self._is_writing = False

    @contextmanager
    def _report_write_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, safetensors.SafetensorError) as error:
            shutil.rmtree(str(self._staging), ignore_errors=True)
            has_earlier_checkpoint = any(Path(self.args.output_dir).glob("checkpoint-*"))
            raise UserError(
                f"{self.args.output_dir}: the checkpoint of step {self.state.global_step} cannot be "
                f"written ({str(error).splitlines()[0]}); free disk space and "
                + (
                    "resume with --resume"
                    if has_earlier_checkpoint
                    else "start again: there is no earlier checkpoint"
                )
            ) from error

    def _publish(self, name: str) -> None:
        """Add checksums to the staged checkpoint, and move it to its final place.

        All other checkpoints are removed, except the best one.
        """
        staged, folder = self._staging / name, Path(self.args.output_dir)
        with self._report_write_errors():
            write_checksums(staged)
        if (folder / name).exists():
            replace_path(folder / name, self._staging / "replaced")
        replace_path(staged, folder / name)
        kept = (name, f"checkpoint-{self.state.best_global_step}")
        for path in folder.glob("checkpoint-*"):
            if path.name not in kept:
                replace_path(path, self._staging / path.name)
        shutil.rmtree(self._staging, ignore_errors=True)  # the next checkpoint removes the rest


def _zero_if_dummy(values: dict[str, torch.Tensor], is_dummy: bool) -> dict[str, torch.Tensor]:
    """Return the values of a batch, or zeros for a dummy batch."""
    return {part: 0 * value for part, value in values.items()} if is_dummy else values


# ---- the files of a checkpoint


def verify_checkpoint(last: Path) -> None:
    """Verify the last checkpoint and the best one, both of which a resumed run needs.

    Trainer itself would resume despite missing files, with a new optimizer state or other random numbers.
    The last checkpoint names the best one, which is in the same directory.
    """
    if problem := verify_checksums(last):
        earlier = sorted(path.name for path in last.parent.glob("checkpoint-*") if path != last)
        fix = f"remove this directory to resume from {earlier[0]}" if earlier else RESTART_HINT
        raise UserError(f"{last}: {problem}; {fix}")
    best_step = json.loads((last / TRAINER_STATE_NAME).read_text("utf-8"))["best_global_step"]
    best = last.with_name(f"checkpoint-{best_step}")
    if best_step is not None and best != last and (problem := verify_checksums(best)):
        raise UserError(f"{best} (the best checkpoint): {problem}; {RESTART_HINT}")


def save_weights(model: torch.nn.Module, checkpoint: Path) -> None:
    """Write the weights of a model under the names that they have in it; tied weights get one of theirs."""
    weights = model.state_dict(keep_vars=True)
    names = {id(tensor): name for name, tensor in weights.items()}
    saved = {name: weights[name].detach().contiguous() for name in names.values()}
    save_file(saved, checkpoint / WEIGHTS_FILE, {"format": "pt"})


def load_weights(model: torch.nn.Module, checkpoint: Path) -> None:
    """Load the weights of a checkpoint, which must be exactly those of the model."""
    saved = read_weights(checkpoint, lambda _: True)
    for old, new in OLD_NAMES.items():
        saved = {name.replace(old, new): tensor for name, tensor in saved.items()}
    weights = model.state_dict(keep_vars=True)
    loaded = {id(tensor) for name, tensor in weights.items() if name in saved}
    missing = [name for name, tensor in weights.items() if id(tensor) not in loaded]
    unknown = [name for name in saved if name not in weights]
    if missing or unknown:
        problem = f"lacks {format_list(missing)}" if missing else f"has also {format_list(unknown)}"
        raise UserError(
            f"{checkpoint}: its weights do not fit the settings in run.yaml ({problem}); "
            f"restore run.yaml, or {RESTART_HINT}"
        )
    model.load_state_dict(saved, strict=False)
