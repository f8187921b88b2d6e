"""Checkpoints: whole or not there, and looked at before anything of them is loaded."""

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
    """Refuse to go on from a checkpoint that is not as it was written, or whose best one is not there.

    Trainer would go on without what is missing, with another optimizer or other random numbers.

    Raises:
        UserError: the file that is damaged, and the way out.
    """
    if wrong := verify_checksums(last):
        others = sorted(path.name for path in last.parent.glob("checkpoint-*") if path != last)
        way = f"remove the folder, and --resume goes on from {others[0]}" if others else RESTART_HINT
        raise UserError(f"{last}: {wrong}; {way}")
    state = json.loads((last / TRAINER_STATE_NAME).read_text("utf-8"))
    best = last.with_name(f"checkpoint-{state['best_global_step']}")
    if state["best_global_step"] is not None and best != last and (wrong := verify_checksums(best)):
        raise UserError(f"{best}, the best so far: {wrong}; {RESTART_HINT}")


class AtomicCheckpointTrainer(Trainer):
    """Trainer, whose checkpoints appear and go by a rename, so that a kill never leaves a part of one."""

    _writing = False

    def remove_unfinished_checkpoints(self) -> None:
        """Remove what a process that was killed left aside."""
        distributed.on_main_process(shutil.rmtree, self._aside, ignore_errors=True)

    @property
    def _aside(self) -> Path:
        """Holds the checkpoint that is being written, and those on their way out."""
        return Path(self.args.output_dir) / PARTIAL

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._aside) if self._writing else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.remove_unfinished_checkpoints()
        self._writing = True
        try:
            with distributed.raise_on_all_ranks(), self._told_where_unwritable():
                super()._save_checkpoint(model, trial)  # weights by the first rank, random numbers by each
            distributed.on_main_process(self._show, f"checkpoint-{self.state.global_step}")
        finally:
            self._writing = False

    @contextmanager
    def _told_where_unwritable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, safetensors.SafetensorError) as error:
            shutil.rmtree(str(self._aside), ignore_errors=True)
            before = any(Path(self.args.output_dir).glob("checkpoint-*"))
            raise UserError(
                f"{self.args.output_dir}: the checkpoint of step {self.state.global_step} could not be "
                f"written ({str(error).splitlines()[0]}); make room and "
                + ("go on with --resume" if before else "start again: there was none before it")
            ) from error

    def _show(self, name: str) -> None:
        """Seal a checkpoint and give it its name; only this one and the best are kept."""
        written, folder = self._aside / name, Path(self.args.output_dir)
        with self._told_where_unwritable():
            write_checksums(written)
        if (folder / name).exists():
            (folder / name).replace(self._aside / "replaced")
        written.replace(folder / name)
        for path in folder.glob("checkpoint-*"):
            if path.name not in (name, f"checkpoint-{self.state.best_global_step}"):
                path.replace(self._aside / path.name)
        shutil.rmtree(self._aside)
