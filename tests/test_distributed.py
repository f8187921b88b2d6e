"""Test training in several processes: same result as one process; signals, errors and killed ranks."""

import errno
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROW_MAKERS, make_document_rows, read_predictions, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_equivalence import SGD, of_lengths
from transformers import TrainerCallback
from two_ranks import run_on_two_ranks

import bertkit
from bertkit.cli import launch
from bertkit.data.table import Rows
from bertkit.errors import RunInterrupted, UserError
from bertkit.methods import choose_methods
from bertkit.run import resolve_settings
from bertkit.run.session import check_sharding
from bertkit.tasks.text.config import ClassifyConfig
from bertkit.tasks.trained_model import TrainedLinearText
from bertkit.training.callbacks import StopRequest
from bertkit.training.samplers import LengthGroupedBatchSampler
from bertkit.utils import distributed, system
from bertkit.utils.worker_processes import check_process_count

pytestmark = pytest.mark.cpu  # a GPU cannot train two ranks

STEPS, LONG_STEPS = 6, 9  # an epoch has 5
LOGS = {"set": ["logging_steps=4"]}  # the checkpoint of step 3 contains losses that are not logged
ADAMW = SGD | {"optim": "adamw_torch", "learning_rate": 1e-4}
CASES = {
    "weights": ("classify", {"class_weights": "balanced", "label_smoothing": 0.1, "freeze": 1}),
    "lora": ("classify", {"lora": 2, "learning_rate": 1.0}),
    "windows": ("classify", {"long_texts": "windows", "max_length": 10, "gradient_checkpointing": True}),
    "adamw": ("classify", ADAMW),
    "ner": ("ner", {"max_length": 12}),
    "frozen": ("ner", {"head": "bilstm", "features": "sum-all"}),
    "qa": ("qa", {"max_length": 16}),
    "swag": ("swag", {}),
    "pretrain": ("pretrain_mlm_nsp", {"max_length": 32}),
    "qa by budget": ("qa", {"tokens_per_batch": 64, "max_length": 16}),
    "pretrain rtd": (
        "pretrain_mlm_nsp",
        {"objective": "rtd", "model": None, "max_length": 32, "hidden_size": 16, "num_heads": 2,
         "vocab_size": 60, "dropout": 0.0, "embedding_init": "ppmi"},
    ),
    "phases by budget": ("pretrain_mlm_nsp", {"phases": "16:0.5,32:0.5", "tokens_per_batch": 96}),
}  # fmt: skip


def make_job(case, folder, model, name, **extra):
    task, case_settings = CASES[case]
    data = folder / f"{task}.jsonl"
    if not data.exists():
        write_rows(data, make_document_rows(40) if task.startswith("pretrain") else ROW_MAKERS[task](37))
    shared_settings = {"data": str(data), "model": str(model), "max_steps": STEPS, "set": ["logging_steps=1"]}
    return {
        "task": task,
        "settings": SGD | shared_settings | case_settings | extra | {"output_dir": str(folder / name)},
    }


