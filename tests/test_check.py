"""`bertkit check`: each kind of finding occurs in a small file that has it, and not in a clean one."""

import functools
import json
from dataclasses import fields

import pytest
from conftest import (
    NEGATIVE_WORDS,
    POSITIVE_WORDS,
    ROW_MAKERS,
    make_document_rows,
    make_toy_rows,
    save_tiny_model,
    write_rows,
)

import bertkit
from bertkit.commands.configs import make_check_config
from bertkit.tasks import TASKS, task_definition
from bertkit.tasks.checks import MAX_LOCATIONS
from bertkit.tasks.pretrain.checks import SMALL_CORPUS_CHARS


@pytest.fixture(scope="module")
def model_without_weights(tmp_path_factory):
    """Return a model with an empty weights file, so that loading the weights fails."""
    folder = save_tiny_model(tmp_path_factory.mktemp("model"))
    for weights in folder.glob("*.safetensors"):
        weights.write_bytes(b"")
    return str(folder)


@pytest.fixture
def run_check(tmp_path, model_without_weights):
    """Return a function that checks training and validation rows: the report, and its findings by name."""
    return functools.partial(check_rows, tmp_path, model_without_weights)


def check_rows(folder, default_model, task, train, validation, **settings):
    data = write_rows(folder / "train.jsonl", train)
    other = write_rows(folder / "dev.jsonl", validation)
    report = bertkit.check(
        task, data=str(data), validation=str(other), **{"model": default_model, **settings}
    )
    return report, {finding.name: finding for finding in report.findings}


@pytest.fixture(scope="module")
def find_in_valid_rows(tmp_path_factory, model_without_weights):
    """Return a function that returns the names of what is found in valid rows of a task."""

    @functools.cache
    def find(task, **settings):
        folder = tmp_path_factory.mktemp("valid")
        rows = rows_of(task), rows_of(task, seed=1)
        return set(check_rows(folder, model_without_weights, task, *rows, **settings)[1])

    return find


def rows_of(task, seed=0):
    """Return 60 valid rows of a task."""
    if task == "pretrain-mlm-nsp":
        return [{"text": row["text"] + " and more. And more."} for row in make_document_rows(60, seed)]
    return ROW_MAKERS[task](60, seed=seed)


def with_row(rows, index, **values):
    """Return the rows with other values in one of them."""
    return [{**row, **values} if number == index else row for number, row in enumerate(rows)]


def answer(text, start):
    return [{"text": text, "answer_start": start}]


def each(**change):
    """Return a function that changes columns of every row by functions of its number and the old value."""
    return lambda rows: [
        {**row, **{name: make(at, row.get(name)) for name, make in change.items()}}
        for at, row in enumerate(rows)
    ]


def one(**values):
    """Return a function that changes the eighth row."""
    return lambda rows: with_row(rows, 7, **values)


def few(at, _):
    return "few" if at < 4 else "most"


def star(at, _):
    return "N/A" if at == 7 else at % 5


