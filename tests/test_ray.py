"""`--ray`: a cluster whose nodes die, or whose driver is stopped, leaves the table of one process."""

import itertools
import json
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from conftest import assert_refused, freeze_libraries, make_toy_rows, save_tiny_model, write_rows
from test_jobs import drop_durations, find_checkpoints, read_weights

import bertkit
from bertkit._version import __version__
from bertkit.experiments.config import SUITES, find_config
from bertkit.settings.declaration import RAY_SETTINGS, get_settings
from bertkit.utils import compat, ray_cluster
from bertkit.utils.reporting import report_warning

pytestmark = pytest.mark.cpu  # the nodes of the cluster have no GPUs
# No processes that show the state of the cluster, and none before a task needs them.
HEAD = {
    "num_cpus": 0, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True,
    "_system_config": {"prestart_worker_first_driver": False, "enable_worker_prestart": False},
}  # fmt: skip
CONFIG = SimpleNamespace(ray="auto", num_cpus=1, num_gpus=0, device="cpu")  # of a connection
FLAGS = ["--folds", 2, "--seeds", 2, "--batch-size", 16, "--max-length", 32, "--no-bf16", "--epochs", 30]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The arguments of a study of four runs, and its folder, trained one after the other with one thread."""
    freeze_libraries()
    folder = tmp_path_factory.mktemp("ray")
    small = save_tiny_model(folder / "small", num_hidden_layers=1)
    data = write_rows(folder / "toy.jsonl", make_toy_rows(40))
    args = ["study", "classify", "--data", data, "--model", small, *FLAGS]
    return args, folder / "whole"


@pytest.fixture(scope="module")
def cluster():
    """A cluster on this machine: a node without CPUs, and functions that add and remove other nodes."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # the code of this process, also if another one is installed
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        cluster = Cluster(initialize_head=True, head_node_args=HEAD)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture
def set_nodes(cluster):
    """Return a function that gives the cluster this number of nodes with one CPU, and returns them.

    The nodes that are alive are used: to start one takes long.
    """

    def set_count(count):
        nodes = sorted(cluster.worker_nodes, key=lambda node: node.unique_id)
        for node in nodes[count:]:
            cluster.remove_node(node, allow_graceful=False)
        return [*nodes[:count], *(cluster.add_node(num_cpus=1) for _ in range(count - len(nodes)))]

    return set_count


def act_when_training(study, action):
    """Call a function in a thread as soon as a run has a new checkpoint; return the thread."""
    before, deadline = find_checkpoints(study), time.monotonic() + 600

    def wait_and_act():
        while not find_checkpoints(study) - before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_stopped_driver_and_a_node_that_dies_leave_the_table_of_one_process(
    study, cluster, set_nodes, cli, tmp_path
):
    """Also the predictions of the node that is left, which are those of one process.

    The first study connects itself; the resumed one and the prediction use the connection of the caller.
    """
    args, whole = study
    status, out, err = cli(*args, "-o", whole, "--json")
    assert status == 0, err
    expected = drop_durations(json.loads(out) | {"output_dir": ""})
    set_nodes(1)
    folder = tmp_path / "study"
    thread = act_when_training(folder, lambda: os.kill(os.getpid(), signal.SIGTERM))
    status, _, err = cli(*args, "--ray", "auto", "-o", folder)
    assert status == 130, err
    assert f"resume with: bertkit study classify --resume --output-dir {folder} --ray auto" in err
    thread.join()
    nodes = set_nodes(2)
    thread = act_when_training(folder, lambda: cluster.remove_node(nodes[0], allow_graceful=False))
    predict = ["predict", folder / "folds" / "fold0-seed0", "--data", args[3]]
    with ray_cluster.connect(CONFIG):
        status, out, err = cli("study", "classify", "--resume", "--ray", "auto", "-o", folder, "--json")
        assert status == 0, err
        thread.join()
        predicted = cli(*predict, "--ray", "auto")[:2]
    assert drop_durations(json.loads(out) | {"output_dir": ""}) == expected
    assert read_weights(folder) == read_weights(whole)
    assert predicted == cli(*predict)[:2]


