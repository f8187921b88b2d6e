"""`ner`: one tag for each token, in the scheme it came in, legal, and scored by entities."""

import json
import random

import numpy as np
import pytest
from conftest import (
    POSITIVE_WORDS,
    assert_refused,
    make_ner_rows,
    read_predictions,
    save_tiny_model,
    slow_fixture,
    write_rows,
)
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2

import bertkit
from bertkit.tasks.ner.tags import SCHEMES, Scheme, from_iob2, to_iob2

FAST = {"batch_size": 8, "learning_rate": 5e-3, "seed": 1, "bf16": False}


def conll(rows, separator="\t", columns=("tokens", "tags")):
    """Rows as a column file, a line of a lone TAB between sentences."""
    sentences = [zip(*(row[column] for column in columns), strict=True) for row in rows]
    return "\t\n".join("".join(separator.join(fields) + "\n" for fields in some) for some in sentences)


def written(path, rows, **form):
    path.write_text(conll(rows, **form), "utf-8")
    return path


@slow_fixture
def learned(tiny_without_dropout, tmp_path_factory):
    """A run on separable sentences, and untagged test sentences of which one is longer than the model."""
    folder = tmp_path_factory.mktemp("ner")
    data = written(folder / "toy.conll", make_ner_rows(400))
    test = [{"tokens": row["tokens"]} for row in make_ner_rows(10, seed=9)]
    test.append({"tokens": [token for row in make_ner_rows(30, seed=10) for token in row["tokens"]]})
    path = written(folder / "test.conll", test, columns=["tokens"])
    return bertkit.ner(
        data=str(data), test=str(path), model=str(tiny_without_dropout), epochs=3, max_length=32,
        output_dir=str(folder / "run"), **FAST | {"learning_rate": 8e-3},
    )  # fmt: skip


def test_entities_are_learned(learned):
    assert learned.metrics["validation"]["f1"] > 0.9
    assert set(learned.metrics["validation"]) == {"precision", "recall", "f1", "accuracy", "entity_ece"}
    assert set(learned.metrics["intervals"]) == set(learned.metrics["validation"])
    assert learned.metrics["test"] == {}
    details = learned.metrics["details"]["validation"]
    assert details["NICE"].keys() == {"precision", "recall", "f1", "entities"}
    assert learned.metrics["baselines"]["majority"]["f1"] == 0
    assert 0 < learned.metrics["baselines"]["frequent_tag"]["f1"] < 1


def test_scores_equal_those_of_seqeval_on_the_predictions(learned):
    records = read_predictions(learned.output_dir)
    gold, predicted = [r["gold"] for r in records], [r["predicted"] for r in records]
    strict = f1_score(gold, predicted, mode="strict", scheme=IOB2)
    assert learned.metrics["validation"]["f1"] == pytest.approx(strict, abs=1e-12)


def test_predictions_are_written_as_columns_and_as_character_spans(learned):
    records = read_predictions(learned.output_dir)
    columns = (learned.output_dir / "predictions.conll").read_text("utf-8")
    assert columns.endswith("\n\n")
    sentences = [
        [line.split("\t") for line in part.split("\n")] for part in columns.removesuffix("\n\n").split("\n\n")
    ]
    expected = [list(map(list, zip(r["tokens"], r["gold"], r["predicted"], strict=True))) for r in records]
    assert sentences == expected
    for record in records:
        for entity in record["entities"]:
            assert record["text"][entity["start"] : entity["end"]] == entity["text"]
            assert 0 < entity["score"] <= 1
        begun = [tag[2:] for tag in record["predicted"] if tag[0] == "B"]
        assert [entity["label"] for entity in record["entities"]] == begun


def test_sentences_of_any_length_get_one_legal_tag_per_word(learned):
    records = read_predictions(learned.output_dir, "predictions-test.jsonl")
    assert [record["gold"] for record in records] == [None] * 11
    assert len(records[-1]["tokens"]) > 200
    right = 0
    for record in records:
        assert len(record["predicted"]) == len(record["tokens"])
        assert to_iob2([record["predicted"]], Scheme()) == [record["predicted"]]
        right += sum(tag != "O" for tag in record["predicted"])
    lines = (learned.output_dir / "predictions-test.conll").read_text("utf-8").split("\n")
    assert {line.count("\t") for line in lines if line} == {1}
    assert right > 100  # far into the long sentence entities are still found


