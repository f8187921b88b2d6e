"""`--metric`: modules of the library `evaluate` score decoded predictions, next to bertkit's own scores."""

import json
import re
import shutil
import sys
from pathlib import Path

import evaluate as evaluate_library
import pytest
import yaml
from conftest import assert_refused, make_ner_rows, make_toy_rows, read_predictions, write_rows

import bertkit
from bertkit.reports.page import compute_interval_bar
from bertkit.run_directory import RunDir
from bertkit.stats.metric_modules import is_lower_better, load_module, name_scores, parse_arguments

MODULE = """
from pathlib import Path

import datasets
import evaluate
from datasets import Value

TEXT = Value("string")
LIST = getattr(datasets, "List", datasets.Sequence)  # List is new in datasets 4
ANSWERS = {{"text": LIST(TEXT), "answer_start": LIST(Value("int32"))}}


class Module(evaluate.Metric):
    def _info(self):
        features = {{"predictions": {predictions}, "references": {references}}}
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="", features=datasets.Features(features)
        )

    def _compute(self, predictions, references, **options):
        {body}
"""
MATCHES = 'return {"matches": sum(p == r for p, r in zip(predictions, references)) / len(references)}'
INT, TEXT, FLOAT = 'Value("int64")', "TEXT", 'Value("float32")'
FAST = {"epochs": 1, "batch_size": 8, "max_length": 32, "bf16": False}
FAST_FLAGS = ["--epochs", 1, "--batch-size", 8, "--max-length", 32]


def write_module(path, predictions=INT, body=MATCHES, references=None):
    """Write a module that computes `body`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MODULE.format(predictions=predictions, references=references or predictions, body=body))
    return path


def compute_directly(path, predictions, references, **options):
    return evaluate_library.load(str(path)).compute(predictions=predictions, references=references, **options)


def evaluate_run(cli, run, tmp_path, *flags):
    """Score a run with `bertkit evaluate`, and return the metrics and the prediction records."""
    status, out, err = cli("evaluate", run, "-o", tmp_path / "scored", "--overwrite", "--json", *flags)
    assert status == (3 if "--compare" in flags else 0), err  # a run does not differ from its copy
    return json.loads(out), read_predictions(tmp_path / "scored")


# ---- decoded predictions


def write_own_metric(path, name):
    """Write a module that is one of bertkit's own metrics."""
    path.write_text(f"from bertkit.metrics import {name}\n")
    return path


def assert_own_scores_are_equal(scores):
    """The module `own` has given the scores of the task."""
    for score in ("accuracy", "f1", "matthews", "positive_f1", "exact", "HasAns_f1", "NoAns_exact"):
        assert (score in scores) == (f"own_{score}" in scores)
        if score in scores:
            assert scores[f"own_{score}"] == pytest.approx(scores[score]), score


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "nli"])
def test_label_ids_and_label_names_are_scored(runs, cli, tmp_path, task):
    ids = write_module(
        tmp_path / "ids.py", body='return {"highest": max(predictions), "equal": predictions == references}'
    )
    body = 'return {"first": float(predictions[0] == references[0]), "letters": sum(map(len, predictions))}'
    names = write_module(tmp_path / "names.py", TEXT, body)
    found, records = evaluate_run(cli, runs / task, tmp_path, "--metric", ids, "--metric", names)
    labels = list(json.loads((runs / task / "config.json").read_text())["id2label"].values())
    predicted, gold = ([record[key] for record in records] for key in ("predicted", "gold"))
    assert found["validation"]["highest"] == max(map(labels.index, predicted))
    direct = compute_directly(names, predicted, gold)
    assert {name: found["validation"][name] for name in direct} == direct


@pytest.mark.slow
def test_regression_gives_numbers(tmp_path, tiny):
    rows = [row | {"label": index / 7} for index, row in enumerate(make_toy_rows(40))]
    body = 'return {"mse": sum((p - r) ** 2 for p, r in zip(predictions, references)) / len(references)}'
    module = write_module(tmp_path / "mse.py", FLOAT, body)
    data = write_rows(tmp_path / "data.jsonl", rows)
    run = bertkit.classify(
        data=data, model=tiny, output_dir=tmp_path / "run", problem="regression", metric=str(module), **FAST
    )
    records = read_predictions(tmp_path / "run")
    direct = compute_directly(module, *([record[key] for record in records] for key in ("predicted", "gold")))
    assert run.metrics["validation"]["mse"] == pytest.approx(direct["mse"])