LONG_ANSWER = ("good " * 60).strip()
TWICE = ["it", "so", "it"]
TRAIN_CASES = {  # finding: (task, level, function that puts it into the rows, settings)
    "empty": ("classify", "warning", one(text="  "), {}),
    "duplicates": ("classify", "warning", lambda rows: [*rows, rows[7]], {}),
    "conflicts": ("classify", "warning", lambda rows: [*rows, {**rows[7], "label": "negative"}], {}),
    "majority": ("classify", "warning", each(label=few), {}),
    "rare": ("classify", "warning", each(label=few), {}),
    "spelling": ("classify", "warning", one(label="POSITIVE"), {}),
    "truncated": ("classify", "warning", each(text=lambda _, text: text * 9), {"max_length": 64}),
    "unknown": ("classify", "warning", each(text=lambda _, text: text + " 좋"), {}),
    "script": ("classify", "warning", each(text=lambda at, _: f"좋은 영화 {at}"), {}),
    "refused": ("classify", "error", one(text=None), {}),
    "no-labels": ("classify", "note", each(label=lambda at, label: [label] * (at != 7)), {}),
    "range": ("classify", "note", each(label=lambda at, _: at / 8), {}),
    "equal-pair": ("nli", "note", one(hypothesis="good", premise="good "), {}),
    "inside-first": ("ner", "warning", one(tokens=["a", "bad", "room"], tags=["O", "I-MEAN", "O"]), {}),
    "type-changes": ("ner", "warning", one(tokens=["bad", "good"], tags=["B-MEAN", "I-NICE"]), {}),
    "ill-formed": ("ner", "warning", one(tokens=["bad", "good"], tags=["S-MEAN", "O"]), {}),
    "type-once": ("ner", "warning", one(tokens=["bad", "good"], tags=["B-ONCE", "O"]), {}),
    "no-words": ("ner", "note", one(tokens=[], tags=[]), {}),
    "untokenized": ("ner", "note", one(tokens=["\u200e", "good"], tags=["O", "B-NICE"]), {}),
    "lost-entities": (
        "ner", "warning", one(tokens=list("a good room"), tags=["O"] * 4 + ["B-NICE"] + ["O"] * 6), {},
    ),
    "notation": ("ner", "note", each(tags=lambda _, tags: ["-".join(tag.split("-")[::-1]) for tag in tags]),
                 {}),
    "long-sentences": ("ner", "warning", one(tokens=["good"] * 251, tags=["O"] * 251), {}),
    "windows": ("ner", "note", one(tokens=["good"] * 90, tags=["O"] * 90), {"max_length": 64}),
    "offset": ("qa", "warning", one(context="a good room", answers=answer("good", 0)), {}),
    "nowhere": ("qa", "warning", one(answers=answer("nowhere", 0)), {}),
    "no-offset": ("qa", "note", one(context="a good room", answers=answer("good", None)), {}),
    "contradicted": ("qa", "warning", one(is_impossible=True), {}),
    "question-truncated": ("qa", "note", one(question="was it good " * 9), {"max_query_length": 9}),
    "answer-lost": (
        "qa", "warning", one(context="the " + LONG_ANSWER, answers=answer(LONG_ANSWER, 4)),
        {"max_length": 32},
    ),
    "answer-long": (
        "qa", "note", one(context="the good good room", answers=answer("good good", 4)),
        {"max_answer_length": 1},
    ),
    "right-twice": ("swag", "warning", one(endings=TWICE, label=0), {}),
    "wrong-twice": ("swag", "note", one(endings=TWICE, label=1), {}),
    "ambiguous-label": ("swag", "warning", one(endings=["1", "2", "3", "4"], label="2"), {}),
    "gaps": ("classify", "warning", each(label=star), {}),
    "one-sentence": ("pretrain-mlm-nsp", "warning", each(text=lambda at, _: f"It was good {at}"), {}),
}  # fmt: skip
SPLIT_LEVEL = {
    "majority",
    "rare",
    "spelling",
    "script",
    "range",
    "contradicted",
    "one-sentence",
    "notation",
}  # about no single row
MANY = {"unknown", "truncated"}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAIN_CASES)
def test_each_finding_names_the_training_rows_that_have_it(name, run_check, find_in_valid_rows):
    task, level, corrupt, settings = TRAIN_CASES[name]
    settings = {"model": None, **settings} if task == "pretrain-mlm-nsp" else settings
    assert name not in find_in_valid_rows(task, **settings)
    _, found = run_check(task, corrupt(rows_of(task)), rows_of(task, seed=1), **settings)
    assert found[name].level == level
    if name not in SPLIT_LEVEL | MANY:
        row = 61 if name in ("duplicates", "conflicts") else 8
        assert found[name].count == 1
        assert [place.split(": ")[1].split(" ")[:2] for place in found[name].rows] == [["row", str(row)]]
    if name in MANY:
        assert len(found[name].rows) == MAX_LOCATIONS < found[name].count


GRADES = [3.5, *(n / 8 for n in range(1, 60))]
MISSING_NUMBERS = ["nan", "N/A", "", None, "1e400"]


