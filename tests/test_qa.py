"""`qa` from rows to answers: windows, spans, thresholds, files, and what is refused."""

import dataclasses
import json
import time

import numpy as np
import pytest
import torch
from conftest import (
    POSITIVE_WORDS,
    assert_refused,
    make_qa_rows,
    make_tokenizer,
    read_predictions,
    save_tiny_model,
    slow_fixture,
    write_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_words import TOKENIZERS
from tokenizers import processors

import bertkit
from bertkit.data.collators import PaddingCollator
from bertkit.data.table import Rows
from bertkit.errors import UserError
from bertkit.models.forward import compute_logits
from bertkit.models.losses import CrossEntropy
from bertkit.tasks.base import Outputs
from bertkit.tasks.qa.config import QaConfig
from bertkit.tasks.qa.features import (
    Limits,
    build_question_features,
    compute_descending_keys,
    find_best_spans,
)
from bertkit.tasks.qa.predictions import (
    QaEvaluation,
    average_scores,
    merge_windows,
    score_answers,
)
from bertkit.tasks.qa.task import Qa
from bertkit.training.scoring import predict_logits
from bertkit.utils.files import write_chunks

LIMITS = Limits(max_length=24, max_query_length=6, doc_stride=4, max_answer_length=30, n_best=5)
QUESTION = "was it good"
PARTS = [
    "서울",
    "은",
    "中国",
    "the ",
    " a ",
    "  ",
    "\r\n",
    "😀",
    "é",
    "film",
    "good",
    "x90s",
    "\u200b",
    "​",
    "ﬁ",
]
TEXTS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=40).map("".join)


def with_template(tokenizer):
    """The tokenizer putting [CLS] and [SEP] around a pair."""
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in ("[CLS]", "[SEP]")}
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=list(ids.items())
    )
    return tokenizer


def built(contexts, answers=None, tokenizer=None, limits=LIMITS):
    questions = [QUESTION] * len(contexts)
    return build_question_features(
        questions, contexts, answers, tokenizer or make_tokenizer(), limits, cache=False
    )


# ---- windows and places


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40)
@given(text=TEXTS, data=st.data())
def test_answers_survive_tokenization_windows_and_offsets(kind, text, data):
    places = [place for place, letter in enumerate(text) if not letter.isspace()]
    if not places:
        return
    start = data.draw(st.sampled_from(places))
    stop = data.draw(st.sampled_from([place + 1 for place in places if place >= start]))
    answer = {"text": text[start:stop], "answer_start": start}
    tokenizer = with_template(TOKENIZERS[kind])
    features = built([text], [[answer]], tokenizer)
    whole = build_question_features(
        [QUESTION], [text], [[answer]], tokenizer, Limits(4000, 6, 4000, 30, 5), cache=False
    )
    for some in (features, whole):
        for window in range(len(some)):
            first, last = (
                some.labels[window] - some.get_context_positions(np.array([window])) + some.start[window]
            )
            if some.labels[window, 0] == some.get_null_positions(np.array([window]))[0]:
                continue
            tokens = range(some.start[window], some.stop[window])
            touching = [
                token for token in tokens
                if some.contexts.start[token] < stop and some.contexts.stop[token] > start
            ]  # fmt: skip
            assert {first, last} <= set(tokens)
            assert touching == [] or (first <= touching[0] and touching[-1] <= last)
            found = text[some.contexts.start[first] : some.contexts.stop[last]]
            assert found == found.strip()
            if touching:
                assert answer["text"].strip("\u200b \r\n") in found  # no tokenizer has a token for it


def test_whole_words_are_restored_exactly():
    context = "the  food\r\nwas good ,  today"
    features = built([context], [[{"text": "good", "answer_start": context.index("good")}]])
    first, last = features.labels[0] - features.get_context_positions(np.array([0])) + features.start[0]
    assert context[features.contexts.start[first] : features.contexts.stop[last]] == "good"


