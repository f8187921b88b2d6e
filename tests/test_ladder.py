"""`bertkit ladder TASK`: candidates on the same folds, the recommendation, time limits and resuming."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from conftest import (
    ROW_MAKERS,
    assert_refused,
    freeze_libraries,
    read_predictions,
    save_tiny_model,
    slow_fixture,
    write_rows,
)

import bertkit
from bertkit.errors import TrainingFailed, UserError
from bertkit.experiments import ladder
from bertkit.experiments.config import list_experiment_tasks, make_task_config
from bertkit.experiments.ladder import Ladder, Recommendation, Result, recommend
from bertkit.run_directory import RunDir
from bertkit.settings.run_settings import FINETUNE, INT8, Candidate
from bertkit.stats.significance import Drop, Scorer
from bertkit.tasks import task_definition

QUICK = {"batch_size": 16, "max_length": 32, "bf16": False, "max_steps": 1, "folds": 2}
TFIDF = Candidate("tfidf", settings={"method": "tfidf"})
MAJORITY, DISTILLED = Candidate("majority", "baseline"), Candidate("distilled", "distilled")


# ---- the recommendation


def make_result(name, points=0.0, bound=0.5, megabytes=10.0, rows_per_second=100.0):
    return Result(name, Drop(points / 100, bound / 100, 1000), megabytes, rows_per_second)


BEST = make_result("best", 0.0, 0.0, megabytes=90.0)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (make_result("small", points=1.0), "small"),
        (make_result("small", points=1.01), "best"),
        (make_result("small", points=0.0, megabytes=91.0), "best"),  # two digits: 9.1e+01
        (make_result("fast", megabytes=90.4, rows_per_second=200), "fast"),
        (make_result("fast", points=0.5, megabytes=90.4, rows_per_second=140), "best"),  # one digit: 1e+02
        (make_result("slow", megabytes=89.0, rows_per_second=1), "slow"),
    ],
)
def test_the_smallest_model_within_the_margin_is_recommended(other, expected):
    assert recommend([other, BEST], "best", margin=1.0).name == expected
    assert recommend([BEST, other], "best", margin=1.0).name == expected


@pytest.mark.parametrize(("bound", "is_shown"), [(1.0, True), (1.01, False)])
def test_a_margin_is_shown_by_the_bound_of_the_drop(bound, is_shown):
    found = recommend([BEST, make_result("small", 0.4, bound)], "best", margin=1.0)
    assert (found.name, found.is_shown) == ("small", is_shown)
    # the bound is proportional to 1 / sqrt(n): ((1.01 - 0.4) / (1.0 - 0.4)) ** 2 * 1000
    assert found.needed_rows == (None if is_shown else 1034)


def test_no_number_of_rows_shows_a_drop_of_the_margin():
    assert recommend([BEST, make_result("small", 1.0, 2.0)], "best", 1.0) == Recommendation(
        "small", False, None
    )
    assert recommend([BEST, make_result("small", 0.0, 0.2)], "best", 0.0) == Recommendation(
        "small", False, None
    )
    assert recommend([BEST], "best", 0.0) == Recommendation("best", True, None)


def test_a_scorer_of_selected_rows_has_their_order():
    scorer = Scorer(lambda rows: {"first": float(rows[0])}, 4, np.array([True, False, True, True]))
    selected = scorer.select(np.array([3, 1]))
    assert (selected.size, selected.score_all()) == (2, {"first": 3.0})
    assert selected.is_correct.tolist() == [True, False]


def test_joined_scorers_have_the_rows_of_all():
    parts = [
        Scorer.from_columns(
            lambda gold, found: {"hits": float((gold == found).sum())}, [gold, found], gold == found
        )
        for gold, found in [(np.array([1, 2]), np.array([1, 3])), (np.array([4]), np.array([4]))]
    ]
    joined = Scorer.concatenate(parts)
    assert (joined.size, joined.score_all()) == (3, {"hits": 2.0})
    assert joined.is_correct.tolist() == [True, False, True]


# ---- the plan


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The folder of a random BERT with two layers, for many runs."""
    freeze_libraries()
    return save_tiny_model(tmp_path_factory.mktemp("models") / "small", num_hidden_layers=2)