def batch_settings(case, ranks):
    """Return the settings for the same effective batches in one process or in two."""
    if "tokens_per_batch" in CASES[case][1]:
        return {"gradient_accumulation_steps": 4 // ranks}
    return {"batch_size": 8} if ranks == 1 else {"batch_size": 2, "gradient_accumulation_steps": 2}


def evaluation_settings(folder, ranks):
    return {
        "run": str(folder / "weights-2"), "data": str(folder / "classify.jsonl"), "batch_size": 2,
        "compare": str(folder / "adamw-2"), "output_dir": str(folder / f"evaluation-{ranks}"),
    }  # fmt: skip


def embed_settings(folder, ranks):
    return {
        "model": str(folder / "weights-2"), "data": str(folder / "classify.jsonl"), "batch_size": 2,
        "query": ["good"], "output": str(folder / f"vectors-{ranks}.npy"),
    }  # fmt: skip


def make_command(folder, model, name):
    """Return the arguments that train the run "uninterrupted" with `--nproc 2`."""
    settings = make_job("weights", folder, model, name)["settings"]
    arguments = [
        "classify", "--data", settings["data"], "--model", model, "--class-weights", "balanced",
        "--label-smoothing", 0.1, "--freeze", 1, "--batch-size", 4, "--max-steps", LONG_STEPS, "--lr", 1e-3,
        "--optim", "adamw_torch", "--warmup", 0, "--weight-decay", 0, "--no-bf16", "--save-steps", 3,
        "--set", "logging_steps=1", "--nproc", 2, "-o", settings["output_dir"],
    ]  # fmt: skip
    return [str(argument) for argument in arguments]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, tiny_without_dropout, tiny):
    """Run all jobs on two ranks; then train until one rank is killed, and resume the run.

    Return the folder, for each rank job -> outcome, and the two commands.
    """
    folder = tmp_path_factory.mktemp("ranks")
    jobs = {
        case: make_job(case, folder, tiny_without_dropout, f"{case}-2", **batch_settings(case, 2))
        for case in CASES
    }
    with_dropout = {"max_steps": LONG_STEPS, "optim": "adamw_torch", "learning_rate": 1e-3}
    uninterrupted = make_job("weights", folder, tiny, "uninterrupted", batch_size=4, **with_dropout)
    jobs["uninterrupted"] = uninterrupted
    jobs["interrupted"] = uninterrupted | {
        "settings": uninterrupted["settings"] | {"output_dir": str(folder / "interrupted")},
        "stop": [1, 6],
    }
    jobs["resumed"] = {
        "task": "classify",
        "settings": {"resume": True, "output_dir": str(folder / "interrupted")},
    }
    jobs["dry run"] = uninterrupted | {
        "settings": uninterrupted["settings"] | {"output_dir": None, "dry_run": True}
    }
    jobs["evaluate"] = {"task": "evaluate", "settings": evaluation_settings(folder, 2)}
    jobs["embed"] = {"task": "embed", "settings": embed_settings(folder, 2)}
    two_then_one, one_then_two = (
        make_job("adamw", folder, tiny_without_dropout, name, **batch_settings("adamw", ranks), **LOGS)
        for name, ranks in (("two, then one", 2), ("one, then two", 1))
    )
    with pytest.raises(RunInterrupted):
        bertkit.classify(**one_then_two["settings"], callbacks=[StopAtStep3])
    one_then_two["settings"] = {"resume": True, "output_dir": one_then_two["settings"]["output_dir"]}
    jobs |= {"two, then one": two_then_one | {"stop": [1, 2]}, "one, then two": one_then_two}
    jobs["disagree"] = {"task": "disagree"}
    jobs["fsdp"] = uninterrupted | {
        "settings": uninterrupted["settings"]
        | {"set": ["fsdp=full_shard"], "output_dir": str(folder / "fsdp")}
    }
    killed = {"arguments": make_command(folder, tiny, "killed"), "kill": [1, 4]}
    resume = {"arguments": ["classify", "--resume", "-o", str(folder / "killed"), "--nproc", "2", "--json"]}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("BERTKIT_CACHE_DIR", str(folder / "cache"))
        outcomes, commands = run_on_two_ranks(list(jobs.values()), [killed, resume], folder)
    return folder, [dict(zip(jobs, rank_outcomes, strict=True)) for rank_outcomes in outcomes], commands


@pytest.fixture(scope="module")
def results(outcomes):
    """The folder of all runs, and for each rank job -> outcome."""
    return outcomes[:2]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_as_one_process(results, tiny_without_dropout, case):
    folder, (metrics, metrics_of_rank_1) = results
    job = make_job(case, folder, tiny_without_dropout, f"{case}-1", **batch_settings(case, 1))
    single = getattr(bertkit, job["task"])(**job["settings"])
    assert metrics[case] == metrics_of_rank_1[case]
    assert metrics[case]["training"]["processes"] == 2
    assert "processes" not in single.metrics["training"]
    rows = single.metrics["data"]["train"]
    # In the last step one rank has an example and the other has none.
    assert job["task"].startswith("pretrain") or rows % 8 == 1
    single_weights, weights = (load_file(folder / f"{case}-{n}" / "model.safetensors") for n in (1, 2))
    assert max(float((weights[name] - single_weights[name]).abs().max()) for name in weights) < 1e-5
    logs = [read_predictions(folder / f"{case}-{n}", "training_log.jsonl") for n in (1, 2)]
    assert len(logs[0]) == STEPS
    for line, other in zip(*logs, strict=True):
        assert other | {"epoch": 0} == pytest.approx(line | {"epoch": 0}, rel=1e-4, abs=1e-5)
    assert metrics[case]["data"] == single.metrics["data"]
    assert metrics[case]["validation"] == pytest.approx(single.metrics["validation"], rel=1e-6, abs=1e-5)
    if not case.startswith("p"):  # pre-training makes no predictions
        predictions = [read_predictions(folder / f"{case}-{n}") for n in (1, 2)]
        for name in ("predicted", "answer"):
            assert [row.get(name) for row in predictions[0]] == [row.get(name) for row in predictions[1]]


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_both_and_resume_is_bit_identical(results):
    folder, outcomes = results
    for rank_outcomes in outcomes:
        assert rank_outcomes["interrupted"]["error"] == "RunInterrupted"
        assert rank_outcomes["interrupted"]["message"].startswith(
            f"interrupted at step 7 of {LONG_STEPS}; resume with: bertkit classify --resume"
        )
        assert rank_outcomes["interrupted"]["message"].endswith("--nproc 2")
    assert sorted(rank_outcomes["interrupted"]["should_report"] for rank_outcomes in outcomes) == [
        False,
        True,
    ]  # reported once
    for name in ("model.safetensors", "predictions.jsonl", "training_log.jsonl"):
        assert (folder / "interrupted" / name).read_bytes() == (folder / "uninterrupted" / name).read_bytes()
    checkpoint = folder / "uninterrupted" / "checkpoints" / f"checkpoint-{LONG_STEPS}"
    states = [(checkpoint / f"rng_state_{n}.pth").read_bytes() for n in (0, 1)]
    assert states[0] != states[1]  # dropout differs between ranks