@pytest.mark.slow
@given(lengths=st.lists(st.integers(1, 80), min_size=1, max_size=5), stride=st.integers(1, 30))
def test_windows_equal_those_of_run_squad(lengths, stride):
    contexts = [
        " ".join(["film", *["good"] * (length - 1), str(number)]) for number, length in enumerate(lengths)
    ]
    features = built(contexts, limits=Limits(24, 6, stride, 30, 5))
    budget = 24 - 3 - 3  # special tokens, and those of the question
    for question, context in enumerate(contexts):
        size, begin, wanted = len(context.split()), 0, []
        while True:  # google's loop
            length = min(budget, size - begin)
            wanted.append((begin, begin + length))
            if begin + length == size:
                break
            begin += min(length, stride)
        rows = range(features.window_offsets[question], features.window_offsets[question + 1])
        base = features.contexts.ids.offsets[question]
        assert [(features.start[w] - base, features.stop[w] - base) for w in rows] == wanted
        assert all(len(features[w]["input_ids"][0]) == features.lengths[w] <= 24 for w in rows)


def test_questions_are_truncated_and_windows_without_answer_point_to_cls():
    context = " ".join(["film"] * 40 + ["good"])
    features = build_question_features(
        ["was it " * 30], [context], [[{"text": "good", "answer_start": len(context) - 4}]],
        make_tokenizer(), LIMITS, cache=False,
    )  # fmt: skip
    assert features.question_lengths.tolist() == [6]
    assert features.labels[0].tolist() == [0, 0]
    assert features.labels[-1].tolist() == [features.lengths[-1] - 2] * 2


def test_truncated_questions_and_lost_answers_are_reported():
    contexts = ["good", "\u200bgood", "good", "good"]
    answers = [[{"text": context[0], "answer_start": 0}] for context in contexts[:3]] + [[]]
    rows = Rows.from_columns({"id": ["a", "b", "c", "d"]}, "rows")
    features = build_question_features(
        ["was it " * 30, QUESTION, QUESTION, QUESTION],
        contexts,
        answers,
        make_tokenizer(),
        LIMITS,
        cache=False,
    )
    assert features.describe_issues(rows) == [
        "25.0% of the training questions are longer than 6 tokens and truncated",
        "1 answer has no tokens after normalization: trained as unanswerable (ids b)",
    ]
    assert built(["good"]).describe_issues(rows) == []


# ---- spans


def every_span(logits, allowed, longest):
    start, end = logits
    spans = [
        (float(start[i] + end[j]), i, j)
        for i in range(len(start))
        for j in range(i, min(len(start), i + longest))
        if allowed[i] and allowed[j]
    ]
    return sorted(spans, reverse=True)


@pytest.mark.slow
@given(length=st.integers(1, 40), n=st.integers(1, 25), longest=st.integers(1, 35), seed=st.integers(0, 999))
def test_the_best_spans_are_those_of_all_spans(length, n, longest, seed):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(3, 2, length)).astype(np.float32)
    allowed = generator.random((3, length)) < 0.7
    places, found = find_best_spans(logits, allowed, n, longest)
    assert places.shape == found.shape == (3, 2, n)
    for row in range(3):
        wanted = every_span(logits[row], allowed[row], longest)[:n]
        ours = [(float(found[row].sum(0)[k]), *places[row, :, k].tolist()) for k in range(n)]
        assert [span[1:] for span in ours[: len(wanted)]] == [span[1:] for span in wanted]
        assert all(np.isinf(span[0]) for span in ours[len(wanted) :])


def test_ties_between_spans_may_be_broken_in_any_order():
    places, found = find_best_spans(np.zeros((1, 2, 9), np.float32), np.ones((1, 9), bool), 5, 3)
    assert found.tolist() == [[[0.0] * 5] * 2]
    first, last = places[0]
    assert len({*zip(first, last, strict=True)}) == 5
    assert ((first <= last) & (last < first + 3)).all()


@pytest.mark.slow
@given(st.lists(st.floats(width=32, allow_nan=False), max_size=9))
def test_descending_sort_handles_negative_scores(scores):
    scores = np.array(scores, np.float32)
    keys = compute_descending_keys(scores)
    assert ((keys >= 0) & (keys < 2**32)).all()
    assert scores[np.argsort(keys)].tolist() == sorted(scores.tolist(), reverse=True)


