"""The model of a run with its trainer, and the run of a linear model of texts, which has none."""

import math
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from transformers import PrinterCallback, set_seed

from bertkit.data.features import Features
from bertkit.data.split import sample_rows
from bertkit.data.table import Rows
from bertkit.errors import NAN_HINT, RunInterrupted, TrainingFailed, UserError, format_count
from bertkit.methods.base import TrainingInputs
from bertkit.methods.distill import Distillation
from bertkit.methods.linear_text import LinearText
from bertkit.models import layers, loading
from bertkit.models.cpu import accelerate_on_cpu
from bertkit.models.heads import append_layer_inputs
from bertkit.models.linear_text import LinearTextModel
from bertkit.models.load_check import (
    NUM_TEXTS,
    find_precision_error,
    require_readable_lengths,
    warn_about_padding,
    warn_about_tokenizer,
)
from bertkit.models.loading import TRAINED_LENGTH_KEY, adapt_to_tokenizer, takes_token_type_ids
from bertkit.models.packing import build_masks_from_lengths, describe_packed_attention, enable_packing
from bertkit.models.pooling import write_sentence_modules
from bertkit.models.tagger import save_model
from bertkit.run.prepare import PreparedRun, build_model, get_num_layers
from bertkit.run.upload import format_resume_command
from bertkit.run_directory import RunDir
from bertkit.settings.run_settings import RunConfig
from bertkit.stats.judgement import MIN_STEPS, TrainingFacts
from bertkit.stats.linear_probe import PROBE_PREFIX
from bertkit.stats.scope_score import compute_scope_features
from bertkit.stats.scores import Scores
from bertkit.tasks.base import Outputs
from bertkit.tasks.out_of_scope import load_shipped_texts
from bertkit.training.arguments import build_training_arguments, parse_extra_arguments, set_tensorboard_dir
from bertkit.training.callbacks import (
    EvaluateAndSaveCallback,
    FirstStepTimer,
    ReporterCallback,
    StopRequest,
)
from bertkit.training.failures import (
    get_batch_settings,
    get_peak_memory_mb,
    make_precision_error,
    report_out_of_memory,
    report_precision_errors,
    suggest_memory_fixes,
)
from bertkit.training.scoring import MeanLoss, predict_logits
from bertkit.utils import devices, distributed
from bertkit.utils.files import stage_files
from bertkit.utils.reporting import get_reporter, report_info, report_warning
from bertkit.utils.system import keep_freed_memory, resume_collection

if TYPE_CHECKING:
    from bertkit.training.trainer import BertkitTrainer

T = TypeVar("T")
SCHEDULES_WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")  # transformers ignores their warmup
HEAD_CHECK_ROWS = 200  # number of validation rows that verify the label order of an existing head
# Exceptions that Trainer raises for an invalid value of an argument.
TRAINER_ERRORS = (ValueError, TypeError, KeyError, ImportError, RuntimeError, OSError)


def optimize_model(model: Any, config: RunConfig, precision: str) -> None:
    """Prepare a model with a head for fast training, and compile its layers if requested."""
    if config.attention_dropout is not None:
        for submodel in layers.list_submodels(model):
            layers.set_attention_dropout(submodel, config.attention_dropout)
    if not devices.runs_asynchronously():
        keep_freed_memory()
        if not config.compile:
            accelerate_on_cpu(model, is_single_process=distributed.get_world_size() == 1)
    elif precision == "bf16":  # in fp16, the sums of residual connections could overflow
        layers.use_autocast_layer_norm(model)
    if config.gradient_checkpointing:
        layers.check_activation_checkpointing(model)
    if config.pack:
        for submodel in layers.list_submodels(model):
            enable_packing(submodel)
        if note := describe_packed_attention(model, precision):
            report_info(note)
    elif devices.runs_asynchronously():
        for submodel in layers.list_submodels(model):
            build_masks_from_lengths(submodel)
    if not (config.pack or config.compile):  # packed sequences have no common first position
        layers.compute_first_position_only(model)
    if config.compile:
        layers.compile_layers(model)
        report_info("the encoder is compiled during the first steps, which therefore take longer")