@pytest.mark.slow
def test_label_sets_are_lists_of_0_and_1(tmp_path, tiny, cli):
    rows = [
        row | {"label": [row["label"], *["long"] * (i % 3 == 0)]} for i, row in enumerate(make_toy_rows(40))
    ]
    data = write_rows(tmp_path / "data.jsonl", rows)
    body = 'return {"f1": sum(map(sum, predictions))}'
    module = write_module(tmp_path / "f1.py", 'LIST(Value("int32"))', body)
    run = bertkit.classify(data=data, model=tiny, output_dir=tmp_path / "run", metric=[module], **FAST)
    num_predicted = sum(len(record["predicted"]) for record in read_predictions(tmp_path / "run"))
    assert run.metrics["validation"]["f1"] == num_predicted
    single = write_module(tmp_path / "single.py")
    args = ["--data", data, "--model", tiny, "--metric", single]
    assert_refused(cli, tmp_path, args, [f"--metric {single}: takes", "int64", "gives", "list of int"])


@pytest.mark.slow
def test_sentences_are_lists_of_tags(runs, cli, tmp_path):
    body = 'return {"tags": sum(map(len, predictions)), "inside": str(references).count("I-")}'
    module = write_module(tmp_path / "tags.py", "LIST(TEXT)", body)
    body = "from seqeval.metrics import f1_score; return {'f1': f1_score(references, predictions)}"
    of_seqeval = write_module(tmp_path / "entities.py", "LIST(TEXT)", body)
    own = write_own_metric(tmp_path / "own.py", "Entities")
    modules = ["--metric", module, "--metric", of_seqeval, "--metric", own]
    found, records = evaluate_run(cli, runs / "ner", tmp_path, *modules)
    predicted, gold = ([record[key] for record in records] for key in ("predicted", "gold"))
    direct = compute_directly(module, predicted, gold)
    assert direct["inside"] > 0
    assert {name: found["validation"][name] for name in direct} == direct
    assert found["validation"]["entities_f1"] == pytest.approx(found["validation"]["f1"])
    assert_own_scores_are_equal(found["validation"])


@pytest.mark.slow
def test_sentences_of_any_scheme_are_scored(cli, tmp_path, tiny):
    io_rows = [row | {"tags": [tag.replace("B-", "I-") for tag in row["tags"]]} for row in make_ner_rows(40)]
    body = 'return {"begin": str(predictions).count("B-")}'
    module = write_module(tmp_path / "begin.py", "LIST(TEXT)", body)
    data = write_rows(tmp_path / "io.jsonl", io_rows)
    run = bertkit.ner(data=data, model=tiny, output_dir=tmp_path / "run", metric=module, **FAST)
    assert run.metrics["validation"]["begin"] == 0


ANSWER_FEATURES = {"references": '{"id": TEXT, "answers": ANSWERS}'}
EXACT = (
    'text = {p["id"]: p["prediction_text"] for p in predictions}; '
    'hits = [text[r["id"]] in (r["answers"]["text"] or [""]) for r in references]; '
    'return {"exact": 100 * sum(hits) / len(hits), "questions": len(text)}'
)


def write_null_metric(path):
    """Write a module that computes the mean probability that there is no answer."""
    features = '{"id": TEXT, "prediction_text": TEXT, "no_answer_probability": Value("float32")}'
    body = 'return {"mean_null": sum(p["no_answer_probability"] for p in predictions) / len(predictions)}'
    return write_module(path, features, body, **ANSWER_FEATURES)


@pytest.mark.slow
def test_answers_have_the_form_of_squad_and_probabilities_follow_the_null_odds(runs, cli, tmp_path):
    module = write_module(
        tmp_path / "answers.py", '{"id": TEXT, "prediction_text": TEXT}', EXACT, **ANSWER_FEATURES
    )
    own = write_own_metric(tmp_path / "own.py", "SquadV2")
    null = write_null_metric(tmp_path / "null.py")
    modules = ["--metric", module, "--metric", own, "--metric", null]
    found, records = evaluate_run(cli, runs / "qa", tmp_path, *modules)
    assert_own_scores_are_equal(found["validation"])
    expected = [1 / (1 + 2.718281828459045 ** -record["null_odds"]) for record in records]
    assert found["validation"]["mean_null"] == pytest.approx(sum(expected) / len(expected), abs=1e-6)
    predictions = [{"id": record["id"], "prediction_text": record["answer"]} for record in records]
    references = [
        {
            "id": record["id"],
            "answers": {"text": record["gold"], "answer_start": [0] * len(record["gold"])},
        }
        for record in records
    ]
    direct = compute_directly(module, predictions, references)
    assert found["validation"]["answers_exact"] == pytest.approx(direct["exact"])
    assert found["validation"]["exact"] == pytest.approx(
        direct["exact"]
    )  # single words need no normalization
    low, high = found["intervals"]["questions"]
    assert low == high == len(records)  # a question that is sampled twice is counted twice


