"""Lengths in turn: which examples a step gets, and that runs of several lengths are as sound as others."""

import json

import numpy as np
import pytest
from conftest import assert_refused, make_document_rows, write_rows
from test_equivalence import SGD, assert_close, weights
from test_pretrain import COMMAND, pretrained

from bertkit.data.corpus.phases import PHASE_EPOCH_OFFSET, PhasedFeatures, parse_phases
from bertkit.errors import UserError
from bertkit.training.phases import PhasedBatchSampler
from bertkit.utils.ragged import concat_ranges

PHASES = "16:0.7,48:0.3"


@pytest.fixture
def text(tmp_path):
    return write_rows(tmp_path / "text.jsonl", make_document_rows(120))


@pytest.fixture
def few(tmp_path):
    return write_rows(tmp_path / "few.jsonl", make_document_rows(40))


def in_phases(text, folder, **settings):
    return pretrained(text, folder, max_length=None, phases=PHASES, **settings)


def drawn(text, tiny, phases=PHASES):
    """Training examples, their collator and the task, as a run has them."""
    from transformers import BertConfig, BertForPreTraining

    from bertkit.modeling.loading import load_tokenizer
    from bertkit.tasks.pretrain import Pretrain
    from bertkit.tasks.pretrain_config import PretrainConfig
    from bertkit.utils.reporting import Reporter

    task = Pretrain(PretrainConfig(data=str(text), model=str(tiny), phases=phases))
    rows = task.load_data(Reporter()).splits["train"]
    tokenizer = load_tokenizer(task.model_source)
    model = BertForPreTraining(BertConfig.from_pretrained(tiny))
    return (
        task.featurize(rows, tokenizer, training=True),
        task.collator(tokenizer, model),
        task.featurize(rows, tokenizer),
    )


def of_epochs(features, steps, epochs, batch_size=8, accumulation=1):
    """The batches of some epochs, of a run of so many steps."""
    batches = PhasedBatchSampler(features, batch_size, accumulation, 0, steps)
    found = []
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        found.append(list(batches))
    return found


# ---- which examples


