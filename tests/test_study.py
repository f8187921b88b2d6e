"""`bertkit study TASK`: splits that keep scores honest, trials that survive a kill, and the files."""

import functools
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    NEUTRAL_WORDS,
    POSITIVE_WORDS,
    ROW_MAKERS,
    assert_refused,
    costly_parts,
    freeze_libraries,
    make_tokenizer,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    slow_fixture,
    write_rows,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st
from new_process import call_in_new_process
from test_locks import before_lock  # noqa: F401

import bertkit
from bertkit.data import tokens
from bertkit.data.split import SplitKeys, join_groups
from bertkit.data.tokens import encode, encode_with_offsets, share_tokens
from bertkit.errors import TrainingFailed, UserError
from bertkit.experiments.config import list_experiment_tasks, make_task_config
from bertkit.experiments.held_out import TRIAL_FOLD, hold_out_test_rows, split_data
from bertkit.experiments.search import Dimension, Trial, TrialStore, make_default_space, parse_space
from bertkit.run.load_data import load_data
from bertkit.run_directory import RunDir
from bertkit.tasks import task_definition
from bertkit.tasks.text.config import ClassifyConfig
from bertkit.utils.reporting import Reporter

INPUTS = {"classify": "text", "ner": "tokens", "nli": "premise", "qa": "context", "swag": "context"}
QUICK = {"batch_size": 16, "max_length": 32, "bf16": False}


# ---- the search space


def test_ranges_and_lists_have_the_type_of_the_setting():
    texts = ["learning_rate=1e-5..1e-4:log", "batch-size=8..32", "epochs=2,3,4", "pack=true,false"]
    assert parse_space([*texts, "early_stopping=none,2"], ClassifyConfig()) == [
        Dimension("learning_rate", low=1e-5, high=1e-4, is_log=True),
        Dimension("batch_size", low=8, high=32, is_integer=True),
        Dimension("epochs", (2.0, 3.0, 4.0)),
        Dimension("pack", (True, False)),
        Dimension("early_stopping", (None, 2)),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs", ["--search epochs", "NAME=LOW..HIGH"]),
        ("epoch=1,2", ["unknown setting", "'epochs'"]),
        ("lr=1,2", ["unknown setting", "'learning_rate'"]),
        ("seed=1,2", ["seed", "cannot be searched"]),
        ("text_column=a,b", ["text_column", "cannot be searched"]),
        ("folds=2,3", ["unknown setting", "choose from"]),
        ("epochs=4..2", ["4 is not below 2"]),
        ("warmup=0..1:log", ["above 0"]),
        ("epochs=1..2:exp", ["unknown scale 'exp'"]),
        ("head=a..b", ["head is not a number"]),
        ("head=linear,lstm", ["--search head", "'lstm' is not one of linear, bilstm"]),
        ("epochs=2,2", ["a value occurs twice"]),
        ("epochs=-1..2", ["out of bounds"]),
        ("epochs=1..", ["epochs=1..: a bound is missing; write epochs=LOW..HIGH"]),
        ("batch_size=1..9999999999", ["9999999999 is too large"]),
        ("nproc=1,2", ["nproc", "cannot be searched"]),
    ],
)
def test_wrong_search_values_are_refused_in_one_line(text, words):
    with pytest.raises(UserError) as error:
        parse_space([text], ClassifyConfig())
    assert [word for word in words if word not in str(error.value)] == []
    assert "\n" not in str(error.value)


def test_the_default_space_leaves_out_what_the_user_has_set():
    resolved = ClassifyConfig(learning_rate=5e-5, epochs=3.0)
    rate, epochs = make_default_space(ClassifyConfig(), resolved)
    assert rate == Dimension("learning_rate", low=1.7e-5, high=1.5e-4, is_log=True)
    assert epochs == Dimension("epochs", (2.0, 3.0, 4.0))
    assert make_default_space(ClassifyConfig(epochs=3.0), resolved) == [rate]
    with pytest.raises(UserError, match="nothing is left to search"):
        make_default_space(resolved, resolved)