@pytest.mark.slow
def test_endings_are_indices_for_a_file_and_for_a_directory_with_a_module_of_its_name(runs, cli, tmp_path):
    module = write_module(tmp_path / "endings.py")
    write_module(tmp_path / "again" / "again.py")
    modules = ["--metric", module, "--metric", tmp_path / "again"]
    found, _ = evaluate_run(cli, runs / "swag", tmp_path, *modules)
    assert found["validation"]["matches"] == pytest.approx(found["validation"]["accuracy"])
    assert found["validation"]["again_matches"] == found["validation"]["accuracy"]


# ---- names and intervals


@pytest.mark.slow
def test_scores_are_in_every_result_of_a_run_and_never_replace_ours(cli, tmp_path, tiny, toy):
    scores = (
        '"accuracy": options.get("scale", 0.25), "mine": len(predictions) / 100, "loss": -1.0, '
        '"label": "x", "bad": float("nan"), "two\\nlines": 1.0, "a|b": 2.0'
    )
    module = write_module(tmp_path / "own.py", body=f"return {{{scores}}}")
    test = write_rows(tmp_path / "test.jsonl", make_toy_rows(10, seed=3))
    flags = ["--metric", module, "--metric", f"{module}:scale=0.5", "--metric-for-best-model", "matthews"]
    args = ["--data", toy, "--test", test, "--model", tiny, *FAST_FLAGS, "-o", tmp_path / "run"]
    status, out, err = cli("classify", *args, *flags)
    assert status == 0, err
    assert "not numbers are left out: label" in err
    assert "not a finite number, left out: bad" in err
    assert "best checkpoint: highest matthews" in err
    metrics, records = RunDir(tmp_path / "run").read_metrics(), read_predictions(tmp_path / "run")
    validation = metrics["validation"]
    assert (validation["own_accuracy"], validation["own_accuracy_2"]) == (0.25, 0.5)
    assert (validation["mine"], validation["own_mine"]) == (0.08, 0.08)
    matches = [record["gold"] == record["predicted"] for record in records]
    assert validation["accuracy"] == sum(matches) / len(matches)
    assert metrics["test"]["mine"] == 0.1
    assert metrics["intervals"]["own_accuracy"] == [0.25, 0.25]
    assert "bad" not in validation | metrics["intervals"]
    card, report = ((tmp_path / "run" / name).read_text("utf-8") for name in ("README.md", "report.html"))
    assert all("own_accuracy_2" in text for text in (out, card, report))
    assert "\n| two lines | 1.000 |" in card  # names do not break the table
    assert "\n| a\\|b | 2.000 |" in card
    log = [json.loads(line) for line in (tmp_path / "run/training_log.jsonl").read_text().splitlines()]
    evaluation = next(entry for entry in log if "eval_own_accuracy" in entry)
    assert (evaluation["eval_own_accuracy"], evaluation["eval_own_loss"]) == (0.25, -1.0)
    assert evaluation["eval_loss"] > 0  # the loss of a module is not the validation loss


def test_scores_are_named_after_their_module_if_the_name_is_taken():
    taken = {"f1"}
    assert name_scores("mod", ["f1", "new"], taken) == {"f1": "mod_f1", "new": "new"}
    assert name_scores("mod", ["f1", "new"], taken) == {"f1": "mod_f1_2", "new": "mod_new"}


@pytest.mark.slow
def test_intervals_are_bootstrap_intervals_of_the_module(runs, cli, tmp_path):
    module = write_module(tmp_path / "again.py")
    data = write_rows(tmp_path / "new.jsonl", make_toy_rows(200, seed=5))
    found, _ = evaluate_run(cli, runs / "classify", tmp_path, "--data", data, "--metric", module)
    assert found["validation"]["matches"] == found["validation"]["accuracy"]
    own, module_interval = found["intervals"]["accuracy"], found["intervals"]["matches"]
    assert module_interval == pytest.approx(own, abs=0.04)  # Wilson's interval, and 100 samples