def suggest_study(prepared: PreparedRun, run_dir: RunDir) -> str | None:
    """Return the command that scores all rows by cross-validation; None if there is none."""
    name, data = prepared.task.definition.name, prepared.config.data
    if not (prepared.task.definition.predicts_rows and isinstance(data, str)):
        return None
    return f"bertkit study {name} --recipe {shlex.quote(str(run_dir.settings_file))} --folds 5"


def check_sharding(prepared: PreparedRun) -> None:
    """Refuse settings that need all weights in a run whose weights are sharded (FSDP or DeepSpeed)."""
    flags = [method.flag for method in prepared.methods if method.needs_all_weights]
    for flag in [*flags, *prepared.config.list_unshardable_flags()]:
        raise UserError(f"{flag}: cannot be combined with FSDP or DeepSpeed; omit one of them")


class Session:
    """Model and trainer of a run, and the model outputs for each split.

    Nothing is written into the run directory before `train`.
    """

    def __init__(self, prepared: PreparedRun, folder: Path) -> None:
        self.prepared = prepared
        self.folder, self.run_dir = folder, RunDir(folder)
        self.stop_request = StopRequest()
        self.set_up()
        if not prepared.model_source.is_new and not self.trainer.is_sharded:
            self._check_model()

    def set_up(self) -> None:
        """Create the model and the trainer in their state before the first step."""
        from bertkit.training.trainer import BertkitTrainer  # slow; not needed to report an error in the data

        resume_collection()  # after the imports, and before the model: its memory must be freed for a retry
        prepared, config = self.prepared, self.prepared.config
        self.features = dict(prepared.features)
        self.best_logits: dict[int, Any] = {}  # validation logits by step; holds only the best step so far
        self.training_args = build_training_arguments(config, self.run_dir.checkpoints, prepared.precision)
        set_seed(config.seed)
        self.model = build_model(prepared.task, prepared.model_config, prepared.model_source)
        adapt_to_tokenizer(self.model, prepared.tokenizer)
        for method in prepared.methods:
            method.adapt_model(prepared, self.model)
        layers.freeze_layers(self.model, config.freeze)
        optimize_model(self.model, config, prepared.precision)
        self.num_trainable_parameters = layers.count_trainable_parameters(self.model)
        if not self.num_trainable_parameters and all(
            method.has_training_steps for method in prepared.methods
        ):
            raise UserError("the settings leave no parameter to train; freeze fewer layers, or omit --method")
        self.collator = prepared.task.make_collator(prepared.tokenizer, self.model)
        self.trainer = self._create_trainer(BertkitTrainer)
        if self.trainer.is_sharded:
            check_sharding(prepared)
            started_with = self.run_dir.read_provenance().get("processes", 1) if config.resume else None
            if started_with not in (None, distributed.get_world_size()):
                raise UserError(
                    f"--resume {self.folder}: its checkpoints hold the sharded weights of {started_with} "
                    f"processes; resume with {started_with} processes"
                )
        elif self.trainer.args.fsdp:  # accelerate ignores it on a CPU
            raise UserError(
                "--set fsdp: FSDP shards weights over accelerators, of which there are none; omit it"
            )
        if distributed.get_rank():  # all ranks start with the same weights, but use different dropout masks
            set_seed((config.seed + distributed.get_rank()) % 2**32)

    def _create_trainer(self, trainer_class: "type[BertkitTrainer]") -> "BertkitTrainer":
        prepared, config, args = self.prepared, self.prepared.config, self.training_args
        # Gradient checkpointing reads the state of the random number generator in each pass, and packing
        # builds indices from the lengths of each batch, which a CUDA graph cannot do. LOMO changes weights in
        # the backward pass, with the learning rate of the step.
        excludes_graphs = config.gradient_checkpointing or config.pack or "lomo" in str(args.optim)
        excludes_graphs = excludes_graphs or args.torch_empty_cache_steps or distributed.get_world_size() > 1
        use_graphs = config.cuda_graphs and not excludes_graphs and devices.supports_graphs()
        inputs = self._make_training_inputs()
        trainer = self._convert_trainer_errors(lambda: trainer_class(
            model=self.model, args=args, train_dataset=inputs.examples,
            data_collator=inputs.collator, loss=inputs.loss, evaluate_fn=self._evaluate_validation,
            best_metric=prepared.task.state.best_metric,
            early_stopping=config.early_stopping, layer_decay=config.layer_decay,
            tokens_per_batch=config.tokens_per_batch,
            use_own_sampler="train_sampling_strategy" not in parse_extra_arguments(config),
            use_graphs=use_graphs, has_compiled_layers=config.compile,
            pad_token_id=prepared.tokenizer.pad_token_id,
        ))  # fmt: skip
        self._convert_trainer_errors(trainer.validate_optimizer)
        trainer.remove_callback(PrinterCallback)
        set_tensorboard_dir(trainer, self.folder / RunDir.TENSORBOARD_DIR)
        self.first_step_timer = FirstStepTimer()
        trainer.add_callback(self.first_step_timer)
        for callback in prepared.options.user_callbacks:
            trainer.add_callback(callback)
        log_probe_score = None if prepared.probe is None else self._log_probe_score
        trainer.add_callback(EvaluateAndSaveCallback(
            trainer.evaluation_steps, config.save_steps, self.stop_request, log_probe_score,
            self._keep_model, prepared.budget.kept_steps.values() if prepared.budget else (),
        ))  # fmt: skip
        trainer.add_callback(ReporterCallback(trainer.build_batch_sampler().list_phase_changes()))
        for callback in prepared.options.callbacks:
            trainer.add_callback(callback)
        return trainer

    def _make_training_inputs(self) -> TrainingInputs:
        inputs = TrainingInputs(self.features["train"], self.collator, self.prepared.loss)
        for method in self.prepared.methods:
            inputs = method.convert(self.prepared, inputs)
        return inputs

    def _convert_trainer_errors(self, function: Callable[[], T]) -> T:
        """Call `function`, and turn its exceptions into a `UserError` that names the settings in question.

        These are the settings that the user changed and that bertkit passes to Trainer without validation.
        """
        config = self.prepared.config
        values = {"--set": config.set, "--optim": config.optim, "--lr-scheduler": config.lr_scheduler}
        defaults = {"--set": [], "--optim": type(config).optim, "--lr-scheduler": type(config).lr_scheduler}
        changed = [f"{flag} {value}" for flag, value in values.items() if value and value != defaults[flag]]
        try:
            return function()
        except TRAINER_ERRORS as error:
            if not changed:
                raise
            reason = " ".join(str(error).split())
            raise UserError(
                f"{', '.join(changed)}: rejected by Trainer ({reason}); correct the value"
            ) from error

    # ---- checks before training

    def _check_model(self) -> None:
        """Check the loaded model, and train it in fp32 if it cannot be trained in bf16."""
        prepared, model = self.prepared, self.model
        tokenizer, max_length = prepared.tokenizer, prepared.config.max_length
        texts = prepared.task.input_schema.sample_texts(prepared.splits["train"], NUM_TEXTS)
        warn_about_tokenizer(prepared.model_source, tokenizer, texts)
        warn_about_padding(model, tokenizer, max_length)
        require_readable_lengths(model, prepared.features["train"])
        precision = prepared.precision
        error = find_precision_error(model, tokenizer, max_length, precision)
        if error is None:
            return
        if prepared.is_precision_requested:
            raise make_precision_error(model, precision, error)
        report_info(
            f"{model.config.model_type}: cannot be trained in {precision} ({error}); training in fp32"
        )
        prepared.precision = "fp32"
        prepared.task.resolve(bf16=False)
        self.set_up()

    def warn_about_long_warmup(self) -> None:
        """Warn if training ends before the warmup, so that the learning rate never reaches its peak."""
        args, config, total_steps = self.training_args, self.prepared.config, self.trainer.total_steps
        has_warmup = (
            self.prepared.has_training_steps and args.lr_scheduler_type not in SCHEDULES_WITHOUT_WARMUP
        )
        if has_warmup and args.get_warmup_steps(total_steps) >= total_steps > 0:
            report_warning(
                f"--warmup {config.warmup:g}: the run has only {format_count(total_steps, 'step')}, so "
                f"the learning rate never reaches {config.learning_rate:g}; lower --warmup, or train longer"
            )

    def verify_label_order(self) -> None:
        """Check that the outputs of an existing head are in the order of the labels in the model config."""
        prepared = self.prepared

        def predict_sample() -> Outputs:
            rows = sample_rows(prepared.splits["validation"], HEAD_CHECK_ROWS, prepared.config.seed)
            features = prepared.task.featurize(rows, prepared.tokenizer)
            return Outputs(self._compute_logits(features), features, rows)

        # With fewer layers, an untrained model may well predict labels in another order.
        if not prepared.task.state.has_new_head and get_num_layers(prepared.config) is None:
            prepared.task.verify_label_order(predict_sample)

    # ---- training

    def train(self, resume: bool) -> dict[str, Any]:
        """Train to the end, from the last checkpoint if `resume` is true, and load the best weights.

        Returns:
            The section "training" of `metrics.json`.

        Raises:
            RunInterrupted: A signal interrupted training. `--resume` resumes it from the last checkpoint.
            OutOfMemory: The batches do not fit into memory.
        """
        prepared, trainer = self.prepared, self.trainer
        if not prepared.has_training_steps:
            return self._fit_head()
        checkpoint = self.run_dir.find_last_checkpoint() if resume else None
        for method in prepared.methods:
            self.features = distributed.main_process_first(
                method.precompute, prepared, self.model, self.features, self.collator
            )
        trainer.train_dataset = self._make_training_inputs().examples
        started = time.perf_counter()
        try:
            with (
                self.stop_request,
                report_out_of_memory(suggest_memory_fixes(prepared.config, self.model)),
                report_precision_errors(self.model, prepared.precision),
            ):
                trainer.train_or_resume(checkpoint)
        finally:
            get_reporter().on_train_end()
        seconds = time.perf_counter() - started - trainer.evaluation_seconds
        step, best_step = trainer.state.global_step, trainer.state.best_global_step
        if self.stop_request.is_requested_on_any_rank():
            raise RunInterrupted(
                f"interrupted at step {step} of {trainer.state.max_steps}; {self.resume_hint}"
            )
        if step and best_step is None:  # with 0 epochs, there is no other checkpoint
            name, _ = prepared.task.state.best_metric
            report_warning(f"{name}: no evaluation has this score, so the last weights are kept")
        elif step and best_step != step:
            trainer.load_weights(self.run_dir.checkpoints / f"checkpoint-{best_step}")
            report_info(f"restored the best weights, of step {best_step}")
        return self._build_metrics(seconds, int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0)

    @property
    def resume_hint(self) -> str:
        """Hint for messages: the command that resumes the run."""
        name, config = self.prepared.task.definition.name, self.prepared.config
        where = " on each machine" if distributed.has_several_hosts() else ""
        return f"resume{where} with: {format_resume_command(name, self.folder, config)}"

    def _fit_head(self) -> dict[str, Any]:
        """Fit the head of an encoder that is not trained, and return the section "training"."""
        config, features = self.prepared.config, self.prepared.features["train"]
        started = time.perf_counter()
        with report_out_of_memory(f"out of memory at --max-length {config.max_length}; try a smaller one"):
            self.trainer.evaluate()
        seconds, world_size = time.perf_counter() - started, distributed.get_world_size()
        return {
            "seconds": seconds,
            "steps": 0,
            "examples_per_second": len(features) / seconds,
            "tokens_per_second": float(features.lengths.sum()) / seconds,
            "peak_memory_mb": get_peak_memory_mb(),
            "precision": self.prepared.precision,
            "device": devices.describe_device(),
            **({"processes": world_size} if world_size > 1 else {}),
        }

    def _build_metrics(self, seconds: float, steps_before_resume: int) -> dict[str, Any]:
        """Return the section "training" of `metrics.json`; `seconds` include checkpoints, not evaluation."""
        state, batch_sampler = self.trainer.state, self.trainer.build_batch_sampler()
        input_stats, world_size = self.trainer.input_stats, distributed.get_world_size()
        epochs = (state.global_step - steps_before_resume) / batch_sampler.steps_per_epoch
        return {
            "seconds": seconds,
            "steps": state.global_step,
            "examples_seen": batch_sampler.count_seen_examples(state.global_step),
            "examples_per_epoch": len(self.trainer.train_dataset),
            "examples_per_second": len(self.trainer.train_dataset) * epochs / seconds,
            "tokens_per_second": input_stats.count_tokens_of_all_ranks() / seconds,
            "first_step_seconds": self.first_step_timer.seconds,
            "peak_memory_mb": get_peak_memory_mb(),
            "loss": self.trainer.compute_mean_loss(),
            "precision": self.prepared.precision,
            "device": devices.describe_device(),
            "trainable_parameters": self.num_trainable_parameters,
            "padding": 0.0 if self.prepared.config.pack else input_stats.padding_fraction,
            "data_wait": input_stats.wait_seconds / seconds,
            **get_batch_settings(self.prepared.config),
            "resumed_from": steps_before_resume or None,
            **({"processes": world_size} if world_size > 1 else {}),
        }

    def _keep_model(self, step: int) -> None:
        """Write the current model to the directory of each number of words that this step has reached."""
        assert self.prepared.budget is not None
        for name, kept_step in self.prepared.budget.kept_steps.items():
            if kept_step == step and distributed.is_main_process():
                folder = self.folder / RunDir.WORDS_DIR / name
                folder.mkdir(parents=True, exist_ok=True)
                self.write_model(None, folder)

    # ---- evaluation

    def score_probe(self) -> float:
        """Return the score of `--probe`, which must be set, with the current weights."""
        assert self.prepared.probe is not None
        return self.prepared.probe.score(self.model, self.prepared.tokenizer, self.prepared.config.max_length)

    def _log_probe_score(self) -> None:
        trainer, probe = self.trainer, self.prepared.probe
        assert probe is not None
        started = time.perf_counter()
        value = distributed.on_main_process(self.score_probe)
        trainer.evaluation_seconds += time.perf_counter() - started
        step = trainer.state.global_step
        when = f"at step {step}" if step else "before training"
        report_info(f"probe: {probe.name}, {probe.metric} {value:.3f} {when}")
        trainer.log({PROBE_PREFIX + probe.metric: value})

    def _evaluate_validation(self) -> Scores:
        """Return the validation scores and loss of the current weights, and keep the logits of the best."""
        task, mean_loss = self.prepared.task, MeanLoss(self.prepared.loss)
        for method in self.prepared.methods:
            method.before_evaluation(self.prepared, self.model, self.features["train"], self.collator)
        outputs = self._compute_outputs("validation", mean_loss)
        loss = mean_loss.compute()
        modules = self.prepared.metric_modules
        # pre-training has its own score named "loss"
        scores = {"loss": loss} | distributed.on_main_process(lambda: modules.score(task.evaluate(outputs)))
        if self.trainer.is_new_best(scores):
            self.best_logits = {self.trainer.state.global_step: outputs.logits}
        return scores

    def finish(self) -> dict[str, Outputs]:
        """Complete the best weights, and return their outputs for each evaluation split, on all ranks.

        The validation logits of the best step are reused if this process computed them.
        """
        prepared, best_step = self.prepared, self.trainer.state.best_global_step
        for method in prepared.methods:
            if method.finish(prepared, self.model):
                self.best_logits.clear()
        outputs = {}
        for split, rows in prepared.splits.items():
            if split == "validation" and best_step in self.best_logits:
                outputs[split] = Outputs(self.best_logits[best_step], self.features[split], rows)
            elif split != "train":
                outputs[split] = self._compute_outputs(split)
        return outputs

    def compute_scope_features(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the features of the score that a text is in scope, on all ranks; {} if there is none.

        `inside` and `outside` have those of the rows and of the texts that belong to no class by split, and
        `shipped` those of the shipped texts.
        """
        prepared, task = self.prepared, self.prepared.task
        outside = prepared.dataset.out_of_scope
        if not outside:
            return {}
        inside = {split: rows for split, rows in prepared.splits.items() if split != "train"}
        shipped = load_shipped_texts(task, *prepared.splits.values(), *outside.values())
        rows = {"inside": inside, "outside": outside, "shipped": {"train": shipped} if len(shipped) else {}}

        def compute(rows: Rows) -> np.ndarray:
            outputs = self._compute_logits(task.featurize(rows, prepared.tokenizer))
            return compute_scope_features(outputs[:, :-size], outputs[:, -size:])

        with append_layer_inputs(self.model) as size:
            return {
                part: {split: compute(split_rows) for split, split_rows in splits.items()}
                for part, splits in rows.items()
            }

    def _compute_outputs(self, split: str, mean_loss: MeanLoss | None = None) -> Outputs:
        """Run the model with its current weights on a split; `mean_loss` receives the losses."""
        features = self.features[split]
        logits = self._compute_logits(features, mean_loss)
        # Padding positions and missing choices have the logit -inf, so only the maximum of a row must be
        # finite. The maximum is NaN if any logit is NaN.
        if not np.isfinite(logits.max(-1)).all():
            step = self.trainer.state.global_step
            raise TrainingFailed(f"{split} split: logits are NaN or infinite at step {step}; {NAN_HINT}")
        return Outputs(logits, features, self.prepared.splits[split])

    def _compute_logits(self, features: Features, mean_loss: MeanLoss | None = None) -> np.ndarray:
        is_sharded, batch_size = self.trainer.is_sharded, self.prepared.config.eval_batch_size
        model = self.trainer.model_wrapped if is_sharded else self.model
        return predict_logits(
            model, features, self.collator, batch_size, is_sharded=is_sharded, mean_loss=mean_loss
        )

    # ---- results

    def update_config(self, fitted: Mapping[str, Any]) -> None:
        """Add fitted parameters to the config of the model."""
        self.model.config.update(fitted)

    @property
    def best_step(self) -> int | None:
        return self.trainer.state.best_global_step

    @property
    def log_history(self) -> list[dict[str, Any]]:
        """The log of the trainer, with the words of `--word-budget`."""
        log, budget = self.trainer.state.log_history, self.prepared.budget
        return budget.complete_log(log) if budget else log

    def gather_weights(self) -> Any:
        """Return the complete state dict of sharded weights, else None; all ranks must call this."""
        return self.trainer.gather_weights()

    def collect_training_facts(self) -> TrainingFacts:
        """Return what the advice on a run depends on."""
        prepared, config, state = self.prepared, self.prepared.config, self.trainer.state
        train, task = prepared.features["train"], prepared.task
        longest = loading.get_max_positions(prepared.model_config) or 2 * config.max_length
        longer_texts = None
        if 2 * config.max_length <= min(longest, prepared.trained_length or longest):
            longer_texts = f"--max-length {2 * config.max_length}"
        elif config.long_texts is not None and not (prepared.methods or task.state.new_tokens):
            # a contrastive method and the markers of entities exclude windows
            longer_texts = "--long-texts windows"
        factor = max(2, math.ceil(MIN_STEPS / max(state.max_steps, 1)))
        longer_training = f"--max-steps {factor * state.max_steps}"
        if config.word_budget is not None:
            longer_training = f"--word-budget {factor * config.word_budget}"
        elif config.time_limit is not None:
            longer_training = f"--time-limit {factor * config.time_limit:g}"
        elif config.max_steps is None and config.epochs:
            longer_training = f"--epochs {factor * config.epochs:g}"
        is_truncated = not (task.uses_windows or task.definition.resamples_examples)
        return TrainingFacts(
            steps=state.global_step if prepared.has_training_steps else None,
            longer_training=longer_training,
            unk_fraction=train.unk_fraction,
            is_last_best=state.best_global_step == state.global_step,
            truncated=train.num_truncated / len(train) if is_truncated else 0.0,
            longer_texts=longer_texts,
            unit=task.definition.unit,
            study=suggest_study(prepared, self.run_dir),
        )

    def write_model(self, weights: Any, folder: Path | None = None) -> None:
        """Save the model and the tokenizer in the format of transformers.

        `weights` is the complete state dict of sharded weights, else None. The default of `folder` is the run
        directory.

        The tokenizer is saved with the maximum length and the truncation side of the run. It returns token
        type ids if and only if the model uses them. Without them, `pipeline()` would read both texts of a
        pair as one text; a model with one token type cannot read the ids of a second text.
        """
        prepared, tokenizer, config = self.prepared, self.prepared.tokenizer, self.prepared.config
        tokenizer.model_max_length = config.max_length
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        token_types = ["token_type_ids"] if takes_token_type_ids(self.model) else []
        if set(tokenizer.model_input_names) != {*names, *token_types}:
            tokenizer.model_input_names = [*names, *token_types]
            tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names  # what is saved
        trained_length: int | None = config.max_training_length()
        if not prepared.model_source.is_new:  # None: the positions have no limit
            known_length = prepared.trained_length
            trained_length = None if known_length is None else max(trained_length or 0, known_length)
        if trained_length:
            self.model.config.update({TRAINED_LENGTH_KEY: trained_length})
        tokenizer.truncation_side = "left" if config.long_texts == "tail" else "right"
        with stage_files(folder or self.folder) as staging:
            save_model(self.model, staging, weights, tokenizer)
            write_sentence_modules(staging, self.model.config, config.max_length)


# ---- linear models of texts


class LinearTextSession:
    """The same for a linear model of texts, which is fitted at once, without steps and without a trainer."""

    model: LinearTextModel
    best_step = None

    def __init__(self, prepared: PreparedRun, folder: Path, method: LinearText) -> None:
        self.prepared, self.method = prepared, method
        self.folder, self.run_dir = folder, RunDir(folder)
        self.log_history: list[dict[str, Any]] = []

    def train(self) -> dict[str, Any]:
        """Fit the model, and return the section "training" of `metrics.json`."""
        prepared, rows = self.prepared, self.prepared.splits["train"]
        task: Any = prepared.task
        started = time.perf_counter()
        labels = task.get_training_labels(rows)
        for teacher in prepared.methods:
            if isinstance(teacher, Distillation):
                rows, labels = teacher.add_predictions(prepared, labels)
        self.model = self.method.fit(task, prepared.model_config, prepared.model_source, rows, labels)
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "steps": 0,
            "examples_per_second": len(rows) / seconds,
            "peak_memory_mb": get_peak_memory_mb(),
            "precision": prepared.precision,
            "device": "cpu",
            "features": self.model.weight.shape[1],
        }

    def finish(self) -> dict[str, Outputs]:
        """Return the outputs for each evaluation split."""
        for method in self.prepared.methods:
            method.finish(self.prepared, self.model)
        columns, features = self.prepared.task.input_schema.text_columns, self.prepared.features
        return {
            split: Outputs(
                self.model.compute_logits([list(rows[name]) for name in columns]), features[split], rows
            )
            for split, rows in self.prepared.splits.items()
            if split != "train"
        }

    def compute_scope_features(self) -> dict[str, dict[str, np.ndarray]]:
        """Return {}: `--out-of-scope` is refused."""
        return {}

    def gather_weights(self) -> None:
        """Return None: the weights are not sharded."""

    def update_config(self, fitted: Mapping[str, Any]) -> None:
        self.prepared.model_config.update(fitted)

    def collect_training_facts(self) -> TrainingFacts:
        """Return what the advice on the run depends on: nothing about steps, tokens and lengths applies."""
        return TrainingFacts(
            steps=None,
            longer_training="",
            is_last_best=False,
            unit=self.prepared.task.definition.unit,
            study=suggest_study(self.prepared, self.run_dir),
        )

    def write_model(self, weights: None) -> None:
        with stage_files(self.folder) as staging:
            self.model.save(staging, self.prepared.model_config.to_diff_dict())

    @property
    def resume_hint(self) -> str:
        prepared = self.prepared
        command = format_resume_command(prepared.task.definition.name, self.folder, prepared.config)
        return f"start it again with: {command}"