class StopAtStep3(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_resuming_with_another_number_of_processes_trains_the_same_steps(results, tiny_without_dropout):
    folder, (metrics, _) = results
    whole = make_job("adamw", folder, tiny_without_dropout, "whole", **batch_settings("adamw", 1), **LOGS)
    bertkit.classify(**whole["settings"])
    one = bertkit.classify(resume=True, output_dir=str(folder / "two, then one")).metrics["training"]
    assert (one["batch_size"], one["gradient_accumulation_steps"], one["resumed_from"]) == (2, 4, 3)
    two = metrics["one, then two"]["training"]
    assert (two["batch_size"], two["gradient_accumulation_steps"], two["processes"]) == (4, 1, 2)
    expected = load_file(folder / "whole" / "model.safetensors")
    for name in ("two, then one", "one, then two"):
        weights = load_file(folder / name / "model.safetensors")
        assert max(float((weights[key] - expected[key]).abs().max()) for key in expected) < 1e-5
        logs = [read_predictions(folder / run, "training_log.jsonl") for run in (name, "whole")]
        for line, other in zip(*logs, strict=True):
            assert line | {"epoch": 0} == pytest.approx(other | {"epoch": 0}, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("started_with", "processes", "batch", "expected"), [
    (2, 1, (8, 1), (8, 2)),
    (1, 2, (8, 1), (4, 1)),
    (3, 2, (8, 1), (6, 2)),
    (2, 4, (3, 2), (3, 1)),
    (2, 3, (None, 3), (None, 2)),
    (2, 1, (None, 1), (None, 2)),
])  # fmt: skip
def test_the_effective_batch_size_is_kept(started_with, processes, batch, expected, monkeypatch):
    monkeypatch.setattr(resolve_settings.system, "get_launched_world_size", lambda: processes)
    names = ("batch_size", "gradient_accumulation_steps")
    budget = 64 if batch[0] is None else None
    saved = ClassifyConfig(tokens_per_batch=budget, **dict(zip(names, batch, strict=True)))
    resumed = resolve_settings._keep_effective_batch(saved, started_with, Path("run"))
    assert tuple(getattr(resumed, name) for name in names) == expected


def test_a_batch_that_the_processes_cannot_share_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(resolve_settings.system, "get_launched_world_size", lambda: 5)
    with pytest.raises(UserError) as raised:
        resolve_settings._keep_effective_batch(ClassifyConfig(batch_size=4), 3, Path("run"))
    assert str(raised.value) == (
        "--resume run: an optimizer step of this run has 12 examples (batch size 4 x 1 accumulation step x 3 "
        "processes), which 5 processes cannot share equally; resume with 4 or 6 (--nproc)"
    )


@pytest.mark.slow
def test_two_ranks_evaluate_and_embed_as_one_process(results):
    folder, (outcomes, outcomes_of_rank_1) = results
    metrics = bertkit.evaluate(**evaluation_settings(folder, 1)).metrics
    assert outcomes["evaluate"] == outcomes_of_rank_1["evaluate"] == metrics
    bertkit.embed(**embed_settings(folder, 1))
    for name in ("evaluation-{}/predictions.jsonl", "evaluation-{}/metrics.json", "vectors-{}.npy"):
        one, two = (folder / name.format(ranks) for ranks in (1, 2))
        assert one.read_bytes() == two.read_bytes()


def test_two_ranks_divide_the_rows_of_a_linear_model(monkeypatch):
    texts = [f"text {number}" for number in range(50)]
    model = SimpleNamespace(compute_logits=lambda columns: np.array([[int(text[5:])] for text in columns[0]]))
    task = SimpleNamespace(input_schema=SimpleNamespace(text_columns=["text"]), encode_rows=len)
    monkeypatch.setattr("bertkit.models.linear_text.PREDICTED_ROWS", 8)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 3)
    parts = []
    monkeypatch.setattr(distributed, "gather_object", lambda own: parts.append(own) or [own])
    for rank in range(3):
        monkeypatch.setattr(distributed, "get_rank", lambda rank=rank: rank)
        TrainedLinearText(task, model, None).compute_outputs(Rows.from_columns({"text": texts}, "f"))
    assert np.concatenate(parts)[:, 0].tolist() == list(range(50))
    assert all(0 < len(part) < 50 for part in parts)


