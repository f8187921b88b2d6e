"""Phases: which examples a step gets, and the guarantees of runs with several lengths."""

import json

import numpy as np
import pytest
from conftest import assert_refused, make_document_rows, send_sigterm_after, write_rows
from test_equivalence import SGD, assert_close, weights
from test_pretrain import COMMAND, pretrained

from bertkit.data.corpus.examples import PHASE_EPOCH_OFFSET, PhasedFeatures, parse_phases
from bertkit.errors import UserError
from bertkit.training.samplers import PhasedBatchSampler
from bertkit.utils.arrays import concat_ranges

PHASES = "16:0.7,48:0.3"


@pytest.fixture
def few(tmp_path):
    return write_rows(tmp_path / "few.jsonl", make_document_rows(16))


def train_phases(text, folder, **settings):
    return pretrained(text, folder, max_length=None, phases=PHASES, **settings)


def load_features(text, tiny, phases=PHASES):
    """Return the training features of a run, its collator and the features for scoring."""
    from transformers import BertConfig, BertForPreTraining

    from bertkit.models.loading import load_tokenizer
    from bertkit.tasks.pretrain.config import PretrainConfig
    from bertkit.tasks.pretrain.task import Pretrain

    task = Pretrain(PretrainConfig(data=str(text), model=str(tiny), phases=phases))
    rows = task.load_data().splits["train"]
    tokenizer = load_tokenizer(task.state.model_source)
    model = BertForPreTraining(BertConfig.from_pretrained(tiny))
    return (
        task.featurize(rows, tokenizer, training=True),
        task.make_collator(tokenizer, model),
        task.featurize(rows, tokenizer),
    )


def batches_of_epochs(features, steps, epochs, batch_size=8, accumulation=1):
    """Return the batches of the first epochs of a run with `steps` steps."""
    batches = PhasedBatchSampler(features, batch_size, accumulation, 0, steps)
    found = []
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        found.append(list(batches))
    return found


# ---- examples


