"""Slices: the rows of each value, their scores, the test of the worst one, and where they are shown."""

import json
from datetime import date, timedelta

import numpy as np
import pytest
from conftest import ROW_MAKERS, assert_refused, make_toy_rows, write_rows

import bertkit
from bertkit.reports import card
from bertkit.stats import slices
from bertkit.stats.significance import Scorer, compute_wilson_interval
from bertkit.stats.slices import (
    EMPTY,
    Slice,
    correct_by_holm,
    score_slices,
    slice_by_label,
    slice_by_length,
    slice_by_number,
    slice_by_value,
)


def list_values(parts):
    return {part.value: part.rows.tolist() for part in parts}


# ---- rows into slices


def test_values_are_sorted_by_frequency():
    values = ["b", "a", None, "a", " a ", "", "b", float("nan"), True, ["a", "b", "b"], [], {"k": 1}]
    assert list_values(slice_by_value(values)) == {
        "a": [1, 3, 4, 9], EMPTY: [2, 5, 7, 10], "b": [0, 6, 9], "True": [8], '{"k": 1}': [11],
    }  # fmt: skip
    assert slice_by_value(values)[0].value == "a"


def test_many_texts_keep_the_most_frequent_ones():
    values = [f"v{min(number, 60 - number)}" for number in range(60)] + ["often"] * 5
    parts = slice_by_value(values)
    assert (len(parts), parts[0].value, parts[-1].value) == (20, "often", "(13 other values)")
    assert sorted(np.concatenate([part.rows for part in parts])) == list(range(65))


def test_many_numbers_become_quartiles():
    numbers = [str(number) for number in range(1, 41)]
    expected = ["1 to 10", "11 to 20", "21 to 30", "31 to 40"]
    assert [part.value for part in slice_by_value(numbers)] == expected
    assert [part.value for part in slice_by_value([*numbers, ""])] == [*expected, EMPTY]
    assert len(slice_by_value(["1", "2", "3"] * 20)) == 3
    assert slice_by_value([*numbers, "a"])[-1].value == "(22 other values)"
    parts = slice_by_number(np.array([1.5] * 9 + [7.25]), "characters")
    assert list_values(parts) == {"1.5 characters": list(range(9)), "7.25 characters": [9]}


def test_many_dates_become_quartiles():
    days = [date(2024, 1, 1) + timedelta(days=number) for number in range(40)]
    expected = [
        "2024-01-01 to 2024-01-10", "2024-01-11 to 2024-01-20", "2024-01-21 to 2024-01-30",
        "2024-01-31 to 2024-02-09",
    ]  # fmt: skip
    for values in (days, [day.isoformat() for day in days]):
        assert [part.value for part in slice_by_value(values)] == expected
        assert [part.value for part in slice_by_value([*values, None])] == [*expected, EMPTY]
    assert list_values(slice_by_value([*days, None]))[EMPTY] == [40]
    times = [f"2024-01-01T{number // 2:02}:{number % 2 * 30:02}:00Z" for number in range(48)]
    assert slice_by_value(times)[0].value == "2024-01-01 to 2024-01-01 05:30:00"


def test_rows_that_are_in_no_other_slice_are_not_the_worst_slice():
    values = [f"v{number % 60}" for number in range(200)] + ["often"] * 200
    parts = slice_by_value(values)
    is_correct = np.ones(400, bool)
    is_correct[parts[-1].rows] = False
    scorer = Scorer(lambda rows: {"accuracy": float(is_correct[rows].mean())}, 400, is_correct)
    found, worst = score_slices(scorer, {"source": parts}, lambda _: ("accuracy", 1), is_correct)
    assert found["source"][-1].value == "(42 other values)"
    assert found["source"][-1].difference is None
    assert worst is None or "other values" not in worst.value


