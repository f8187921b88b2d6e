"""Report pages of one run and of several, built from run directories alone."""

import importlib
import json
import re
from pathlib import Path

import pytest
import yaml
from conftest import ROW_MAKERS, freeze_libraries, make_document_rows, write_rows

import bertkit
from bertkit.charts import plot_curves, plot_intervals
from bertkit.reports.page import compute_interval_bar, create_view, render_page
from bertkit.tasks import TASKS, task_definition, view
from bertkit.tasks.view import (
    MAX_BYTES,
    Example,
    Field,
    Mark,
    build_error_browser,
    load_finished_run,
    overlay_spans,
)

pytestmark = [pytest.mark.charts, pytest.mark.slow]

TRAINING = {
    "seconds": 1.0, "steps": 2, "examples_per_second": 8.0, "tokens_per_second": 64.0, "peak_memory_mb": 1.0,
    "loss": 0.5, "precision": "fp32", "resumed_from": None,
}  # fmt: skip
LOG = [
    {"step": 1, "epoch": 0.5, "loss": 0.9, "learning_rate": 1e-4},
    {"step": 2, "epoch": 1.0, "loss": 0.4, "learning_rate": 0.0, "eval_accuracy": 0.5},
]


def write_run(folder, records, task="classify", scores=None, config=None, **settings):
    """Write the directory of a finished run."""
    folder.mkdir(parents=True)
    data = {"name": "toy", "source": "toy.jsonl", "fingerprint": "f", "train": 8, "validation": len(records)}
    metrics = {
        "task": task, "data": data, "model": "tiny", "validation": scores or {"accuracy": 0.5}, "test": {},
        "intervals": {"accuracy": [0.3, 0.7]}, "baselines": {"majority": {"accuracy": 0.4}},
        "training": TRAINING,
    }  # fmt: skip
    provenance = {"command": "from Python", "data": {"train": "8 rows, f"}, "python": "3.11", "packages": {}}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "run.yaml").write_text(
        yaml.safe_dump({"task": task, "settings": settings, "provenance": provenance})
    )
    (folder / "config.json").write_text(json.dumps(config or {}))
    write_rows(folder / "predictions.jsonl", records)
    write_rows(folder / "training_log.jsonl", LOG)
    return folder


def labelled(number, text, gold, predicted, confidence=0.9, names=("bad", "good")):
    """Return a record of `classify`."""
    rest = (1 - confidence) / (len(names) - 1)
    probabilities = {name: confidence if name == predicted else rest for name in names}
    return {"id": number, "text": text, "gold": gold, "predicted": predicted, "probabilities": probabilities}


@pytest.fixture
def run(tmp_path):
    """Run with one confident error, one less confident error, and one correct prediction."""
    records = [
        labelled(0, "fine film", "good", "good"), labelled(1, "dull film", "bad", "good", 0.6),
        labelled(2, "poor film", "bad", "good", 0.99),
    ]  # fmt: skip
    return write_run(tmp_path / "run", records)


# ---- runs of all tasks


@pytest.fixture(scope="module")
def task_runs(tiny, tmp_path_factory):
    """Train a run of each task for a few steps; `classify` with each type of label."""
    freeze_libraries()
    folder = tmp_path_factory.mktemp("runs")
    toy, sets, numbers = (ROW_MAKERS["classify"](40) for _ in range(3))
    for at, row in enumerate(sets):
        row["label"] = [[], ["a"], ["b"], ["a", "b"]][at % 4]
    for at, row in enumerate(numbers):
        row["label"] = at / 7 + 0.01
    questions = ROW_MAKERS["qa"](40, unanswerable=12)
    rows = {"classify": toy, "sets": sets, "numbers": numbers, "qa": questions}
    rows |= {task: ROW_MAKERS[task](40) for task in ("ner", "nli", "swag")}
    found = {}
    for name, some in rows.items():
        task = getattr(bertkit, name, bertkit.classify)
        file = write_rows(folder / f"{name}.jsonl", some)
        found[name] = task(
            data=str(file), model=str(tiny), max_steps=3, batch_size=8, bf16=False,
            output_dir=str(folder / name), set=["logging_steps=1"],
        )  # fmt: skip
    text = write_rows(folder / "text.jsonl", make_document_rows(60))
    found["pretrain"] = bertkit.pretrain_mlm_nsp(
        data=str(text), model=str(tiny), max_steps=3, batch_size=8, bf16=False, max_length=64,
        output_dir=str(folder / "pretrain"), set=["logging_steps=1"],
    )  # fmt: skip
    return found