@pytest.mark.slow
def test_the_null_score_is_the_minimum_over_windows():
    """Against all spans of all windows; of those with one text, which are many here, only the best."""
    contexts = [" ".join([f"film {n}", "Good", "food"] * 12) for n in range(20)]
    features = built(contexts)
    torch.manual_seed(0)
    logits = torch.randn(len(features), 2, 24)
    kept = features.reduce_logits(logits, np.arange(len(features)), {}).numpy()
    nbest = merge_windows(kept, features)
    for question in range(20):
        spans, null = {}, []
        for window in range(features.window_offsets[question], features.window_offsets[question + 1]):
            place = features.get_context_positions(np.array([window]))[0]
            size = features.stop[window] - features.start[window]
            null.append(float(logits[window, :, 0].sum()))
            inside = logits[window, :, place : place + size]
            for score, i, j in every_span(inside, [True] * size, LIMITS.max_answer_length):
                at = features.start[window]
                key = int(features.contexts.start[at + i]), int(features.contexts.stop[at + j])
                spans[key] = max(score, spans.get(key, -np.inf))
        best = {}
        for (start, stop), score in sorted(spans.items(), key=lambda item: -item[1]):
            best.setdefault(contexts[question][start:stop], ((start, stop), score))
        wanted = list(best.values())[: LIMITS.n_best]
        assert len(wanted) == LIMITS.n_best
        ours = slice(nbest.offsets[question], nbest.offsets[question + 1])
        assert [*zip(nbest.start[ours], nbest.stop[ours], strict=True)] == [key for key, _ in wanted]
        assert nbest.score[ours] == pytest.approx([score for _, score in wanted], abs=1e-5)
        assert nbest.null_odds[question] == pytest.approx(min(null) - wanted[0][1], abs=1e-5)


def test_a_repeated_answer_text_is_listed_once():
    """Far more than the best few places must be looked at, and the few texts there are all come."""
    contexts = ["a " * 17 + "it", "It it a"]
    features = built(contexts, limits=dataclasses.replace(LIMITS, n_best=30))
    nbest = merge_windows(features.reduce_logits(torch.zeros(2, 2, 24), np.arange(2), {}).numpy(), features)
    found = [
        sorted(context[nbest.start[at] : nbest.stop[at]] for at in range(*nbest.offsets[number : number + 2]))
        for number, context in enumerate(contexts)
    ]
    runs = {" ".join("a" * size) for size in range(1, 18)}
    every = runs | {f"{run} it" for run in runs} | {"it"}
    assert len(found[0]) == 30
    assert len({*found[0]} & every) == 30
    assert found[1] == ["It", "It it", "It it a", "a", "it", "it a"]


def test_a_paragraph_without_tokens_has_the_empty_answer():
    features = built(["\u200b\u200b", "good"])
    nbest = merge_windows(features.reduce_logits(torch.zeros(2, 2, 8), np.arange(2), {}).numpy(), features)
    assert (nbest.start[0], nbest.stop[0], nbest.null_odds[0]) == (0, 0, 0.0)


@pytest.mark.parametrize("context", ["\0\u200b", ""])
def test_no_paragraph_with_tokens_gives_empty_answers(context):
    features = built([context])
    nbest = merge_windows(features.reduce_logits(torch.zeros(1, 2, 8), np.arange(1), {}).numpy(), features)
    assert (nbest.start.tolist(), nbest.stop.tolist(), nbest.null_odds.tolist()) == ([0], [0], [0.0])


# ---- files


def written(tmp_path, contexts, logits, features):
    """The three files of questions named 0, 1 ..., as they are read."""
    kept = features.reduce_logits(
        torch.as_tensor(logits, dtype=torch.float32), np.arange(len(features)), {}
    ).numpy()
    rows = Rows.from_columns({"id": [str(n) for n in range(len(contexts))], "context": contexts}, "rows")
    files = QaEvaluation(Outputs(kept, features, rows), "v2", 0.0).format_files()
    for name, parts in files.items():
        write_chunks(tmp_path / name, parts)
    return [json.loads((tmp_path / name).read_text()) for name in files]


