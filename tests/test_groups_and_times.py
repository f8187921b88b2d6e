"""Rows of a group are never on both sides of a split, and held-out rows are later than training rows."""

import re
import warnings
from datetime import date, datetime, timedelta, timezone

import numpy as np
import pytest
from conftest import ROW_MAKERS, make_toy_rows, save_tiny_model, write_rows
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold, TimeSeriesSplit

import bertkit
from bertkit.data.groups_and_times import (
    check_groups,
    find_obvious_groups,
    find_time_column,
    find_time_ranges,
    hash_groups,
)
from bertkit.data.split import (
    MAX_UNITS,
    SplitKeys,
    assign_balanced_folds,
    hold_out,
    make_folds,
    make_splits,
    split_groups,
)
from bertkit.data.table import Rows, number_groups
from bertkit.errors import UserError
from bertkit.experiments.held_out import split_data
from bertkit.run.load_data import load_data, split_parsed_rows
from bertkit.tasks import task_definition
from bertkit.utils.reporting import Reporter, use_reporter

ROW_TASKS = ["classify", "nli", "ner", "qa", "swag"]
groups_and_strata = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 2)), min_size=2, max_size=90)


def make_keys(groups=None, times=None, strata=None):
    """Return the keys of rows with different texts."""
    size = len(groups if groups is not None else times)
    columns = {name: values for name, values in (("user", groups), ("time", times)) if values is not None}
    rows = Rows.from_columns(columns, "rows.csv")
    identity = np.arange(size)
    keys = SplitKeys(identity, identity, np.zeros(size, int) if strata is None else np.array(strata))
    if groups is not None:
        keys = keys.add_group_column(rows, "user")
    if times is not None:
        keys = keys.add_time_column(rows, find_time_column({"train": rows}, "time"))
    return keys


# ---- groups


@pytest.mark.slow
@given(rows=groups_and_strata, fraction=st.floats(0.01, 0.9), seed=st.integers(0, 9))
def test_held_out_groups_are_whole_and_no_row_is_lost(rows, fraction, seed):
    groups, strata = map(np.array, zip(*rows, strict=True))
    train, held_out = split_groups(groups, strata, fraction, seed)
    assert sorted([*train, *held_out]) == list(range(len(rows)))
    assert not set(groups[train]) & set(groups[held_out])
    assert bool(len(held_out)) == (len(set(groups)) > 1)


@pytest.mark.slow
@given(rows=groups_and_strata, num_folds=st.integers(2, 5), seed=st.integers(0, 3))
def test_folds_of_groups_test_each_row_once_and_are_as_balanced_as_those_of_scikit_learn(
    rows, num_folds, seed
):
    groups, strata = map(np.array, zip(*rows, strict=True))
    if len(set(groups)) < num_folds:
        return
    keys = make_keys(groups.tolist(), strata=strata)
    folds = make_folds(keys, num_folds, seed)
    assert sorted(np.concatenate([test for _, test in folds])) == list(range(len(rows)))
    for train, test in folds:
        assert len(test)
        assert not set(groups[train]) & set(groups[test])
        assert sorted([*train, *test]) == list(range(len(rows)))
    stratum, group = (number_groups(values)[0] for values in (strata, groups))
    if np.bincount(stratum).max() >= num_folds:
        shuffled = np.random.default_rng(seed).permutation(len(set(groups)))[group]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about classes with fewer rows than folds
            expected = [test for _, test in StratifiedGroupKFold(num_folds).split(groups, stratum, shuffled)]
        assert [test.tolist() for _, test in folds] == [test.tolist() for test in expected]


def test_the_fraction_and_the_classes_are_kept_for_groups_of_very_different_sizes():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(200), rng.zipf(1.6, 200).clip(max=300))
    strata = (rng.random(len(groups)) < 0.2).astype(int)
    _, held_out = split_groups(groups, strata, 0.1, 0)
    assert len(held_out) / len(groups) == pytest.approx(0.1, abs=0.01)
    assert strata[held_out].mean() == pytest.approx(strata.mean(), abs=0.02)
    assert split_groups(groups, strata, 0.1, 1)[1].tolist() != held_out.tolist()