@pytest.mark.parametrize("command", [*SUITES, "study classify", "ladder classify"])
def test_every_experiment_has_the_settings_of_ray_which_are_not_saved(command):
    declared = get_settings(find_config(command))
    assert [(declared[name].default, declared[name].metadata.is_saved) for name in RAY_SETTINGS] == [
        (None, False)
    ] * 3


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--ray", "local", "--jobs", 2], ["--jobs 2", "--ray"]),
     (["--num-cpus", 2], ["--num-cpus", "applies only to --ray"]),
     (["--ray", "127.0.0.1:9"], ["--ray 127.0.0.1:9: no cluster answers"]),
     (["--ray", "head"], ["--ray head: is no address; pass auto, local or HOST:PORT"])],
)  # fmt: skip
def test_wrong_flags_are_refused_before_the_data_is_read(cli, tiny, tmp_path, damaged, flags, words):
    args = ["classify", "--data", damaged, "--model", tiny, "--folds", 2, "-o", tmp_path / "study"]
    assert_refused(cli, tmp_path, [*args, *flags], words, "study")


def test_a_missing_extra_is_named(cli, toy, tmp_path, monkeypatch):
    monkeypatch.setattr(compat, "is_installed", lambda package: package != "ray")
    args = ["classify", "--data", toy, "--folds", 2, "--ray", "auto", "-o", tmp_path / "study"]
    assert_refused(cli, tmp_path, args, ["pip install 'bertkit[ray]'"], "study")


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (("0.0.1", None), "has bertkit 0.0.1"),
        ((__version__, "/data/rows.csv"), "does not see /data/rows.csv"),
    ],
)
def test_a_node_that_cannot_work_is_named(monkeypatch, check, words):
    nodes = [{"Alive": True, "NodeID": "a" * 56, "NodeManagerAddress": "10.0.0.3", "Resources": {"CPU": 4.0}}]
    task = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: "reference"))
    fake = SimpleNamespace(nodes=lambda: nodes, remote=lambda **_: lambda _: task, get=lambda _: check)
    monkeypatch.setattr(ray_cluster, "ray", fake)
    with pytest.raises(bertkit.UserError, match=f"node 10.0.0.3 {words}"):
        ray_cluster.Cluster("auto", 1, 0).check_nodes([])
    with pytest.raises(bertkit.UserError, match="no node has the 8 CPUs of --num-cpus"):
        ray_cluster.Cluster("auto", 8, 0).check_nodes([])
    assert [ray_cluster.Cluster("auto", cpus, 0).count_slots() for cpus in (1, 3)] == [4, 1]
    nodes[0]["Resources"]["GPU"] = 1.0
    assert ray_cluster.Cluster("auto", 1, 0.25).count_slots() == 4
    assert ray_cluster.Cluster("auto", 1, 1).count_slots() == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [("WorkerCrashedError", r"--ray: its process or node died 4 times \(.*\), and out was not"),
     ("ObjectLostError", "--ray: Failed to retrieve.*, and out was not written; retry")],
)  # fmt: skip
def test_only_errors_of_dead_processes_are_reported_as_deaths(monkeypatch, error, words):
    from ray import exceptions

    made = exceptions.ObjectLostError("a" * 56, None, "") if "Lost" in error else getattr(exceptions, error)()

    def fail(_):
        raise made

    monkeypatch.setattr(ray_cluster.ray, "get", fail)
    with pytest.raises(bertkit.UserError, match=words) as caught:
        ray_cluster.get_result("reference", "--ray", "out was not written", "retry")
    assert ("died" in str(caught.value)) == (error == "WorkerCrashedError")