def test_each_step_has_examples_of_its_phase_and_none_comes_twice(text, tiny):
    features, collate, scored = drawn(text, tiny)
    per_epoch = -(-len(features) // 8)
    steps, epochs = per_epoch * 3 - 12, 3
    found = [batch for some in of_epochs(features, steps, epochs) for batch in some]
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
    # Each length has room for its own number of predictions; what is scored is of the last one's.
    width = {
        phase: collate([features[phase * PHASE_EPOCH_OFFSET * len(features)]])["masked_lm_labels"].shape[1]
        for phase in (0, 1)
    }
    assert width == {0: 2, 1: 7}
    assert collate([scored[0]])["masked_lm_labels"].shape[1] == 7


def test_until_the_switch_it_is_the_run_of_one_length(text, tiny):
    features, _, _ = drawn(text, tiny)
    alone, _, _ = drawn(text, tiny, "16:1")
    some, plain = (of_epochs(each, 40, 2) for each in (features, alone))
    some, plain = ([batch for batches in each for batch in batches] for each in (some, plain))
    assert some[:28] == plain[:28]
    assert not {key for batch in some[28:] for key in batch} & {key for batch in plain for key in batch}


@pytest.mark.parametrize(("batch_size", "accumulation"), [(2, 4), (1, 8)])
def test_steps_have_the_same_examples_however_they_are_divided(batch_size, accumulation, text, tiny):
    features, _, _ = drawn(text, tiny)
    whole = of_epochs(features, 50, 3)
    for batches, parts in zip(whole, of_epochs(features, 50, 3, batch_size, accumulation), strict=True):
        joined = [
            [key for batch in parts[at : at + accumulation] for key in batch]
            for at in range(0, len(parts), accumulation)
        ]
        assert joined == batches


def test_an_epoch_of_a_later_phase_is_whole_passes(text, tiny):
    features, _, once = drawn(text, tiny)
    assert len(once) < len(features)
    long = features.phase_features[1]
    plan = long.get_plan(PHASE_EPOCH_OFFSET)
    assert len(plan) == len(features)
    assert len({*zip(plan.a_start, plan.a_length, plan.b_start, strict=True)}) > 0.8 * len(
        plan
    )  # not one twice
    often = np.zeros(len(long.corpus.pieces))
    for start, length in ((plan.a_start, plan.a_length), (plan.b_start, plan.b_length)):
        np.add.at(often, concat_ranges(start, start + length), 1)
    assert (often >= 2).mean() > 0.9  # two passes, without some examples
    assert abs((plan.label == 0).mean() - 0.5) < 0.03


def test_pieces_are_counted_by_phase(text, tiny):
    features, _, _ = drawn(text, tiny)
    steps = 2 * (-(-len(features) // 8))
    batches = PhasedBatchSampler(features, 8, 1, 0, steps)
    really = [sum(len(features[key]["input_ids"][0]) for key in batch)
              for some in of_epochs(features, steps, 2) for batch in some]  # fmt: skip
    for begin, stop in ((0, steps), (0, 10), (steps - 20, steps)):
        assert batches.count_tokens(begin, stop) == pytest.approx(sum(really[begin:stop]), rel=0.1)
    costly = [len(features[key]["input_ids"][0]) for key in batches.get_longest_batch()]
    assert costly == [48] * 8


# ---- runs


def test_one_phase_is_the_run_of_its_length(few, tiny, tmp_path):
    usual = {"model": str(tiny), "max_steps": 12}
    plain = pretrained(few, tmp_path / "plain", max_length=24, **usual)
    one = pretrained(few, tmp_path / "one", max_length=None, phases="24:1", **usual)
    for name in ("model.safetensors", "masked_samples.jsonl", "training_log.jsonl", "config.json"):
        assert (one.output_dir / name).read_bytes() == (plain.output_dir / name).read_bytes()
    assert one.metrics["validation"] == plain.metrics["validation"]


def test_8_x_1_is_2_x_4_is_1_x_8(tiny_without_dropout, few, tmp_path):
    def run(batch, steps):
        return in_phases(few, tmp_path / f"{batch}x{steps}", model=str(tiny_without_dropout), epochs=1.5, batch_size=batch,
                         gradient_accumulation_steps=steps, **SGD)  # fmt: skip

    whole = run(8, 1)
    for other in (run(2, 4), run(1, 8)):
        assert other.metrics["training"]["loss"] == pytest.approx(whole.metrics["training"]["loss"], rel=1e-5)
        assert_close(weights(whole), weights(other), 1e-5)


@pytest.mark.parametrize(
    "share", [0.4, 0.7, 0.9]
)  # of the steps: in the first phase, at the switch, in the last
def test_resumes_in_any_phase_to_the_same_weights_and_log(
    share, cli, tiny, few, tmp_path, monkeypatch, stop_at
):
    options = ["--data", few, "--model", tiny, "--epochs", 1.5, "--batch-size", 8, "--phases", PHASES,
               "--no-bf16"]  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    status, out, err = cli(COMMAND, *options, "-o", whole, "--json")
    assert status == 0
    steps = json.loads(out)["training"]["steps"]
    assert f"step {round(0.7 * steps)}: examples of 48 pieces" in err
    assert "validation and test are scored at 48" in err

    stop_at(round(share * steps) - 1)
    assert cli(COMMAND, *options, "-o", cut)[0] == 130
    monkeypatch.chdir(tmp_path)
    assert cli(COMMAND, "--resume", "-o", cut)[0] == 0
    for name in ("model.safetensors", "masked_samples.jsonl", "training_log.jsonl"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


def test_any_number_of_workers_gives_the_same_weights(tiny, few, tmp_path):
    one, two = (
        in_phases(few, tmp_path / f"of-{workers}", model=str(tiny), max_steps=20,
                  set=[f"dataloader_num_workers={workers}"])
        for workers in (0, 2)
    )  # fmt: skip
    assert_close(weights(one), weights(two), 0.0)


def test_a_dry_run_takes_the_longest_and_a_preview_the_first(cli, tiny, text):
    args = ["--data", text, "--model", tiny, "--phases", PHASES, "--batch-size", 4, "--json"]
    status, out, _ = cli(COMMAND, *args, "--dry-run")
    assert status == 0
    assert json.loads(out)["longest_batch"] == [4, 48]
    status, out, err = cli(COMMAND, *args[:-1], "--preview", 30)
    assert status == 0
    assert "previews are of the first" in err
    lengths = [len(line.split("] ", 1)[-1].split()) for line in out.splitlines() if "[CLS]" in line]
    assert lengths
    assert max(lengths) < 40  # 16 pieces and what belongs in their places


# ---- what is refused


@pytest.mark.parametrize(
    ("lengths", "remarked"), [("16:0.5,32:0.5", False), ("32:0.5,16:0.5", True), ("16:0.5,16:0.5", True)]
)
def test_phases_that_do_not_grow_are_legal_and_remarked(text, tiny, lengths, remarked):
    train, *_ = drawn(text, tiny, lengths)
    assert any("usually each phase is longer" in note for note in train.describe_issues(None)) == remarked


def test_phases_are_read():
    assert [(phase.length, phase.fraction) for phase in parse_phases("128:0.9, 512:.1")] == [
        (128, 0.9),
        (512, 0.1),
    ]
    thirds = parse_phases("8:0.333333,16:0.333333,32:0.333334")
    assert len(thirds) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("128", ["'128'", "LENGTH:SHARE"]),
        ("128:0.9,x:0.1", ["'x:0.1'"]),
        ("128:0.9,512:0", ["'512:0'"]),
        ("128:1.5,512:-0.5", ["'128:1.5'"]),
        ("128:nan", ["'128:nan'"]),
        ("128:0.9,", ["''"]),
        ("128:0.9,512:0.2", ["sum to 1.1"]),
        ("7:1", ["length 7", "at least 8"]),
    ],
)
def test_what_is_no_phase_is_refused(text, words):
    with pytest.raises(UserError) as refused:
        parse_phases(text)
    assert all(word in str(refused.value) for word in [f"--phases {text}", *words])


REFUSED = {
    "no phase": (["--phases", "128:90%"], ["--phases", "LENGTH:SHARE"]),
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


def test_features_of_phases_are_those_of_the_first(text, tiny):
    features, _, _ = drawn(text, tiny)
    assert isinstance(features, PhasedFeatures)
    assert features.lengths.tolist() == features.phase_features[0].lengths.tolist()
    assert features.get_sequence(3)[0].tolist() == features[3]["input_ids"][0].tolist()
