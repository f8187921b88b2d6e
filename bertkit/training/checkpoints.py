"""Checkpoints: written atomically, and verified before anything is loaded from them."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME

from bertkit.errors import UserError
from bertkit.utils import distributed
from bertkit.utils.files import PARTIAL, verify_checksums, write_checksums

RESTART_HINT = "start again with --overwrite"


def verify_checkpoint(last: Path) -> None:
    """Refuse to resume from a damaged checkpoint, or if the best checkpoint is damaged or missing.

    Trainer would resume without the missing files, with another optimizer state or other random numbers.

    Raises:
        UserError: a file is damaged; the message names it and the fix.
    """
    if problem := verify_checksums(last):
        others = sorted(path.name for path in last.parent.glob("checkpoint-*") if path != last)
        fix = f"remove the folder, and --resume continues from {others[0]}" if others else RESTART_HINT
        raise UserError(f"{last}: {problem}; {fix}")
    best_step = json.loads((last / TRAINER_STATE_NAME).read_text("utf-8"))["best_global_step"]
    best = last.with_name(f"checkpoint-{best_step}")
    if best_step is not None and best != last and (problem := verify_checksums(best)):
        raise UserError(f"{best} (the best checkpoint): {problem}; {RESTART_HINT}")


class AtomicCheckpointTrainer(Trainer):
    """A Trainer that adds and removes checkpoints by renaming, so that a kill never leaves a partial one."""

    _writing = False

    def remove_unfinished_checkpoints(self) -> None:
        """Remove the staging folder that a killed process has left."""
        distributed.on_main_process(shutil.rmtree, self._staging, ignore_errors=True)

    @property
    def _staging(self) -> Path:
        """The folder of the checkpoint being written, and of those being removed."""
        return Path(self.args.output_dir) / PARTIAL

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging) if self._writing else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.remove_unfinished_checkpoints()
        self._writing = True
        try:
            with distributed.raise_on_all_ranks(), self._report_write_errors():
                super()._save_checkpoint(
                    model, trial
                )  # rank 0 writes the weights, each rank its random state
            distributed.on_main_process(self._publish, f"checkpoint-{self.state.global_step}")
        finally:
            self._writing = False

    @contextmanager
    def _report_write_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, safetensors.SafetensorError) as error:
            shutil.rmtree(str(self._staging), ignore_errors=True)
            has_earlier = any(Path(self.args.output_dir).glob("checkpoint-*"))
            raise UserError(
                f"{self.args.output_dir}: the checkpoint of step {self.state.global_step} cannot be "
                f"written ({str(error).splitlines()[0]}); free disk space and "
                + ("resume with --resume" if has_earlier else "start again: there is no earlier checkpoint")
            ) from error

    def _publish(self, name: str) -> None:
        """Write the checksums of a checkpoint, rename it, and remove all others except the best."""
        written, folder = self._staging / name, Path(self.args.output_dir)
        with self._report_write_errors():
            write_checksums(written)
        if (folder / name).exists():
            (folder / name).replace(self._staging / "replaced")
        written.replace(folder / name)
        for path in folder.glob("checkpoint-*"):
            if path.name not in (name, f"checkpoint-{self.state.best_global_step}"):
                path.replace(self._staging / path.name)
        shutil.rmtree(self._staging)