def test_the_nbest_file_ranks_no_answer_by_its_probability(tmp_path):
    contexts = [f"film{n} good food" for n in range(30)]
    features = built(contexts)
    logits = np.random.default_rng(0).normal(size=(30, 2, 24))
    answers, nbest, odds = written(tmp_path, contexts, logits, features)
    places = set()
    for name, listed in nbest.items():
        probabilities = [entry["probability"] for entry in listed]
        scores = [entry["start_logit"] + entry["end_logit"] for entry in listed]
        assert probabilities == sorted(probabilities, reverse=True)
        assert probabilities == pytest.approx(np.exp(scores) / np.exp(scores).sum(), rel=1e-5)
        places.add(at := [entry["text"] for entry in listed].index(""))
        assert len(listed) == LIMITS.n_best + 1
        assert [*listed[0]] == ["text", "probability", "start_logit", "end_logit"]
        assert odds[name] == pytest.approx(scores[at] - max(scores[:at] + scores[at + 1 :]), abs=1e-5)
        assert answers[name] == ("" if odds[name] > 0 else listed[0]["text"])
        start, end = logits[int(name), :, 0].astype(np.float32)
        assert (listed[at]["start_logit"], listed[at]["end_logit"]) == (start, end)
    assert places > {0, LIMITS.n_best}
    assert list(nbest) == list(answers) == list(odds) == [str(n) for n in range(30)]


def test_a_lone_surrogate_in_an_answer_is_preserved(tmp_path):
    contexts = ["\ud800", '서울 "good"']
    logits = np.zeros((2, 2, 24))
    logits[:, :, 0] = -1
    answers, nbest, _ = written(tmp_path, contexts, logits, built(contexts))
    assert ascii(answers["0"]) == ascii(nbest["0"][0]["text"]) == ascii(contexts[0])
    assert answers["1"] in contexts[1]


def test_scores_of_a_model_that_diverged_are_null(tmp_path):
    _, nbest, odds = written(tmp_path, ["good"], np.full((1, 2, 24), np.nan), built(["good"]))
    assert nbest["0"][0]["probability"] is odds["0"] is None


# ---- tau


def test_the_sweep_without_answers_equals_the_majority_baseline():
    contexts, gold = ["good food"] * 3, ["The", ".", "good"]
    answers = [[{"text": text, "answer_start": None}] for text in gold]
    features = built(contexts)
    kept = features.reduce_logits(torch.zeros(len(features), 2, 24), np.arange(len(features)), {}).numpy()
    rows = Rows.from_columns(
        {"id": ["a", "b", "c"], "question": contexts, "context": contexts, "answers": answers}, "f"
    )
    evaluation = QaEvaluation(Outputs(kept, features, rows), "v2")
    first, *_ = evaluation.compute_details().items()
    baseline = Qa(QaConfig(squad="v2")).fit_baselines(rows, rows)["majority"].score_all()
    assert first == ("nothing answered, tau -1.000 (in use)", {key: baseline[key] for key in ("exact", "f1")})
    assert baseline["f1"] == evaluation.scores["f1"] == pytest.approx(200 / 3)


# ---- losses and padding


def stock(folder):
    from transformers import AutoModelForQuestionAnswering

    return AutoModelForQuestionAnswering.from_pretrained(folder).eval()


def test_padding_does_not_affect_loss_or_answers(tiny):
    torch.manual_seed(0)
    model, rows = stock(tiny), make_qa_rows(6)
    answers = [row["answers"] for row in rows]
    features = built([row["context"] for row in rows], answers, limits=Limits(60, 6, 20, 30, 5))
    collator = PaddingCollator(0, True)
    batch = collator([features[row] for row in range(len(features))])
    with torch.no_grad():
        logits = compute_logits(model, batch)
        loss = CrossEntropy()
        mine = loss.sum_losses(logits, batch)["loss"] / loss.count_items(batch)["loss"]
        alone = []
        for row in range(len(features)):
            one = collator([features[row]])
            start, end = one.pop("labels")[0]
            alone.append(float(model(**one, start_positions=start[None], end_positions=end[None]).loss))
    assert torch.isfinite(logits).sum(-1)[:, 0].tolist() == features.lengths.tolist()
    assert float(mine) == pytest.approx(np.mean(alone), rel=1e-5)