@pytest.mark.slow
def test_many_groups_are_assigned_in_bundles_that_keep_them_whole():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 5 * MAX_UNITS, 40_000)
    strata = rng.integers(0, 400, 40_000)
    fold = assign_balanced_folds(groups, strata, 10, 0)
    assert all(len(set(fold[groups == group])) == 1 for group in groups[:200])
    assert np.bincount(fold).std() < 40


def test_each_class_keeps_training_rows_if_that_is_possible():
    groups = np.repeat(np.arange(12), 5)
    strata = np.where(groups == 3, 1, 0)  # one group has all rows of the class
    for seed in range(12):
        train, _ = split_groups(groups, strata, 0.1, seed)
        assert set(strata[train]) == {0, 1}


def test_empty_cells_are_groups_of_their_own_also_in_other_files():
    rows = Rows.from_columns({"user": ["7", 7, 7.0, None, "", float("nan")]}, "train.csv")
    keys = hash_groups(rows, "user")
    assert len(set(keys[:3].tolist())) == 1
    assert len(set(keys.tolist())) == 4
    others = hash_groups(Rows.from_columns(dict(rows.columns), "dev.csv"), "user")
    assert set(keys.tolist()) & set(others.tolist()) == {int(keys[0])}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (["a"] * 6, "all rows have the same value, 'a'; name a column with several values"),
        (["a", "b", "a", None, "", None], "3 of 6 rows are empty, the first in row 4; fill them in"),
    ],
)
def test_a_column_that_cannot_group_is_refused_in_one_line(values, problem):
    with pytest.raises(UserError, match=re.escape(problem)) as error:
        check_groups(Rows.from_columns({"user_id": values}, "train.csv"), "user_id")
    assert str(error.value).startswith("train.csv: column 'user_id' (--group-column): ")


def test_a_unique_column_and_empty_cells_are_noted():
    notes = check_groups(Rows.from_columns({"id": list("abcde")}, "train.csv"), "id")
    assert notes == ["--group-column id: each training row has another value, so no rows belong together"]
    notes = check_groups(Rows.from_columns({"id": ["a", "a", "b", None]}, "train.csv"), "id")
    assert notes == ["1 training row has no value in 'id'; each is a group of its own"]


@pytest.mark.parametrize(
    ("name", "values", "is_obvious"),
    [
        ("user_id", "aabbccddee", True),
        ("userId", "aabbccddee", True),
        ("Conversation", "aabbccddee", True),
        ("doc-id", "aabbccddee", True),
        ("patient_id", "abcdef", False),
        ("author", "aaaa", False),
        ("author", "aabbccdd", False),
        ("color", "aabbccddee", False),
        ("document", "aabbccddee", False),  # the task reads it
    ],
)
def test_obvious_groups_have_a_usual_name_and_repeated_values(name, values, is_obvious):
    rows = Rows.from_columns({name: list(values)}, "train.csv")
    assert find_obvious_groups(rows, {"document"}) == (name if is_obvious else None)


# ---- times


@given(days=st.lists(st.integers(0, 60), min_size=2, max_size=60), fraction=st.floats(0.01, 0.9))
def test_held_out_rows_are_later_than_all_training_rows(days, fraction):
    times = [(date(2024, 1, 1) + timedelta(day)).isoformat() for day in days]
    train, held_out = hold_out(make_keys(times=times), fraction, 0)
    assert sorted([*train, *held_out]) == list(range(len(days)))
    if len(set(days)) > 1:
        assert len(train)
        assert max(times[row] for row in train) < min(times[row] for row in held_out)
    else:
        assert not len(held_out)