@pytest.mark.slow
def test_an_error_of_one_rank_is_raised_on_all_and_printed_once(results):
    _, outcomes = results
    assert [rank_outcomes["disagree"]["message"] for rank_outcomes in outcomes] == ["only rank 1 knows"] * 2
    assert sorted(rank_outcomes["disagree"]["should_report"] for rank_outcomes in outcomes) == [False, True]


@pytest.mark.slow
def test_fsdp_is_refused_on_a_cpu(results):
    folder, outcomes = results
    for rank_outcomes in outcomes:
        assert rank_outcomes["fsdp"]["message"].startswith(
            "--set fsdp: FSDP shards weights over accelerators"
        )
    assert not (folder / "fsdp").exists()


@pytest.mark.slow
def test_a_dry_run_on_two_ranks_counts_effective_batches(results):
    _, (metrics, _) = results
    assert metrics["dry run"]["steps"] == LONG_STEPS
    assert metrics["dry run"]["longest_batch"][0] == 4


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=90),
    st.integers(1, 5), st.integers(1, 3), st.integers(1, 4),
)  # fmt: skip
def test_the_ranks_together_process_the_batches_of_one_process(lengths, size, accumulation, ranks):
    features = of_lengths(np.array(lengths))
    num_accumulated, epoch = accumulation * ranks, 3
    single = LengthGroupedBatchSampler(features, size, num_accumulated)
    samplers = [LengthGroupedBatchSampler(features, size, num_accumulated) for _ in range(ranks)]
    for rank, sampler in enumerate(samplers):
        sampler.rank, sampler.world_size = rank, ranks
    for sampler in (single, *samplers):
        sampler.set_epoch(epoch)
    steps = [sorted(step.tolist()) for step in single.plan_effective_batches()]
    batches = [list(sampler) for sampler in samplers]
    assert {len(part) for part in batches} == {len(samplers[0])}  # or one would wait forever
    for number, step in enumerate(steps):
        micro_steps = slice(number * accumulation, (number + 1) * accumulation)
        assert sorted(key for part in batches for batch in part[micro_steps] for key in batch) == step
    assert max(len(batch) for part in batches for batch in part) <= size


