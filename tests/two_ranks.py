"""Run training on two ranks on this machine: in one process group, or with the ranks of a command."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

from new_process import call_in_new_process

NUM_RANKS = 2


def run_on_two_ranks(jobs, command, folder):
    """Run jobs one after the other on two ranks of one process group; then run a command with --nproc 2.

    All ranks are forks of one process, which has imported the libraries and computed nothing. A job is
    {"task", "settings"}, also of `evaluate` and `embed`; the optional "stop": [rank, step] sends a signal to
    that rank only. An outcome is the metrics of a run, the metadata of vectors, or {"error": class name,
    "message", "should_report"}.

    Returns:
        The outcomes of each rank, and the process: its status and output are those of the command.
    """
    done = call_in_new_process(run_jobs_and_command, jobs, command, folder)
    outcomes = [folder / f"outcomes{rank}.json" for rank in range(NUM_RANKS)]
    assert all(path.exists() for path in outcomes), done.stderr
    return [json.loads(path.read_text()) for path in outcomes], done


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
        result = getattr(bertkit, job["task"])(**job["settings"])
        return result.metadata if job["task"] == "embed" else result.metrics
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


def run_jobs(jobs, folder, rank, port):
    """Run all jobs on one rank of a process group, and write their outcomes."""
    from torch import distributed

    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": NUM_RANKS, "LOCAL_WORLD_SIZE": NUM_RANKS}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo")
    outcomes = []
    for job in jobs:
        undo = send_sigterm_at(*job["stop"]) if "stop" in job else lambda: None
        outcomes.append(run_job(job))
        undo()
        gc.freeze()  # Trainer collects garbage in each run, which takes long with the libraries
    (folder / f"outcomes{rank}.json").write_text(json.dumps(outcomes))
    distributed.destroy_process_group()


class ForkedRank:
    """A rank that `--nproc` starts: a fork, because a new Python would import the libraries again."""

    def __init__(self, command, env, **_):
        assert command[1:3] == ["-m", "bertkit"]
        self.returncode = None
        self.pid = fork(lambda: run_command(command[3:], env))

    def poll(self):
        """Return the exit status, or None if the process has not ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def kill(self):
        """End the process."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def run_command(arguments, environment):
    """Run `bertkit ARGUMENTS`, and return its exit status."""
    from bertkit.cli.app import main

    os.environ |= environment
    sys.argv = ["bertkit", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code


def fork(function):
    """Call a function in a fork, which ends with the status that it returns; return the process id."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = function() or 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    return pid


def run_jobs_and_command(jobs, command, folder):
    """Run all jobs and the command, without the costly parts of runs."""
    import pytest
    from conftest import freeze_libraries, make_runs_cheap

    freeze_libraries()
    make_runs_cheap(pytest.MonkeyPatch())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [fork(lambda rank=rank: run_jobs(jobs, folder, rank, port)) for rank in range(NUM_RANKS)]
    assert [os.waitpid(pid, 0)[1] for pid in ranks] == [0] * NUM_RANKS

    from bertkit.utils import system

    system.subprocess.Popen = ForkedRank
    sys.exit(run_command(command, {}))
