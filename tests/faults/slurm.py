"""Run `deploy/slurm.sbatch` on a Slurm cluster of this machine: interrupt the job, and compare the weights.

    PYTHONPATH=tests python -m faults.slurm

The cluster has two nodes, each a slurmd of this machine. This needs root and the Debian packages slurm-wlm
and munge. All files and processes of the cluster are temporary.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import make_toy_rows, save_tiny_model, write_rows
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "srun")
PORT = 27817  # and the next two
CONFIG = """
ClusterName=bertkit
SlurmctldHost={host}
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=bf_interval=2,sched_interval=2
KillWait=30
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=1
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=1
PartitionName=low Nodes=node1,node2 Default=YES MaxTime=UNLIMITED PriorityTier=1
PartitionName=high Nodes=node1,node2 MaxTime=UNLIMITED PriorityTier=10
"""
TRAIN = [
    "--max-steps", "400", "--save-steps", "20", "--lr", "1e-3", "--no-bf16", "--max-length", "32",
    "--batch-size", "4",
]  # fmt: skip


def run(*command: object, check: bool = True) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert not check or done.returncode == 0, f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}"
    return done.stdout.strip()


@contextmanager
def start_cluster(folder: Path) -> Iterator[None]:
    """Start munged, slurmctld and two slurmd."""
    host = socket.gethostname()
    for name in ("state", "spool-node1", "spool-node2"):
        (folder / name).mkdir()
    ports = {"port": PORT, "port1": PORT + 1, "port2": PORT + 2}
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, **ports))
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", "node1"],
        ["slurmd", "-D", "-N", "node2"],
    ]
    processes = []
    try:
        for command in commands:
            with (folder / "daemons.txt").open("a") as output:
                processes.append(subprocess.Popen(command, stdout=output, stderr=output))
            time.sleep(1)
        wait_for(lambda: run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False) == "2", 60, "idle nodes")
        yield
    finally:
        run("scancel", "--full", "--user=root", check=False)
        time.sleep(2)
        for process in reversed(processes):
            process.terminate()
            process.wait()


def wait_for(condition, seconds: float, what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {seconds:g} s"
        time.sleep(0.2)


def submit(name: str, *command: str) -> str:
    """Submit the template in the current folder, and return the number of the job."""
    return run("sbatch", "--parsable", ROOT / "deploy" / "slurm.sbatch", f"runs/{name}", *command)


def has_checkpoint(name: str, step: int) -> bool:
    folders = Path("runs", name, "checkpoints").glob("checkpoint-*")
    return any(int(path.name.rpartition("-")[2]) >= step for path in folders)


def wait_for_job(job: str) -> None:
    """Wait until a job has completed; a requeued one starts at once, and not after Slurm's two minutes."""

    def has_completed() -> bool:
        state = run("scontrol", "show", "job", job)
        if "Reason=BeginTime" in state:
            run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
        assert "JobState=FAILED" not in state, Path(f"slurm-{job}.out").read_text()[-3000:]
        return "JobState=COMPLETED" in state

    wait_for(has_completed, 240, f"end of job {job}")


def interrupt_by_scontrol_requeue(job: str) -> None:
    """Requeue a job, as an administrator does: SIGTERM to all its processes, then SIGKILL after KillWait."""
    run("scontrol", "requeue", job)


def interrupt_before_the_time_limit(job: str) -> None:
    """Send the signal of `--signal=B:USR1@300`."""
    run("scancel", "--batch", "--signal=USR1", job)


def interrupt_by_preemption(job: str) -> None:
    """Submit a job of a partition with a higher priority, which needs both nodes."""
    run("sbatch", "--partition=high", "--nodes=2", "--wait", "--output=/dev/null", "--wrap", "sleep 1")


def main() -> int:
    """Train once without and once with each interruption, and print a table; return 1 if weights differ."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        print(f"Slurm is not tested: {', '.join(missing)} not found (apt install slurm-wlm munge)")
        return 0
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    rows = []
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        os.environ["BERTKIT_CACHE_DIR"] = str(folder / "cache")
        os.chdir(folder)
        model = save_tiny_model(folder / "tiny")
        data = write_rows(folder / "rows.jsonl", make_toy_rows(60))
        command = ["classify", "--data", str(data), "--model", str(model), *TRAIN]
        with start_cluster(folder):
            wait_for_job(submit("whole", *command))
            expected = load_file("runs/whole/model.safetensors")
            for interrupt in (
                interrupt_before_the_time_limit,
                interrupt_by_scontrol_requeue,
                interrupt_by_preemption,
            ):
                label = interrupt.__name__.removeprefix("interrupt_").replace("_", " ")
                job = submit(interrupt.__name__, *command)
                wait_for(lambda: has_checkpoint(interrupt.__name__, 1), 120, "checkpoint")  # noqa: B023
                interrupt(job)
                wait_for_job(job)
                output = Path(f"slurm-{job}.out").read_text()
                weights = load_file(f"runs/{interrupt.__name__}/model.safetensors")
                is_same = all((weights[key] == expected[key]).all() for key in expected)
                rows.append((label, "interrupted at step" in output, is_same))
    print("| interruption | saved and resumed | weights |\n|---|---|---|")
    for label, was_saved, is_same in rows:
        print(f"| {label} | {'yes' if was_saved else 'NO'} | {'bit-identical' if is_same else 'DIFFERENT'} |")
    return 0 if all(was_saved and is_same for _, was_saved, is_same in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