@pytest.mark.parametrize("gap", MISSING_NUMBERS)
def test_a_missing_number_is_refused_with_its_row(gap, run_check):
    rows = [{**row, "label": gap if at == 7 else GRADES[at]} for at, row in enumerate(rows_of("classify"))]
    report, found = run_check("classify", rows, [{**row, "label": 1.5} for row in rows_of("classify", 1)])
    assert report.summary.startswith("regression")
    assert (found["refused"].count, found["refused"].rows[0].split(": ")[1]) == (1, "row 8")


@pytest.mark.parametrize(("label", "is_conflict"), [("3.50", False), ("3.4", True)])
def test_numbers_are_compared_by_value_and_conflicts_are_a_note(label, is_conflict, run_check):
    rows = [{**row, "label": GRADES[at]} for at, row in enumerate(rows_of("classify"))]
    _, found = run_check("classify", [*rows, {**rows[0], "label": label}], rows[1:9])
    assert ("conflicts" in found) == is_conflict
    if is_conflict:
        assert (found["conflicts"].level, found["conflicts"].count) == ("note", 1)
        assert "between them" in found["conflicts"].fix


CLASS_FINDINGS = {"majority", "rare", "not-validated"}
UNBALANCED = {  # task: rows of which nearly all have the same label
    "swag": each(label=lambda at, _: int(at == 7)),
    "qa": one(answers=[]),
    "ner": one(tokens=["bad", "dull"], tags=["B-ODD", "B-ODD"]),
}


@pytest.mark.parametrize("task", UNBALANCED)
def test_findings_about_classes_are_limited_to_tasks_with_classes(task, run_check):
    settings = {"squad": "v2"} if task == "qa" else {}
    _, found = run_check(task, UNBALANCED[task](rows_of(task)), rows_of(task, 1), **settings)
    assert CLASS_FINDINGS & set(found) == ({"rare", "not-validated"} if task == "ner" else set())
    assert all(found[name].level == "note" for name in CLASS_FINDINGS & set(found))


def test_documents_are_located_by_file_and_row_or_line(run_check, tmp_path):
    (tmp_path / "a.txt").write_text("One. Two. Three.\n\n=====\n\nThe same.\n\nAgain.\n", "utf-8")
    (tmp_path / "b.txt").write_text("Four.\nFive.\n=====\nThe same.\n\nAgain.\n", "utf-8")
    write_rows(tmp_path / "c.jsonl", [{"text": "The same. "}, {"text": " "}, {"text": "The same."}])
    flags = {"data": str(tmp_path / "[abc].*"), "document_separator": "====="}
    report = bertkit.check("pretrain-mlm-nsp", validation=str(tmp_path / "c.jsonl"), **flags)
    [same] = [
        finding for finding in report.findings if finding.name == "duplicates" and "train" in finding.message
    ]
    files = [place.removeprefix(f"{tmp_path}/") for place in same.rows]
    assert files[0] == f"b.txt: line 4 copies {tmp_path}/a.txt: line 4"
    assert "train texts are copies" in same.message


def test_all_rows_without_a_text_are_counted(run_check):
    rows = [*rows_of("pretrain-mlm-nsp"), *({"text": text} for text in ("", "  ", None)), {"label": 1}]
    report, _ = run_check("pretrain-mlm-nsp", rows, rows_of("pretrain-mlm-nsp", 1), model=None)
    assert any("4 rows left out: no text" in finding.message for finding in report.findings)


TWO_SPLIT_CASES = {  # finding: (task, function that puts it into the validation rows, its row)
    "overlap": ("classify", lambda rows, others: [*others, rows[7]], 61),
    "beyond": ("classify", lambda _, others: with_row(others, 7, label=99.5), 8),
    "not-validated": ("ner", lambda _, others: each(tags=plain_nice)(others), None),
    "schemes": ("ner", lambda _, others: each(tags=plain_single)(others), 1),
    "same-paragraph": (
        "qa", lambda rows, others: with_row(others, 7, **{**rows[0], "id": "new", "question": "and how"}), 8,
    ),
}  # fmt: skip


