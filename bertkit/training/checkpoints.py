"""Checkpoints that are written atomically, and verified before they are loaded."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME

from bertkit.errors import UserError, format_list
from bertkit.models.loading import WEIGHTS_FILE, read_weights
from bertkit.training.failures import RESTART_HINT
from bertkit.utils import devices, distributed
from bertkit.utils.files import PARTIAL, replace_path, verify_checksums, write_checksums

RANDOM_STATE = "random_state"  # name of the state in its file
# Checkpoints of earlier versions have the names of the file that was loaded; these are old ones of BERT.
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def verify_checkpoint(last: Path) -> None:
    """Verify the last checkpoint and the best one, both of which a resumed run needs.

    Trainer itself would resume despite missing files, with a new optimizer state or other random numbers.

    Args:
        last: The checkpoint to resume from. It names the best checkpoint, which is in the same directory.
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


class AtomicCheckpointTrainer(Trainer):
    """Trainer that adds and removes checkpoints by renaming: a killed process never leaves a partial one.

    A checkpoint has the names that the weights have in the model. transformers renames weights when it loads
    a model, and `save_pretrained`, which Trainer calls, writes the names of the loaded file again.
    """

    _is_writing = False

    @property
    def is_sharded(self) -> bool:
        """Whether each rank holds only a part of the weights (FSDP or DeepSpeed ZeRO)."""
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

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
        super()._load_rng_state(checkpoint)
        if checkpoint is None or not devices.has_accelerator():
            return
        path = self._get_device_state_path(checkpoint)
        if path.exists():  # not in checkpoints of earlier versions
            torch.get_device_module(self.args.device).set_rng_state(load_file(path)[RANDOM_STATE])

    def _get_device_state_path(self, checkpoint: str) -> Path:
        return Path(checkpoint) / f"device_rng_state_{distributed.get_rank()}.safetensors"

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
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