def test_training_writes_the_page_that_report_writes_again(task_runs):
    views = set()
    for name, run in task_runs.items():
        written = (run.output_dir / "report.html").read_text("utf-8")
        assert bertkit.report(runs=[str(run.output_dir)]).path.read_text("utf-8") == written
        assert "<svg" in written
        assert len(written) < 400_000, name
        views.add(type(create_view(load_finished_run(run.output_dir))))
    assert views == {view for task in TASKS for view in task_definition(task).load_views()}


def test_scores_computed_from_records_match_the_run(task_runs):
    compared = 0
    for run in task_runs.values():
        scorer = create_view(load_finished_run(run.output_dir)).scorer()
        scores = scorer.score_all() if scorer else {}
        expected = {name: value for name, value in run.metrics["validation"].items() if name in scores}
        assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-6)
        compared += bool(expected)
    assert compared == len(task_runs) - 1  # pre-training writes only samples


def test_a_run_does_not_differ_from_itself(task_runs, tmp_path, monkeypatch):
    for name, run in task_runs.items():
        folder = str(run.output_dir)
        made = bertkit.report(runs=[folder, folder], output=str(tmp_path / f"{name}.html"))
        [differences] = made.summary["differences"]
        assert all(test["difference"] == 0 and test["p"] == 1 for test in differences.values())
        assert bool(differences) == (name != "pretrain")


# ---- one run


def test_the_column_that_the_model_reads_is_shown_first(tmp_path):
    records = [{"ticket": f"T-{at}"} | labelled(at, f"film {at}", "good", "bad") for at in range(2)]
    folder = write_run(tmp_path / "run", records, text_column="text")
    fields = create_view(load_finished_run(folder)).build_examples()[0].fields
    assert [field.name for field in fields] == ["text", "ticket"]


def test_the_page_loads_nothing_and_allows_no_other_script(run):
    text = render_page(load_finished_run(run))
    assert "default-src 'none'" in text
    text = text.replace("http-equiv", "").replace("http://www.w3.org/", "")  # the latter are SVG namespaces
    assert "http" not in text
    assert 'src="' not in text


def test_the_worst_errors_come_first_and_correct_examples_last(run):
    view = create_view(load_finished_run(run))
    data = json.loads(build_error_browser(view.build_examples(), view.measure_name, view.filter_names).data)
    assert [row["id"] for row in data["rows"]] == ["2", "1", "0"]
    assert [row["correct"] for row in data["rows"]] == [False, False, True]


def test_hostile_text_is_escaped(tmp_path):
    name = "</script><script>alert(1)</script>"
    records = [labelled(0, name, name, "$x^2$", names=(name, "$x^2$", "#010201"))] * 3
    text = render_page(load_finished_run(write_run(tmp_path / "<b>run", records)))
    assert "<script>alert" not in text
    assert "<b>" not in text.split("<body>")[1].split("</h1>")[0]
    assert "$x^2$</text>" in text
    assert "#010201</text>" in text


def test_a_page_of_ten_thousand_long_examples_has_at_most_5_mb(tmp_path):
    long = "좋은 영화 " * 150
    records = [labelled(n, f"{n} {long}", "good", "good" if n % 3 else "bad") for n in range(10_001)]
    text = render_page(load_finished_run(write_run(tmp_path / "run", records)))
    assert MAX_BYTES * 0.5 < len(text.encode()) < 5_000_000
    assert "the 10,000 worst of 10,001 examples" in text
    assert "10,000 texts are shortened to" in text


def test_a_text_is_shortened_around_its_marks():
    field = Field("paragraph", "a" * 5000 + "b" * 10 + "a" * 5000, [Mark(5000, 5010, "gold")])
    examples = [Example(0, [], [], None, None, 0.0, [replace_start(field, n)]) for n in range(2000)]
    data = json.loads(build_error_browser(examples, "", ("", "")).data)
    [_, number, [[start, end, *_]]] = data["rows"][0]["fields"][0]
    assert data["texts"][number][start:end] == "b" * 10
    assert len(data["texts"][number]) < 3100


def test_a_text_is_shortened_at_its_end_if_no_mark_is_lost():
    for end, is_moved in ((100, False), (101, True)):
        field = view._shorten(Field("paragraph", "a" * 200, [Mark(90, end, "gold")]), 100)
        assert field.text.startswith(view.ELLIPSIS) == is_moved


def replace_start(field, number):
    """Return the field with another beginning of its text."""
    return Field(field.name, f"{number:05}{field.text[5:]}", field.marks)


def test_overlapping_spans_are_marked_as_both():
    assert overlay_spans([(0, 4), (0, 9)], [(4, 12)]) == [
        Mark(0, 4, "gold"),
        Mark(4, 9, "both"),
        Mark(9, 12, "predicted"),
    ]