def test_scoring_keeps_few_numbers_per_window(tiny):
    features = built([row["context"] for row in make_qa_rows(9)])
    kept = predict_logits(stock(tiny), features, PaddingCollator(0, True), 4)
    assert kept.shape == (len(features), 2 + 4 * LIMITS.n_best)


# ---- the task


def trained(tiny, tmp_path, rows, name="run", **more):
    data = write_rows(tmp_path / f"{name}.jsonl", rows)
    options = {"model": str(tiny), "epochs": 4, "batch_size": 8, "learning_rate": 3e-3, "bf16": False}
    return bertkit.qa(data=str(data), output_dir=str(tmp_path / name), **options | more)


@slow_fixture
def learned(tiny, tmp_path_factory):
    """A run on separable questions, whose paragraphs are split into windows."""
    return trained(tiny, tmp_path_factory.mktemp("learned"), make_qa_rows(120), max_length=16)


def test_answer_spans_are_learned(learned):
    run = learned
    scores, records = run.metrics["validation"], read_predictions(run.output_dir)
    assert scores.keys() == {"exact", "f1"}
    assert scores["exact"] > 90 > run.metrics["baselines"]["overlap"]["exact"]
    for record in records:
        assert record["context"][record["start"] : record["end"]] == record["answer"]
        assert record["gold"] == [word for word in record["context"].split() if word in POSITIVE_WORDS][:1]
    given = json.loads((run.output_dir / "predictions.json").read_text())
    assert given == {record["id"]: record["answer"] for record in records}
    assert scores["exact"] == pytest.approx(100 * np.mean([r["answer"] in r["gold"] for r in records]))
    model = bertkit.load(run.output_dir)
    again = [{"question": r["question"], "context": r["context"]} for r in records]
    for one, other in zip(model.predict(again), records, strict=True):
        assert (one["answer"], one["start"], one["end"]) == (other["answer"], other["start"], other["end"])
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)


@pytest.mark.slow
def test_unanswerable_questions_are_learned_and_the_threshold_is_saved(tiny, tmp_path):
    rows = make_qa_rows(150, unanswerable=50)
    test = write_rows(tmp_path / "test.jsonl", make_qa_rows(40, seed=1, unanswerable=20))
    run = trained(tiny, tmp_path, rows, max_length=40, test=str(test))
    scores = run.metrics["validation"]
    assert {"HasAns_f1", "NoAns_f1", "best_exact", "best_exact_thresh", "best_f1_thresh"} <= scores.keys()
    assert scores["f1"] > 85 > run.metrics["baselines"]["majority"]["f1"]
    assert scores["f1"] == pytest.approx(scores["best_f1"])
    tau = json.loads((run.output_dir / "config.json").read_text())["null_odds_threshold"]
    model = bertkit.load(run.output_dir)
    assert model.task.state.fitted_params == {"null_odds_threshold": tau}
    odds = json.loads((run.output_dir / "null_odds.json").read_text())
    assert min(abs(value - tau) for value in odds.values()) > 1e-4
    used = f"tau {tau:.3f} (in use)"
    assert run.metrics["details"]["validation"][used]["f1"] == pytest.approx(scores["f1"])
    assert f"| {used} |" in (run.output_dir / "README.md").read_text()
    for name, suffix in (("validation", ""), ("test", "-test")):
        odds = json.loads((run.output_dir / f"null_odds{suffix}.json").read_text())
        records = read_predictions(run.output_dir, f"predictions{suffix}.jsonl")
        nbest = json.loads((run.output_dir / f"nbest_predictions{suffix}.json").read_text())
        for record in records:
            best = next(entry for entry in nbest[record["id"]] if entry["text"])
            assert record["null_odds"] == odds[record["id"]]
            assert record["answer"] == ("" if record["null_odds"] > tau else best["text"])
            assert sum(entry["probability"] for entry in nbest[record["id"]]) == pytest.approx(1)
        gold = [record["gold"] for record in records]
        marks = score_answers(gold, [record["answer"] for record in records], "v2")
        official = average_scores(marks, np.array([bool(some) for some in gold]))
        assert {key: run.metrics[name][key] for key in official} == official
    answers = list(model.predict([{"question": QUESTION, "context": "the film was dull"}]))
    assert (answers[0]["answer"], answers[0]["start"]) == ("", None)