@pytest.fixture
def make_ladder(tmp_path, small):
    def make(task="classify", rows=None, **settings):
        data = write_rows(tmp_path / "rows.jsonl", rows or ROW_MAKERS[task](24))
        settings = {"data": str(data), "models": [str(small)], **QUICK, **settings}
        made = Ladder(make_task_config("ladder", task)(**settings))
        made.prepare()
        return made

    return make


def test_settings_without_effect_on_a_candidate_are_reset(make_ladder):
    planned = {one.name: one.settings for one in make_ladder(seed=3).candidates}
    assert planned["tfidf"]["max_length"] is planned["tfidf"]["model"] is None
    assert "max_length" not in planned["finetune"]
    assert "max_length" not in planned["contrastive"]
    assert planned["linear-probe"]["max_steps"] is None
    assert "max_steps" not in planned["contrastive"]


def test_candidates_that_read_an_encoder_are_tried_with_each(make_ladder, small, tmp_path):
    other = shutil.copytree(small, tmp_path / "other")
    names = [one.name for one in make_ladder(models=[f"{small},{other}"]).candidates]
    assert names == [
        "majority", "tfidf", "tfidf-chars", "hybrid small", "hybrid other", "linear-probe small",
        "linear-probe other", "finetune small", "finetune other", "windows small", "windows other",
        "contrastive small", "contrastive other", "int8", "distilled",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings", "rows", "words"),
    [
        ("contrastive", {}, 24, None),
        ("contrastive", {}, 500, "training rows per class, and it is for at most 100"),
        ("windows", {}, 24, "longer than 32 tokens"),
        ("windows", {"max_length": 4}, 24, None),
        ("int8", {}, 24, None),
        ("tfidf", {"label_smoothing": 0.1}, 24, None),
    ],
)
def test_a_candidate_that_does_not_fit_the_data_is_left_out(make_ladder, name, settings, rows, words):
    made = make_ladder(rows=ROW_MAKERS["classify"](rows), **settings)
    reason = made.find_obstacle(next(one for one in made.candidates if one.name == name))
    assert (reason is None) == (words is None), reason
    assert words is None or words in reason