def test_the_gold_answer_nearest_to_the_prediction_is_marked(tmp_path):
    record = {"id": "q", "question": "which", "context": "two and one two", "gold": ["two"], "answer": "one",
              "start": 8, "end": 11, "score": 1.0, "null_odds": 0.0}  # fmt: skip
    folder = write_run(tmp_path / "run", [record], "qa", {"exact": 0.0}, squad="v1")
    [example] = create_view(load_finished_run(folder)).build_examples()
    assert example.fields[1].marks == [Mark(8, 11, "predicted"), Mark(12, 15, "gold")]


def test_of_many_classes_those_with_the_most_errors_are_shown(tmp_path):
    names = [f"class {n}" for n in range(40)]
    records = [labelled(n, f"text {n}", names[n], names[0 if n < 5 else n], names=names) for n in range(40)]
    # more examples of a class are not more errors
    records += [labelled(40 + n, f"text {40 + n}", names[39], names[39], names=names) for n in range(9)]
    text = render_page(load_finished_run(write_run(tmp_path / "run", records)))
    assert "The 13 of 40 classes with the most errors." in text
    assert "The 24 most frequent of 40." in text


def test_numbers_are_filtered_by_five_ranges(tmp_path):
    golds, predicted = [0.0, 0.9, 5.0], [1.0, 2.5, 7.0]  # 7 is above all ranges
    records = [
        {"id": number, "text": "film", "gold": gold, "predicted": guess}
        for number, (gold, guess) in enumerate(zip(golds, predicted, strict=True))
    ]
    folder = write_run(tmp_path / "run", records, scores={"pearson": 0.5})
    examples = create_view(load_finished_run(folder)).build_examples()
    ranges = [(*each.gold, *each.predicted) for each in sorted(examples, key=lambda each: each.id)]
    assert ranges == [("0 to 1", "1 to 2"), ("0 to 1", "2 to 3"), ("4 to 5", "4 to 5")]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"id": 3, "te', "cannot parse as JSON"),
        ("5", "expected a JSON object, found 5"),
        ("[]", "expected a JSON object, found []"),
        ('{"id": 3}', "Object missing required field `gold`"),
    ],
)
def test_a_damaged_file_is_reported_with_its_line(cli, run, line, what):
    with (run / "predictions.jsonl").open("a") as file:
        file.write(f"{line}\n")
    status, _, err = cli("report", run)
    assert status == 2
    assert f"{run}/predictions.jsonl:4: " in err
    assert what in err
    assert "again" in err


SETS = {"id": 0, "text": "a", "gold": ["x"], "predicted": [], "probabilities": {"x": 0.4}}
NUMBERS = {"id": 0, "text": "a", "gold": 1.0, "predicted": 1.5}


@pytest.mark.parametrize(
    ("good", "change", "what"),
    [
        (SETS, {"gold": ["y"]}, "'y' has no probability"),
        (SETS, {"probabilities": {}}, "length >= 1"),
        (NUMBERS, {"gold": float("inf")}, "gold"),
        (NUMBERS, {"predicted": "much"}, "Expected `float`, got `str` - at `$.predicted`"),
    ],
)
def test_an_invalid_record_is_reported_with_its_line(tmp_path, good, change, what):
    folder = write_run(tmp_path / "run", [good, {**good, **change}])
    with pytest.raises(bertkit.UserError, match=re.escape("predictions.jsonl:2: ")) as refusal:
        bertkit.report(runs=[folder])
    assert what in str(refusal.value)


def test_a_lone_surrogate_is_accepted(tmp_path):
    record = labelled(0, "\ud83d", "good", "good") | {"\ud83d": "\ud83d"}
    folder = write_run(tmp_path / "run", [])
    (folder / "predictions.jsonl").write_text(json.dumps(record) + "\n")
    assert bertkit.report(runs=[folder]).path.exists()


def test_percentages_and_fractions_have_the_same_bar():
    bars = [
        compute_interval_bar(
            {"validation": {"f1": 0.5 * scale}, "intervals": {"f1": [0.4 * scale, 0.6 * scale]},
             "baselines": {"majority": {"f1": 0.1 * scale}}}, "f1"
        )
        for scale in (1, 100)
    ]  # fmt: skip
    assert bars == [{"score": 50.0, "low": 40.0, "high": 60.0, "baselines": {"majority": 10.0}}] * 2


def test_an_unknown_positive_label_is_refused(run):
    text = (run / "run.yaml").read_text().replace("settings: {}", "settings: {positive_label: x}")
    (run / "run.yaml").write_text(text)
    with pytest.raises(bertkit.UserError, match="positive_label: 'x' is not a label"):
        create_view(load_finished_run(run)).scorer()


def test_curves_with_up_to_7_points_have_markers():
    charts = [plot_curves("Loss", {"loss": (range(size), range(size))}, "step") for size in (7, 8)]
    assert [chart.svg.count("<use") > charts[1].svg.count("<use") for chart in charts] == [True, False]