# ---- the splits


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30))
def test_rows_with_the_same_identity_or_group_are_joined(pairs):
    identity, group = (np.array(column) for column in zip(*pairs, strict=True))
    joined = join_groups(SplitKeys(identity, group, np.zeros(len(pairs), int)))
    for keys in (identity, group):
        for key in np.unique(keys):
            assert len(np.unique(joined[keys == key])) == 1
    # groups are not larger than needed: each has a chain of equal keys
    for number in np.unique(joined):
        rows = set(np.flatnonzero(joined == number))
        reached, queue = set(), [min(rows)]
        while queue:
            row = queue.pop()
            reached.add(row)
            near = (identity == identity[row]) | (group == group[row])
            queue += set(np.flatnonzero(near)) - reached - set(queue)
        assert reached == rows


def test_folds_partition_the_rows_and_keep_equal_texts_together(tmp_path):
    rows = make_toy_rows(60)
    data = write_rows(tmp_path / "rows.jsonl", [*rows, *rows[:20]])
    loaded = load_data("classify", ClassifyConfig(data=str(data)))
    splits = split_data(loaded, 4)
    assert sorted(np.concatenate([part.rows for part in splits.final])) == list(range(80))
    for part in splits.final:
        texts = {name: set(rows["text"]) for name, rows in part.splits.items()}
        assert not texts["test"] & (texts["train"] | texts["validation"])
        assert not texts["train"] & texts["validation"]
        assert sum(map(len, part.splits.values())) == 80
    assert list(splits.search["validation"]["text"]) == list(splits.final[TRIAL_FOLD].splits["test"]["text"])
    assert len(splits.search["train"]) + len(splits.search["validation"]) == 80


def test_too_many_folds_are_refused(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", make_toy_rows(6))
    loaded = load_data("classify", ClassifyConfig(data=str(data)))
    with pytest.raises(UserError, match="--folds 8: the training data has only 6 different rows"):
        split_data(loaded, 8)


def test_without_labeled_test_rows_a_fifth_of_the_training_rows_is_held_out(toy):
    loaded = load_data("classify", ClassifyConfig(data=str(toy)))
    splits = hold_out_test_rows(loaded).dataset.splits
    assert (len(splits["train"]), len(splits["test"])) == (64, 16)


# ---- shared tokens


TOKENIZER = make_tokenizer()
TEXTS = st.sampled_from([*POSITIVE_WORDS, *NEUTRAL_WORDS, "", "x y"])


@functools.cache
def tokenize(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.lists(TEXTS, max_size=8), max_size=4))
def test_shared_tokens_are_those_of_each_text(parts):
    with share_tokens():
        for texts in parts:
            ids, with_offsets = encode(texts, TOKENIZER), encode_with_offsets(texts, TOKENIZER)
            expected = [tokenize(text) for text in texts]
            assert [ids[index].tolist() for index in range(len(texts))] == expected
            assert [with_offsets.ids[index].tolist() for index in range(len(texts))] == expected
            assert len(with_offsets.start) == sum(map(len, expected))


def test_each_text_is_tokenized_once(monkeypatch):
    encoded = []
    original = tokens.encode_batches
    monkeypatch.setattr(
        tokens, "encode_batches", lambda texts, *args, **options: (
            encoded.extend(texts) or original(texts, *args, **options)
        ),
    )  # fmt: skip
    with share_tokens():
        for texts in (["good", "bad"], ["bad", "a film", "good", "a film"], ["good"]):
            encode(texts, TOKENIZER)
    assert encoded == ["good", "bad", "a film"]


# ---- trials


def make_store(folder, seed=0):
    space = [Dimension("learning_rate", low=1e-5, high=1e-3, is_log=True), Dimension("epochs", (1.0, 2.0))]
    return TrialStore(folder, space, {"learning_rate": 1e-4, "epochs": 3.0}, seed, sign=1)


def end(store, trial, score):
    store.end(Trial(trial.number, trial.settings, "complete", score, 1, 1, 0.0))


def run_trials(store, count):
    for _ in range(count):
        trial = store.begin()
        end(store, trial, -abs(np.log(trial.settings.get("learning_rate", 1e-4) / 3e-4)))


def test_a_reopened_store_proposes_the_same_trials(tmp_path):
    (tmp_path / "whole").mkdir()
    whole = make_store(tmp_path / "whole")
    run_trials(whole, 12)
    (tmp_path / "parts").mkdir()
    for _ in range(4):
        run_trials(make_store(tmp_path / "parts"), 3)
    parts = make_store(tmp_path / "parts")
    assert parts.list_ended() == whole.list_ended()
    assert parts.find_best() == whole.find_best()
    assert len({trial.settings.get("learning_rate") for trial in parts.list_ended()}) == 12