def test_training_continues_from_a_run_with_its_head(learned, tmp_path):
    more = {"max_steps": 1, "learning_rate": 0.0, "max_length": 40}
    kept = trained(learned.output_dir, tmp_path, make_qa_rows(60, seed=3), "kept", **more)
    fresh = trained(learned.output_dir, tmp_path, make_qa_rows(60, seed=3), "fresh", new_head=True, **more)
    assert kept.metrics["validation"]["exact"] > 90 > fresh.metrics["validation"]["exact"]


@pytest.mark.slow
def test_a_classification_head_is_replaced(tmp_path):
    folder = save_tiny_model(tmp_path / "model", num_labels=3)
    assert trained(folder, tmp_path, make_qa_rows(60), max_steps=1).metrics["task"] == "qa"


@pytest.mark.slow
def test_models_without_token_type_ids_are_trained(tmp_path):
    folder = save_tiny_model(tmp_path / "model", roberta=True)
    run = trained(folder, tmp_path, make_qa_rows(120), max_length=24, eval_batch_size=1)
    one = read_predictions(run.output_dir)
    assert run.metrics["validation"]["exact"] > 30
    assert all(record["context"][record["start"] : record["end"]] == record["answer"] for record in one)


@pytest.mark.slow
def test_the_default_stride_is_not_saved(tiny, tmp_path):
    run = trained(tiny, tmp_path, make_qa_rows(40, longest=60), max_steps=1, max_length=60)
    recipe = run.output_dir / "run.yaml"
    assert "doc_stride" not in recipe.read_text()
    found = bertkit.qa(recipe=str(recipe), max_length=14, dry_run=True).metrics
    assert found["max_length"] == 14
    with pytest.raises(UserError, match="--doc-stride 40: would skip text"):
        bertkit.qa(recipe=str(recipe), max_length=14, doc_stride=40, dry_run=True)


@pytest.mark.slow
def test_a_dry_run_reports_windows(tiny, tmp_path, cli):
    data = write_rows(tmp_path / "data.jsonl", make_qa_rows(40, longest=60))
    status, out, err = cli("qa", "--data", data, "--model", tiny, "--max-length", 16, "--dry-run")
    assert status == 0, err
    assert "split into windows" in " ".join(out.split())
    assert "truncated" not in out
    assert "0.0%" not in out