@pytest.mark.parametrize("seed", range(5))
def test_slices_contain_all_rows(seed):
    rng = np.random.default_rng(seed)
    texts = [None if value < 3 else f"v{value}" for value in rng.integers(0, 9 * seed + 4, 200).tolist()]
    sets = [[f"v{value}" for value in rng.integers(0, 50, rng.integers(0, 4))] for _ in range(200)]
    numbers = rng.integers(0, 10 ** (seed + 1), 200).tolist()
    lengths = [["a" * (number % 70) for number in numbers], [["b", None, "cc"]] * 200]
    for parts, is_partition in [
        (slice_by_value(texts), True), (slice_by_value(sets), False), (slice_by_value(numbers), True),
        (slice_by_label(texts), True), (slice_by_label(sets), False), (slice_by_length(lengths), True),
    ]:  # fmt: skip
        rows = np.concatenate([part.rows for part in parts])
        assert set(rows) == set(range(200))
        assert (len(rows) == 200) or not is_partition
        assert all((np.diff(part.rows) > 0).all() for part in parts)
        assert len({part.value for part in parts}) == len(parts) <= slices.MAX_VALUES


def test_labels_are_sorted_from_rare_to_frequent():
    parts = slice_by_label(["a", "b", "c", "b", "b", "c"])
    assert list_values(parts) == {"a": [0], "c": [2, 5], "b": [1, 3, 4]}
    assert [part.value for part in parts] == ["a", "c", "b"]
    many = slice_by_label([f"v{number}" for number in range(24) for _ in range(1 + number // 6)])
    assert [part.value for part in many] == [f"6 labels with {n} row{'s' * (n > 1)}" for n in (1, 2, 3, 4)]
    assert [len(part.rows) for part in many] == [6, 12, 18, 24]


def test_length_counts_the_characters_of_all_texts():
    texts = [["a", "abc", "abcd", "abcde"], [["x", "y"], None, ["z"], []]]
    assert [part.value for part in slice_by_length(texts)] == ["3 characters", "5 characters"]


# ---- scores and tests


def make_scorer(is_correct):
    is_correct = np.array(is_correct, bool)
    return Scorer(lambda rows: {"accuracy": float(is_correct[rows].mean())}, len(is_correct), is_correct)


def make_mean_scorer(values):
    """A scorer without `is_correct`, so that its intervals and tests need the bootstrap."""
    values = np.array(values, float)
    return Scorer(lambda rows: {"f1": float(values[rows].mean())}, len(values))


def score(scorer, parts, metric="accuracy", sign=1, **options):
    is_correct = np.array([scorer.score(np.array([row]))[metric] == 1 for row in range(scorer.size)])
    return score_slices(scorer, {"source": parts}, lambda _: (metric, sign), is_correct, **options)


def halve(size):
    return [Slice("x", np.arange(size // 2)), Slice("y", np.arange(size // 2, size))]


def test_holm_corrects_as_in_a_known_example():
    # The order is that of R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
    assert correct_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert correct_by_holm([0.9, 0.8]) == [1.0, 1.0]
    assert correct_by_holm([]) == []


def test_a_slice_has_the_scores_of_its_rows():
    scorer = make_scorer([1, 0, 1, 1] * 20)
    parts = [Slice("x", np.arange(33)), Slice("y", np.arange(33, 80))]
    found, _ = score(scorer, parts)
    for part, scores in zip(parts, found["source"], strict=True):
        assert scores.scores == scorer.score(part.rows)
        assert scores.rows == len(part.rows)
        count = int(scorer.is_correct[part.rows].sum())
        assert scores.intervals == {"accuracy": compute_wilson_interval(count, len(part.rows))}


def test_accuracy_is_tested_by_fisher_and_newcombe():
    # Newcombe (1998), table II, contrast (a): 56/70 and 48/80
    scorer = make_scorer([1] * 56 + [0] * 14 + [1] * 48 + [0] * 32)
    found, worst = score(scorer, [Slice("x", np.arange(70)), Slice("y", np.arange(70, 150))])
    first, second = (part.difference for part in found["source"])
    assert first.difference == pytest.approx(0.2)
    assert first.interval == pytest.approx([0.0524, 0.3339], abs=1e-4)
    assert second.interval == pytest.approx([-0.3339, -0.0524], abs=1e-4)
    assert first.test == "fisher"
    assert first.p == second.p == pytest.approx(2 * 0.0125, abs=5e-3)  # two slices
    assert (worst.value, worst.is_worse) == ("y", True)
    assert worst.text == (
        "Worst slice: source = y (80 rows), accuracy 0.600, 0.200 below the other rows (95 % interval "
        f"-0.334 to -0.052, p {worst.p:.2g} after Holm's correction)."
    )


@pytest.mark.intervals
def test_other_scores_are_tested_by_the_bootstrap():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(0.2, 0.6, 100), rng.uniform(0.4, 0.8, 100)])
    found, worst = score(make_mean_scorer(values), halve(200), "f1")
    part = found["source"][0]
    low, high = part.intervals["f1"]
    assert low < values[:100].mean() < high
    error = (values[:100].var() / 100 + values[100:].var() / 100) ** 0.5
    assert part.difference.interval == pytest.approx(
        [part.difference.difference + z * error for z in (-1.96, 1.96)], abs=0.5 * error
    )
    assert (part.difference.test, worst.value, worst.is_worse) == ("bootstrap", "x", True)
    _, worst = score(make_mean_scorer(values), halve(200), "f1", sign=-1)  # such as a loss
    assert worst.value == "y"
    assert " above the other rows" in worst.text


def test_a_slice_that_is_always_wrong_is_worse():
    _, worst = score(make_mean_scorer([0] * 40 + [0, 1] * 40), halve(80), "f1")
    assert worst is None or worst.value == "x"
    _, worst = score(make_mean_scorer([0] * 40 + [1] * 40), halve(80), "f1")
    assert (worst.value, worst.p, worst.is_worse) == ("x", 0.0, True)
    assert "p < 0.0001 after" in worst.text


def test_a_slice_without_errors_is_not_the_worst():
    scorer = make_mean_scorer([0] * 40 + [1] * 40)
    is_correct = np.arange(80) < 40  # such as sentences without entities, whose F1 is 0
    found, worst = score_slices(scorer, {"c": halve(80)}, lambda _: ("f1", 1), is_correct)
    assert found["c"][0].difference.difference == -1
    assert worst is None


def test_equal_slices_are_not_worse():
    found, worst = score(make_scorer([1, 0] * 60), halve(120))
    assert [part.difference.p for part in found["source"]] == [1.0, 1.0]
    assert worst is None
    _, worst = score(make_scorer([1, 0] * 30 + [1, 1, 0] * 20), halve(120), unit="sentence")
    assert worst.text.startswith(
        "No slice is shown to be worse than the other sentences. The worst: source = x"
    )


def test_few_rows_are_not_tested():
    found, worst = score(make_scorer([0] * 29 + [1] * 100), [Slice("x", np.arange(29))])
    assert (found["source"][0].difference, worst) == (None, None)
    assert list(found["source"][0].intervals) == ["accuracy"]
    found, _ = score(make_mean_scorer([0] * 29 + [1] * 100), [Slice("x", np.arange(29))], "f1")
    assert found["source"][0].intervals == {}
    found, _ = score(make_scorer([1] * 129), [Slice("x", np.arange(100)), Slice("all", np.arange(129))])
    assert [part.difference for part in found["source"]] == [None, None]  # too few other rows


def test_the_worst_slice_of_all_columns_is_named():
    is_correct = np.array([0] * 30 + [1] * 170)
    columns = {"a": halve(200), "b": [Slice("z", np.arange(30)), Slice("w", np.arange(30, 200))]}
    found, worst = score_slices(make_scorer(is_correct), columns, lambda _: ("accuracy", 1), is_correct)
    assert (worst.column, worst.value, worst.score, worst.difference) == ("b", "z", 0.0, -1.0)
    single, _ = score_slices(
        make_scorer(is_correct), {"a": columns["a"]}, lambda _: ("accuracy", 1), is_correct
    )
    p, p_alone = (result["a"][0].difference.p for result in (found, single))
    assert p_alone <= p  # more slices, more correction


# ---- where they are shown


def evaluate_by(cli, run, data, *flags):
    status, out, err = cli("evaluate", run, "--data", data, "--json", *flags)
    assert status == 0, err
    return json.loads(out)


@pytest.mark.slow
@pytest.mark.parametrize("task", ROW_MAKERS)
def test_each_task_is_scored_by_column(runs, cli, tmp_path, task):
    rows = ROW_MAKERS[task](70, seed=5)
    for number, row in enumerate(rows):
        row["source"] = "forum" if number % 2 else ["news", ""][number % 4 == 0]
    data = write_rows(tmp_path / "new.jsonl", rows)
    found = evaluate_by(cli, runs / task, data, "--by", "source,length", "-o", tmp_path / "all")
    assert list(found["slices"]) == ["source", "length"]
    counts = {part["value"]: part["rows"] for part in found["slices"]["source"]}
    assert counts == {"forum": 35, EMPTY: 18, "news": 17}
    assert sum(part["rows"] for part in found["slices"]["length"]) == 70
    forum = found["slices"]["source"][0]
    assert forum["intervals"].keys() == {forum["metric"]}
    assert forum["difference"]["p"] <= 1
    only = write_rows(tmp_path / "forum.jsonl", [row for row in rows if row["source"] == "forum"])
    alone = evaluate_by(cli, runs / task, only, "-o", tmp_path / "forum")["validation"]
    assert forum["scores"] == pytest.approx({name: alone[name] for name in forum["scores"]}, abs=1e-5)
    page = (tmp_path / "all" / "report.html").read_text("utf-8")
    assert "source</th>" in page.split('<details id="slices"')[1]


ODD = ["<b>bold", "\x1b[31mred" + "x" * 300, "half HALF"]


@pytest.mark.slow
def test_console_and_label(runs, cli, tmp_path):
    rows = [
        row | {"tag": ["a", "b"], "one": 1, "key": f"k{n}", "odd": ODD[n % 3]}
        for n, row in enumerate(make_toy_rows(80))
    ]
    data = write_rows(tmp_path / "new.jsonl", rows)
    data.write_text(data.read_text("utf-8").replace("HALF", "\\ud800"), "utf-8")  # of a surrogate pair
    status, out, err = cli(
        "evaluate",
        runs / "classify",
        "--data",
        data,
        "--by",
        "label",
        "--by",
        "tag,odd",
        "-o",
        tmp_path / "out",
    )
    assert status == 0, err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert [part["value"] for part in metrics["slices"]["label"]] == ["negative", "positive"]
    assert [part["rows"] for part in metrics["slices"]["tag"]] == [80, 80]
    assert {part["rows"] for part in metrics["slices"]["odd"]} == {26, 27}
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert ("<b>bold" in page, "&lt;b&gt;bold" in page, "\x1b[31m" in out) == (False, True, False)
    assert f"{card.describe_slices(metrics)}\nrun: " in out
    assert len([line for line in out.splitlines() if "negative" in line]) == 1
    for column, words in {
        "sorce": ["no column 'sorce' (--by)", "length", "label", "tag"],
        "tagg": ["did you mean 'tag'"],
        "one": ["--by one: all rows have the value '1'"],
        "key": ["--by key: no value occurs twice in 80 rows"],
        "tag,tag": ["'tag' is named twice"],
    }.items():
        assert_refused(cli, tmp_path, [runs / "classify", "--data", data, "--by", column], words, "evaluate")


@pytest.mark.slow
def test_by_is_refused(runs, cli, tmp_path):
    args = [runs / "pretrain-mlm-nsp", "--by", "length"]
    assert_refused(cli, tmp_path, args, ["--by: runs of pretrain-mlm-nsp do not predict rows"], "evaluate")
    args = [runs / "ner", "--by", "label"]
    assert_refused(cli, tmp_path, args, ["no column 'label' (--by)"], "evaluate")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "qa"])
def test_each_run_has_slices_by_length(runs, task):
    metrics = json.loads((runs / task / "metrics.json").read_text())
    assert list(metrics["slices"]) == (["length", "label"] if task == "classify" else ["length"])
    assert sum(part["rows"] for part in metrics["slices"]["length"]) == metrics["data"]["validation"]
    page = (runs / task / "report.html").read_text("utf-8")
    assert '<details id="slices"><summary>' in page
    assert "No slice is tested: none has 30 rows" in page


@pytest.mark.slow
def test_label_sets_are_judged_by_accuracy(cli, tmp_path, tiny):
    rows = [
        row | {"label": f"{row['label']}|seen" if n % 3 else "seen"}
        for n, row in enumerate(make_toy_rows(120))
    ]
    data = write_rows(tmp_path / "sets.jsonl", rows)
    bertkit.classify(data=data, model=tiny, output_dir="run", max_steps=4, problem="multi-label")
    found = evaluate_by(cli, "run", data, "--by", "label,length")["slices"]
    assert {part["value"]: part["rows"] for part in found["label"]}["seen"] == 120
    assert found["label"][0]["metric"] == "accuracy"
    assert found["label"][0]["difference"]["test"] == "fisher"
    assert found["length"][0]["metric"] == "micro_f1"
