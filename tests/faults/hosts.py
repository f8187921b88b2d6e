"""Train on two hosts with torchrun, and take away a host, its cable, its data or the shared directory.

    PYTHONPATH=tests python -m faults.hosts

Each host is a network namespace of this machine with a name and mounts of its own, and one end of a virtual
cable. This needs root on Linux; elsewhere, nothing is tested.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from conftest import make_toy_rows, save_tiny_model, write_rows
from safetensors.torch import load_file

HOSTS = ("bertkit-a", "bertkit-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
MASTER_PORT = "29555"
TRAIN = [
    "--max-steps", "12", "--save-steps", "3", "--lr", "1e-3", "--no-bf16", "--max-length", "32",
    "--gradient-accumulation-steps", "2",
]  # fmt: skip
MAX_SECONDS = 180


def run_ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=not check)


@contextmanager
def make_hosts() -> Iterator[None]:
    """Create two network namespaces with a cable between them."""
    try:
        remove_hosts()
        for host in HOSTS:
            run_ip("netns", "add", host)
        run_ip("link", "add", "eth0", "netns", HOSTS[0], "type", "veth", "peer", "eth0", "netns", HOSTS[1])
        for host, address in zip(HOSTS, ADDRESSES, strict=True):
            run_ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run_ip("-n", host, "link", "set", device, "up")
        yield
    finally:
        remove_hosts()


def remove_hosts() -> None:
    for host in HOSTS:
        run_ip("netns", "delete", host, check=False)


def kill_host(host: str) -> None:
    """Kill all processes of a host."""
    pids = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True).stdout
    for pid in map(int, pids.split()):
        os.kill(pid, signal.SIGKILL)


class Cluster:
    """A run of torchrun with one process on each host; the arguments are those of bertkit or of torchrun."""

    def __init__(
        self, folder: Path, arguments: Sequence[str], mount: tuple[Path, Path] | None = None
    ) -> None:
        """Start the run. On the second host, the directory `mount[0]` is found at the path `mount[1]`."""
        self.outputs = [folder / f"{host}.txt" for host in HOSTS]
        self.processes = [
            self._start(number, arguments, mount if number else None) for number in range(len(HOSTS))
        ]

    def _start(
        self, number: int, arguments: Sequence[str], mount: tuple[Path, Path] | None
    ) -> subprocess.Popen:
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        if arguments[0] == "torchrun":
            torchrun += arguments[1:]
        else:
            torchrun += [
                "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number),
                "--master-addr", ADDRESSES[0], "--master-port", MASTER_PORT, "-m", "bertkit", *arguments,
            ]  # fmt: skip
        names = self.outputs[0].with_name("hosts")
        lines = [f"{address} {host}\n" for address, host in zip(ADDRESSES, HOSTS, strict=True)]
        names.write_text("".join(["127.0.0.1 localhost\n", *lines]))
        before = f"mount --bind '{names}' /etc/hosts && "
        if mount:
            before += f"mount --bind '{mount[0]}' '{mount[1]}' && "
        script = f'hostname {HOSTS[number]} && {before}exec "$@"'
        command = [
            "ip",
            "netns",
            "exec",
            HOSTS[number],
            "unshare",
            "--mount",
            "--uts",
            "sh",
            "-c",
            script,
            "sh",
        ]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        with self.outputs[number].open("w") as output:
            return subprocess.Popen(
                [*command, *torchrun], env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def wait_for_checkpoint(self, run: Path) -> None:
        while not list(run.glob("checkpoints/checkpoint-*")):
            assert all(process.poll() is None for process in self.processes), "ended before a checkpoint"
            time.sleep(0.02)

    def wait(self) -> tuple[list[int | None], list[str], float]:
        """Wait until the processes of all hosts have ended.

        Returns:
            The exit status of torchrun on each host, None if it had to be killed; the errors of bertkit; and
            the seconds of the wait.
        """
        started = time.monotonic()
        while time.monotonic() < started + MAX_SECONDS and any(
            each.poll() is None for each in self.processes
        ):
            time.sleep(0.05)
        seconds, statuses = time.monotonic() - started, [process.poll() for process in self.processes]
        for host in HOSTS:
            kill_host(host)
        for process in self.processes:
            process.wait()
        lines = [line for path in self.outputs for line in path.read_text().splitlines()]
        return statuses, [line for line in lines if line.startswith("bertkit: ")], seconds


def measure_difference(first: Path, second: Path) -> float:
    """Return the largest difference between the weights of two runs."""
    one, two = (load_file(run / "model.safetensors") for run in (first, second))
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def check_errors(result: tuple[list[int | None], list[str], float], *expected: str) -> str:
    """Check that all hosts have ended, with one error that contains the expected parts; describe the end."""
    statuses, errors, seconds = result
    assert None not in statuses, f"not all hosts ended in {seconds:.0f} s: {statuses}"
    assert len(errors) == 1, errors
    assert all(part in errors[0] for part in expected), errors[0]
    return f"all ended after {seconds:.0f} s with one line: `{errors[0].removeprefix('bertkit: ')}`"


def run_cases(folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name of each case, and a function that returns its outcome or raises an `AssertionError`."""
    model = save_tiny_model(folder / "tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    data, other, empty, runs = (folder / name for name in ("data", "other", "empty", "runs"))
    for directory in (data, other, empty, runs):
        directory.mkdir()
    write_rows(data / "rows.jsonl", make_toy_rows(60))
    write_rows(other / "rows.jsonl", make_toy_rows(60, seed=1))
    train = ["classify", "--data", str(data / "rows.jsonl"), "--model", str(model), *TRAIN]
    on_each = ["--batch-size", "4"]

    def start(name: str, *options: str, mount: tuple[Path, Path] | None = None) -> Cluster:
        return Cluster(folder, [*train, *on_each, "-o", str(runs / name), *options], mount)

    def train_on_two_hosts() -> str:
        command = [sys.executable, "-m", "bertkit", *train, "--batch-size", "8", "-o", str(runs / "one")]
        subprocess.run(command, check=True, capture_output=True)
        statuses, errors, _ = start("two").wait()
        assert (statuses, errors) == ([0, 0], []), errors
        return describe_difference("two")

    def describe_difference(name: str) -> str:
        difference = measure_difference(runs / "one", runs / name)
        assert difference < 1e-5, difference
        return f"weights differ by {difference:.0e} from those of one process"

    def kill_and_resume() -> str:
        cluster = start("killed")
        cluster.wait_for_checkpoint(runs / "killed")
        kill_host(HOSTS[1])
        outcome = check_errors(cluster.wait(), "another process of this run has ended; use --resume")
        shutil.copytree(runs / "killed", runs / "killed, then one")
        statuses, errors, _ = Cluster(folder, ["classify", "--resume", "-o", str(runs / "killed")]).wait()
        assert (statuses, errors) == ([0, 0], []), errors
        resumed = [
            sys.executable,
            "-m",
            "bertkit",
            "classify",
            "--resume",
            "-o",
            str(runs / "killed, then one"),
        ]
        subprocess.run(resumed, check=True, capture_output=True)
        parts = [describe_difference(name) for name in ("killed", "killed, then one")]
        return f"{outcome}; resumed on two hosts, {parts[0]}; resumed on one, {parts[1]}"

    def stop_and_resume_as_printed() -> str:
        cluster = start("stopped", "--max-steps", "400", "--save-steps", "100")
        cluster.wait_for_checkpoint(runs / "stopped")
        cluster.processes[1].terminate()
        outcome = check_errors(cluster.wait(), "resume on each machine with: torchrun")
        command = shlex.split(outcome.rpartition("with: ")[2].rstrip("`"))
        statuses, errors, _ = Cluster(folder, command).wait()
        assert (statuses, errors) == ([0, 0], []), errors
        return f"{outcome}, which finishes the run"

    def pull_the_cable() -> str:
        cluster = start("cable", "--max-steps", "100000")
        cluster.wait_for_checkpoint(runs / "cable")
        run_ip("-n", HOSTS[1], "link", "set", "eth0", "down")
        statuses, errors, seconds = cluster.wait()
        assert None not in statuses, f"not all hosts ended in {seconds:.0f} s: {statuses}"
        assert len(errors) == 2, errors  # each host reports that it does not reach the other one
        assert all("is not reachable any more" in error for error in errors), errors
        return f"all ended after {seconds:.0f} s, each with one line: `{errors[0].removeprefix('bertkit: ')}`"

    def hide_the_data() -> str:
        return check_errors(start("a", mount=(empty, data)).wait(), "no such file", HOSTS[1])

    def change_the_data() -> str:
        return check_errors(start("b", mount=(other, data)).wait(), "rows of train", HOSTS[1], HOSTS[0])

    def hide_the_run_directory() -> str:
        outcome = check_errors(start("c", mount=(empty, runs)).wait(), "file system that all hosts share")
        assert not (runs / "c").exists()
        return outcome

    def hide_the_run_to_resume() -> str:
        resume = ["classify", "--resume", "-o", str(runs / "killed")]
        return check_errors(Cluster(folder, resume, (empty, runs)).wait(), "does not contain a run", HOSTS[1])

    yield "training on two hosts", train_on_two_hosts
    yield "`kill -9` of all processes of a host", kill_and_resume
    yield "SIGTERM to torchrun on a host", stop_and_resume_as_printed
    yield "the data is missing on a host", hide_the_data
    yield "a host has other data", change_the_data
    yield "the run directory is not shared", hide_the_run_directory
    yield "the run to resume is missing on a host", hide_the_run_to_resume
    yield "a host is not reachable any more", pull_the_cable


def main(kinds: Sequence[str]) -> int:
    """Test each case whose name contains one of the texts, and print a table; return 1 if one fails."""
    if not sys.platform.startswith("linux") or os.geteuid() or not shutil.which("ip"):
        print("several hosts are not tested: network namespaces need root on Linux, and iproute2")
        return 0
    os.environ |= {"HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="hosts-") as name, make_hosts():
        os.environ["BERTKIT_CACHE_DIR"] = str(Path(name) / "cache")
        print("| case | outcome |\n|---|---|", flush=True)
        for label, run_case in run_cases(Path(name)):
            if kinds and not any(kind in label for kind in kinds):
                continue
            try:
                outcome = run_case()
            except AssertionError as error:
                outcome, failed = f"WRONG: {error}", failed + 1
            print(f"| {label} | {outcome.replace(name, '')} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