def test_a_long_sentence_is_tagged_as_its_parts_are(learned):
    model = bertkit.load(learned.output_dir)
    rows = make_ner_rows(40, seed=11)
    [whole] = model.predict([{"0": [token for row in rows for token in row["tokens"]]}])
    parts = [
        tag for record in model.predict([{"0": row["tokens"]} for row in rows]) for tag in record["predicted"]
    ]
    assert np.mean([one == other for one, other in zip(whole["predicted"], parts, strict=True)]) > 0.9


def test_texts_words_and_empty_sentences_are_predicted(learned):
    model = bertkit.load(learned.output_dir)
    [text, tokens, nothing] = model.predict(
        [{"0": "the good film"}, {"0": ["the", "good", "film"]}, {"0": []}]
    )
    assert text["tokens"] == tokens["tokens"] == ["the", "good", "film"]
    assert text["predicted"] == tokens["predicted"] == ["O", "B-NICE", "O"]
    assert text["entities"] == tokens["entities"]
    assert (nothing["predicted"], nothing["entities"]) == ([], [])
    [other] = model.predict([{"tokens": ["the", "good", "film"], "text": "quite another", "context": 3}])
    assert (other["text"], other["predicted"]) == ("the good film", text["predicted"])
    with pytest.raises(bertkit.UserError, match=r"rows: row 1: word 2: 3 is not a text"):
        list(model.predict([{"tokens": ["the", 3], "text": "the 3"}]))


ODD = [
    "", " ", "\t", "a\nb", "\u00a0", "\u200b", "\ufeff", "\x07", "\u0301", "e\u0301", "👩‍👩‍👧", "서울",
    "[SEP]", "x" * 3000, "\u2028", "\ud800", "#tag", "-DOCSTART-",
]  # fmt: skip


@pytest.mark.slow
def test_odd_words_get_one_tag_each_and_are_returned_unchanged(tiny, tmp_path):
    rng = random.Random(0)
    rows = make_ner_rows(60)
    for row in rows[:30]:
        for token in ODD:
            place = rng.choice([n for n, tag in enumerate([*row["tags"], "O"]) if tag[0] != "I"])
            row["tokens"].insert(place, token)
            row["tags"].insert(place, "O")
    data = tmp_path / "odd.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = bertkit.ner(
        data=str(data), model=str(tiny), validation_fraction=0.5, max_steps=3, max_length=16,
        output_dir=str(tmp_path / "run"), **FAST,
    )  # fmt: skip
    came = {tuple(row["tokens"]): row["tags"] for row in rows}
    records = read_predictions(run.output_dir)
    assert any("x" * 3000 in record["tokens"] for record in records)
    for record in records:
        assert came[tuple(record["tokens"])] == record["gold"]
        assert len(record["predicted"]) == len(record["tokens"])
        for entity in record["entities"]:
            assert record["text"][entity["start"] : entity["end"]] == entity["text"]
    lines = (run.output_dir / "predictions.conll").read_text("utf-8").split("\n")
    assert [line.count("\t") for line in lines if line] == [2] * sum(len(r["tokens"]) for r in records)


def test_the_run_works_in_a_pipeline(learned):
    from transformers import pipeline

    tagger = pipeline("token-classification", str(learned.output_dir), aggregation_strategy="first")
    [found] = tagger("it was very good here")
    assert (found["entity_group"], found["start"], found["end"]) == ("NICE", 12, 16)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_tags_are_written_in_the_scheme_of_the_data(tiny, tmp_path, name):
    scheme = Scheme(name)
    rows = [row | {"tags": from_iob2([row["tags"]], scheme)[0]} for row in make_ner_rows(60)]
    data = written(tmp_path / "toy.conll", rows, separator=" ")
    settings = {"max_steps": 1, **FAST, "learning_rate": 1e-9}  # the tags are those of a random head
    run = bertkit.ner(data=str(data), model=str(tiny), output_dir=str(tmp_path / "run"), **settings)
    came = {tuple(row["tokens"]): row["tags"] for row in rows}
    guessed = False
    for record in read_predictions(run.output_dir):
        assert record["gold"] == came[tuple(record["tokens"])]
        iob2 = to_iob2([record["predicted"]], scheme)
        assert from_iob2(iob2, scheme) == [record["predicted"]]
        guessed |= iob2 != [["O"] * len(record["tokens"])]
    assert guessed
    names = json.loads((run.output_dir / "config.json").read_text())["id2label"]
    assert set(names.values()) == {"O", "B-MEAN", "I-MEAN", "B-NICE", "I-NICE"}


