"""Run training on two ranks on this machine: in one process group, or with the ranks of a command."""

import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass

from new_process import call_in_new_process

NUM_RANKS = 2


def run_on_two_ranks(jobs, commands, folder):
    """Run jobs one after the other on two ranks of one process group; then run commands with --nproc 2.

    All ranks are forks of one process, which has imported the libraries and computed nothing. A job is
    {"task", "settings"}, also of `evaluate` and `embed`; the optional "stop": [rank, step] sends a signal to
    that rank only. An outcome is the metrics of a run, the metadata of vectors, or {"error": class name,
    "message", "should_report"}. A command is {"arguments"}; the optional "kill": [rank, step] kills a rank.

    Returns:
        The outcomes of each rank, and the `FinishedCommand` of each command.
    """
    done = call_in_new_process(run_jobs_and_commands, jobs, commands, folder)
    paths = [folder / f"outcomes{rank}.json" for rank in range(NUM_RANKS)]
    assert (done.returncode, all(path.exists() for path in paths)) == (0, True), done.stderr
    finished = [FinishedCommand.read(folder / f"command{number}") for number in range(len(commands))]
    return [json.loads(path.read_text()) for path in paths], finished


@dataclass(frozen=True)
class FinishedCommand:
    """The status and the output of a command, and the seconds from the end of its first rank to its own."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    @classmethod
    def read(cls, folder):
        ended = json.loads((folder / "ended.json").read_text())
        return cls(stdout=(folder / "stdout").read_text(), stderr=(folder / "stderr").read_text(), **ended)


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


def send_signal_at(rank, step, number=signal.SIGTERM):
    """Send a signal to one rank at a step; return a function that undoes the change."""
    from bertkit.training.callbacks import ReporterCallback

    on_step_end = ReporterCallback.on_step_end

    def interrupt(self, args, state, control, **kwargs):
        on_step_end(self, args, state, control, **kwargs)
        if state.global_step == step and os.environ["RANK"] == str(rank):
            os.kill(os.getpid(), number)

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
        undo = send_signal_at(*job["stop"]) if "stop" in job else lambda: None
        outcomes.append(run_job(job))
        undo()
        gc.freeze()  # Trainer collects garbage in each run, which takes long with the libraries
    (folder / f"outcomes{rank}.json").write_text(json.dumps(outcomes))
    distributed.destroy_process_group()


class ForkedRank:
    """A rank that `--nproc` starts: a fork, because a new Python would import the libraries again."""

    first_end = None  # time when a rank was first found to have ended

    def __init__(self, command, env, **_):
        assert command[:3] == [sys.executable, "-m", "bertkit"]
        self.returncode = None
        self.pid = fork(lambda: run_command(command[3:], env))

    def poll(self):
        """Return the exit status, or None if the process has not ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                ForkedRank.first_end = ForkedRank.first_end or time.monotonic()
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


def run_redirected(command, folder):
    """Run a command with --nproc, and write its status and what it prints into files."""
    from bertkit.utils import system

    for descriptor, name in enumerate(("stdout", "stderr"), start=1):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), descriptor)
    if "kill" in command:
        send_signal_at(*command["kill"], signal.SIGKILL)
    system.subprocess.Popen = ForkedRank
    status = run_command(command["arguments"], {})
    ended = {"status": status, "seconds": time.monotonic() - ForkedRank.first_end}
    (folder / "ended.json").write_text(json.dumps(ended))


def run_jobs_and_commands(jobs, commands, folder):
    """Run all jobs and the commands, without the costly parts of runs."""
    import pytest
    from conftest import freeze_libraries, make_runs_cheap

    freeze_libraries()
    make_runs_cheap(pytest.MonkeyPatch())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [fork(lambda rank=rank: run_jobs(jobs, folder, rank, port)) for rank in range(NUM_RANKS)]
    assert [os.waitpid(pid, 0)[1] for pid in ranks] == [0] * NUM_RANKS
    for number, command in enumerate(commands):
        own = folder / f"command{number}"
        own.mkdir()
        os.waitpid(fork(lambda command=command, own=own: run_redirected(command, own)), 0)