def test_steps_have_examples_of_their_phase_without_repetition(text, tiny):
    features, collate, scored = load_features(text, tiny)
    per_epoch = -(-len(features) // 8)
    steps, epochs = per_epoch * 3 - 12, 3
    found = [batch for some in batches_of_epochs(features, steps, epochs) for batch in some]
    assert len(found) == steps
    switch = round(0.7 * steps)
    assert switch % per_epoch  # within an epoch, not at its end
    phases = [{features[key]["phase"] for key in batch} for batch in found]
    assert phases == [{0}] * switch + [{1}] * (steps - switch)
    longest = [max(len(features[key]["input_ids"][0]) for key in batch) for batch in found]
    assert max(longest[:switch]) == 16
    assert max(longest[switch:]) == 48
    keys = [key for batch in found for key in batch]
    assert len(set(keys)) == len(keys)
    # Each phase has its own number of predictions; scoring uses that of the last phase.
    width = {
        phase: collate([features[phase * PHASE_EPOCH_OFFSET * len(features)]])["masked_lm_labels"].shape[1]
        for phase in (0, 1)
    }
    assert width == {0: 2, 1: 7}
    assert collate([scored[0]])["masked_lm_labels"].shape[1] == 7


def test_batches_of_the_first_phase_equal_a_run_at_its_length(text, tiny):
    features, _, _ = load_features(text, tiny)
    alone, _, _ = load_features(text, tiny, "16:1")
    some, plain = (batches_of_epochs(each, 40, 2) for each in (features, alone))
    some, plain = ([batch for batches in each for batch in batches] for each in (some, plain))
    assert some[:28] == plain[:28]
    assert not {key for batch in some[28:] for key in batch} & {key for batch in plain for key in batch}


@pytest.mark.parametrize(("batch_size", "accumulation"), [(2, 4), (1, 8)])
def test_steps_have_the_same_examples_for_any_accumulation(batch_size, accumulation, text, tiny):
    features, _, _ = load_features(text, tiny)
    whole = batches_of_epochs(features, 50, 3)
    for batches, parts in zip(
        whole, batches_of_epochs(features, 50, 3, batch_size, accumulation), strict=True
    ):
        joined = [
            [key for batch in parts[at : at + accumulation] for key in batch]
            for at in range(0, len(parts), accumulation)
        ]
        assert joined == batches


def test_an_epoch_of_a_later_phase_consists_of_several_passes(text, tiny):
    features, _, once = load_features(text, tiny)
    assert len(once) < len(features)
    long = features.phase_features[1]
    plan = long.get_plan(PHASE_EPOCH_OFFSET)
    assert len(plan) == len(features)
    assert len({*zip(plan.a_start, plan.a_length, plan.b_start, strict=True)}) > 0.8 * len(
        plan
    )  # not one twice
    often = np.zeros(len(long.corpus.token_ids))
    for start, length in ((plan.a_start, plan.a_length), (plan.b_start, plan.b_length)):
        np.add.at(often, concat_ranges(start, start + length), 1)
    assert (often >= 2).mean() > 0.9  # two passes, without some examples
    assert abs((plan.labels == 0).mean() - 0.5) < 0.03


def test_tokens_are_counted_by_phase(text, tiny):
    features, _, _ = load_features(text, tiny)
    steps = 2 * (-(-len(features) // 8))
    batches = PhasedBatchSampler(features, 8, 1, 0, steps)
    really = [sum(len(features[key]["input_ids"][0]) for key in batch)
              for some in batches_of_epochs(features, steps, 2) for batch in some]  # fmt: skip
    for begin, stop in ((0, steps), (0, 10), (steps - 20, steps)):
        assert batches.estimate_tokens(begin, stop) == pytest.approx(sum(really[begin:stop]), rel=0.1)
    costly = [len(features[key]["input_ids"][0]) for key in batches.get_longest_batch()]
    assert costly == [48] * 8


# ---- runs


@pytest.mark.slow
def test_a_single_phase_equals_a_run_at_its_length(few, tiny, tmp_path):
    usual = {"model": str(tiny), "max_steps": 4}
    plain = pretrained(few, tmp_path / "plain", max_length=24, **usual)
    one = pretrained(few, tmp_path / "one", max_length=None, phases="24:1", **usual)
    for name in ("model.safetensors", "masked_samples.jsonl", "training_log.jsonl", "config.json"):
        assert (one.output_dir / name).read_bytes() == (plain.output_dir / name).read_bytes()
    assert one.metrics["validation"] == plain.metrics["validation"]


@pytest.mark.slow
def test_accumulation_is_equivalent(tiny_without_dropout, tmp_path):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(7))

    def run(batch, steps):
        return train_phases(
            text, tmp_path / f"{batch}x{steps}", model=str(tiny_without_dropout), epochs=1.5,
            batch_size=batch, gradient_accumulation_steps=steps, **SGD,
        )  # fmt: skip

    whole = run(8, 1)
    assert whole.metrics["data"]["train"] % 8 > 0  # a short last batch
    for other in (run(2, 4), run(1, 8)):
        assert other.metrics["training"]["loss"] == pytest.approx(whole.metrics["training"]["loss"], rel=1e-5)
        assert_close(weights(whole), weights(other), 1e-5)


@pytest.mark.slow
def test_resume_in_any_phase_is_bit_identical_with_any_number_of_workers(
    cli, tiny, few, tmp_path, monkeypatch
):
    """The run is interrupted in the first phase, at the switch, and in the last phase."""
    options = ["--data", few, "--model", tiny, "--max-steps", 10, "--batch-size", 8, "--phases", PHASES,
               "--no-bf16"]  # fmt: skip
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    status, _, err = cli(COMMAND, *options, "-o", whole)
    assert status == 0
    assert "step 7: examples of 48 tokens" in err
    assert "validation and test use 48 tokens" in err

    arguments, done = [COMMAND, *options, "--set", "dataloader_num_workers=2", "-o", resumed], 0
    for step in (4, 7, 9):  # an epoch is 5 steps
        with monkeypatch.context() as patch:
            send_sigterm_after(patch, step - done - 1)  # the step after the signal is the last one
            status, _, err = cli(*arguments)
        assert (status, f"interrupted at step {step} of 10" in err) == (130, True), err
        arguments, done = [COMMAND, "--resume", "-o", resumed], step
        monkeypatch.chdir(tmp_path)
    assert cli(*arguments)[0] == 0
    for name in ("model.safetensors", "masked_samples.jsonl", "training_log.jsonl"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_dry_run_uses_the_longest_phase_and_preview_the_first(cli, tiny, text):
    args = ["--data", text, "--model", tiny, "--phases", PHASES, "--batch-size", 4, "--json"]
    status, out, _ = cli(COMMAND, *args, "--dry-run")
    assert status == 0
    assert json.loads(out)["longest_batch"] == [4, 48]
    status, out, err = cli(COMMAND, *args[:-1], "--preview", 30)
    assert status == 0
    assert "previews the first phase" in err
    lengths = [len(line.split("] ", 1)[-1].split()) for line in out.splitlines() if "[CLS]" in line]
    assert lengths
    assert max(lengths) < 40  # 16 tokens and the original tokens behind them


# ---- refusals


@pytest.mark.parametrize(
    ("lengths", "has_note"), [("16:0.5,32:0.5", False), ("32:0.5,16:0.5", True), ("16:0.5,16:0.5", True)]
)
def test_phases_that_do_not_grow_give_a_note(text, tiny, lengths, has_note):
    train, *_ = load_features(text, tiny, lengths)
    assert any("usually each phase is longer" in note for note in train.describe_issues(None)) == has_note


def test_phases_are_parsed():
    assert [(phase.length, phase.fraction) for phase in parse_phases("128:0.9, 512:.1")] == [
        (128, 0.9),
        (512, 0.1),
    ]
    thirds = parse_phases("8:0.333333,16:0.333333,32:0.333334")
    assert len(thirds) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("128", ["'128'", "LENGTH:FRACTION"]),
        ("128:0.9,x:0.1", ["'x:0.1'"]),
        ("128:0.9,512:0", ["'512:0'"]),
        ("128:1.5,512:-0.5", ["'128:1.5'"]),
        ("128:nan", ["'128:nan'"]),
        ("128:0.9,", ["''"]),
        ("128:0.9,512:0.2", ["sum to 1.1"]),
        ("7:1", ["length 7", "at least 8"]),
    ],
)
def test_invalid_phases_are_refused(text, words):
    with pytest.raises(UserError) as refused:
        parse_phases(text)
    assert all(word in str(refused.value) for word in [f"--phases {text}", *words])


REFUSED = {
    "no phase": (["--phases", "128:90%"], ["--phases", "LENGTH:FRACTION"]),
    "positions": (["--phases", "16:0.5,129:0.5"], ["--phases 129:0.5", "128 positions"]),
    "max length": (["--phases", PHASES, "--max-length", 16], ["--max-length 16", "--phases"]),
    "own order": (
        ["--phases", PHASES, "--set", "train_sampling_strategy=random"],
        ["--set train_sampling_strategy", "--phases"],
    ),
    "no step": (
        ["--phases", "16:0.9,48:0.1", "--max-steps", 4],
        ["48:0.1", "none of the 4 steps", "--max-steps"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, cli, text, tiny, tmp_path):
    args, words = REFUSED[case]
    assert_refused(cli, tmp_path, ["--data", text, "--model", tiny, *args], words, COMMAND)


def test_phased_features_have_the_lengths_of_the_first_phase(text, tiny):
    features, _, _ = load_features(text, tiny)
    assert isinstance(features, PhasedFeatures)
    assert features.sequence_lengths.tolist() == features.phase_features[0].sequence_lengths.tolist()
    assert features.get_sequence(3)[0].tolist() == features[3]["input_ids"][0].tolist()