FORMS = {
    "jsonl": lambda path, rows: write_rows(path, rows),
    "columns": lambda path, rows: written(path, rows),
    "blanks": lambda path, rows: written(path, rows, separator="  "),
    "spans": lambda path, rows: write_rows(path, [spans_of(row) for row in rows]),
    "other columns": lambda path, rows: written(
        path, [row | {"n": [str(1 + i) for i in range(len(row["tokens"]))]} for row in rows],
        columns=("n", "tokens", "tags"),
    ),
}  # fmt: skip


def spans_of(row):
    """The same row as a text with spans in it."""
    text, spans = " ".join(row["tokens"]), []
    at = 0
    for token, tag in zip(row["tokens"], row["tags"], strict=True):
        if tag[0] == "B":
            spans.append({"start": at, "end": at + len(token), "label": tag[2:]})
        elif tag[0] == "I":
            spans[-1]["end"] = at + len(token)
        at += len(token) + 1
    return {"text": text, "entities": spans}


GOOD_ROWS = make_ner_rows(40)
SPANS = [spans_of(row) for row in GOOD_ROWS]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_all_file_formats_give_the_same_rows(tiny, tmp_path, name):
    data = FORMS[name](tmp_path / "data.txt", make_ner_rows(40))
    run = bertkit.ner(data=str(data), model=str(tiny), max_steps=1, output_dir=str(tmp_path / "run"), **FAST)
    rows = {tuple(row["tokens"]): row["tags"] for row in make_ner_rows(40)}
    records = read_predictions(run.output_dir)
    assert len(records) == 4
    assert all(rows[tuple(record["tokens"])] == record["gold"] for record in records)


@pytest.mark.slow
def test_splits_may_have_different_file_formats(tiny, tmp_path):
    data = write_rows(
        tmp_path / "train.jsonl", [{"words": r["tokens"], "ner": r["tags"]} for r in make_ner_rows(40)]
    )
    dev, test = written(tmp_path / "dev.conll", make_ner_rows(8, 1)), tmp_path / "test.jsonl"
    write_rows(test, [spans_of(row) for row in make_ner_rows(6, 2)])
    run = bertkit.ner(
        data=str(data), validation=str(dev), test=str(test), model=str(tiny), max_steps=1,
        output_dir=str(tmp_path / "run"), **FAST,
    )  # fmt: skip
    assert [r["gold"] for r in read_predictions(run.output_dir)] == [r["tags"] for r in make_ner_rows(8, 1)]
    records = read_predictions(run.output_dir, "predictions-test.jsonl")
    assert [r["gold"] for r in records] == [r["tags"] for r in make_ner_rows(6, 2)]


@pytest.mark.slow
def test_the_training_scheme_is_used_regardless_of_file_order(cli, tiny, tmp_path):
    bioes = Scheme("BIOES")
    rows = [row | {"tags": from_iob2([row["tags"]], bioes)[0]} for row in make_ner_rows(40)]
    (tmp_path / "set").mkdir()
    written(tmp_path / "set" / "train.conll", rows)
    (tmp_path / "set" / "dev.conll").write_text("a O\ngood S-NICE\nbad S-MEAN\n")
    run = bertkit.ner(
        data=str(tmp_path / "set"), model=str(tiny), max_steps=1, output_dir=str(tmp_path / "run"), **FAST
    )
    assert bertkit.load(run.output_dir).task.state.scheme == bioes
    written(tmp_path / "set" / "train.conll", [{"tokens": row["tokens"]} for row in rows], columns=["tokens"])
    args = ["--data", tmp_path / "set", "--model", tiny]
    assert_refused(cli, tmp_path, args, ["train.conll", "one column", "no tags"], "ner")
    tokens = [{"tokens": row["tokens"], "tags": None} for row in rows]
    write_rows(tmp_path / "set" / "train.conll", tokens)
    assert_refused(cli, tmp_path, args, ["train.conll", "no tags in column 'tags' to learn from"], "ner")