def plain_nice(_, tags):
    return ["O" if "MEAN" in tag else tag for tag in tags]


def plain_single(_, tags):
    return [tag.replace("B-", "S-") if tag[0] == "B" else "O" for tag in tags]


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_SPLIT_CASES)
def test_each_finding_about_two_splits_names_the_validation_row(name, run_check, find_in_valid_rows):
    task, corrupt, row = TWO_SPLIT_CASES[name]
    clean, others = rows_of(task), rows_of(task, seed=1)
    if name == "beyond":
        clean, others = (
            [{**row, "label": at / 8} for at, row in enumerate(rows)] for rows in (clean, others)
        )
        _, without = run_check(task, clean, others)
    else:
        without = find_in_valid_rows(task)
    assert name not in without
    _, found = run_check(task, clean, corrupt(clean, others))
    assert name in found
    if row:
        assert found[name].rows[0].partition(" (")[0].endswith(f"dev.jsonl: row {row}")


def test_all_refused_rows_are_counted_in_the_words_of_training(run_check):
    rows = rows_of("classify")
    others = [{**row, "label": "so-so"} if at % 2 else row for at, row in enumerate(rows_of("classify", 1))]
    report, _ = run_check("classify", with_row(rows, 3, text=None), others)
    errors = [finding for finding in report.findings if finding.level == "error"]
    assert sorted((finding.count, len(finding.rows)) for finding in errors) == [(1, 1), (30, MAX_LOCATIONS)]
    assert "label 'so-so' does not occur in the training rows" in errors[1].message
    with pytest.raises(bertkit.UserError) as refused:
        bertkit.classify(data=errors[0].rows[0].split(":")[0], model="none", dry_run=True)
    assert errors[0].message == str(refused.value)
    assert {name: statistics["rows"] for name, statistics in report.splits.items()} == {
        "train": 59,
        "validation": 30,
    }


def test_rows_that_stop_parsing_are_left_out_one_by_one(run_check):
    rows = rows_of("ner")
    for at in (2, 9):
        rows = with_row(rows, at, tags=["O"])
    report, found = run_check("ner", rows, rows_of("ner", 1))
    assert (found["refused"].count, len(found["refused"].rows)) == (2, 2)
    assert report.splits["train"]["rows"] == 58


def test_a_note_says_that_not_all_invalid_rows_were_read(run_check):
    report, found = run_check("ner", [{**row, "tags": ["O"]} for row in rows_of("ner")], rows_of("ner", 1))
    assert {"refused", "not-all"} <= set(found)
    assert report.summary == ""


def test_missing_columns_are_refused(run_check):
    report, found = run_check("classify", [{"story": "a film"}] * 9, rows_of("classify"))
    assert "no column looks like the text" in found["refused"].message
    assert {name: statistics["rows"] for name, statistics in report.splits.items()} == {
        "train": 9,
        "validation": 60,
    }


@pytest.mark.parametrize("task", TASKS)
def test_valid_rows_have_no_errors_and_complete_statistics(task, run_check):
    model = {"model": None} if task == "pretrain-mlm-nsp" else {}
    report, _ = run_check(task, rows_of(task), rows_of(task, seed=1), **model)
    assert report.count("error") == 0
    train = report.splits["train"]
    assert train["rows"] == 60
    assert train["scripts"] == {"Latin": 1.0}
    if task != "pretrain-mlm-nsp":
        assert 0 < train["lengths"]["median"] <= train["lengths"]["95%"] <= train["lengths"]["longest"]
        assert train["over"] == train["unknown"] == 0
    if task in ("classify", "nli", "ner"):
        assert len(train["labels"]) == {"classify": 2, "nli": 3, "ner": 2}[task]


def test_lengths_include_special_tokens_as_in_training(run_check):
    rows = [
        {"text": " ".join(POSITIVE_WORDS[:1] * size), "label": ("negative", "positive")[size % 2]}
        for size in range(1, 41)
    ]
    report, _ = run_check("classify", rows, rows_of("classify"), max_length=22)
    assert report.splits["train"]["lengths"] == {"median": 23, "95%": 40, "longest": 42}
    assert report.splits["train"]["over"] == 0.5  # [CLS], [SEP] and more than 20 tokens


