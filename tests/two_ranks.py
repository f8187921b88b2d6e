"""Run training on two ranks on this machine: in one process group, or with the ranks of a command."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

NUM_RANKS = 2


def run_on_two_ranks(jobs, folder):
    """Run jobs one after the other on two ranks of one process group; return the outcomes of each rank.

    A job is {"task", "settings"}; the optional "stop": [rank, step] sends a signal to that rank only. An
    outcome is the metrics of a run, or {"error": class name, "message", "should_report"}.
    """
    (folder / "jobs.json").write_text(json.dumps(jobs))
    with socket.create_server(("127.0.0.1", 0)) as free:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    sizes = {"WORLD_SIZE": str(NUM_RANKS), "LOCAL_WORLD_SIZE": str(NUM_RANKS)}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            env=os.environ | shared | sizes | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(NUM_RANKS)
    ]
    assert [process.wait() for process in processes] == [0] * NUM_RANKS
    return [json.loads((folder / f"outcomes{rank}.json").read_text()) for rank in range(NUM_RANKS)]


def find_rank_process(launcher, rank):
    """Return the process id of a rank of `bertkit ... --nproc N`, or None if it does not exist (yet)."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    return None


def kill_rank(command, run, rank=1, timeout=300):
    """Start a command with --nproc, kill one rank once there is a checkpoint, and wait for the end.

    Return the status, standard error, and the seconds from the kill to the end of all processes.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "bertkit", *map(str, command)], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + timeout
    while not list((run / "checkpoints").glob("checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(find_rank_process(process.pid, rank), signal.SIGKILL)
    killed = time.monotonic()
    stderr = process.communicate(timeout=timeout)[1]
    return process.returncode, stderr, time.monotonic() - killed


# ---- code that runs in a rank


def run_job(job):
    """Run a job, and return its outcome."""
    import bertkit
    from bertkit.errors import UserError
    from bertkit.utils import distributed

    try:
        if job["task"] == "disagree":
            with distributed.use_process_group(), distributed.raise_on_all_ranks():
                if distributed.get_rank() == 1:
                    raise UserError("only rank 1 knows")
            return {}
        return getattr(bertkit, job["task"])(**job["settings"]).metrics
    except UserError as error:
        return {"error": type(error).__name__, "message": str(error), "should_report": error.should_report}


def send_sigterm_at(rank, step):
    """Send SIGTERM to one rank at a step; return a function that undoes the change."""
    from bertkit.training.callbacks import ReporterCallback

    on_step_end = ReporterCallback.on_step_end

    def interrupt(self, args, state, control, **kwargs):
        on_step_end(self, args, state, control, **kwargs)
        if state.global_step == step and os.environ["RANK"] == str(rank):
            os.kill(os.getpid(), signal.SIGTERM)

    ReporterCallback.on_step_end = interrupt
    return lambda: setattr(ReporterCallback, "on_step_end", on_step_end)


def main(folder):
    """Run all jobs in one process group, with empty charts."""
    import pytest
    from conftest import empty_charts
    from torch import distributed

    empty_charts(pytest.MonkeyPatch())

    distributed.init_process_group("gloo")
    outcomes = []
    for job in json.loads((folder / "jobs.json").read_text()):
        undo = send_sigterm_at(*job["stop"]) if "stop" in job else lambda: None
        outcomes.append(run_job(job))
        undo()
        gc.freeze()  # Trainer collects garbage in each run, which takes long with the libraries
    (folder / f"outcomes{os.environ['RANK']}.json").write_text(json.dumps(outcomes))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