@pytest.mark.slow
def test_illegal_gold_tags_are_counted_and_scored_as_by_conlleval(cli, tiny, tmp_path):
    rows = make_ner_rows(60)
    rows[3]["tags"] = ["I" + tag[1:] if tag[0] == "B" else tag for tag in rows[3]["tags"]]
    data = write_rows(tmp_path / "toy.jsonl", rows)
    status, _, err = cli("ner", "--data", data, "--model", tiny, "--max-steps", 1, "-o", tmp_path / "run")
    assert (status, "2 train tags violate IOB2" in err) == (0, True)


@pytest.mark.slow
def test_spans_that_end_inside_a_word_are_counted(cli, tiny, tmp_path):
    rows = [*SPANS, {"text": "a goodly film ", "entities": [[2, 6, "NICE"], [9, 14, "MEAN"]]}]
    data = write_rows(tmp_path / "toy.jsonl", rows)
    status, _, err = cli("ner", "--data", data, "--model", tiny, "--max-steps", 1, "-o", tmp_path / "run")
    assert (status, "1 train spans end inside a word" in err) == (0, True), err


@pytest.mark.slow
def test_empty_sentences_are_left_out_and_counted(cli, tiny, tmp_path):
    rows = [*make_ner_rows(40), {"tokens": [], "tags": []}]
    data = write_rows(tmp_path / "toy.jsonl", rows)
    status, _, err = cli("ner", "--data", data, "--model", tiny, "--max-steps", 1, "-o", tmp_path / "run")
    assert (status, "1 train rows without words skipped" in err) == (0, True)