def test_numbers_of_endings_are_reported(run_check):
    same = [{**row, "endings": [*row["endings"], "so", "it"][:2], "label": 0} for row in rows_of("swag")]
    same = [
        {**row, "endings": [f"it was {POSITIVE_WORDS[at % 8]}", f"it was {NEGATIVE_WORDS[at % 8]}"]}
        for at, row in enumerate(same)
    ]
    _, found = run_check("swag", same, same[:9])
    assert (found["endings"].count, "2 in every row" in found["endings"].message) == (0, True)
    report, _ = run_check("swag", with_row(same, 7, endings=["a", "b", "c"]), same[:9])
    [first, *_] = [finding for finding in report.findings if finding.name == "endings"]
    assert (first.count, first.rows[0].endswith("row 8")) == (1, True)


def test_a_small_corpus_is_a_warning(run_check):
    _, found = run_check(
        "pretrain-mlm-nsp", rows_of("pretrain-mlm-nsp"), rows_of("pretrain-mlm-nsp", 1), model=None
    )
    assert found["little-text"].level == "warning"
    much = [{"text": f"{row['text']} {'and so on ' * 2000}"} for row in rows_of("pretrain-mlm-nsp")]
    assert sum(len(row["text"]) for row in much) > SMALL_CORPUS_CHARS
    _, found = run_check("pretrain-mlm-nsp", much, rows_of("pretrain-mlm-nsp", 1), model=None)
    assert "little-text" not in found


def test_few_documents_are_split_into_sections_as_in_training(run_check, tmp_path):
    book = write_rows(tmp_path / "book.jsonl", [{"text": "It was good. " * 50}])
    report = bertkit.check("pretrain-mlm-nsp", data=str(book))
    assert any("split into 20 parts" in finding.message for finding in report.findings)
    assert sum(statistics["rows"] for statistics in report.splits.values()) == 20


def test_unk_tokens_of_a_named_tokenizer_are_reported(run_check, model_without_weights):
    texts = [{"text": f"좋은 영화. 나쁜 영화 {at}."} for at in range(60)]
    _, found = run_check("pretrain-mlm-nsp", texts, texts[:2], model=None, tokenizer=model_without_weights)
    assert found["unknown"].level == "warning"
    assert "unknown" not in run_check("pretrain-mlm-nsp", texts, texts[:2], model=None)[1]


def test_an_unavailable_model_is_an_error_only_if_the_user_named_it(run_check, monkeypatch):
    from bertkit.models import loading

    monkeypatch.setattr(loading, "choose_default_model", lambda: "./nowhere")
    report, found = run_check("classify", rows_of("classify"), rows_of("classify", 1), model=None)
    assert (found["no-model"].level, report.model, report.count("error")) == ("note", None, 0)
    assert (
        run_check("classify", rows_of("classify"), rows_of("classify", 1), model="./nowhere")[1][
            "no-model"
        ].level
        == "error"
    )


# ---- the command


@pytest.fixture
def command(cli, tmp_path, model_without_weights):
    def call(rows, *args):
        data = write_rows(tmp_path / "my" / "reviews.jsonl", rows)
        return cli("check", "classify", "--data", data, "--model", model_without_weights, *args)

    return call


