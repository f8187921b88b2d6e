"""Hugging Face's Trainer with bertkit's loss rule, order of batches, evaluation and checkpoints."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from bertkit.data.corpus.features import PhasedFeatures
from bertkit.errors import NAN_HINT, UserError
from bertkit.modeling.forward import compute_logits
from bertkit.modeling.layers import map_parameters_to_layers
from bertkit.modeling.losses import Loss, LossWithAccuracy
from bertkit.training.batch_samplers import LengthGroupedBatchSampler
from bertkit.training.callbacks import TrainBeginCallback
from bertkit.training.checkpoints import RESTART_HINT, AtomicCheckpointTrainer, verify_checkpoint
from bertkit.training.dummy_batch import DUMMY_BATCH, DummyBatchCollator
from bertkit.training.input_stats import InputStats
from bertkit.training.loss_meter import LossMeter
from bertkit.training.phases import PhasedBatchSampler
from bertkit.training.token_budget import TokenBudgetBatchSampler
from bertkit.utils import distributed

UNLOGGED_KEY = "unlogged"  # in a checkpoint's state: what the next log will tell of steps before it


class BertkitTrainer(AtomicCheckpointTrainer):
    """The one trainer.

    Args:
        loss: sums and counts; see `bertkit.modeling.losses`.
        evaluate_with: gives the validation scores of the model as it is now.
        best: the score that chooses the checkpoint, and its sign (+1: the higher the better).
        early_stopping: stop after so many evaluations without a better score.
        layer_decay: factor on the learning rate for each layer further from the head.
        tokens_per_batch: a budget of padded pieces in place of a number of examples.
        own_order: False leaves the order of batches to Trainer's `train_sampling_strategy`.
    """

    loss_is_scaled_for_ga = True  # compute_loss divides by the counts of the effective batch

    # Trainer's own, which mypy cannot see and bertkit assigns to.
    state: Any
    control: Any
    optimizer: Any
    _tr_loss: torch.Tensor

    def __init__(
        self, *, loss: Loss, evaluate_fn: Callable[[], dict[str, float]], best_metric: tuple[str, int],
        early_stopping: int | None = None, layer_decay: float | None = None,
        tokens_per_batch: int | None = None, use_own_sampler: bool = True, **trainer: Any,
    ) -> None:  # fmt: skip
        super().__init__(**trainer)
        self.loss = loss
        self.evaluate_fn = evaluate_fn
        self.best_metric = best_metric
        self.early_stopping = early_stopping
        self.layer_decay = layer_decay
        self.tokens_per_batch = tokens_per_batch
        self.use_own_sampler = use_own_sampler
        self.evaluation_seconds = 0.0
        self.loss_meter = LossMeter()
        self.input_stats = InputStats()
        self.add_callback(TrainBeginCallback(self._take_up))

    # ---- training, whole or gone on with

    def train_or_resume(self, checkpoint: Path | None) -> None:
        """Train to the end, from the start or from a checkpoint; one that is the end is only loaded.

        Raises:
            UserError: a checkpoint that is damaged, or holds more than tensors and numbers.
        """
        if checkpoint is not None:
            verify_checkpoint(checkpoint)
        self.remove_unfinished_checkpoints()
        try:
            if checkpoint is not None and self._is_end(checkpoint):
                self._load_from_checkpoint(str(checkpoint))
            else:
                self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except UnpicklingError as error:  # Trainer loads with weights_only=True, which runs nothing
            raise UserError(f"{checkpoint}: has a pickle of more than tensors; {RESTART_HINT}") from error
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            why = str(error).splitlines()[0]
            raise UserError(
                f"a process that loads batches died ({why}); if memory ran out, load them in this one: "
                "without --set dataloader_num_workers"
            ) from error

    def _is_end(self, checkpoint: Path) -> bool:
        """Whether training was over at a checkpoint: a run may be stopped while it is scored.

        Trainer itself would take a step more where --max-steps or early stopping ended an epoch half-way.
        """
        before, self.state = self.state, TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if self.state.global_step >= self.state.max_steps or self._is_out_of_patience():
            return True
        self.state = before
        return False

    def _take_up(self) -> None:
        """Go on logging where the checkpoint was: the next entry tells of steps before it as well."""
        if unlogged := self.state.stateful_callbacks.get(UNLOGGED_KEY):
            self._globalstep_last_logged = unlogged["step"]
            self._tr_loss += unlogged["loss"][distributed.get_rank()]
            self.loss_meter.restore(unlogged["parts"], distributed.get_rank(), self.args.device)

    # ---- weights in parts on all ranks

    @property
    def is_sharded(self) -> bool:
        """Whether each rank holds a part of the weights: FSDP, or DeepSpeed's ZeRO."""
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def gather_weights(self) -> dict[str, torch.Tensor] | None:
        """All weights, which all ranks must ask for; None where each has them all."""
        return self.accelerator.get_state_dict(self.model_wrapped) if self.is_sharded else None

    def load_weights(self, checkpoint: Path) -> None:
        """Those of a checkpoint."""
        if not self.is_sharded:
            self._load_from_checkpoint(str(checkpoint))
        else:
            self.state.best_model_checkpoint = str(checkpoint)
            self._load_best_model()

    # ---- what is logged

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """With the loss, its parts."""
        parts = self.loss_meter.compute_and_reset(self.accelerator.gather) if "loss" in logs else {}
        super().log(logs | parts, start_time)

    def _unlogged(self) -> dict[str, Any]:
        gather = self.accelerator.gather
        loss, parts = gather(self._tr_loss).view(-1).tolist(), self.loss_meter.gather_sums(gather)
        return {"step": self._globalstep_last_logged, "loss": loss, "parts": parts}

    def compute_mean_loss(self) -> float:
        """The loss of all steps, those before a resume included, from what was logged."""
        logged = [(entry["step"], entry["loss"]) for entry in self.state.log_history if "loss" in entry]
        steps = [0, *(step for step, _ in logged)]
        weighted = sum(loss * (step - before) for (step, loss), before in zip(logged, steps, strict=False))
        return weighted / max(1, steps[-1])

    # ---- batches

    def build_batch_sampler(self) -> LengthGroupedBatchSampler:
        """This rank's sampler of the training rows; its effective batch spans accumulation and ranks."""
        size, features = self.args.per_device_train_batch_size, self.train_dataset
        share = (distributed.get_rank(), distributed.get_world_size())
        together = self.args.gradient_accumulation_steps * distributed.get_world_size()
        if self.tokens_per_batch is not None:
            drawn = features.batch_size_for(self.tokens_per_batch)
            if drawn is None:
                return TokenBudgetBatchSampler(
                    features, self.tokens_per_batch, together, self.args.seed, share
                )
            size = drawn
        batches = LengthGroupedBatchSampler(features, size, together, self.args.seed, share)
        if not isinstance(features, PhasedFeatures):
            return batches
        return PhasedBatchSampler(
            features, size, together, self.args.seed, self._total(batches.steps_per_epoch), share
        )

    def get_train_dataloader(self) -> DataLoader:
        """Trainer's, over our batches, which are this rank's already: accelerate must not deal them."""
        if not self.use_own_sampler:
            return super().get_train_dataloader()
        loader = DataLoader(
            self.train_dataset, batch_sampler=self.build_batch_sampler(),
            collate_fn=DummyBatchCollator(self.data_collator, self.train_dataset),
            num_workers=self.args.dataloader_num_workers, pin_memory=self.args.dataloader_pin_memory,
        )  # fmt: skip
        return prepare_data_loader(
            loader, self.accelerator.device, num_processes=1, process_index=0, put_on_device=True
        )

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """Trainer's; what it reads is watched."""
        return super().get_batch_samples(self.input_stats.track_batches(epoch_iterator), num_batches, device)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps an epoch, a short last one included."""
        return self.build_batch_sampler().steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self._total(self.steps_per_epoch)

    def _total(self, per_epoch: int) -> int:
        most, epochs = self.args.max_steps, self.args.num_train_epochs
        return most if most > 0 else math.ceil(epochs * per_epoch)

    # ---- the loss rule

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Any:
        """Part of the loss -> its count over all accumulation steps and ranks."""
        counts = [
            _weighted(self.loss.count_items(batch), DUMMY_BATCH not in batch) for batch in batch_samples
        ]
        totals = {
            part: torch.as_tensor(sum(count[part] for count in counts), device=device)
            for part in (counts[0] if counts else {})
        }
        if distributed.get_world_size() > 1:
            totals = {part: self.accelerator.gather(total).sum() for part, total in totals.items()}
        return totals

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """This batch's part of the effective batch's loss; the parts add up to it."""
        counted = inputs.pop(DUMMY_BATCH, None) is None
        logits = compute_logits(model, inputs)
        sums = _weighted(self.loss.sum_losses(logits, inputs), counted)
        if isinstance(self.loss, LossWithAccuracy):
            told = self.loss.count_correct(logits, inputs), self.loss.count_items(inputs)
            self.loss_meter.add(sums, *(_weighted(some, counted) for some in told))
        # DDP averages gradients over ranks, where the rule asks for their sum.
        # A batch in which nothing is counted (no piece is left of any token) has no loss.
        counts = {part: torch.where(count > 0, count, 1) for part, count in num_items_in_batch.items()}
        loss: Any = sum(sums[part] / counts[part] for part in sums) * distributed.get_world_size()
        if not torch.isfinite(loss):
            raise UserError(f"the loss is {float(loss)} at step {self.state.global_step + 1}; {NAN_HINT}")
        return (loss, logits) if return_outputs else loss

    # ---- the optimizer

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Trainer's, with a learning rate for each layer where `layer_decay` is set."""
        if self.optimizer is None and self.layer_decay is not None:
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            self.optimizer = kind(self._groups_by_layer(options["lr"], self.layer_decay), **options)
        return super().create_optimizer(model)

    def validate_optimizer(self) -> None:
        """Make optimizer and schedule once, so that what they refuse is known before anything is written."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps=10)
        self.lr_scheduler, self._created_lr_scheduler = None, False
        if self.is_sharded:  # its parameters are others then
            self.optimizer = None

    def _groups_by_layer(self, rate: float, decay: float) -> list[dict[str, Any]]:
        numbers = map_parameters_to_layers(self.model, "--layer-decay")
        decayed = set(self.get_decay_parameter_names(self.model))
        top = max(numbers.values())
        groups: dict[tuple[int, bool], list[Any]] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                groups.setdefault((numbers[name], name in decayed), []).append(parameter)
        return [
            {
                "params": parameters,
                "lr": rate * decay ** (top - number),
                "weight_decay": self.args.weight_decay if decays else 0.0,
            }
            for (number, decays), parameters in groups.items()
        ]

    # ---- evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict:
        """Score the validation split, remember the best, stop early where asked."""
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
        """Return whether these metrics are better than those of all evaluations so far."""
        name, sign = self.best_metric
        best = self.state.best_metric
        return best is None or sign * metrics[name] > sign * best

    def _is_out_of_patience(self) -> bool:
        """Whether `early_stopping` evaluations have gone by since the best."""
        name, best = f"eval_{self.best_metric[0]}", self.state.best_global_step
        if self.early_stopping is None or best is None:
            return False
        later = {entry["step"] for entry in self.state.log_history if name in entry and entry["step"] > best}
        return len(later) >= self.early_stopping

    # ---- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.state.stateful_callbacks[UNLOGGED_KEY] = self._unlogged()
        super()._save_checkpoint(model, trial)


def _weighted(figures: dict[str, torch.Tensor], counted: bool) -> dict[str, torch.Tensor]:
    """The figures of a batch, 0 of one that only keeps pace."""
    return figures if counted else {part: 0 * figure for part, figure in figures.items()}