@pytest.mark.slow
def test_a_model_with_the_same_types_keeps_its_head(learned, tmp_path):
    again = bertkit.ner(
        data=str(written(tmp_path / "toy.conll", make_ner_rows(80, seed=5))), model=str(learned.output_dir),
        max_steps=1, batch_size=8, learning_rate=0.0, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert again.metrics["validation"]["f1"] > 0.9


@pytest.mark.slow
def test_a_head_with_swapped_type_names_is_refused(cli, learned, tmp_path):
    import shutil

    folder = shutil.copytree(learned.output_dir, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    swapped = {"NICE": "MEAN", "MEAN": "NICE"}
    names = {n: t if t == "O" else t[:2] + swapped[t[2:]] for n, t in config["id2label"].items()}
    (folder / "config.json").write_text(json.dumps(config | {"id2label": names}))
    data = written(tmp_path / "toy.conll", make_ner_rows(200, seed=5))
    words = ["wrong order", "MEAN means NICE, NICE means MEAN", "validation words in entities"]
    assert_refused(cli, tmp_path, ["--data", data, "--model", folder], words, "ner")


def in_documents(rows, size):
    """The rows as a file of documents of `size` sentences."""
    parts = [conll(rows[at : at + size]) for at in range(0, len(rows), size)]
    return "".join(f"-DOCSTART- O\n\n{part}\n" for part in parts)


def clues(count):
    """A document's first sentence tells of what type its entity is; nothing else does."""
    rng, rows = random.Random(0), []
    for _ in range(count):
        kind, word = rng.choice([("NICE", "good"), ("MEAN", "bad")])
        rows.append({"tokens": [word, *rng.choices("abcdefgh", k=3)], "tags": ["O"] * 4})
        rows.append({"tokens": [*rng.choices("abcdefgh", k=3), "film"], "tags": [*"OOO", f"B-{kind}"]})
    return rows


@pytest.mark.slow
def test_document_context_provides_missing_information(tmp_path):
    # Large initial weights: attention to the other sentence is learned in a third of the steps.
    model = save_tiny_model(
        tmp_path / "model", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2
    )
    data = tmp_path / "toy.conll"
    data.write_text(in_documents(clues(130), 2))
    scores = {}
    for context in ("sentence", "document"):
        run = bertkit.ner(
            data=str(data), model=str(model), epochs=3, context=context,
            output_dir=str(tmp_path / context),
            **FAST | {"learning_rate": 4e-3},
        )  # fmt: skip
        scores[context] = run.metrics["validation"]["f1"]
    model = bertkit.load(run.output_dir)
    rows = [{"tokens": ["bad", *"caf"], "document": 1}, {"tokens": [*"dbc", "film"], "document": 1}]
    assert [found["predicted"] for found in model.predict(rows)] == [["O"] * 4, [*"OOO", "B-MEAN"]]
    # Without a document column, a sentence is read by itself.
    assert len(list(model.predict([{"tokens": ["d", "film"]}]))) == 1
    assert scores["sentence"] < 0.8
    assert scores["document"] > 0.95


def test_context_needs_documents(cli, tiny, tmp_path):
    data = written(tmp_path / "toy.conll", make_ner_rows(40))
    words = ["toy.conll", "--context document", "-DOCSTART-", "'document'"]
    assert_refused(cli, tmp_path, ["--data", data, "--model", tiny, "--context", "document"], words, "ner")


BAD = {  # name: (rows, further arguments, words the line must hold)
    "fewer tags than tokens": (
        [*GOOD_ROWS, {"tokens": ["a", "b"], "tags": ["O"]}], [],
        ["row 41", "1 tag ", "2 words"],
    ),
    "no tags in a row": ([*GOOD_ROWS, {"tokens": ["a"]}], [], ["row 41", "no tags"]),
    "a number for a tag": (
        [*GOOD_ROWS, {"tokens": ["a"], "tags": [3]}], [],
        ["row 41", "tag 3 of 'a'", "a number"],
    ),
    "a number for a token": (
        [*GOOD_ROWS, {"tokens": ["a", 3], "tags": ["O", "O"]}], [],
        ["row 41", "word 2: 3 is not a text"],
    ),
    "no list of tokens": ([*GOOD_ROWS, {"tokens": 5, "tags": ["O"]}], [], ["row 41", "found 5"]),
    "no column of tokens": (
        GOOD_ROWS, ["--token-column", "tokns"],
        ["tokns", "did you mean 'tokens'", "--token-column"],
    ),
    "no column of tags": (
        GOOD_ROWS, ["--tag-column", "ner"],
        ["no column 'ner'", "--tag-column", "tokens, tags"],
    ),
    "no such number": (GOOD_ROWS, ["--tag-column", 7], ["no column '7'", "--tag-column"]),
    "tags are the tokens": (
        GOOD_ROWS, ["--tag-column", "tokens"],
        ["--tag-column tokens", "already the token column"],
    ),
    "nothing but O": (
        [{**row, "tags": ["O"] * len(row["tags"])} for row in GOOD_ROWS], [],
        ["all tags", "are O"],
    ),
    "no tokens at all": ([{"tokens": [], "tags": []}], [], ["no row contains a word"]),
    "a span out of the text": (
        [*SPANS, {"text": "ab", "entities": [[0, 3, "X"]]}], [],
        ["row 41", "0 to 3", "2 characters"],
    ),
    "a span of no word": (
        [*SPANS, {"text": "a b", "entities": [[1, 2, "X"]]}], [],
        ["row 41", "no word", "1 to 2"],
    ),
    "two spans in one place": (
        [*SPANS, {"text": "a b", "entities": [[0, 3, "X"], [2, 3, "Y"]]}], [],
        ["row 41", "'b'", "another"],
    ),
    "tags beside a text": (
        [*SPANS, {"text": "a b", "entities": ["O", "O"]}], [],
        ["row 41", "cannot parse span 'O'"],
    ),
    "spans that are no list": ([*SPANS, {"text": "a b", "entities": "X"}], [], ["row 41", "expected a list"]),
    "too long for the model": (GOOD_ROWS, ["--max-length", 129], ["--max-length 129", "128 positions"]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_refused(cli, tiny, tmp_path, name):
    rows, args, words = BAD[name]
    data = write_rows(tmp_path / "data.jsonl", rows)
    args = ["--data", data, "--model", tiny, "--output-dir", tmp_path / "run", *args]
    assert_refused(cli, tmp_path, args, words, "ner")


@pytest.mark.slow
def test_refused_lines_of_column_files(cli, tiny, tmp_path):
    data, dev = written(tmp_path / "train.conll", GOOD_ROWS), tmp_path / "dev.conll"
    args = ["--data", data, "--validation", dev, "--model", tiny]
    dev.write_text("new O\nfilm B-NICE\n\nold O\nfilm B-NIC\n")
    words = ["dev.conll: line 5", "'B-NIC'", "MEAN, NICE", "did you mean 'NICE'"]
    assert_refused(cli, tmp_path, args, words, "ner")
    dev.write_text("new O\nfilm\n\nold O\nfilm O\n")
    assert_refused(cli, tmp_path, args, ["dev.conll: line 2", "found 1"], "ner")
    dev.write_text("new\nfilm\n")
    assert_refused(cli, tmp_path, args, ["dev.conll", "no tags", "score"], "ner")


@pytest.mark.parametrize("text", ["서울은 크다", "a  b\u00a0c", "e\u0301tude \u200b x"])
def test_spans_of_texts_in_any_script_are_restored(tiny, tmp_path, text):
    from bertkit.data.language import split_words
    from bertkit.data.table import Rows
    from bertkit.tasks.ner.rows import convert_spans_to_tags, extract_entities

    words = split_words(text)
    rows = Rows.from_columns({"text": [text]}, "x")
    for start in range(len(text)):
        for stop in range(start + 1, len(text) + 1):
            try:
                tags = convert_spans_to_tags(rows, 0, [[start, stop, "X"]], text, words)
            except bertkit.UserError:
                assert not text[start:stop].strip()
                continue
            [entity] = extract_entities(tags, words, text, [1.0] * len(words))
            assert entity["start"] <= max(start, entity["start"]) < stop
            assert split_words(text[entity["start"] : entity["end"]]) == split_words(entity["text"])
            inside = split_words(text[start:stop])
            assert "".join(inside) in "".join(split_words(entity["text"]))


@pytest.mark.slow
def test_korean_particles_in_the_token_of_an_entity_are_not_part_of_it(tiny_without_dropout, tmp_path):
    """KLUE's form: a character a line, the blank is a token too."""
    rows = [{"tokens": list(" ".join(row["tokens"])), "tags": spread(row)} for row in make_ner_rows(400)]
    data = written(tmp_path / "toy.tsv", rows)
    run = bertkit.ner(
        data=str(data), model=str(tiny_without_dropout), epochs=3, output_dir=str(tmp_path / "run"),
        **FAST | {"learning_rate": 8e-3},
    )  # fmt: skip
    records = read_predictions(run.output_dir)
    assert all(len(record["predicted"]) == len(record["tokens"]) for record in records)
    assert all(record["text"] == "".join(record["tokens"]) for record in records)
    assert run.metrics["validation"]["f1"] > 0.8
    assert {entity["text"] for record in records for entity in record["entities"]} & set(POSITIVE_WORDS)


def spread(row):
    """The tags of a row's characters; a blank inside an entity is inside."""
    tags = []
    for place, (token, tag) in enumerate(zip(row["tokens"], row["tags"], strict=True)):
        if place:
            tags.append(tag if tag[0] == "I" else "O")
        tags += [tag, *["I" + tag[1:] if tag != "O" else "O"] * (len(token) - 1)]
    return tags


def test_entities_that_cannot_be_predicted_are_reported_for_each_split_and_refused(cli, tiny, tmp_path):
    """Each character is a word, and the tokens are whole words."""
    words, inside = list("the film was good"), ["O"] * 5 + ["B-NICE"] + ["O"] * 11
    whole = ["O"] * 13 + ["B-NICE", *["I-NICE"] * 3]
    train = [{"tokens": [*words, " ", str(at)], "tags": [*whole, "O", "O"]} for at in range(10)]
    data = write_rows(tmp_path / "train.jsonl", train)
    lost = write_rows(tmp_path / "dev.jsonl", [{"tokens": words, "tags": inside}])
    args = ["--validation", lost, "--model", tiny, "--max-steps", 1, "--dry-run", "--no-bf16"]
    status, _, err = cli("ner", "--data", data, *args)
    assert status == 0
    [warning] = [line for line in err.splitlines() if "entit" in line and line.startswith("warning")]
    assert warning.startswith("warning: validation split: 1 of 1 entity cannot be predicted")
    assert warning.endswith(f"such as 'i' in {lost}: row 1")
    line = assert_refused(
        cli, tmp_path, ["--data", lost, *args, "--keep-overlap"], ["1 of 1 entity", "--model"], "ner"
    )
    assert line.startswith(f"bertkit: {lost}: ")


@pytest.mark.slow
def test_evaluate_reports_entities_that_cannot_be_predicted(learned, cli, tmp_path):
    tags = ["O"] * 5 + ["B-NICE"] + ["O"] * 2
    data = write_rows(tmp_path / "new.jsonl", [{"0": list("the film"), "1": tags}])
    status, _, err = cli("evaluate", learned.output_dir, "--data", data, "-o", tmp_path / "scores")
    assert status == 0, err
    assert f"such as 'i' in {data}: row 1" in err.replace("\n", " ")