@pytest.mark.parametrize("name", ["ddp", "fsdp", "deepspeed-zero2", "deepspeed-zero3"])
def test_profiles_can_be_copied_and_are_loaded_by_accelerate(cli, name, tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file

    status, _, err = cli("recipes", "cp", f"profiles/{name}", tmp_path / "mine.yaml")
    assert status == 0, err
    distributed_types = {"ddp": "MULTI_GPU", "fsdp": "FSDP"}
    config = load_config_from_file(str(tmp_path / "mine.yaml"))
    assert (config.num_processes, config.distributed_type) == (2, distributed_types.get(name, "DEEPSPEED"))
    assert f"profiles/{name}" not in cli("recipes", "ls")[1]
    assert f"--config_file {name}.yaml -m bertkit" in (tmp_path / "mine.yaml").read_text()


# ---- the command


@pytest.mark.slow
def test_a_killed_rank_stops_all_and_resume_is_bit_identical(outcomes):
    folder, _, (killed, resumed) = outcomes
    messages = [line for line in killed.stderr.splitlines() if line.startswith("bertkit:")]
    assert (killed.status, len(messages)) == (1, 1), killed.stderr
    assert (
        "rank 1: was killed by SIGKILL, and the other ranks were stopped; if there is a checkpoint"
        in messages[0]
    )
    assert "Traceback" not in killed.stderr
    assert killed.seconds < 30
    assert resumed.status == 0, resumed.stderr
    training = json.loads(resumed.stdout)["training"]
    assert training["processes"] == 2
    assert training["resumed_from"] == 3
    weights = [folder / name / "model.safetensors" for name in ("killed", "uninterrupted")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
def test_invalid_process_settings_are_refused_in_one_line(cli, toy, tiny, tmp_path, monkeypatch):
    args = ["classify", "--data", toy, "--model", tiny]
    monkeypatch.setattr(system, "count_cores", lambda: 2)
    assert cli(*args, "--nproc", 3)[::2] == (
        2,
        "bertkit: --nproc 3: this machine has 2 cores and no GPU; pass at most 2\n",
    )
    for command in (bertkit.classify, partial(bertkit.evaluate, "run"), partial(bertkit.embed, model="run")):
        with pytest.raises(bertkit.UserError, match="works only on the command line"):
            command(data=str(toy), nproc=2)
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for options, message in (
        (["--nproc", 2], "the processes are already started"),
        (["--set", "train_sampling_strategy=random"], "only bertkit's own order"),
    ):
        status, out, err = cli(*args, *options)
        assert (status, out, err.count("\n"), message in err) == (2, "", 1, True)
    assert "predict: runs in one process" in cli("predict", tmp_path)[2]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert cli(*args, "--nproc", 2) == (2, "", "")  # only local rank 0 reports the error
    monkeypatch.delenv("RANK")
    assert "WORLD_SIZE is set but RANK is not" in cli(*args)[2]


@pytest.mark.slow
def test_run_yaml_of_two_processes_contains_the_command_to_repeat_it(cli, results):
    recipe = results[0] / "uninterrupted" / "run.yaml"
    assert recipe.read_text().partition("\n")[0] == (
        f"# Repeat this run: bertkit classify --recipe {recipe} --nproc 2"
    )
    _, _, err = cli("classify", "--recipe", recipe, "--dry-run")
    assert (
        f"{recipe}: batch size is per process, and this recipe's run used 2 processes; pass --nproc 2 to "
        "repeat the run" in " ".join(err.split())
    )


@pytest.mark.slow
@pytest.mark.parametrize(("script", "status", "message"), [
    ("import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(60)", 1, "SIGKILL"),
    ("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(2)\ntime.sleep(60)", 2, ""),
    ("import os, sys; sys.exit(1 if os.environ['RANK'] == '0' else 0)", 1, "rank 0: exited with status 1"),
    ("print('done')", 0, ""),
])  # fmt: skip
def test_the_launcher_reports_how_a_rank_ended(script, status, message, monkeypatch, capfd):
    monkeypatch.setattr(system, "count_cores", lambda: 2)
    monkeypatch.setattr(launch, "GRACE_SECONDS", (0.2, 0.2))
    popen = subprocess.Popen

    def start_script(command, **kwargs):
        return popen([sys.executable, "-c", script], **kwargs)

    monkeypatch.setattr(system.subprocess, "Popen", start_script)
    assert launch.launch(2, "auto") == status
    err = capfd.readouterr().err
    assert (message in err, err.count("\n")) == (True, 1 if message else 0)


def test_processes_on_the_cpu_are_limited_by_its_cores(monkeypatch):
    monkeypatch.setattr(system, "count_cores", lambda: 4)
    monkeypatch.setattr(Path, "glob", lambda *_: [Path("/dev/nvidia0")])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check_process_count(4, "cpu")
    with pytest.raises(UserError, match="--nproc 2: this machine has 1 GPU"):
        check_process_count(2, "auto")
    with pytest.raises(UserError, match="has 4 cores; pass at most 4"):
        check_process_count(5, "cpu")
    monkeypatch.setattr(system, "count_cores", lambda: 1)
    with pytest.raises(UserError, match="has 1 core; omit it"):
        check_process_count(2, "cpu")


@pytest.mark.parametrize(("visible", "count"), [
    (None, 4), ("0,2", 2), ("3", 1), ("0,1,2,3,4", 4), ("0,-1,1", 1), ("1,9,2", 1), ("GPU-1a, GPU-2b", 2),
])  # fmt: skip
def test_only_visible_gpus_count(visible, count, monkeypatch):
    monkeypatch.setattr(Path, "glob", lambda *_: [Path(f"/dev/nvidia{n}") for n in range(4)])
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    check_process_count(count, "auto")
    with pytest.raises(UserError, match=f"this machine has {count} GPU"):
        check_process_count(count + 1, "auto")


@pytest.mark.parametrize("visible", ["", "-1", "no", "0,0"])
def test_hidden_gpus_leave_the_cores(visible, monkeypatch):
    monkeypatch.setattr(system, "count_cores", lambda: 2)
    monkeypatch.setattr(Path, "glob", lambda *_: [Path(f"/dev/nvidia{n}") for n in range(4)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    check_process_count(2, "auto")
    with pytest.raises(UserError, match="2 cores and no GPU"):
        check_process_count(3, "auto")


HANDLE_SIGNAL = """
received = []
signal.signal(signal.SIGTERM, lambda *_: received.append(1))
"""
EXIT_AFTER_SIGNAL = """
while not received: time.sleep(0.01)
time.sleep(0.5)
sys.exit(130 if len(received) == 1 else 99)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("handler", "action", "expected"), [
    (HANDLE_SIGNAL, EXIT_AFTER_SIGNAL, ""),
    ("", "time.sleep(60)", "bertkit: interrupted before training began; nothing was saved\n"),
], ids=["training", "starting"])  # fmt: skip
def test_the_launcher_forwards_a_signal_once(handler, action, expected, number, monkeypatch, tmp_path, capfd):
    script = (
        f"import os, signal, sys, time\n{handler}\nopen(r'{tmp_path}/' + os.environ['RANK'], 'w').close()\n"
    )
    popen = subprocess.Popen
    monkeypatch.setattr(system, "count_cores", lambda: 2)

    def start_script(command, **kwargs):
        process = popen([sys.executable, "-c", script + action], **kwargs)
        if kwargs["env"]["RANK"] == "1":
            while len(list(tmp_path.iterdir())) < 2:
                pass
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        return process

    monkeypatch.setattr(system.subprocess, "Popen", start_script)
    previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), number))
    try:
        assert launch.launch(2, "auto") == 130
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert capfd.readouterr().err == expected


def test_a_host_that_does_not_answer_ends_the_process(monkeypatch, capsys):
    statuses = []

    def receive(_):
        raise TimeoutError(errno.ETIMEDOUT, "timed out")

    connection = SimpleNamespace(getpeername=lambda: ("::ffff:10.0.0.2", 1), recv=receive)
    monkeypatch.setattr(distributed.os, "_exit", statuses.append)
    distributed._exit_if_unreachable(connection)
    assert statuses == [1]
    assert "the host 10.0.0.2 is not reachable any more" in capsys.readouterr().err


def test_a_second_ctrl_c_is_not_forwarded_as_a_repetition():
    sent = []
    process = SimpleNamespace(poll=lambda: None, send_signal=sent.append)
    system.request_stop(process)
    system.request_stop(process, is_urgent=True)
    assert sent == [signal.SIGTERM, signal.SIGINT]
    assert system.was_interrupted(-signal.SIGINT)


def test_a_signal_that_arrives_again_is_the_same_request_and_a_second_ctrl_c_is_not():
    # srun signals all processes of a job, and torchrun passes the signal on to its own
    system.forget_stop_signal()
    with StopRequest() as request:
        for _ in range(2):
            signal.raise_signal(signal.SIGUSR1)
        assert request.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with launch.handle_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize(
    ("config", "flag"),
    [
        (ClassifyConfig(lora=4), "--lora 4"),
        (ClassifyConfig(method="contrastive"), "--method contrastive"),
        (ClassifyConfig(method="linear-probe"), "--method linear-probe"),
        (ClassifyConfig(alpha=1.0), None),
    ],
)
def test_settings_that_need_all_weights_are_refused_with_sharded_weights(config, flag):
    prepared = SimpleNamespace(config=config, methods=choose_methods(config), probe=None)
    if flag is None:
        check_sharding(prepared)
        return
    with pytest.raises(UserError, match=f"^{flag}: cannot be combined with FSDP or DeepSpeed"):
        check_sharding(prepared)