@pytest.mark.slow
def test_two_runs_are_compared_in_the_scores_of_modules(runs, cli, tmp_path):
    module = write_module(tmp_path / "again.py")
    copy = shutil.copytree(runs / "classify", tmp_path / "copy")
    found, _ = evaluate_run(cli, runs / "classify", tmp_path, "--compare", copy, "--metric", module)
    assert found["compared"]["difference"]["matches"]["difference"] == 0
    assert found["compared"]["validation"]["matches"] == found["validation"]["matches"]


@pytest.mark.slow
def test_a_sample_that_a_module_refuses_has_no_score(runs, cli, tmp_path):
    body = 'assert len(set(references)) > 1, "one class"; return {"both": 1.0}'
    data = write_rows(tmp_path / "new.jsonl", make_toy_rows(4, seed=5))
    flags = ["--data", data, "--metric", write_module(tmp_path / "strict.py", body=body)]
    found, _ = evaluate_run(cli, runs / "classify", tmp_path, *flags)
    assert found["intervals"]["both"] == [1.0, 1.0]


# ---- errors before training


def raise_error(text):
    return f'raise ValueError("{text}")'


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"predictions": "LIST(TEXT)"}, ["takes predictions: list of string", "gives predictions: int"]),
        ({"predictions": '{"id": TEXT}'}, ["takes predictions: {id: string}"]),
        ({"body": raise_error("two labels only")}, ["raised ValueError (two labels only); pass"]),
        ({"body": 'return {"score": "high"}'}, ["without any number"]),
        ({"body": "return 0.5"}, ["returned 0.5, not a dictionary"]),
    ],
)
def test_a_module_that_cannot_score_the_task_is_refused(cli, tmp_path, tiny, toy, options, words):
    module = write_module(tmp_path / "module.py", **options)
    args = ["--data", toy, "--model", tiny, "--metric", module]
    assert_refused(cli, tmp_path, args, [f"--metric {module}: ", *words])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_package\n", ["needs packages that are missing; run pip install no_such_package"]),
        ("x = 1\n", ["defines no subclass of evaluate.Metric"]),
        ("x = (\n", ["raised SyntaxError"]),
        ("raise RuntimeError\n", ["raised RuntimeError; correct the module"]),
    ],
)
def test_code_that_is_no_module_is_refused(cli, tmp_path, tiny, toy, code, words):
    (tmp_path / "module.py").write_text(code)
    args = ["--data", toy, "--model", tiny, "--metric", tmp_path / "module.py"]
    assert_refused(cli, tmp_path, args, [f"--metric {tmp_path / 'module.py'}: ", *words])


@pytest.mark.slow
def test_a_missing_file_and_an_unreachable_hub_are_reported_at_once(cli, tmp_path, tiny, damaged, no_hub):
    args = ["--data", damaged, "--model", tiny, "--metric"]
    assert_refused(cli, tmp_path, [*args, "none.py"], ["--metric none.py: the file does not exist"])
    (tmp_path / "folder").mkdir()
    assert_refused(cli, tmp_path, [*args, "folder"], ["--metric folder: the directory contains no .py file"])
    line = assert_refused(cli, tmp_path, [*args, "no_such_metric"], ["--metric no_such_metric: "])
    assert "neither a local file nor in the cache" in line
    assert "cannot be reached" in line or "HF_HUB_OFFLINE" in line


def test_pretraining_has_no_modules(runs, cli, tmp_path):
    flags = [runs / "pretrain-mlm-nsp", "--metric", write_module(tmp_path / "module.py")]
    assert_refused(
        cli, tmp_path, flags, ["--metric: runs of pretrain-mlm-nsp do not predict rows"], "evaluate"
    )
    assert "--metric: no such option" in cli("pretrain-mlm-nsp", "--metric", "module.py")[2]