def test_trial_0_has_the_defaults_and_seeds_change_the_others(tmp_path):
    proposals = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        store = make_store(tmp_path / str(seed), seed)
        run_trials(store, 2)
        proposals.append([trial.settings for trial in store.list_ended()])
    assert [trials[0] for trials in proposals] == [{}, {}]
    assert proposals[0][1] != proposals[1][1]


@pytest.mark.parametrize("damage", [lambda text: text[:-20], lambda text: "{}\n" + text, lambda _: "\0" * 99])
def test_a_damaged_journal_is_refused_in_one_line(tmp_path, damage):
    run_trials(make_store(tmp_path), 2)
    path = tmp_path / "journal.log"
    path.write_text(damage(path.read_text()))
    with pytest.raises(UserError, match=r"journal\.log: line \d+ is damaged; restore the file"):
        make_store(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "truncated", "changed"])
def test_damaged_logits_are_refused_in_one_line(tmp_path, damage):
    run, path = RunDir(tmp_path), tmp_path / RunDir.LOGITS_FILE
    run.write_logits(np.ones((300, 3), np.float32), {"threshold": 1.0})
    assert run.read_logits()[1] == {"threshold": 1.0}
    content = bytearray(path.read_bytes())
    content[200] ^= 255
    path.write_bytes({"empty": b"", "truncated": content[:2000], "changed": bytes(content)}[damage])
    with pytest.raises(UserError, match=r"test_logits\.npz: cannot be read \(.*\); delete its directory"):
        run.read_logits()


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("")])
def test_a_lost_journal_is_refused_in_one_line(tmp_path, damage):
    run_trials(make_store(tmp_path), 1)
    (tmp_path / "000").mkdir()
    damage(tmp_path / "journal.log")
    with pytest.raises(UserError, match=r"journal\.log: is empty or missing; restore the file"):
        make_store(tmp_path)


def test_an_empty_journal_without_trials_is_a_new_search(tmp_path):
    (tmp_path / "journal.log").touch()
    store = make_store(tmp_path)
    run_trials(store, 1)
    assert len(store.list_ended()) == 1


def test_a_running_trial_keeps_its_settings_when_the_process_is_killed(tmp_path):
    trial = make_store(tmp_path).begin()
    end(make_store(tmp_path), make_store(tmp_path).list_running()[0], 0.5)
    trial = make_store(tmp_path).begin()
    assert trial.report(1, 0.25) is False
    [resumed] = make_store(tmp_path).list_running()
    assert (resumed.number, resumed.settings, resumed.scores) == (1, trial.settings, {1: 0.25})


def test_a_study_without_a_complete_trial_names_the_first_reason(tmp_path):
    store = make_store(tmp_path)
    store.begin()
    store.end(Trial(0, {}, "failed", None, 0, 0, 0.0, "logits are NaN"))
    with pytest.raises(UserError, match="no trial is complete \\(logits are NaN\\)"):
        store.find_best()