@given(days=st.lists(st.integers(0, 400), min_size=6, max_size=60), num_folds=st.integers(2, 5))
def test_folds_move_forward_in_time_as_those_of_scikit_learn(days, num_folds):
    keys = make_keys(times=[1e9 + day for day in days])
    try:
        folds = make_folds(keys, num_folds, 0)
    except UserError:  # too many rows have the same time
        assume(len(set(days)) == len(days))
        raise
    values = np.array(days)
    tested = np.concatenate([test for _, test in folds])
    assert len(set(tested)) == len(tested)  # at most once
    for train, test in folds:
        assert values[train].max() < values[test].min()
    assert sorted([*folds[-1][0], *folds[-1][1]]) == list(range(len(days)))
    if len(set(days)) == len(days):
        order = np.argsort(values)
        expected = TimeSeriesSplit(num_folds).split(order)
        assert [test.tolist() for _, test in folds] == [sorted(order[test]) for _, test in expected]


UTC = timezone.utc
GOOD_TIMES = {
    "ISO8601": (["2024-02-01", "2024-01-31T10:00:00"], ["2024-01-31 10:00:00", "2024-02-01"]),
    "time zones": (
        ["2024-01-02T10:00:00Z", "2024-01-02T10:00:00+09:00"], ["2024-01-02 01:00:00", "2024-01-02 10:00:00"],
    ),
    "seconds": (["1577836801", 1577836800.0], ["2020-01-01", "2020-01-01 00:00:01"]),
    "milliseconds": ([1577836801000, 1577836800000], ["2020-01-01", "2020-01-01 00:00:01"]),
    "years": (["2020", 2019], ["2019", "2020"]),
    "day first": (["03.04.2019", "25.03.2019"], ["2019-03-25", "2019-04-03"]),
    "month first": (["4/3/2019", "3/25/2019"], ["2019-03-25", "2019-04-03"]),
    "korean": (["2019년 4월 3일", "2019년 3월 25일"], ["2019-03-25", "2019-04-03"]),
    "dots": (["2019. 4. 3.", "2019. 3. 25."], ["2019-03-25", "2019-04-03"]),
    "mail": (
        ["Mon, 4 Mar 2019 10:00:00 +0000", "Sun, 3 Mar 2019 10:00:00 +0000"],
        ["2019-03-03 10:00:00", "2019-03-04 10:00:00"],
    ),
    "dates": ([date(2020, 2, 1), date(2020, 1, 1)], ["2020-01-01", "2020-02-01"]),
    "datetimes": (
        [datetime(2020, 2, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)], ["2020-01-01", "2020-02-01"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD_TIMES)
def test_common_formats_are_read(name):
    values, ends = GOOD_TIMES[name]
    splits = {"train": Rows.from_columns({"time": values}, "train.csv")}
    column = find_time_column(splits, "time")
    assert find_time_ranges(splits, column) == {"column": "time", "train": ends}
    later, earlier = column.read(splits["train"])
    assert later > earlier


@pytest.mark.parametrize(
    ("values", "row", "problem"),
    [
        (["2024-01-01", None], 2, "is empty; fill in the time, or remove the row"),
        (["2024-01-01", " "], 2, "is empty"),
        (["2024-01-01", "soon"], 2, "'soon' is not a date like '2024-01-01'; write all of them as"),
        (["2024-02-20", "2024-02-30"], 2, "'2024-02-30' is not a date like"),
        (["soon", "later"], 1, "'soon' is not a date in a format that bertkit reads"),
        (["1577836800", "n/a", "1577836801"], 2, "'n/a' is not a date like '1577836800'"),
        (["03.04.2019", "05.06.2019"], 1, "can begin with the day or with the month, and so can all others"),
        (["13/04/2019", "04/13/2019"], 2, "'04/13/2019' is not a date like '13/04/2019'"),
        (["25/12/19", "24/12/19"], 1, "has a year of two digits, which is ambiguous"),
        (["2024-01-01T10:00:00Z", "2024-01-02"], 2, "has no time zone, but '2024-01-01T10:00:00Z' has one"),
        (
            [1577836800, 1577836800000],
            2,
            "counts other units than '1577836800'; write all of them",
        ),
        ([True, False], 1, "is not a date"),
    ],
)
def test_unclear_times_are_refused_with_file_and_row(values, row, problem):
    with pytest.raises(UserError, match=re.escape(problem)) as error:
        find_time_column({"train": Rows.from_columns({"time": values}, "data.csv")}, "time")
    assert str(error.value).startswith(f"data.csv: row {row}: column 'time' (--time-column)")
    assert "\n" not in str(error.value)


def test_all_splits_must_write_times_in_the_same_way():
    splits = {
        name: Rows.from_columns({"time": [value]}, f"{name}.csv")
        for name, value in {"train": "13/04/2019", "validation": "04/14/2019"}.items()
    }
    with pytest.raises(UserError, match=r"^validation\.csv: row 1: .* '04/14/2019' is not a date like"):
        find_time_column(splits, "time")


# ---- splits of data


def split_rows(columns, **keys):
    """Return the splits and the notes of rows with different texts, which have a user, a time or both."""
    rows = {name: Rows.from_columns(values, f"{name}.csv") for name, values in columns.items()}
    column = find_time_column(rows, "time") if "time" in rows["train"].columns else None

    def get_keys(part):
        texts = part.hash_columns(["text"])
        found = SplitKeys(texts, texts, np.zeros(len(part), int))
        if "user" in part.columns:
            found = found.add_group_column(part, "user")
        return found.add_time_column(part, column) if column else found

    return make_splits(rows, get_keys, **{"fraction": None, "seed": 0, **keys})


def test_training_rows_of_a_group_or_a_time_of_an_evaluation_split_are_left_out_and_counted():
    train = {"text": list("abcdef"), "user": list("uvwxyz"), "time": [1, 2, 3, 4, 5, 9]}
    validation = {"text": ["a", "new"], "user": ["r", "v"], "time": [5, 7]}
    splits, notes = split_rows({"train": train, "validation": validation})
    assert splits["train"]["text"] == ["c", "d"]
    assert notes == [
        "1 training row left out: also in an evaluation split (--keep-overlap keeps them)",
        "1 training row left out: of the same user as an evaluation row (--keep-overlap keeps them)",
        "2 training rows left out: not earlier than an evaluation row (--keep-overlap keeps them)",
    ]
    kept, notes = split_rows({"train": train, "validation": validation}, keep_overlap=True)
    assert (len(kept["train"]), notes) == (6, [])


def test_groups_and_equal_texts_are_not_on_both_sides_of_time():
    train = {
        "text": ["a", "b", "c", "d", "a", "e"],
        "user": ["u", "v", "w", "v", "x", "y"],
        "time": [1, 2, 3, 4, 5, 6],
    }
    splits, notes = split_rows({"train": train}, fraction=0.5)
    assert (splits["train"]["text"], splits["validation"]["text"]) == (["c"], ["d", "a", "e"])
    assert notes[0] == "3 rows (50%, the latest by time) held out for validation"
    assert [note.split(" (")[0] for note in notes[1:]] == [
        "1 training row left out: also in an evaluation split",
        "1 training row left out: of the same user as an evaluation row",
    ]


def test_equal_texts_of_several_groups_do_not_join_the_groups():
    train = {"text": [f"{number // 2}" if number % 2 else "ok" for number in range(40)],
             "user": [number // 2 for number in range(40)]}  # fmt: skip
    splits, notes = split_rows({"train": train})
    assert len(splits["validation"]) == 4
    assert "ok" not in splits["train"]["text"]
    assert notes[0] == "4 rows (10%, whole user groups) held out for validation (seed 0)"


def test_one_time_for_all_rows_is_refused():
    with pytest.raises(UserError, match="has the same time in all 3 rows, so none are later than others"):
        split_rows({"train": {"text": list("abc"), "time": ["2024-01-01"] * 3}})


def load(tmp_path, task="classify", rows=None, **settings):
    rows = ROW_MAKERS[task](120) if rows is None else rows
    for number, row in enumerate(rows):
        row.setdefault("user_id", f"u{number // 4 % 20}")
        row.setdefault("date", (date(2024, 1, 1) + timedelta(days=number * 7 % 97)).isoformat())
    path = write_rows(tmp_path / "rows.jsonl", rows)
    return load_data(task, task_definition(task).config(data=str(path), **settings))


@pytest.mark.parametrize("task", ROW_TASKS)
@pytest.mark.parametrize("settings", [{"group_column": "user_id"}, {"time_column": "date"}])
def test_every_task_splits_by_the_columns(tmp_path, task, settings):
    data = load(tmp_path, task, **settings)
    splits = split_parsed_rows(data.task, data.dataset)
    train, validation = splits["train"], splits["validation"]
    assert len(validation)
    if "group_column" in settings:
        assert not set(train["user_id"]) & set(validation["user_id"])
    else:
        assert max(train["date"]) < min(validation["date"])
    keys, other = data.task.make_split_keys(train), data.task.make_split_keys(validation)
    assert not np.isin(keys.group, other.group).any()  # premises, articles, contexts


@pytest.mark.parametrize("settings", [{"group_column": "user_id"}, {"time_column": "date"}])
def test_pairs_of_one_premise_stay_on_one_side_together_with_the_columns(tmp_path, settings):
    rows = [
        {**row, "premise": f"premise {number % 50}", "user_id": f"u{number % 25 + 25 * (number > 99)}"}
        for number, row in enumerate(ROW_MAKERS["nli"](120))
    ]
    data = load(tmp_path, "nli", rows=rows, **settings)
    train, validation = (split_parsed_rows(data.task, data.dataset)[name] for name in ("train", "validation"))
    assert not set(train["premise"]) & set(validation["premise"])
    if "group_column" in settings:
        assert not set(train["user_id"]) & set(validation["user_id"])


@pytest.mark.parametrize("task", ["classify", "nli"])
def test_folds_of_a_study_keep_groups_apart_and_predict_each_row_once(tmp_path, task):
    data = load(tmp_path, task, group_column="user_id")
    splits = split_data(data, 4)
    assert sorted(np.concatenate([part.rows for part in splits.final])) == list(range(len(splits.rows)))
    for part in [*splits.final]:
        users = [set(rows["user_id"]) for rows in part.splits.values()]
        assert not (users[0] & users[1] | users[0] & users[2] | users[1] & users[2])
        assert part.splits["test"]["date"] == splits.rows.select(part.rows)["date"]
    assert not set(splits.search["train"]["user_id"]) & set(splits.search["validation"]["user_id"])


def test_folds_of_a_study_move_forward_in_time(tmp_path):
    splits = split_data(load(tmp_path, time_column="date"), 3)
    starts = []
    for part in splits.final:
        train, validation, test = (part.splits[name]["date"] for name in ("train", "validation", "test"))
        assert max(train) < min(validation)
        assert max(validation) < min(test)
        assert test == splits.rows.select(part.rows)["date"]
        starts.append(min(test))
    assert starts == sorted(starts)
    assert max(splits.search["train"]["date"]) < min(splits.search["validation"]["date"])
    assert sorted(np.concatenate([part.rows for part in splits.final])) == list(range(len(splits.rows)))


@pytest.mark.parametrize("task", ROW_TASKS)
def test_a_missing_column_is_refused_with_a_similar_name(tmp_path, task):
    for flag in ("group_column", "time_column"):
        with pytest.raises(UserError, match=r"no column 'user_idd' \(--.*\); did you mean 'user_id'\?"):
            load(tmp_path, task, **{flag: "user_idd"})


def test_the_column_of_the_labels_is_refused(tmp_path):
    with pytest.raises(UserError, match="--group-column label: is the column of the labels"):
        load(tmp_path, group_column="label")


class Notes(Reporter):
    def __init__(self):
        self.lines = []

    def info(self, message):
        self.lines.append(message)


def collect_notes(tmp_path, **settings):
    reporter = Notes()
    with use_reporter(reporter):
        data = load(tmp_path, **settings)
        split_parsed_rows(data.task, data.dataset)
    return reporter.lines


@pytest.mark.slow
def test_new_rows_of_the_groups_of_training_rows_are_counted(tmp_path, tiny, cli, stop_at):
    """Also after an interruption, as a resumed run makes the same split."""
    rows = [{**row, "user_id": f"u{number // 6}"} for number, row in enumerate(make_toy_rows(60))]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    args = ["--model", tiny, "--max-steps", 4, "--save-steps", 2, "--max-length", 16, "-o", tmp_path / "run"]
    stop_at(3)
    assert cli("classify", "--data", data, "--group-column", "user_id", *args)[0] == 130
    status, _, err = cli("classify", "--resume", "-o", tmp_path / "run")
    assert status == 0, err
    assert "user_id: train 9, validation 1" in err
    new = [{**row, "user_id": f"u{number % 10}"} for number, row in enumerate(make_toy_rows(20, seed=3))]
    write_rows(tmp_path / "new.jsonl", new)
    err = cli("evaluate", tmp_path / "run", "--data", tmp_path / "new.jsonl")[2]
    assert "18 of 20 rows have a user_id that training rows have: the scores are too high" in err


def test_a_random_split_of_rows_with_groups_names_the_risk_and_the_flag(tmp_path):
    notes = collect_notes(tmp_path)
    assert any(re.fullmatch(
        r"\d+ of 12 held-out rows have a user_id that training rows have, too, so scores may be too high; "
        "--group-column user_id keeps each on one side", note,
    ) for note in notes)  # fmt: skip
    for flags in ({"group_column": "user_id"}, {"time_column": "date"}):
        assert not any("--group-column" in note for note in collect_notes(tmp_path, **flags))
    unique = [{**row, "user_id": str(number)} for number, row in enumerate(make_toy_rows(60))]
    constant = [{**row, "user_id": "a"} for row in make_toy_rows(60)]
    for rows in (unique, constant):
        assert not any("--group-column" in note for note in collect_notes(tmp_path, rows=rows))


@pytest.mark.slow
def test_check_measures_what_a_random_split_overstates(tmp_path):
    model = save_tiny_model(tmp_path / "model")
    rows = [
        {
            "text": f"word{number % 7} name{number % 15} {number}",
            "label": "yn"[number % 15 % 2],
            "author": number % 15,
        }
        for number in range(300)
    ]
    path = str(write_rows(tmp_path / "rows.jsonl", rows))
    report = bertkit.check("classify", data=path, model=str(model))
    (found,) = (finding for finding in report.findings if finding.name == "groups")
    assert found.level == "warning"
    assert found.message.startswith("tfidf has accuracy 1.000 on random rows and 0.")
    assert "--group-column author" in found.fix
    report = bertkit.check("classify", data=path, model=str(model), group_column="author")
    (found,) = (finding for finding in report.findings if finding.name == "groups")
    assert (found.level, found.fix) == ("note", "")


@pytest.mark.slow
def test_a_run_saves_both_sides_and_evaluates_on_the_same_rows(tmp_path):
    model = save_tiny_model(tmp_path / "model")
    data = load(tmp_path)
    run = bertkit.classify(
        data=str(data.task.config.data), model=str(model), group_column="user_id", time_column="date",
        keep_overlap=True, epochs=1, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    sections = run.metrics["data"]
    assert sections["groups"]["column"] == "user_id"
    assert sections["groups"]["validation"] > 1
    assert sections["time"]["train"][1] < sections["time"]["validation"][0]
    page = (run.output_dir / "report.html").read_text()
    assert f"date: train {sections['time']['train'][0]} to" in page
    again = bertkit.evaluate(str(run.output_dir), output_dir=str(tmp_path / "again"))
    assert again.metrics["validation"] == run.metrics["validation"]
    assert again.metrics["data"]["groups"]["validation"] == sections["groups"]["validation"]
