"""Ensembles: averaged predictions of several runs, which are used like one run."""

import json
import shutil

import numpy as np
import pytest
import torch
from conftest import ROW_MAKERS, read_predictions, write_rows
from safetensors.torch import load_file, save_file

import bertkit
from bertkit.models.forward import (
    average_label_probabilities,
    average_log_probabilities,
    average_outputs,
    average_probabilities,
)
from bertkit.run_directory import RunDir
from bertkit.stats.scores import softmax

pytestmark = pytest.mark.slow

TASKS = list(ROW_MAKERS)


def copy_run(source, target, seed=0):
    """Copy a run, and add noise to its weights, so that it predicts otherwise."""
    target.mkdir(parents=True)
    for name in ("run.yaml", "metrics.json", "config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, target / name)
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(source / "model.safetensors")
    noisy = {
        name: value + 0.05 * torch.randn(value.shape, generator=generator) for name, value in weights.items()
    }
    save_file(noisy if seed else weights, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.fixture
def make_ensemble(runs, tmp_path):
    """Return a function that makes a study with an ensemble of a task's run and copies with noise."""

    def make(task, size=2):
        study = tmp_path / "study"
        members = [copy_run(runs / task, study / "folds" / f"fold{n}-seed0", n) for n in range(size)]
        RunDir(study / "ensemble").write_members(members)
        return study, members

    return make


def predict(run, task):
    rows = [{key: value for key, value in row.items() if key not in ("label", "tags", "answers")}
            for row in ROW_MAKERS[task](12, seed=1)]  # fmt: skip
    return list(bertkit.predict(run, data=rows, all_scores=True))


@pytest.mark.parametrize("task", TASKS)
def test_ensemble_of_one_member_equals_the_member(make_ensemble, task):
    study, [member] = make_ensemble(task, size=1)
    assert predict(study, task) == predict(member, task)


@pytest.mark.parametrize("task", ["classify", "nli", "swag"])
def test_probabilities_are_the_means_of_the_members(make_ensemble, task):
    study, members = make_ensemble(task)

    def get_soft_labels(run):
        values = [record["probabilities"] for record in predict(run, task)]
        return [list(row.values()) if isinstance(row, dict) else row for row in values]

    ensemble = get_soft_labels(study)
    separate = zip(*map(get_soft_labels, members), strict=True)
    for row, (first, second) in zip(ensemble, separate, strict=True):
        assert row == pytest.approx((np.array(first) + second) / 2, abs=1e-6)
        assert first != pytest.approx(second, abs=1e-5)


def test_tags_are_decoded_from_mean_probabilities(make_ensemble):
    study, members = make_ensemble("ner")
    assert [record["tokens"] for record in predict(study, "ner")]
    predictors = [bertkit.load(run) for run in (study, *members)]
    rows, _ = predictors[0].task.parse_rows(predictors[0].task.load_data().splits["train"])
    ensemble, first, second = (softmax(predictor.compute_outputs(rows).logits) for predictor in predictors)
    np.testing.assert_allclose(ensemble, (first + second) / 2, atol=1e-6)


def test_answers_have_the_mean_threshold_and_one_nbest_list(make_ensemble):
    study, members = make_ensemble("qa")
    config = json.loads((members[1] / "config.json").read_text())
    config["null_odds_threshold"] += 1.0
    (members[1] / "config.json").write_text(json.dumps(config))
    thresholds = [
        bertkit.load(run).task.state.fitted_params["null_odds_threshold"] for run in (study, *members)
    ]
    assert thresholds[0] == pytest.approx(thresholds[1] + 0.5)
    for record in predict(study, "qa"):
        texts = [answer["text"] for answer in record["nbest"]]
        assert len(texts) == len(set(texts))


def test_combined_logits_decode_to_mean_probabilities():
    logits = torch.randn(3, 5, 4, dtype=torch.float64) * 8
    mean = logits.softmax(-1).mean(0)
    torch.testing.assert_close(average_probabilities(logits).softmax(-1), mean)
    torch.testing.assert_close(average_probabilities(logits).exp(), mean)
    torch.testing.assert_close(average_label_probabilities(logits).sigmoid(), logits.sigmoid().mean(0))
    torch.testing.assert_close(average_log_probabilities(logits), logits.log_softmax(-1).mean(0))
    assert average_outputs(logits).shape == (5, 4)
    logits[..., 3] = -torch.inf  # a choice that a row does not have, or padding
    for combine in (average_probabilities, average_log_probabilities):
        combined = combine(logits)
        assert combined[..., 3].isneginf().all()
        assert combined[..., :3].isfinite().all()


@pytest.mark.linear_probe
def test_evaluate_scores_new_rows_and_refuses_training_rows(make_ensemble, tmp_path, cli):
    study, members = make_ensemble("classify")
    data = write_rows(tmp_path / "new.jsonl", ROW_MAKERS["classify"](20, seed=3))
    metrics = bertkit.evaluate(study / "ensemble", data=data, output_dir="scores").metrics
    assert metrics["data"]["validation"] == 20
    assert metrics["baselines"].keys() == {"majority", "tfidf", "linear_probe"}
    records = read_predictions(tmp_path / "scores")
    assert records[0]["probabilities"] != bertkit.load(members[0]).predict([{"text": records[0]["text"]}])
    status, _, err = cli("evaluate", study)
    assert (status, err.count("\n")) == (2, 1)
    assert "were trained on all labeled rows; pass other rows with --data" in err


@pytest.mark.parametrize("command", ["export", "calibrate", "embed"])
@pytest.mark.parametrize("part", ["", "ensemble"])
def test_other_commands_ask_for_a_member(make_ensemble, cli, command, part):
    study, members = make_ensemble("classify")
    args = ["--text", "good", "-o", "vectors.npy"] if command == "embed" else []
    status, out, err = cli(command, study / part, *args)
    assert (status, out) == (2, "")
    assert err == (
        f"bertkit: {study / part}: is an ensemble, which this command cannot use; pass one of its members, "
        f"such as {members[0]}\n"
    )


def damage_config(member, **changes):
    config = json.loads((member / "config.json").read_text())
    (member / "config.json").write_text(json.dumps(config | changes))


def damage_tokenizer(member):
    text = (member / "tokenizer.json").read_text()
    (member / "tokenizer.json").write_text(text.replace('"lowercase": true', '"lowercase": false'))


@pytest.mark.parametrize(("damage", "words"), [
    (shutil.rmtree, "ensemble.json: member ../folds/fold1-seed0 does not exist; restore its directory"),
    (lambda member: (member / "metrics.json").unlink(), "fold1-seed0: is not a finished run"),
    (lambda member: (member / "model.safetensors").unlink(), "fold1-seed0: has no weights"),
    (lambda member: damage_config(member, id2label={"0": "x", "1": "y"}), "fold1-seed0: has other labels"),
    (damage_tokenizer, "fold1-seed0: has another tokenizer"),
])  # fmt: skip
def test_damaged_or_unlike_member_is_refused_in_one_line(make_ensemble, cli, damage, words):
    study, members = make_ensemble("classify")
    damage(members[1])
    status, out, err = cli("predict", study, "--text", "good film")
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert words in err


def test_members_of_different_tasks_are_refused(make_ensemble, runs, cli):
    study, members = make_ensemble("classify")
    shutil.rmtree(members[1])
    copy_run(runs / "nli", members[1])
    status, _, err = cli("predict", study, "--text", "good film")
    assert (status, "fold1-seed0: has another task" in err) == (2, True)


@pytest.mark.parametrize("text", [
    "{", "{}", '{"members": []}', '{"members": ["../ensemble"]}', json.dumps({"members": ["a" * 5000]}),
])  # fmt: skip
def test_damaged_list_of_members_is_refused_in_one_line(make_ensemble, cli, text):
    study, _ = make_ensemble("classify", size=1)
    (study / "ensemble" / "ensemble.json").write_text(text)
    status, _, err = cli("predict", study, "--text", "good film")
    assert (status, err.count("\n")) == (2, 1)
    assert "ensemble.json: " in err
    assert "run the study again" in err