def test_a_connection_that_fails_leaves_the_signal_handlers(monkeypatch):
    def connect(**_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise ConnectionError("no such cluster")

    monkeypatch.setattr(ray_cluster.ray, "init", connect)
    before = signal.getsignal(signal.SIGTERM)
    try:
        config = SimpleNamespace(ray="auto", num_cpus=1, num_gpus=0, device="cpu")
        with pytest.raises(bertkit.UserError, match="no such cluster"), ray_cluster.connect(config):
            pass
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_gpu_of_this_machine_cannot_be_passed_to_a_cluster():
    with pytest.raises(bertkit.UserError, match=r"--device cuda:1: .*; pass cuda"):
        ray_cluster.check_address(SimpleNamespace(ray="auto", device="cuda:1"))


def test_a_node_may_see_the_settings_of_the_run_later(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "study" / "run.yaml"
    file.parent.mkdir()
    monkeypatch.setattr(ray_cluster.time, "sleep", lambda _: file.write_bytes(b"new"))
    assert ray_cluster._check_node(str(tmp_path), [], str(file), b"new") == (__version__, None)
    monkeypatch.setattr(ray_cluster, "MAX_DELAY_SECONDS", -1.0)
    assert ray_cluster._check_node(str(tmp_path), [], str(file), b"other") == (__version__, str(file.parent))


def test_the_messages_of_a_run_arrive_before_its_outcome(tmp_path, monkeypatch):
    from bertkit.experiments import ray_executor

    sent, arrived = [], []
    mailbox = SimpleNamespace(
        add=SimpleNamespace(remote=sent.append), wait=SimpleNamespace(remote=lambda: arrived.extend(sent))
    )
    experiment = SimpleNamespace(train=lambda _: report_warning("the last message"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_executor, "restore_experiment", lambda *_: experiment)
    monkeypatch.setattr(ray_executor.ray, "get", lambda _: None)
    monkeypatch.setattr(ray_executor.signal, "signal", lambda *_: None)
    inputs = ray_executor.SharedInputs("key", "study classify", None, b"", str(tmp_path), 1, mailbox)
    ray_executor._train(inputs, SimpleNamespace(title="fold0", folder=tmp_path))
    assert arrived == [("fold0", "the last message", True)]


@pytest.mark.slow
def test_calls_of_processes_and_nodes_that_die_are_made_again(cluster, set_nodes, tmp_path):
    """Each process loads what it needs once; the nodes that are left have no room for another one."""
    nodes = set_nodes(2)

    def compute(shared, item):  # pickled by value
        import os
        from pathlib import Path

        if item == "die" and not Path(shared, "died").exists():
            Path(shared, "died").touch()
            os.kill(os.getpid(), 9)
        if item == "wait":
            Path(shared, "waits").touch()
            while not Path(shared, "go").exists():
                time.sleep(0.05)
        return item, os.getpid()

    def iter_items():
        yield from range(6)
        yield "die"
        yield from range(6)
        yield "wait"
        yield from range(20)

    def remove_node():
        while not (tmp_path / "waits").exists():
            time.sleep(0.05)
        cluster.remove_node(nodes[0], allow_graceful=False)
        (tmp_path / "go").touch()

    threading.Thread(target=remove_node, daemon=True).start()
    with ray_cluster.connect(CONFIG) as connected:
        results = list(connected.map_in_order(compute, str(tmp_path), iter_items(), "lost", "retry"))
    assert [item for item, _ in results] == list(iter_items())
    assert len({process for _, process in results}) <= 4  # two, one after a death, and one more


@pytest.mark.slow
def test_a_node_that_cannot_start_processes_is_not_tried_until_the_last_row(
    cluster, set_nodes, tmp_path, monkeypatch
):
    set_nodes(2)

    class Caller(ray_cluster._Caller):  # pickled by value
        def __init__(self):
            import os
            from pathlib import Path

            Path(folder, str(os.getpid())).touch()
            try:
                Path(folder, "started").touch(exist_ok=False)
            except FileExistsError:
                os._exit(1)

    def compute(num_files, item):
        from pathlib import Path

        deadline = time.monotonic() + 300
        while item == 0 and len(list(Path(folder).iterdir())) < num_files and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.1)
        return item

    folder, num_files = str(tmp_path), 1 + 1 + ray_cluster.MAX_RETRIES + 1
    monkeypatch.setattr(ray_cluster, "_Caller", Caller)
    warnings = []
    monkeypatch.setattr(ray_cluster, "report_warning", warnings.append)
    with ray_cluster.connect(CONFIG) as connected:
        deadline = time.monotonic() + 300
        while connected.count_slots() != 2:  # nodes of an earlier test have not been declared dead
            assert time.monotonic() < deadline
            time.sleep(0.05)
        results = list(connected.map_in_order(compute, num_files, iter(range(60)), "lost", "retry"))
    assert results == list(range(60))
    assert len(list(tmp_path.iterdir())) == num_files
    assert warnings == ["--ray: 4 processes could not be started; the others continue without them"]


@pytest.mark.slow
def test_processes_whose_results_are_no_longer_read_are_ended(cluster, set_nodes):
    import ray

    set_nodes(1)

    def fail(shared, item):
        if item == 2:
            raise bertkit.UserError("item 2: is wrong; remove it")
        return item

    with ray_cluster.connect(CONFIG) as connected:
        results = connected.map_in_order(fail, None, itertools.count(), "lost", "retry")
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(bertkit.UserError, match="item 2: is wrong; remove it"):
            next(results)
        deadline = time.monotonic() + 300
        while ray.available_resources().get("CPU") != 1:  # of the process that was ended
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.slow
def test_messages_of_ray_go_to_standard_error(monkeypatch, capsys):
    from ray._private import worker

    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)  # restored afterwards
    ray_cluster._print_to_stderr()
    line = {"lines": ["a node is dead"], "pid": "raylet", "ip": "127.0.0.1", "is_err": False, "job": None}
    worker.print_to_stdstream(line, ignore_prefix=False)
    printed = capsys.readouterr()
    assert (printed.out, "a node is dead" in printed.err) == ("", True)
