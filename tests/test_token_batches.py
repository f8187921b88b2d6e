"""Token budgets, and the reported statistics of batches: padding and waiting time."""

import json

import numpy as np
import pytest
from conftest import ROW_MAKERS, make_features, make_toy_rows, send_sigterm_after, write_rows
from hypothesis import given
from hypothesis import strategies as st
from test_equivalence import SGD, assert_close, of_lengths, weights

import bertkit
from bertkit.errors import UserError
from bertkit.training.samplers import TokenBudgetBatchSampler

FAST = {"learning_rate": 3e-3, "seed": 1, "bf16": False}
examples = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), min_size=1, max_size=200)
counts = st.integers(1, 4)


def count_padded_tokens(examples, batch):
    return max(max(examples[row]) for row in batch) * sum(len(examples[row]) for row in batch)


def make_sampler(examples, tokens, batches_per_step, epoch=0):
    batches = TokenBudgetBatchSampler(make_features(examples), tokens, batches_per_step)
    batches.set_epoch(epoch)
    return batches


@given(examples=examples, tokens=st.integers(60, 500), batches_per_step=counts, epoch=st.integers(0, 3))
def test_epoch_contains_each_example_once_within_the_budget(examples, tokens, batches_per_step, epoch):
    batches = make_sampler(examples, tokens, batches_per_step, epoch)
    found = list(batches)
    assert sorted(row for batch in found for row in batch) == list(range(len(examples)))
    assert all(count_padded_tokens(examples, batch) <= tokens for batch in found if len(batch) > 1)
    assert len(found) == len(batches)


@pytest.mark.slow
@given(examples=examples, tokens=st.integers(60, 500), batches_per_step=counts)
def test_all_epochs_have_the_same_number_of_steps_and_batches(examples, tokens, batches_per_step):
    batches = make_sampler(examples, tokens, batches_per_step)
    for epoch in range(3):
        batches.set_epoch(epoch)
        steps = [len(batches.split_into_batches(step)) for step in batches.plan_effective_batches()]
        assert len(steps) == batches.steps_per_epoch
        assert set(steps[:-1]) <= {batches_per_step}
        assert steps[-1] <= batches_per_step


@pytest.mark.slow
@given(examples=examples, tokens=st.integers(60, 500), batches_per_step=counts)
def test_seen_examples_are_counted_by_steps(examples, tokens, batches_per_step):
    batches = make_sampler(examples, tokens, batches_per_step)
    first_step = list(batches)[:batches_per_step]
    assert batches.count_seen_examples(1) == sum(map(len, first_step))
    assert batches.count_seen_examples(batches.steps_per_epoch) == len(examples)
    assert batches.count_seen_examples(batches.steps_per_epoch + 1) == len(examples)


@given(examples=examples, tokens=st.integers(60, 500))
def test_largest_batches_come_first(examples, tokens):
    batches = make_sampler(examples, tokens, batches_per_step=1)
    sizes = [count_padded_tokens(examples, batch) for batch in batches]
    assert sizes[0] == max(sizes) == count_padded_tokens(examples, batches.get_longest_batch())


def test_batches_change_with_the_epoch_and_have_little_padding():
    lengths = np.random.default_rng(0).geometric(0.05, 4000).clip(2, 128)
    batches = TokenBudgetBatchSampler(of_lengths(lengths), 1024, 2)
    first = list(batches)
    assert list(batches) == first
    assert 1 - lengths.sum() / sum(lengths[batch].max() * len(batch) for batch in first) < 0.03
    steps = [batches.split_into_batches(step) for step in batches.plan_effective_batches()]
    batches.set_epoch(1)
    assert {frozenset(batch) for batch in batches} != {frozenset(batch) for batch in first}
    assert {len(step) for step in steps[:-1]} == {2}


def test_document_above_the_budget_has_its_own_batch():
    batches = list(make_sampler([[60] * 4, [60], [60], [5]], tokens=120, batches_per_step=1))
    assert [0] in batches
    assert sorted(map(sorted, batches)) == [[0], [1, 2], [3]]


# ---- runs


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "ner", "qa", "swag"])
def test_step_uses_the_union_of_its_batches(task, tiny_without_dropout, tmp_path):
    """If a step contains all examples, a token budget gives the weights of one large batch."""
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS[task](12))

    def run(name, **sizes):
        return getattr(bertkit, task)(
            data=str(data), model=str(tiny_without_dropout),
            max_steps=2, max_length=32, output_dir=str(tmp_path / name),
            set=["logging_steps=1"], **SGD, **sizes,
        )  # fmt: skip

    whole = run("whole", batch_size=12)
    accumulated = run("cut", tokens_per_batch=160, gradient_accumulation_steps=12)
    assert accumulated.metrics["training"]["loss"] == pytest.approx(
        whole.metrics["training"]["loss"], rel=1e-5
    )
    assert_close(weights(whole), weights(accumulated), 1e-5)