@pytest.fixture
def models(small, tmp_path):
    """Encoders by name: one that can be used, one with truncated weights, one without a tokenizer."""
    folders = {"good": small, "damaged": tmp_path / "damaged", "mute": tmp_path / "mute"}
    shutil.copytree(small, folders["damaged"])
    weights = folders["damaged"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    shutil.copytree(small, folders["mute"], ignore=shutil.ignore_patterns("tokenizer*"))
    return {name: str(folder) for name, folder in folders.items()}


@pytest.mark.parametrize("order", [("mute", "good"), ("good", "mute")])
def test_an_encoder_that_cannot_be_used_is_left_out(make_ladder, models, order):
    made = make_ladder(models=[",".join(models[name] for name in order)])
    reasons = {one.name: made.find_obstacle(one) for one in made.candidates}
    for candidate in ("hybrid", "linear-probe", "finetune", "contrastive"):
        assert reasons[f"{candidate} small"] is None
        assert "--models mute: its tokenizer has no vocabulary" in reasons[f"{candidate} mute"]


def test_a_ladder_needs_an_encoder_that_can_be_used(make_ladder, models):
    with pytest.raises(UserError, match="--models mute: its tokenizer has no vocabulary"):
        make_ladder(models=[models["mute"]])


@pytest.mark.parametrize("order", [("good", "minilmm"), ("minilmm", "good")])
def test_a_wrong_name_of_an_encoder_is_an_error_before_the_data_is_read(
    cli, tmp_path, models, damaged, order
):
    names = ",".join(models.get(name, name) for name in order)
    arguments = ["classify", "--data", damaged, "--models", names]
    assert_refused(cli, tmp_path, arguments, ["--models minilmm", "did you mean 'minilm'?"], "ladder")


def test_a_dry_run_adds_up_the_seconds_in_the_order_of_training(make_ladder, monkeypatch):
    made = make_ladder(dry_run=True)
    seconds = {"linear-probe": 1.0, "finetune": 5.0, "contrastive": 2.0}
    monkeypatch.setattr(Ladder, "_estimate", lambda *arguments: seconds.get(arguments[1].name, 0.0))
    plan = [
        (row["candidate"], row["runs"], row["seconds"], row["total"]) for row in made.describe_runs()["runs"]
    ]
    assert plan == [
        ("tfidf", "2", "-", "0.0"), ("tfidf-chars", "2", "-", "0.0"), ("hybrid", "2", "-", "0.0"),
        ("linear-probe", "2", "2.0", "2.0"), ("finetune", "2", "10.0", "12.0"),
        ("contrastive", "2", "4.0", "16.0"), ("int8", "2", "-", "16.0"), ("distilled", "2", "10.0", "26.0"),
    ]  # fmt: skip


def test_a_dry_run_plans_no_model_that_is_made_from_one_that_is_left_out(make_ladder, monkeypatch):
    def fail(self, candidate, source):
        if candidate.is_fine_tuned:
            raise UserError("--model small: its weights cannot be loaded")
        return 1.0

    monkeypatch.setattr(Ladder, "_estimate", fail)
    plan = make_ladder(dry_run=True).describe_runs()
    assert not {"finetune", "int8", "distilled"} & {row["candidate"] for row in plan["runs"]}
    assert plan["left_out"]["finetune"] == "--models small: its weights cannot be loaded"
    assert plan["left_out"]["distilled"] == "no fine-tuned model to make it from"


@pytest.mark.parametrize(
    ("message", "is_left_out"),
    [
        ("--model small: its weights cannot be loaded", True),
        ("run/checkpoints: cannot be written; free disk space and resume with --resume", False),
    ],
)
def test_an_error_that_is_not_about_the_encoder_stops_the_ladder(
    make_ladder, tmp_path, monkeypatch, message, is_left_out
):
    def fail(*_):
        raise UserError(message)

    made = make_ladder()
    monkeypatch.setattr(Ladder, "train_run", fail)
    [candidate] = [one for one in made.candidates if one.name == "finetune"]
    run = made._plan(tmp_path, candidate, None)[0]
    if is_left_out:
        assert made.attempt(run).reason == message.replace("--model", "--models")
    else:
        with pytest.raises(UserError, match="free disk space"):
            made.attempt(run)


def test_an_export_is_tried_before_its_time_is_known(make_ladder):
    made = make_ladder()
    source = ladder.Trained(FINETUNE, [], 100.0, None)
    assert made._estimate(INT8, source) == 0
    assert made._estimate(DISTILLED, source) == 100


@pytest.mark.parametrize(("difference", "is_named"), [(-0.1, False), (0.0, True), (0.1, True)])
def test_a_baseline_as_good_as_the_best_model_is_named(difference, is_named):
    metrics = {
        "candidates": [{"name": "majority", "origin": "baseline", "difference": difference}],
        "recommended": "tfidf", "best": "tfidf", "margin": 1.0, "greater_is_better": True,
        "judgement": None, "mean_of_candidates": {"candidates": []}, "left_out": {}, "commands": [],
    }  # fmt: skip
    first = ladder.describe_recommendation(metrics)[0]
    assert ("no model is better than majority" in first) == is_named


def test_numbers_have_no_contrastive_candidate(make_ladder):
    rows = [{"text": f"good {number}", "label": number / 7} for number in range(40)]
    made = make_ladder(rows=rows)
    reasons = {one.name: made.find_obstacle(one) for one in made.candidates}
    assert {name for name, reason in reasons.items() if reason} == {"majority", "contrastive", "windows"}


def test_a_time_limit_leaves_room_for_the_run_on_all_rows(make_ladder, monkeypatch):
    made = make_ladder(time_limit=10.0)
    monkeypatch.setattr(ladder.time, "monotonic", lambda: made.started + 60)
    assert made._describe_excess(160, 3) is None  # 480 of the 540 seconds for training are left
    assert made._describe_excess(161, 3) == (
        "it needs about 8.1 minutes more, and 8.0 minutes of --time-limit 10 are left for training"
    )
    made.config = dataclasses.replace(made.config, keep=True)
    assert made._describe_excess(96, 3) is None
    assert made._describe_excess(97, 3)
    assert made._describe_excess(9999, 0) is None
    monkeypatch.setattr(ladder.time, "monotonic", lambda: made.started + 600)
    assert made._describe_excess(1, 1) == "no time of --time-limit 10 is left"


@pytest.mark.parametrize("task", ["qa", "pretrain-mlm-nsp", "unknown"])
def test_tasks_without_candidates_are_refused_in_one_line(task):
    assert task not in list_experiment_tasks("ladder")
    with pytest.raises(UserError, match=f"ladder {task}: is not a task with candidates; use classify, ner"):
        bertkit.ladder(task, data="sample")


def test_settings_of_candidates_are_no_settings_of_a_ladder(cli, tmp_path):
    for flag in ("--method", "--metric", "--num-layers"):
        assert_refused(cli, tmp_path, ["classify", flag, "1"], [flag, "no such option"], "ladder")


# ---- whole ladders

CANDIDATES = {
    "classify": (MAJORITY, TFIDF, FINETUNE, DISTILLED),
    "nli": (Candidate("hypothesis_only", "baseline"), FINETUNE),
    "swag": (Candidate("ending_only", "baseline"), FINETUNE),
    "ner": (
        Candidate("frequent_tag", "baseline"),
        Candidate("frozen-features", settings={"features": "last"}),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def quick_speeds():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ladder, "SPEED_SECONDS", 1e-3)
        yield monkeypatch


def run_ladder(folder, task, small, candidates, **settings):
    """Run a ladder with few candidates."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(task_definition(task).config, "candidates", candidates)
        return bertkit.ladder(task, models=[str(small)], output_dir=str(folder), **QUICK, **settings)


@slow_fixture
def ladders(tmp_path_factory, small):
    folder = tmp_path_factory.mktemp("ladders")
    runs = {}
    for task, candidates in CANDIDATES.items():
        data = write_rows(folder / f"{task}.jsonl", ROW_MAKERS[task](24))
        runs[task] = run_ladder(folder / task, task, small, candidates, data=str(data))
    return runs


@pytest.mark.parametrize("task", CANDIDATES)
def test_each_candidate_has_a_row_of_the_table(ladders, task):
    metrics = ladders[task].metrics
    assert [one["name"] for one in metrics["candidates"]] == [one.name for one in CANDIDATES[task]]
    baseline, *models = metrics["candidates"]
    assert {baseline[key] for key in ("megabytes", "rows_per_second", "train_seconds")} == {None}
    for one in models:
        low, high = one["interval"]
        assert low <= one["score"] <= high
        assert min(one["megabytes"], one["rows_per_second"], one["single_rows_per_second"]) > 0
    best = max(models, key=lambda one: one["score"])
    assert metrics["best"] == best["name"]
    assert [one["difference"] for one in metrics["candidates"]] == pytest.approx(
        [one["score"] - best["score"] for one in metrics["candidates"]]
    )
    folder = ladders[task].output_dir
    assert json.loads((folder / "ladder.json").read_text("utf-8")) == metrics
    assert "<table" in (folder / "report.html").read_text("utf-8")


def test_a_baseline_predicts_each_row_from_the_other_folds(ladders):
    """The majority label of the other folds is right for at most half of balanced rows."""
    [majority, tfidf, *_] = ladders["classify"].metrics["candidates"]
    assert majority["score"] <= 0.5 < tfidf["score"]


def test_the_mean_of_the_candidates_predicts_each_row_once(ladders):
    run = ladders["classify"]
    records = read_predictions(run.output_dir, "out_of_fold.jsonl")
    assert [record["text"] for record in records] == [row["text"] for row in ROW_MAKERS["classify"](24)]
    names = run.metrics["mean_of_candidates"]["candidates"]
    assert names == ["tfidf", "finetune", "distilled"]
    fold = [record for record in records if record["fold"] == 0]
    members = [
        read_predictions(run.output_dir / "candidates" / f"{name}-fold0", "predictions-test.jsonl")
        for name in names
    ]
    for record, *others in zip(fold, *members, strict=True):
        for label, probability in record["probabilities"].items():
            mean = np.mean([other["probabilities"][label] for other in others])
            assert probability == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize("task", CANDIDATES)
def test_label_issues_reads_a_ladder(ladders, task):
    found = bertkit.label_issues(ladders[task].output_dir)
    assert (found.task, found.num_rows) == (task, 24)


def test_the_command_repeats_the_recommended_model(ladders, cli):
    run = ladders["classify"]
    assert run.metrics["recommended"] == "tfidf"
    [command] = run.metrics["commands"]
    assert command.split()[:3] == ["bertkit", "classify", "--recipe"]
    status, _, err = cli(*command.split()[1:], "--dry-run")
    assert status == 0, err
    assert "model: tfidf" in err


def test_a_killed_ladder_has_the_same_table_when_resumed(ladders, small, tmp_path):
    """Only the run that had not finished is trained again."""
    folder = shutil.copytree(ladders["classify"].output_dir, tmp_path / "ladder")
    for name in (RunDir.METRICS_FILE, "ladder.json", "candidates/finetune-fold1/metrics.json"):
        (folder / name).unlink()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("candidates/*/metrics.json")}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(task_definition("classify").config, "candidates", CANDIDATES["classify"])
        resumed = bertkit.ladder("classify", output_dir=str(folder), resume=True)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    keys = ("name", "score", "interval", "difference", "difference_interval")
    before, after = (
        [[one[key] for key in keys] for one in run.metrics["candidates"]]
        for run in (ladders["classify"], resumed)
    )
    assert after == before


@pytest.mark.slow
def test_a_failed_candidate_is_left_out_with_its_reason(small, tmp_path, monkeypatch):
    train_run = Ladder.train_run

    def fail(self, run, *args):
        if run.candidate.name == "finetune":
            raise TrainingFailed("loss is NaN")
        return train_run(self, run, *args)

    monkeypatch.setattr(Ladder, "train_run", fail)
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS["classify"](24))
    run = run_ladder(tmp_path / "ladder", "classify", small, CANDIDATES["classify"], data=str(data))
    assert run.metrics["left_out"] == {
        "finetune": "finetune, fold 0: loss is NaN",
        "distilled": "no fine-tuned model to make it from",
    }
    assert run.metrics["best"] == "tfidf"


@pytest.mark.slow
@pytest.mark.parametrize("limit", [{}, {"time_limit": 60.0}])
def test_damaged_weights_leave_out_their_candidate(models, tmp_path, limit):
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS["classify"](24))
    run = run_ladder(
        tmp_path / "ladder", "classify", models["damaged"], (TFIDF, FINETUNE), data=str(data), **limit
    )
    assert [one["name"] for one in run.metrics["candidates"]] == ["tfidf"]
    assert "--models damaged: its weights cannot be loaded" in run.metrics["left_out"]["finetune"]


@pytest.mark.slow
def test_a_time_limit_leaves_out_what_does_not_fit(small, tmp_path):
    """The first model is trained in any case."""
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS["classify"](24))
    run = run_ladder(
        tmp_path / "ladder", "classify", small, CANDIDATES["classify"], data=str(data), time_limit=0.001
    )
    assert [one["name"] for one in run.metrics["candidates"]] == ["majority", "tfidf"]
    assert run.metrics["left_out"].keys() == {"finetune", "distilled"}
    assert run.metrics["left_out"]["finetune"] == "no time of --time-limit 0.001 is left"


@pytest.mark.slow
def test_the_recommended_model_is_kept_as_a_run(ladders, small, tmp_path):
    folder = shutil.copytree(ladders["classify"].output_dir, tmp_path / "ladder")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(task_definition("classify").config, "candidates", CANDIDATES["classify"])
        run = bertkit.ladder("classify", output_dir=str(folder), resume=True, keep=True)
    assert run.metrics == ladders["classify"].metrics
    metrics = RunDir(folder / "recommended").require_metrics()
    assert (metrics["model"], metrics["data"]["train"]) == ("tfidf", 22)
    assert list(bertkit.predict(folder / "recommended", text=["a good day"]))


@pytest.mark.slow
def test_int8_is_made_from_the_runs_of_the_folds(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(ladder, "recommend", lambda *_: Recommendation("int8", True, None))
    exported = []
    monkeypatch.setattr(ladder.export, "export", exported.append)  # of the run that is kept
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS["classify"](24))
    model = save_tiny_model(tmp_path / "model", num_hidden_layers=1)
    run = run_ladder(tmp_path / "ladder", "classify", model, (FINETUNE, INT8), data=str(data), keep=True)
    finetune, int8 = run.metrics["candidates"]
    assert int8["made_from"] == "finetune"
    assert int8["score"] == pytest.approx(finetune["score"], abs=0.1)
    assert int8["train_seconds"] > finetune["train_seconds"]
    assert len(run.metrics["commands"]) == 2
    assert RunDir(run.output_dir / "recommended").is_finished
    assert [settings["quantize"] for settings in exported] == ["int8"]