def test_a_module_that_exits_is_refused(cli, tmp_path, tiny, toy):
    module = write_module(tmp_path / "exits.py", body="raise SystemExit(3)")
    flags = ["--data", toy, "--model", tiny, "--metric", module, "-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, flags, ["exits.py: raised SystemExit (3)"], "classify")


@pytest.mark.slow
def test_a_module_that_fails_after_the_check_does_not_stop_the_run(cli, tmp_path, tiny, toy):
    body = 'assert len(references) < 5, "too many"; return {"few": 1.0}'
    module = write_module(tmp_path / "few.py", body=body)
    flags = ["--metric", module, "--metric-for-best-model", "few", "-o", tmp_path / "run"]
    status, _, err = cli("classify", "--data", toy, "--model", tiny, *FAST_FLAGS, *flags)
    assert status == 0, err
    assert f"--metric {module}: raised AssertionError (too many)" in err
    assert "warning: few: no evaluation has this score, so the last weights are kept" in err
    assert "few" not in RunDir(tmp_path / "run").read_metrics()["validation"]


# ---- the best checkpoint


@pytest.mark.slow
def test_the_best_checkpoint_is_chosen_by_a_module(cli, tmp_path, tiny):
    data, counter = write_rows(tmp_path / "data.jsonl", make_toy_rows(20)), tmp_path / "calls"
    body = (
        f'path = Path({str(counter)!r}); path.open("a").write("x"); return {{"calls": len(path.read_text())}}'
    )
    module = write_module(tmp_path / "calls.py", body=body)
    chosen = []
    for flags in (["--greater-is-better"], ["--no-greater-is-better"]):
        counter.write_text("")
        status, _, err = cli(
            "classify", "--data", data, "--model", tiny, *FAST_FLAGS, "--epochs", 3, "--metric", module,
            "--metric-for-best-model", "calls", *flags, "-o", tmp_path / flags[0],
        )  # fmt: skip
        assert status == 0, err
        assert f"best checkpoint: {'highest' if flags == ['--greater-is-better'] else 'lowest'} calls" in err
        steps = {int(path.name.split("-")[1]) for path in (tmp_path / flags[0] / "checkpoints").iterdir()}
        chosen.append(("restored the best weights, of step 3" in err, steps))
    assert chosen == [(False, {9}), (True, {3, 9})]


@pytest.mark.slow
def test_the_loss_chooses_the_best_checkpoint(cli, tmp_path, tiny, toy):
    flags = ["--metric-for-best-model", "loss", "-o", tmp_path / "run"]
    status, _, err = cli("classify", "--data", toy, "--model", tiny, *FAST_FLAGS, *flags)
    assert status == 0, err
    assert "best checkpoint: lowest loss" in err


@pytest.mark.slow
def test_the_name_of_the_best_metric_is_checked_before_training(cli, tmp_path, tiny, toy, runs):
    args = ["--data", toy, "--model", tiny]
    words = ["--metric-for-best-model acuracy: no such score; did you mean 'accuracy'", "f1", "positive_f1"]
    assert_refused(cli, tmp_path, [*args, "--metric-for-best-model", "acuracy"], words)
    module = write_module(tmp_path / "own.py")
    flags = ["--metric", module, "--metric-for-best-model", "match"]
    assert_refused(cli, tmp_path, [*args, *flags], ["choose one of", "accuracy", "matches"])
    assert_refused(cli, tmp_path, [*args, "--greater-is-better"], ["add it, or omit it"])
    assert_refused(
        cli, tmp_path, [*args, "--set", "metric_for_best_model=f1"], ["use --metric-for-best-model"]
    )


@pytest.mark.parametrize("task", ["ner", "qa", "swag", "nli"])
def test_the_scores_of_a_task_are_listed_without_training(task, runs, cli, tmp_path, tiny):
    args = ["--data", runs / f"{task}.jsonl", "--model", tiny, "--metric-for-best-model", "x"]
    line = assert_refused(cli, tmp_path, args, ["choose one of"], task)
    listed = set(line.rpartition("choose one of ")[2].split(", "))
    assert listed == {"loss", *RunDir(runs / task).read_metrics()["validation"]}


def test_the_report_shows_no_bar_for_errors_which_have_no_upper_bound():
    metrics = {"validation": {"rmse": 0.2}, "intervals": {"rmse": [0.1, 0.3]}, "baselines": {}}
    assert compute_interval_bar(metrics, "rmse") is None


def test_the_direction_follows_from_the_name():
    lower = ["loss", "eval_loss", "mse", "RMSE", "mae", "mean_absolute_error", "perplexity", "brier_score"]
    lower += ["ece", "nll", "brier"]
    assert all(map(is_lower_better, lower))
    assert not any(map(is_lower_better, ["accuracy", "f1", "errors_found", "lossless", "camera"]))


# ---- code is executed only if the user names it


@pytest.mark.slow
def test_code_is_executed_only_if_the_user_names_it(cli, tmp_path, tiny, toy, stop_at):
    module, marker, run = write_module(tmp_path / "marks.py"), tmp_path / "executed", tmp_path / "run"

    def change_code(line):
        """Change the code, so that executing it again leaves the marker again."""
        module.write_text(f"{module.read_text()}\n{line}\n")
        marker.unlink(missing_ok=True)

    change_code(f"Path({str(marker)!r}).touch()")
    stop_at(3)
    flags = ["--metric", module.name, "-o", run]
    status, _, err = cli("classify", "--data", toy, "--model", tiny, *FAST_FLAGS, *flags)
    assert status == 130, err
    assert f"--resume --output-dir {run} --metric {module}" in err
    assert yaml.safe_load((run / "run.yaml").read_text())["settings"]["metric"] == [str(module)]

    change_code("CHANGED = 1")
    refused = assert_refused(cli, tmp_path, ["--resume", "-o", run], [f"--metric {module}"])
    assert "executes the code" in refused
    recipe = ["--recipe", run / "run.yaml"]
    assert_refused(cli, tmp_path, recipe, [f"--metric {module}", "executes the code"])
    assert not marker.exists()
    status, _, err = cli("classify", "--resume", "-o", run, "--metric", module.name)
    assert status == 0, err
    assert marker.exists()

    change_code("CHANGED = 2")
    assert_commands_for_a_finished_run_work_without_its_module(cli, run, tmp_path / "scored", module)
    assert not marker.exists()


def assert_commands_for_a_finished_run_work_without_its_module(cli, run, scored, module):
    status, _, err = cli("evaluate", run, "-o", scored)
    assert status == 0, err
    assert f"--metric {module}" in err
    assert yaml.safe_load((scored / "run.yaml").read_text())["settings"].get("metric") is None
    assert "matches" not in RunDir(scored).read_metrics()["validation"]
    for args in (
        ["predict", run, "--text", "good film"],
        ["report", run],
        ["classify", "--resume", "-o", run],
    ):
        status, _, err = cli(*args)
        assert status == 0, err


# ---- values of the flag


def test_values_name_a_module_and_arguments(tmp_path):
    assert parse_arguments("f1:average=macro,zero_division=0") == (
        "f1", {"average": "macro", "zero_division": 0},
    )  # fmt: skip
    assert parse_arguments("ORG/my_metric") == ("ORG/my_metric", {})
    path = write_module(tmp_path / "odd:name=1.py")
    assert parse_arguments(str(path)) == (str(path), {})
    module = load_module(str(path))
    assert module.name == "odd:name=1"
    assert module.module.keep_in_memory  # the inputs are not written to files


def test_configurations_are_no_arguments(cli, tmp_path, tiny, toy):
    args = ["--data", toy, "--model", tiny, "--metric", "glue:mrpc"]
    words = ["--metric glue:mrpc: 'mrpc' is not an argument; write glue:KEY=VALUE"]
    assert_refused(cli, tmp_path, args, words)


def test_a_cached_module_of_the_hub_is_loaded_without_network(tmp_path, monkeypatch, no_hub):
    modules = tmp_path / "evaluate_modules"
    code = write_module(modules / "metrics/evaluate-metric--cached_one" / ("0" * 64) / "cached_one.py")
    for folder in (code.parent, code.parents[1], code.parents[2], modules):
        (folder / "__init__.py").touch()
    monkeypatch.setattr(evaluate_library.loading, "init_dynamic_modules", lambda: str(modules))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("evaluate_modules")]:
        monkeypatch.delitem(sys.modules, name)
    assert type(load_module("cached_one").module).__name__ == "Module"


# ---- examples in the documentation

METRICS_PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"


def read_example(name):
    """Return the Python code on docs/metrics.md that follows the comment `name`."""
    return re.search(rf"<!-- {name} -->\n```python\n(.*?)```", METRICS_PAGE.read_text("utf-8"), re.DOTALL)[1]


@pytest.mark.slow
def test_the_examples_in_the_docs_work(runs, cli, tmp_path):
    exec(read_example("own metrics"), {})
    (tmp_path / "my_metric.py").write_text(read_example("module"))
    own = write_own_metric(tmp_path / "own.py", "Classification")
    modules = ["--metric", tmp_path / "my_metric.py", "--metric", own]
    found, _ = evaluate_run(cli, runs / "classify", tmp_path, *modules)
    assert found["validation"]["my_metric"] == found["validation"]["accuracy"]
    assert_own_scores_are_equal(found["validation"])