@pytest.mark.slow
def test_run_interrupted_within_two_epochs_resumes_bit_identically(cli, tiny, tmp_path, monkeypatch):
    data = write_rows(tmp_path / "rows.jsonl", make_toy_rows(40))
    args = ["--data", data, "--model", tiny, "--epochs", 2, "--no-bf16", "--lr", "1e-3"]
    args += ["--tokens-per-batch", 64, "--max-length", 32, "--gradient-accumulation-steps", 2]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    status, out, _ = cli("classify", *args, "-o", whole, "--json")
    assert status == 0
    epoch = json.loads(out)["training"]["steps"] // 2
    assert epoch > 3
    arguments = args
    for step in (epoch // 2, epoch - 1):  # since the run was started or resumed
        with monkeypatch.context() as patch:
            send_sigterm_after(patch, step)
            assert cli("classify", *arguments, "-o", resumed)[0] == 130
        arguments = ["--resume"]
    assert cli("classify", *arguments, "-o", resumed)[0] == 0
    for file in ("model.safetensors", "predictions.jsonl", "training_log.jsonl"):
        assert (resumed / file).read_bytes() == (whole / file).read_bytes()


def write_text(path):
    """Write a text file with 30 documents, and return its path."""
    lines = [row["text"] for row in make_toy_rows(300, longest=15)]
    path.write_text("\n\n".join("\n".join(lines[at : at + 10]) for at in range(0, 300, 10)))
    return str(path)


@pytest.mark.slow
def test_pretraining_batch_fills_the_budget(tiny, tmp_path):
    given = {"data": write_text(tmp_path / "text.txt"), "model": str(tiny), "max_steps": 3, "bf16": False}

    def run(name, **size):
        folder = str(tmp_path / name)
        return weights(bertkit.pretrain_mlm_nsp(**given, phases="16:0.5,32:0.5", output_dir=folder, **size))

    assert_close(run("fixed", batch_size=4), run("budget", tokens_per_batch=150), 0)


def test_budget_below_the_longest_phase_is_refused(tiny, tmp_path):
    text = write_text(tmp_path / "text.txt")
    with pytest.raises(UserError, match="--tokens-per-batch 20: is smaller than"):
        bertkit.pretrain_mlm_nsp(data=text, model=str(tiny), phases="32:0.5,16:0.5", tokens_per_batch=20)


@pytest.mark.slow
def test_incompatible_settings_are_refused(cli, tiny, toy, tmp_path):
    args = ["classify", "--data", toy, "--model", tiny, "-o", tmp_path / "run"]
    wrong = {
        ("--batch-size", 8): "--batch-size",
        ("--set", "train_sampling_strategy=random"): "train_sampling_strategy",
        ("--max-length", 128): "--tokens-per-batch 100: is smaller than --max-length 128",
    }
    for options, message in wrong.items():
        status, _, err = cli(*args, "--tokens-per-batch", 100, *options)
        assert (status, message in err.splitlines()[-1]) == (2, True), err
        assert not (tmp_path / "run").exists()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("task: classify\nsettings: {batch_size: 4, max_steps: 1}\n")
    status, out, _ = cli(*args, "--recipe", recipe, "--tokens-per-batch", 100, "--max-length", 32, "--json")
    training = json.loads(out)["training"]
    assert (status, training["tokens_per_batch"], "batch_size" in training) == (0, 100, False)


# ---- batch statistics


def test_huge_budget_gives_one_batch():
    examples = of_lengths([3, 5, 2])
    assert len(TokenBudgetBatchSampler(examples, 10**30)) == 1


@pytest.mark.slow
def test_padding_is_measured_on_training_batches(tiny, tmp_path):
    rows = [{"text": "good " * (1 if n % 2 else 9), "label": "ab"[n % 2]} for n in range(60)]
    other = [{"text": "we saw it", "label": "a"}, {"text": "it was bad", "label": "b"}]
    run = bertkit.classify(
        data=str(write_rows(tmp_path / "rows.jsonl", rows)), model=str(tiny), epochs=1, batch_size=60,
        validation=str(write_rows(tmp_path / "other.jsonl", other)), output_dir=str(tmp_path / "run"),
        set=["train_sampling_strategy=sequential"], **FAST,
    )  # fmt: skip
    assert run.metrics["training"]["padding"] == pytest.approx(30 * (11 - 3) / (60 * 11))


@pytest.mark.slow
def test_slow_data_loading_is_reported(cli, tiny, toy, tmp_path, monkeypatch):
    import time

    from bertkit.data.collators import PaddingCollator

    args = ["classify", "--data", toy, "--model", tiny, "--max-steps", 3, "--no-bf16", "-o", tmp_path / "run"]
    collate = PaddingCollator.__call__
    monkeypatch.setattr(
        PaddingCollator, "__call__", lambda self, items: (time.sleep(0.2), collate(self, items))[1]
    )
    status, out, _ = cli(*args)
    waited = json.loads((tmp_path / "run" / "metrics.json").read_text())["training"]["data_wait"]
    assert (status, f"{waited:.1%} of the time waiting for data" in " ".join(out.split())) == (0, True)
    assert 0.05 < waited < 1
