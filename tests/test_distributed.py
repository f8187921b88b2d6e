"""Several processes: the same training as one, whoever stops, fails or dies."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROW_MAKERS, make_document_rows, read_predictions, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import kill_rank, run_on_two_ranks
from safetensors.torch import load_file
from test_equivalence import SGD, of_lengths

import bertkit
from bertkit.cli import launch
from bertkit.training.samplers import LengthGroupedBatchSampler

STEPS = 32
ADAMW = SGD | {"optim": "adamw_torch", "learning_rate": 1e-4}
KINDS = {
    "weights": ("classify", {"class_weights": "balanced", "label_smoothing": 0.1, "freeze": 1}),
    "windows": ("classify", {"long_texts": "windows", "max_length": 10, "gradient_checkpointing": True}),
    "adamw": ("classify", ADAMW),
    "budget": ("classify", {"tokens_per_batch": 48, "max_length": 32}),
    "ner": ("ner", {"max_length": 12}),
    "frozen": ("ner", {"head": "bilstm", "features": "sum-all"}),
    "qa": ("qa", {"max_length": 16}),
    "swag": ("swag", {}),
    "pretrain": ("pretrain_mlm_nsp", {"max_length": 32}),
    "qa by budget": ("qa", {"tokens_per_batch": 64, "max_length": 16}),
    "pretrain by budget": ("pretrain_mlm_nsp", {"tokens_per_batch": 96, "max_length": 32}),
    "phases": ("pretrain_mlm_nsp", {"phases": "16:0.5,32:0.5"}),
}  # fmt: skip


def wanted(kind, folder, models, name, **more):
    task, own = KINDS[kind]
    data = folder / f"{task}.jsonl"
    if not data.exists():
        write_rows(data, make_document_rows(80) if task.startswith("pretrain") else ROW_MAKERS[task](81))
    same = {"data": str(data), "model": str(models), "max_steps": STEPS, "set": ["logging_steps=1"]}
    return {"task": task, "settings": SGD | same | own | more | {"output_dir": str(folder / name)}}


def laid_out(kind, ranks):
    """The same steps by one process or by two."""
    if "tokens_per_batch" in KINDS[kind][1]:
        return {"gradient_accumulation_steps": 4 // ranks}
    return {"batch_size": 8} if ranks == 1 else {"batch_size": 2, "gradient_accumulation_steps": 2}


@pytest.fixture(scope="module")
def both(tmp_path_factory, tiny_without_dropout, tiny):
    """All jobs of two ranks, done once: folder, and the outcomes of each rank by name."""
    folder = tmp_path_factory.mktemp("ranks")
    jobs = {
        kind: wanted(kind, folder, tiny_without_dropout, f"{kind}-2", **laid_out(kind, 2)) for kind in KINDS
    }
    dropped = {"max_steps": 25, "optim": "adamw_torch", "learning_rate": 1e-3}
    whole = wanted("weights", folder, tiny, "whole", batch_size=4, **dropped)
    jobs["whole"] = whole
    again = {"task": "classify", "settings": {"resume": True, "output_dir": str(folder / "cut")}}
    jobs["cut"] = whole | {
        "settings": whole["settings"] | {"output_dir": str(folder / "cut")},
        "stop": [1, 13],
    }
    jobs["resumed"] = again
    jobs["dry"] = whole | {"settings": whole["settings"] | {"output_dir": None, "dry_run": True}}
    jobs["disagree"] = {"task": "disagree"}
    os.environ["BERTKIT_CACHE_DIR"] = str(folder / "cache")
    found = run_on_two_ranks(list(jobs.values()), folder)
    return folder, [dict(zip(jobs, of_rank, strict=True)) for of_rank in found]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_as_one_process(both, tiny_without_dropout, kind):
    folder, (metrics, others) = both
    job = wanted(kind, folder, tiny_without_dropout, f"{kind}-1", **laid_out(kind, 1))
    one = getattr(bertkit, job["task"])(**job["settings"])
    assert metrics[kind] == others[kind]
    assert metrics[kind]["training"]["processes"] == 2
    assert "processes" not in one.metrics["training"]
    rows = one.metrics["data"]["train"]
    # At the end an example for one rank, none for the other.
    assert job["task"].startswith("pretrain") or rows % 8 == 1
    mine, theirs = (load_file(folder / f"{kind}-{n}" / "model.safetensors") for n in (1, 2))
    assert max(float((mine[name] - theirs[name]).abs().max()) for name in mine) < 1e-5
    logs = [read_predictions(folder / f"{kind}-{n}", "training_log.jsonl") for n in (1, 2)]
    assert len(logs[0]) == STEPS
    for line, other in zip(*logs, strict=True):
        assert other | {"epoch": 0} == pytest.approx(line | {"epoch": 0}, rel=1e-4, abs=1e-5)
    assert metrics[kind]["data"] == one.metrics["data"]
    assert metrics[kind]["validation"] == pytest.approx(one.metrics["validation"], rel=1e-6, abs=1e-5)
    if not kind.startswith("p"):  # pre-training decides nothing
        told = [read_predictions(folder / f"{kind}-{n}") for n in (1, 2)]
        for name in ("predicted", "answer"):
            assert [one.get(name) for one in told[0]] == [one.get(name) for one in told[1]]


def test_a_signal_to_one_rank_stops_both_and_resume_is_bit_identical(both):
    folder, outcomes = both
    for of_rank in outcomes:
        assert of_rank["cut"]["error"] == "RunInterrupted"
        assert of_rank["cut"]["said"].startswith(
            "interrupted at step 14 of 25; resume with: bertkit classify --resume"
        )
        assert of_rank["cut"]["said"].endswith("--nproc 2")
    assert sorted(of_rank["cut"]["here"] for of_rank in outcomes) == [False, True]  # it is said once
    for name in ("model.safetensors", "predictions.jsonl", "training_log.jsonl"):
        assert (folder / "cut" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    states = [
        (folder / "whole/checkpoints/checkpoint-25" / f"rng_state_{n}.pth").read_bytes() for n in (0, 1)
    ]
    assert states[0] != states[1]  # each drops others


def test_an_error_of_one_rank_is_raised_on_all_and_printed_once(both):
    _, outcomes = both
    assert [of_rank["disagree"]["said"] for of_rank in outcomes] == ["only rank 1 knows"] * 2
    assert sorted(of_rank["disagree"]["here"] for of_rank in outcomes) == [False, True]


def test_a_dry_run_of_both_counts_the_steps_of_both(both):
    _, (metrics, _) = both
    assert metrics["dry"]["steps"] == 25
    assert metrics["dry"]["longest_batch"][0] == 4


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=90),
    st.integers(1, 5), st.integers(1, 3), st.integers(1, 4),
)  # fmt: skip
def test_ranks_share_the_steps_of_one_process(lengths, size, accumulation, ranks):
    features = of_lengths(np.array(lengths))
    together, epoch = accumulation * ranks, 3
    one = LengthGroupedBatchSampler(features, size, together)
    parts = [
        LengthGroupedBatchSampler(features, size, together, rank_and_world_size=(rank, ranks))
        for rank in range(ranks)
    ]
    for batches in (one, *parts):
        batches.set_epoch(epoch)
    steps = [sorted(step.tolist()) for step in one.plan_effective_batches()]
    shares = [list(part) for part in parts]
    assert {len(share) for share in shares} == {len(parts[0])}  # or one would wait for ever
    for number, step in enumerate(steps):
        stretch = slice(number * accumulation, (number + 1) * accumulation)
        assert sorted(key for share in shares for batch in share[stretch] for key in batch) == step
    assert max(len(batch) for share in shares for batch in share) <= size


@pytest.mark.parametrize("name", ["ddp", "fsdp", "deepspeed-zero2", "deepspeed-zero3"])
def test_profiles_are_what_accelerate_reads_and_can_be_copied(cli, name, tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file

    status, _, err = cli("recipes", "cp", f"profiles/{name}", tmp_path / "mine.yaml")
    assert status == 0, err
    kinds = {"ddp": "MULTI_GPU", "fsdp": "FSDP"}
    read = load_config_from_file(str(tmp_path / "mine.yaml"))
    assert (read.num_processes, read.distributed_type) == (2, kinds.get(name, "DEEPSPEED"))
    assert f"profiles/{name}" not in cli("recipes", "ls")[1]
    assert f"--config_file {name}.yaml -m bertkit" in (tmp_path / "mine.yaml").read_text()


# ---- the command


def test_a_killed_rank_stops_all_and_resume_is_bit_identical(both, tiny, tmp_path):
    folder, _ = both
    cut = tmp_path / "cut"
    settings = wanted("weights", folder, tiny, "cut")["settings"]
    command = [
        "classify", "--data", settings["data"], "--model", tiny, "--class-weights", "balanced",
        "--label-smoothing", 0.1, "--freeze", 1, "--batch-size", 4, "--max-steps", 25, "--lr", 1e-3,
        "--optim", "adamw_torch", "--warmup", 0, "--weight-decay", 0, "--no-bf16", "--save-steps", 3,
        "--set", "logging_steps=1", "--nproc", 2,
    ]  # fmt: skip
    status, said, seconds = kill_rank([*command, "-o", cut], cut)
    told = [line for line in said.splitlines() if line.startswith("bertkit:")]
    assert (status, len(told)) == (1, 1), said
    assert (
        "rank 1: was killed by SIGKILL, and the other ranks were stopped; if there is a checkpoint" in told[0]
    )
    assert "Traceback" not in said
    assert seconds < 30
    again = [
        sys.executable,
        "-m",
        "bertkit",
        "classify",
        "--resume",
        "-o",
        str(cut),
        "--nproc",
        "2",
        "--json",
    ]
    done = subprocess.run(again, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["training"]["processes"] == 2
    assert (cut / "model.safetensors").read_bytes() == (folder / "whole" / "model.safetensors").read_bytes()


def test_invalid_process_settings_are_refused_in_one_line(cli, toy, tiny, tmp_path, monkeypatch, both):
    args = ["classify", "--data", toy, "--model", tiny]
    monkeypatch.setattr(launch, "_cores", lambda: 2)
    assert cli(*args, "--nproc", 3)[::2] == (
        2,
        "bertkit: --nproc 3: this machine has 2 cores and no GPU; pass at most 2\n",
    )
    with pytest.raises(bertkit.UserError, match="works only on the command line"):
        bertkit.classify(data=str(toy), nproc=2)
    again = cli("classify", "--resume", "-o", stopped(both[0], tmp_path))
    assert (again[0], "started with 2 processes; resume with --nproc 2" in again[2]) == (2, True)
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for more, words in (
        (["--nproc", 2], "the processes are already started"),
        (["--set", "train_sampling_strategy=random"], "only bertkit's own order"),
    ):
        status, out, err = cli(*args, *more)
        assert (status, out, err.count("\n"), words in err) == (2, "", 1, True)
    assert "predict: works in one process" in cli("predict", tmp_path)[2]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert cli(*args, "--nproc", 2) == (2, "", "")  # the first of the machine says it
    monkeypatch.delenv("RANK")
    assert "WORLD_SIZE is set but RANK is not" in cli(*args)[2]


def test_run_yaml_of_two_processes_has_the_command_that_repeats_it(cli, both):
    recipe = both[0] / "whole" / "run.yaml"
    assert recipe.read_text().partition("\n")[0] == (
        f"# Repeat this run: bertkit classify --recipe {recipe} --nproc 2"
    )
    _, _, err = cli("classify", "--recipe", recipe, "--dry-run")
    assert (
        f"{recipe}: batch size is per process, and this recipe's run used 2 processes; pass --nproc 2 to "
        "repeat the run" in " ".join(err.split())
    )


def stopped(folder, tmp_path):
    """A run of two ranks that is not finished."""
    cut = tmp_path / "stopped"
    cut.mkdir()
    (cut / "run.yaml").write_bytes((folder / "whole" / "run.yaml").read_bytes())
    return cut


@pytest.mark.parametrize(("script", "status", "words"), [
    ("import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(60)", 1, "SIGKILL"),
    ("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(2)\ntime.sleep(60)", 2, ""),
    ("import os, sys; sys.exit(1 if os.environ['RANK'] == '0' else 0)", 1, "rank 0 ended with status 1"),
    ("print('done')", 0, ""),
])  # fmt: skip
def test_the_launcher_tells_how_a_rank_ended(script, status, words, monkeypatch, capfd):
    monkeypatch.setattr(launch, "_cores", lambda: 2)
    monkeypatch.setattr(launch, "GRACE_SECONDS", (0.2, 0.2))
    start = subprocess.Popen

    def started(command, **more):
        return start([sys.executable, "-c", script], **more)

    monkeypatch.setattr(launch.subprocess, "Popen", started)
    assert launch.launch(2) == status
    err = capfd.readouterr().err
    assert (words in err, err.count("\n")) == (True, 1 if words else 0)


LISTENS = """
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
"""
STOPS = """
while not got: time.sleep(0.01)
time.sleep(0.5)
sys.exit(130 if len(got) == 1 else 99)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("listens", "then", "said"), [
    (LISTENS, STOPS, ""), ("", "time.sleep(60)", "bertkit: interrupted before training began; nothing was saved\n"),
], ids=["trains", "begins"])  # fmt: skip
def test_the_launcher_hands_a_signal_on_once(listens, then, said, number, monkeypatch, tmp_path, capfd):
    script = (
        f"import os, signal, sys, time\n{listens}\nopen(r'{tmp_path}/' + os.environ['RANK'], 'w').close()\n"
    )
    start = subprocess.Popen
    monkeypatch.setattr(launch, "_cores", lambda: 2)

    def started(command, **more):
        process = start([sys.executable, "-c", script + then], **more)
        if more["env"]["RANK"] == "1":
            while len(list(tmp_path.iterdir())) < 2:
                pass
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        return process

    monkeypatch.setattr(launch.subprocess, "Popen", started)
    before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), number))
    try:
        assert launch.launch(2) == 130
    finally:
        signal.signal(signal.SIGALRM, before)
    assert capfd.readouterr().err == said