# ---- whole studies


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The folder of a random BERT with one layer, for many runs."""
    freeze_libraries()
    return save_tiny_model(tmp_path_factory.mktemp("models") / "small", num_hidden_layers=1)


@slow_fixture
def studies(tmp_path_factory, small):
    """A study with folds of each task; that of classify has two seeds, and a labeled validation split."""
    folder, results = tmp_path_factory.mktemp("studies"), {}
    for task, make_rows in ROW_MAKERS.items():
        rows = make_rows(24, **({"unanswerable": 6} if task == "qa" else {}))
        settings = {"data": write_rows(folder / f"{task}.jsonl", rows), "seeds": 1}
        if task == "classify":
            other_rows = write_rows(folder / "other.jsonl", make_rows(10, seed=5))
            settings |= {"validation": other_rows, "seeds": 2}
        settings |= {"model": small, "output_dir": folder / task, "folds": 2, "max_steps": 1}
        with costly_parts(*["linear_probe"] * (task == "classify")):
            results[task] = bertkit.study(task, **settings, **QUICK)
    return results


@pytest.mark.parametrize("task", ROW_MAKERS)
def test_every_row_is_predicted_once_in_row_order(studies, task):
    run, column = studies[task], INPUTS[task]
    data = read_predictions(run.output_dir.parent, f"{task}.jsonl")
    records = read_predictions(run.output_dir, "out_of_fold.jsonl")
    assert [record[column] for record in records] == [row[column] for row in data]
    assert {record["fold"] for record in records} == {0, 1}
    assert all("gold" in record for record in records)
    for run_info in run.metrics["settings"]["best"]["runs"]:
        predicted = read_predictions(run.output_dir / run_info["folder"], "predictions-test.jsonl")
        of_fold = [record for record in records if record["fold"] == run_info["fold"]]
        assert [record[column] for record in predicted] == [record[column] for record in of_fold]


@pytest.mark.parametrize("task", ["nli", "swag"])
def test_out_of_fold_records_are_the_predictions_of_the_fold_runs(studies, task):
    folder = studies[task].output_dir
    records = read_predictions(folder, "out_of_fold.jsonl")
    for fold in (0, 1):
        of_fold = [record for record in records if record["fold"] == fold]
        predictions = read_predictions(folder / f"folds/fold{fold}-seed0", "predictions-test.jsonl")
        for record, prediction in zip(of_fold, predictions, strict=True):
            assert record | {"id": 0} == prediction | {"id": 0, "fold": fold}


def test_probabilities_are_the_mean_over_the_seeds(studies):
    folder = studies["classify"].output_dir
    records = [r for r in read_predictions(folder, "out_of_fold.jsonl") if r["fold"] == 1]
    seeds = [
        read_predictions(folder / f"folds/fold1-seed{seed}", "predictions-test.jsonl") for seed in (0, 1)
    ]
    for record, *members in zip(records, *seeds, strict=True):
        means = {
            label: np.mean([member["probabilities"][label] for member in members])
            for label in record["probabilities"]
        }
        assert record["probabilities"] == pytest.approx(means, abs=1e-6)
        assert record["predicted"] == max(means, key=means.get)


def test_ner_records_have_the_probability_of_each_tag_of_each_word(studies):
    for record in read_predictions(studies["ner"].output_dir, "out_of_fold.jsonl"):
        assert len(record["probabilities"]) == len(record["tokens"])
        for word in record["probabilities"]:
            assert set(word) == {"O", "B-NICE", "I-NICE", "B-MEAN", "I-MEAN"}
            assert sum(word.values()) == pytest.approx(1)


@pytest.mark.parametrize("task", ROW_MAKERS)
def test_the_ensemble_names_runs_that_exist(studies, task):
    folder = studies[task].output_dir / "ensemble"
    content = json.loads((folder / "ensemble.json").read_text())
    assert len(content["members"]) == len(studies[task].metrics["settings"]["best"]["runs"])
    assert all((folder / member / "model.safetensors").exists() for member in content["members"])
    assert {"config.json", "tokenizer.json", "run.yaml", "metrics.json"} <= {p.name for p in folder.iterdir()}


def test_means_over_seeds_are_the_predictions_of_an_ensemble(studies, tmp_path):
    folder = studies["classify"].output_dir
    records = [r for r in read_predictions(folder, "out_of_fold.jsonl") if r["fold"] == 1]
    RunDir(tmp_path / "pair").write_members([folder / f"folds/fold1-seed{seed}" for seed in (0, 1)])
    rows = [{"text": record["text"]} for record in records]
    predictions = bertkit.predict(tmp_path / "pair", data=rows, all_scores=True)
    for record, prediction in zip(records, predictions, strict=True):
        assert prediction["predicted"] == record["predicted"]
        assert prediction["probabilities"] == pytest.approx(record["probabilities"], abs=1e-6)


@pytest.mark.slow
def test_the_gain_of_the_ensemble_is_measured_on_rows_of_no_member(studies, tmp_path):
    run = studies["classify"]
    measured = run.metrics["ensemble"]
    scores = []
    for member in ["ensemble", *(run["folder"] for run in run.metrics["settings"]["best"]["runs"])]:
        metrics = bertkit.evaluate(
            run.output_dir / member, data=run.output_dir.parent / "other.jsonl", output_dir=tmp_path / member
        ).metrics
        scores.append(metrics["validation"]["accuracy"])
    assert (measured["split"], measured["rows"], measured["members"]) == ("validation", 10, 4)
    assert (measured["score"], measured["member_scores"]) == (scores[0], scores[1:])
    assert measured["mean_member_score"] == pytest.approx(np.mean(scores[1:]))
    assert measured["gain"] == pytest.approx(scores[0] - np.mean(scores[1:]))
    assert measured["seconds_per_1000_rows"] > 0
    for name in ("README.md", "report.html"):
        assert f"nsemble of 4 models: accuracy {scores[0]:.4f}" in (run.output_dir / name).read_text("utf-8")


def test_without_labeled_rows_the_gain_is_not_measured(studies, searched):
    measured = studies["nli"].metrics["ensemble"]
    assert measured == {"members": 2, "reason": "the data has no labeled validation or test split"}
    text = (studies["nli"].output_dir / "README.md").read_text("utf-8")
    assert f"the gain is not measured, because {measured['reason']}" in text
    assert searched.metrics["ensemble"] == {"members": 1, "reason": "it has a single member"}


def test_scores_over_runs_and_baselines(studies):
    metrics = studies["classify"].metrics
    summary = metrics["settings"]["best"]
    scores = [run["score"] for run in summary["runs"]]
    assert len(scores) == 4
    assert summary["mean"]["accuracy"] == pytest.approx(np.mean(scores))
    assert summary["std"] == pytest.approx(np.std(scores, ddof=1))
    low, high = summary["interval"]
    assert low <= summary["mean"]["accuracy"] <= high
    assert summary["held_out"]["rows"] == 24
    assert set(metrics["baselines"]) == {"majority", "tfidf", "linear_probe"}
    assert metrics["search"] is None
    assert json.loads((studies["classify"].output_dir / "study.json").read_text()) == metrics


@pytest.mark.slow
def test_a_finished_study_is_shown_again_and_its_recipe_trains(cli, studies):
    folder = studies["nli"].output_dir
    status, out, err = cli("study", "nli", "--resume", "-o", folder, "--json")
    assert status == 0, err
    assert json.loads(out)["output_dir"] == str(folder)
    status, out, err = cli("nli", "--recipe", folder / "recipe.yaml", "--dry-run")
    assert status == 0, err


@pytest.mark.slow
def test_a_study_that_was_replaced_is_resumed_with_its_new_settings(
    before_lock,  # noqa: F811
    small,
    toy,
    tmp_path,
):
    settings = {"data": toy, "model": small, "output_dir": tmp_path / "study", "max_steps": 1}
    bertkit.study("classify", folds=2, **settings)
    metrics = tmp_path / "study" / "metrics.json"
    metrics.unlink()

    def replace_study():
        bertkit.study("classify", seeds=2, overwrite=True, **settings)
        metrics.unlink()

    before_lock("lock_directory", replace_study)
    run = bertkit.study("classify", output_dir=tmp_path / "study", resume=True)
    assert (run.metrics["folds"], run.metrics["seeds"]) == (None, [0, 1])


@pytest.mark.slow
def test_a_study_is_resumed_by_its_own_command_only(cli, studies):
    folder = studies["nli"].output_dir
    status, _, err = cli("classify", "--resume", "-o", folder)
    assert (status, err.count("\n")) == (2, 1)
    assert f"resume with: bertkit study nli --resume --output-dir {folder}" in err
    assert "runs/study-TASK-DATA-MODEL" in cli("study", "nli", "--help")[1]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{"folds": 2}, {"seeds": 2}])
def test_the_page_counts_the_rows_that_are_used(toy, small, tmp_path, flags):
    settings = {"max_train_samples": 20, "max_steps": 1, "output_dir": tmp_path / "study", **flags, **QUICK}
    run = bertkit.study("classify", data=toy, model=small, **settings)
    assert run.metrics["data"]["train"] == 20
    assert "20 training rows" in (tmp_path / "study" / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_a_run_of_a_study_is_scored_on_other_rows_only(cli, studies):
    folder = studies["nli"].output_dir
    run, data = folder / "folds" / "fold0-seed0", f"{folder}.jsonl"
    status, _, err = cli("evaluate", run, "--data", data, "--json", "-o", folder.parent / "scores")
    assert status == 0, err
    status, _, err = cli("evaluate", run, "-o", folder.parent / "other")
    assert status == 2
    assert ("is a fold of a study" in err, err.count("pass --data")) == (True, 1)
    status, _, err = cli("calibrate", run)
    assert (status, err.count("pass --data")) == (2, 1)


SEARCH = {"trials": 3, "search": ["learning_rate=1e-3..1e-2:log", "epochs=1,2"], "epochs": 2, **QUICK}


def list_trials(folder):
    return [
        {key: value for key, value in trial.items() if key != "seconds"}
        for trial in read_predictions(folder, "trials.jsonl")
    ]


@slow_fixture
def searched(tmp_path_factory, small):
    """A study with a search, without folds."""
    folder = tmp_path_factory.mktemp("search")
    data = write_rows(folder / "toy.jsonl", make_toy_rows(40))
    return bertkit.study("classify", data=data, model=small, output_dir=folder / "study", **SEARCH)


def test_the_search_reports_trials_optimism_and_a_paired_test(searched):
    search, settings = searched.metrics["search"], searched.metrics["settings"]
    assert all(0 < trial["seconds"] < 600 for trial in read_predictions(searched.output_dir, "trials.jsonl"))
    trials = list_trials(searched.output_dir)
    assert [trial["trial"] for trial in trials] == [0, 1, 2]
    assert trials[0]["settings"] == {}
    best = max(trials, key=lambda trial: (trial["score"], -trial["trial"]))
    assert (search["best_trial"], search["best_score"]) == (best["trial"], best["score"])
    assert search["optimism"] == pytest.approx(
        best["score"] - settings["best"]["held_out"]["scores"]["accuracy"]
    )
    assert ("defaults" in settings) == bool(best["settings"]) == (searched.metrics["comparison"] is not None)
    assert not list(searched.output_dir.glob("trials/*/model.safetensors"))
    assert len(list(searched.output_dir.glob("trials/*/metrics.json"))) == search["complete"]


def test_the_page_has_the_tables_and_a_chart_of_each_setting(searched, studies):
    page = (searched.output_dir / "report.html").read_text("utf-8")
    charts = ["Trials in order", "Score against time", "Effect of learning_rate", "Effect of epochs"]
    for title in [*charts, "Parallel coordinates", "Final runs by seed"]:
        assert f"<h3>{title}</h3>" in page
    assert "http:" not in page.replace("http://www.w3.org", "")
    page = (studies["nli"].output_dir / "report.html").read_text("utf-8")
    assert "<h3>Final runs by fold</h3>" in page
    assert "Trials" not in page


@pytest.mark.slow
@pytest.mark.charts
def test_charts_need_only_the_results(searched):
    from bertkit.reports.tables import build_study_charts

    for chart in build_study_charts(searched.metrics):
        assert len(chart.svg) > 1000


class Killer(Reporter):
    """Kills its process in the fourth step."""

    steps = 0

    def on_step_end(self, step, **metrics):
        self.steps += not metrics
        if self.steps == 4:
            os.kill(os.getpid(), signal.SIGKILL)


def run_until_killed(settings):
    bertkit.study("classify", **settings, reporter=Killer())


@pytest.mark.slow
def test_a_killed_and_then_interrupted_study_has_the_same_trials(cli, searched, small, tmp_path, stop_at):
    settings = {"data": str(searched.output_dir.parent / "toy.jsonl"), "model": str(small), **SEARCH}
    folder = tmp_path / "study"
    settings |= {"output_dir": str(folder), "save_steps": 2}
    process = call_in_new_process(run_until_killed, settings)
    assert process.returncode == -signal.SIGKILL
    stop_at(3)
    status, _, err = cli("study", "classify", "--resume", "-o", folder)
    assert status == 130
    assert f"resume with: bertkit study classify --resume --output-dir {folder}" in err
    status, _, err = cli("study", "classify", "--resume", "-o", folder)
    assert status == 0, err
    assert list_trials(folder) == list_trials(searched.output_dir)
    weights = "seeds/seed0/model.safetensors"
    assert (folder / weights).read_bytes() == (searched.output_dir / weights).read_bytes()


@pytest.mark.slow
def test_failed_and_pruned_trials_are_rows(toy, small, tmp_path, monkeypatch):
    """A trial with NaN is a row; a trial below the median of the first ones is pruned."""
    from bertkit.experiments import search

    monkeypatch.setattr(search, "UNPRUNED_TRIALS", 1)
    reports = iter([0.1, 0.9, 0.9, 0.5, 0.5])  # trial 1 is pruned after its second epoch
    original = search.RunningTrial.report
    monkeypatch.setattr(
        search.RunningTrial, "report", lambda self, epoch, _: original(self, epoch, next(reports))
    )
    from bertkit.run.session import Session

    evaluate = Session._evaluate_validation

    def fail_in_trial_2(self):
        if self.folder.name == "002":
            raise UserError("validation split: logits are NaN")
        return evaluate(self)

    monkeypatch.setattr(Session, "_evaluate_validation", fail_in_trial_2)
    options = {"search": ["weight_decay=0..0.1"], "epochs": 3, "trials": 3, "seeds": 1}
    run = bertkit.study("classify", data=toy, model=small, output_dir=tmp_path / "study", **options, **QUICK)
    states = [(trial["state"], trial["reason"]) for trial in list_trials(run.output_dir)]
    assert states == [
        ("complete", None), ("pruned", None), ("failed", "validation split: logits are NaN"),
    ]  # fmt: skip
    summary = run.metrics["search"]
    assert summary["steps"] < summary["steps_without_pruning"]
    assert [path.name for path in (run.output_dir / "trials").iterdir() if path.is_dir()] == ["000"]


def test_a_failed_final_run_is_named(toy, small, tmp_path, monkeypatch):
    from bertkit.run.session import Session

    def fail(self):
        raise TrainingFailed("validation split: logits are NaN")

    monkeypatch.setattr(Session, "_evaluate_validation", fail)
    settings = {"data": toy, "model": small, "output_dir": tmp_path / "study", "folds": 2, "max_steps": 1}
    with pytest.raises(UserError, match=r"^fold 0, seed 0: validation split: logits are NaN$"):
        bertkit.study("classify", **settings, **QUICK)


def test_after_the_time_limit_no_trial_begins(toy, small, tmp_path):
    folder, options = tmp_path / "study", {"trials": 5, "max_steps": 1, "search": ["warmup=0..0.5"], **QUICK}
    with pytest.raises(UserError, match="no trial is complete"):
        bertkit.study("classify", data=toy, model=small, output_dir=folder, time_limit=0, **options)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["nothing to compare", "--folds, --seeds or --trials"]),
        (["--folds", 1], ["--folds", "at least 2"]),
        (["--folds", 2, "--search", "epochs=1,2"], ["--search", "without --trials"]),
        (["--trials", 2, "--search", "epoch=1,2"], ["unknown setting", "'epochs'"]),
        (["--seeds", 2, "--seed", 2**32 - 1], ["--seeds 2", "lower --seed"]),
        (["--folds", 99], ["--folds 99", "only 80 different rows"]),
        (["--folds", 2, "--nproc", 2], ["--nproc", "no such option"]),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_trained(cli, toy, tiny, tmp_path, flags, words):
    args = ["classify", "--data", toy, "--model", tiny, "-o", tmp_path / "study", *flags]
    assert_refused(cli, tmp_path, args, words, command="study")


def test_a_missing_optuna_is_named_with_its_extra(cli, toy, tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    args = ["classify", "--data", toy, "--model", tiny, "-o", tmp_path / "study", "--trials", 2]
    assert_refused(cli, tmp_path, args, ["optuna", "bertkit[study]"], command="study")


def test_dry_run_lists_the_runs_and_writes_none(cli, toy, tiny, tmp_path):
    args = [
        "--data",
        toy,
        "--model",
        tiny,
        "-o",
        tmp_path / "study",
        "--folds",
        2,
        "--trials",
        2,
        "--dry-run",
    ]
    status, out, err = cli("study", "classify", *args, "--dry-run")
    assert status == 0, err
    assert "search space: learning_rate=0.0001..0.0009:log" in err
    assert [line.split()[0] for line in out.splitlines()[2:]] == [
        "trials/000", "trials/001", "folds/fold0-seed0", "folds/fold1-seed0", "defaults/fold1-seed0",
    ]  # fmt: skip
    assert not (tmp_path / "study").exists()


def test_the_settings_of_a_study_are_those_of_its_task_without_those_of_single_runs():
    from bertkit.settings.declaration import get_settings

    assert set(list_experiment_tasks("study")) == set(ROW_MAKERS)
    for task in list_experiment_tasks("study"):
        own = get_settings(task_definition(task).config).keys()
        names = get_settings(make_task_config("study", task)).keys()
        assert names - own == {
            "folds", "seeds", "trials", "search", "time_limit", "jobs", "against",
            "ray", "num_cpus", "num_gpus",
        }  # fmt: skip
        assert own - names == {
            "nproc", "push_to_hub", "hub_model_id", "hub_private_repo",
            "teacher", "unlabeled", "alpha", "temperature",
        }  # fmt: skip


# ---- comparison with another study


@slow_fixture
def two_studies(tmp_path_factory, tiny):
    """A study that has hardly learned, one that has, and their settings."""
    folder = tmp_path_factory.mktemp("two")
    data = write_rows(folder / "rows.jsonl", make_toy_rows(80))
    options = {"data": data, "model": tiny, "folds": 2, **QUICK}
    untrained = bertkit.study("classify", **options, max_steps=1, output_dir=folder / "untrained")
    trained = bertkit.study(
        "classify", **options, epochs=12, learning_rate=5e-3, output_dir=folder / "trained"
    )
    return untrained, trained, options


def read_out_of_fold(folder):
    return read_predictions(folder, "out_of_fold.jsonl")


def test_a_study_is_compared_with_another_one_on_the_same_held_out_rows(two_studies, cli, tmp_path):
    untrained, trained, _ = (getattr(study, "output_dir", None) for study in two_studies)
    same = shutil.copytree(trained, tmp_path / "same")
    args = ["study", "classify", "--resume", "-o"]
    for name, (folder, other) in {
        "better": (trained, untrained), "worse": (untrained, trained), "no_difference": (trained, same),
    }.items():  # fmt: skip
        status, out, err = cli(*args, folder, "--against", other, "--json")
        assert status == {"better": 0, "no_difference": 3, "worse": 4}[name], err
        judgement = json.loads(out)["judgement"]
        assert (judgement["verdict"], judgement["against"]) == (name, str(other))
        ours, theirs = (
            np.array([record["gold"] == record["predicted"] for record in read_out_of_fold(study)])
            for study in (folder, other)
        )
        assert judgement["difference"] == pytest.approx(ours.mean() - theirs.mean())
        assert judgement["text"].rstrip(".") in (folder / "report.html").read_text("utf-8")
    assert cli(*args, trained)[0] == 0


def test_a_single_run_does_not_replace_a_study(two_studies, cli, tmp_path, runs):
    _, trained, options = two_studies
    target = ["-o", trained.output_dir, "--overwrite"]
    words = ["contains files that are not part of a run", "study.json", "choose another directory"]
    args = ["--data", options["data"], "--model", options["model"], *target]
    assert_refused(cli, tmp_path, args, words)
    assert_refused(cli, tmp_path, [runs / "classify", "--data", options["data"], *target], words, "calibrate")


def test_studies_that_cannot_be_compared_are_refused(two_studies, cli, tmp_path, runs):
    _, trained, options = two_studies
    data = options["data"]
    other = write_rows(tmp_path / "other.jsonl", make_toy_rows(80, seed=1))
    study = ["--against", trained.output_dir, "--model", options["model"], "-o", tmp_path / "new"]
    for args, words in (
        (["classify", "--data", data, "--folds", 3, *study], "has other folds than this study"),
        (["classify", "--data", data, "--folds", 2, "--split-seed", 5, *study], "has other folds"),
        (["classify", "--data", data, "--seeds", 2, *study], "predicts other rows than this study"),
        (["classify", "--data", other, "--folds", 2, *study], "predicts other rows than this study"),
        (
            ["nli", "--data", runs / "nli.jsonl", "--folds", 2, *study],
            "is a study of classify, this one of nli",
        ),
        (
            ["classify", "--data", data, "--folds", 2, *study, "--against", runs / "classify"],
            "not a finished",
        ),
    ):
        assert_refused(cli, tmp_path, args, ["--against", words], "study")
