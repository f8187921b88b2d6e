"""Checkpoints as --resume finds them: looked at before anything is loaded."""

import json
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

from bertkit.errors import UserError
from bertkit.seals import unlike

ANEW = "start again with --overwrite"


def require_whole(last: Path) -> None:
    """Refuse to go on from a checkpoint that is not as it was written, or whose best one is not there.

    Trainer would go on without what is missing, with another optimizer or other random numbers.

    Raises:
        UserError: the file that is damaged, and the way out.
    """
    if wrong := unlike(last):
        others = sorted(path.name for path in last.parent.glob("checkpoint-*") if path != last)
        way = f"remove the folder, and --resume goes on from {others[0]}" if others else ANEW
        raise UserError(f"{last}: {wrong}; {way}")
    state = json.loads((last / TRAINER_STATE_NAME).read_text("utf-8"))
    best = last.with_name(f"checkpoint-{state['best_global_step']}")
    if state["best_global_step"] is not None and best != last and (wrong := unlike(best)):
        raise UserError(f"{best}, the best so far: {wrong}; {ANEW}")