@pytest.mark.slow
def test_up_to_20_classes_may_have_a_few_rows_each(command, tmp_path):
    rows = [{"text": f"the film was good, number {n}", "label": f"class {n % 20}"} for n in range(40)]
    validation = write_rows(tmp_path / "validation.jsonl", rows[:20])
    assert command(rows, "--validation", validation, "--keep-overlap")[0] == 0
    rows = [row | {"label": f"class {n % 21}"} for n, row in enumerate(rows)]
    status, output, _ = command(rows, "--validation", validation, "--keep-overlap")
    assert (status, "21 different labels in 40 rows" in output) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corrupt", "args", "status"),
    [
        ({}, [], 0),
        ({"text": ""}, [], 0),
        ({"text": ""}, ["--strict"], 2),
        ({"text": None}, [], 2),
        ({"label": None}, [], 2),
    ],
)
def test_exit_code_is_2_for_errors_and_with_strict_for_warnings(command, corrupt, args, status):
    rows = make_toy_rows(60)
    found, out, err = command(with_row(rows, 7, **corrupt), *args)
    assert found == status
    assert ("reviews.jsonl: row 8" in out) == bool(corrupt)
    assert [line[:12] for line in err.splitlines()] == (
        ["bertkit: 1 " + ("w" if args else "e")] if status else []
    )
    found, out, err = command(with_row(rows, 7, **corrupt), *args, "--json")
    output = json.loads(out)
    assert found == status
    assert (output["errors"], output["warnings"]) == (
        int(status == 2 and not args),
        int("" in corrupt.values()),
    )
    assert output["task"] == "classify"


@pytest.mark.slow
def test_missing_data_is_refused_in_the_words_of_training(cli):
    checked, trained = (
        cli("check", "classify", "--data", "nowhere.csv"),
        cli("classify", "--data", "nowhere.csv"),
    )
    assert checked == trained
    assert checked[0] == 2


def test_the_console_shows_counts_before_findings(command):
    _, out, _ = command([*make_toy_rows(60), {**make_toy_rows(60)[3], "label": "negative"}])
    places = [
        out.index(word)
        for word in ("reviews from", "Latin 100%", "positive │ █", "another label", "2 warnings")
    ]
    assert places == sorted(places)
    assert "reviews.jsonl: row 61 (negative) copies row 4 (positive)" in out


@pytest.mark.parametrize("task", TASKS)
def test_flags_are_the_data_and_model_flags_of_the_task(cli, task):
    status, out, _ = cli("check", task, "--help")
    config = make_check_config(task_definition(task).config)
    own = {field.name for field in fields(config)} - config.excluded_settings
    assert status == 0
    assert {"data", "validation", "test", "data_dir", "max_length", "model", "strict"} <= own
    assert not {"epochs", "learning_rate", "output_dir", "overwrite"} & own
    assert "--strict" in out
    assert "--learning-rate" not in out


def test_no_rows_are_held_out_in_place_of_a_refused_split(run_check):
    strange = [{**row, "label": "so-so"} for row in rows_of("classify", 1)]
    report, found = run_check("classify", rows_of("classify"), strange)
    assert (found["refused"].count, list(report.splits)) == (60, ["train"])


def test_an_unknown_task_gets_a_suggestion():
    with pytest.raises(bertkit.UserError, match="did you mean 'classify'"):
        bertkit.check("clasify", data="sample")


def test_an_unavailable_tokenizer_is_an_error(cli, tmp_path, no_hub):
    (tmp_path / "text.txt").write_text("One sentence. Another one.\n\nA third. A fourth.\n", "utf-8")
    flags = ["--data", tmp_path / "text.txt", "--tokenizer", "nosuch"]
    status, out, _ = cli("check", "pretrain-mlm-nsp", *flags, "--json")
    assert status == 2
    assert [f["level"] for f in json.loads(out)["findings"] if "nosuch" in f["message"]] == ["error"]


def test_two_columns_of_texts_are_passed_as_a_pair(run_check):
    rows = [{"subject": f"s{at}" if at else "", "body": f"b{at}", "queue": "ab"[at % 2]} for at in range(20)]
    columns = {"text_column": "subject", "text_pair_column": "body", "label_column": "queue"}
    _, found = run_check("classify", rows, rows, **columns)
    assert "keep them if the other text is enough" in found["empty"].fix
    report, _ = run_check(
        "classify", rows, rows, **columns | {"text_column": "subject, body", "text_pair_column": None}
    )
    assert (
        "'subject, body' names several columns; pass one of them, and a second one with --text-pair-column"
        in report.findings[0].message
    )