def test_only_the_baseline_is_dashed():
    charts = [
        plot_intervals("Scores", {"a": 0.5}, {"a": [0.4, 0.6]}, "score", value) for value in (None, 0.3)
    ]
    assert ["stroke-dasharray" in chart.svg for chart in charts] == [False, True]


def test_axis_labels_are_not_clipped():
    svg = plot_curves("Learning rate", {"rate": ([0, 1], [0, 2.5e-5])}, "step").svg
    ends = re.findall(r'<text style="[^"]*text-anchor: end[^"]*"[^>]* x="([\d.]+)"[^>]*>([^<]+)</text>', svg)
    assert "1.2e-05" in dict(map(reversed, ends))
    assert [text for x, text in ends if float(x) < 5.5 * len(text)] == []


def test_the_command_prints_the_path_of_the_page(cli, run):
    status, out, _ = cli("report", run, "--json")
    assert (status, json.loads(out)["report"]) == (0, str(run / "report.html"))
    status, out, _ = cli("report", run, "-o", run.parent / "other.html")
    assert (status, out.split()[1]) == (0, str(run.parent / "other.html"))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["no: is not a finished run"]),
        ({"metrics.json": '{"task": "glue"}', "a/b/metrics.json": "{}"}, ["a/b"]),
    ],
)
def test_a_directory_without_a_run_is_refused(cli, tmp_path, files, words):
    for name, content in files.items():
        (tmp_path / "no" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "no" / name).write_text(content)
    status, _, err = cli("report", tmp_path / "no")
    assert status == 2
    assert [word for word in words if word not in err] == []


# ---- several runs


def test_an_evaluation_has_a_page_and_can_be_compared(task_runs, tmp_path):
    for name in ("classify", "qa", "ner"):
        run = str(task_runs[name].output_dir)
        done = str(bertkit.evaluate(run=run, output_dir=str(tmp_path / name)).output_dir)
        assert "<svg" in (tmp_path / name / "report.html").read_text("utf-8")
        [differences] = bertkit.report(runs=[run, done], output="two.html").summary["differences"]
        assert differences
        assert all(test["difference"] == pytest.approx(0) for test in differences.values())
        steps = Path("two.html").read_text("utf-8").split("<tr><th>steps</th>")[1].split("</tr>")[0]
        assert ">–</td>" in steps  # an evaluation has no training; "default" would be wrong


def test_differences_are_tested_on_equal_rows_in_any_order(cli, tmp_path):
    rows = [(n, f"text {n}", ("bad", "good")[n % 2]) for n in range(30)]
    some = [labelled(*row, row[2] if row[0] < 10 else "good") for row in rows]  # five more are correct
    half = [labelled(*row, "good") for row in rows[::-1]]
    first = write_run(tmp_path / "first", half, scores={"accuracy": 0.5}, positive_label="good", epochs=1.0)
    second = write_run(
        tmp_path / "second", some, scores={"accuracy": 20 / 30}, positive_label="good", epochs=3.0
    )
    status, out, _ = cli("report", first, second, "--json")
    summary = json.loads(out)
    [differences] = summary["differences"]
    assert (status, summary["report"]) == (0, "report.html")
    assert differences["accuracy"]["test"] == "mcnemar"
    assert differences["accuracy"]["difference"] == pytest.approx(5 / 30)
    assert differences["accuracy"]["p"] == pytest.approx(2 * 0.5**5)
    text = Path("report.html").read_text("utf-8")
    assert "p = 0.062" in text
    assert '<th>epochs</th><td dir="auto">1</td><td dir="auto">3</td>' in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert {row["predicted"][0] for row in data["rows"]} == {"all", "none", "second"}


def test_runs_on_different_rows_are_compared_without_a_test(cli, tmp_path, run):
    other = write_run(tmp_path / "other", [labelled(0, "another text", "good", "good")])
    status, out, err = cli("report", run, other, "--json")
    assert (status, json.loads(out)["differences"]) == (0, [{}])
    assert "other: was not scored on the same rows as run" in err


def test_runs_of_different_tasks_are_refused(cli, tmp_path, run):
    other = write_run(tmp_path / "other", [], "swag")
    status, _, err = cli("report", run, other)
    assert status == 2
    assert "belong to different tasks (classify, swag)" in err


def test_runs_with_equal_names_are_shown_with_their_paths(cli, tmp_path, run):
    other = write_run(tmp_path / "more" / "run", [labelled(0, "another text", "good", "good")])
    cli("report", run, other)
    assert str(other) in Path("report.html").read_text("utf-8")


def test_the_package_of_pages_does_not_replace_the_function():
    importlib.import_module("bertkit.reports.page")
    assert callable(bertkit.report)