@pytest.mark.slow
def test_whole_articles_are_held_out(tiny, tmp_path, cli):
    articles = [
        {
            "title": f"t{n}",
            "paragraphs": [{"context": row["context"], "qas": [row]} for row in make_qa_rows(4, n)],
        }
        for n in range(12)
    ]
    for number, article in enumerate(articles):
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [{**row, "id": f"{number}-{row['id']}"} for row in paragraph["qas"]]
    folder = tmp_path / "sets" / "squad"
    folder.mkdir(parents=True)
    (folder / "dev-v1.1.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    arguments = ["--squad", "v1", "--data-dir", folder.parent, "--model", tiny, "--max-steps", 1, "-o", "run"]
    status, _, err = cli("qa", *arguments)
    assert status == 0, err
    assert "training and validation rows both come from dev-v1.1.json" in err
    assert "whole articles" in err
    titles = {record["title"] for record in read_predictions(tmp_path / "run")}
    assert len(read_predictions(tmp_path / "run")) == 4 * len(titles) > 0


@pytest.mark.slow
@pytest.mark.parametrize("split", ["validation", "test"])
def test_questions_of_the_validation_split_are_not_trained_on(tiny, tmp_path, cli, split):
    """As in the other tasks; equal ids are ignored, since each file numbers its own questions."""
    rows = make_qa_rows(60)
    both, others = rows[:7], [{**row, "id": f"q{n}"} for n, row in enumerate(make_qa_rows(20, seed=9))]
    write_rows(tmp_path / "data" / "train.jsonl", rows)
    write_rows(tmp_path / "data" / f"{split}.jsonl", [{**row, "id": f"other {row['id']}"} for row in both])
    write_rows(tmp_path / "data" / f"{'test' if split == 'validation' else 'validation'}.jsonl", others)
    args = ["--data", tmp_path / "data", "--model", tiny, "--max-length", 40, "--dry-run", "--json"]
    status, out, err = cli("qa", *args)
    assert status == 0, err
    assert "7 training rows left out: also in an evaluation split" in err
    assert json.loads(out)["data"]["train"] == 53


@pytest.mark.slow
def test_validation_rows_may_all_be_impossible(tiny, tmp_path):
    rows = [row | {"is_impossible": True} for row in make_qa_rows(20, seed=1, unanswerable=20)]
    validation = write_rows(tmp_path / "validation.jsonl", rows)
    run = trained(tiny, tmp_path, make_qa_rows(40), max_steps=1, max_length=40, validation=str(validation))
    assert run.metrics["validation"]["NoAns_f1"] == run.metrics["validation"]["f1"]
    assert run.metrics["baselines"]["majority"]["exact"] == 100


# ---- refused


def spoilt(**change):
    return [{**row, **change} if number == 7 else row for number, row in enumerate(make_qa_rows(40))]


REFUSED = {
    "no answer with v1": (spoilt(answers=[]), ["--squad", "v1"], ["row 8", "q7", "--squad v2"]),
    "an answer beyond its paragraph": (spoilt(answers=[{"text": "zebra", "answer_start": 900}]), [],
                                       ["row 8", "q7", "900"]),
    "an id twice": (spoilt(id="q3"), [], ["row 8", "q3", "row 4"]),
    "a question without text": (spoilt(question="  "), [], ["row 8", "q7", "question"]),
    "a paragraph without text": (spoilt(context=None), [], ["row 8", "q7", "context"]),
    "a stride that skips text": (make_qa_rows(40), ["--max-length", 20, "--doc-stride", 15],
                                 ["--doc-stride 15", "--max-length 20", "14"]),
    "no room": (make_qa_rows(40), ["--max-length", 4], ["--max-length 4", "no room"]),
    "no such rules": (make_qa_rows(40), ["--squad", "v3"], ["--squad", "v1", "v2"]),
    "no such column": (
        make_qa_rows(40), ["--question-column", "qestion"], ["qestion", "did you mean 'question'"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(cli, tiny, tmp_path, case):
    rows, arguments, words = REFUSED[case]
    data = write_rows(tmp_path / "data.jsonl", rows)
    assert_refused(
        cli, tmp_path, ["--data", data, "--model", tiny, "-o", tmp_path / "run", *arguments], words, "qa"
    )


def test_a_missing_dataset_without_network_names_the_expected_file(cli, no_hub, tmp_path):
    started = time.perf_counter()
    words = ["train-v2.0.json", "BERTKIT_DATA_DIR/squad_v2/"]
    assert_refused(cli, tmp_path, ["--squad", "v2"], words, "qa")
    assert time.perf_counter() - started < 30  # a tripwire for retries, not a timing


@pytest.mark.slow
def test_a_known_dataset_is_loaded_from_the_hub(cli, hub, tiny, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "published" / "squad_v2"
    folder.mkdir(parents=True)
    for seed, split in enumerate(("train", "validation")):
        rows = make_qa_rows(40, seed, unanswerable=10)
        flat = [
            {
                **row,
                "answers": {
                    key: [answer[key] for answer in row["answers"]] for key in ("text", "answer_start")
                },
            }
            for row in rows
        ]
        pq.write_table(pa.Table.from_pylist(flat), folder / f"{split}-00000-of-00001.parquet")
    hub.add_dataset("rajpurkar/squad_v2", folder.parent)
    status, out, err = cli("qa", "--squad", "v2", "--model", tiny, "--max-steps", 1, "--json", "-o", "run")
    assert status == 0, err
    found = json.loads(out)
    assert (found["data"]["source"], found["data"]["train"]) == ("Hub: rajpurkar/squad_v2", 40)
    assert "NoAns_f1" in found["validation"]
