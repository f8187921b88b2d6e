"""Scores of answers equal the official scripts' rules to the last bit; thresholds do what they promise."""

import functools
import operator
import random
import re
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.language import is_korean
from bertkit.metrics import Squad, SquadV2
from bertkit.stats.baseline_models import predict_overlap
from bertkit.tasks.qa.predictions import (
    AnswerScores,
    ThresholdSweep,
    apply_threshold,
    average_scores,
    compute_best_scores,
    compute_char_f1,
    fit_threshold,
    score_answers,
    split_normalized,
    sweep_thresholds,
)

WORDS = "a an the The A aN cat Cats dog 7 7.5 x_1 ΑΣ Σ İ ß Ａ 서울 서울은 한국의"
SIGNS = "— “ ” … ¿ · （ ！ . - ' \" ( ) < > 《 》 〈 〉 ‘ ’"
PARTS = [*WORDS.split(), *SIGNS.split(), " ", " ", "\u00a0", "\u3000", "\t", "", ""]


# The rules in plain Python, question by question.


def plain_words(text):
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.split(r"\b(?:a|an|the)\b", kept)).split()


def plain_letters(text):
    for mark in "'\"《》<>〈〉()‘’":
        text = text.replace(mark, " ")
    return [c for c in text.lower() if c not in string.punctuation and not c.isspace()]


def plain_f1(answer, gold):
    left, common = list(gold), 0
    for token in answer:
        if token in left:
            left.remove(token)
            common += 1
    if common == 0:
        return 0
    precision, recall = 1.0 * common / len(answer), 1.0 * common / len(gold)
    return (2 * precision * recall) / (precision + recall)


def plain_v1(gold, answers):
    exact = f1 = 0
    for texts, answer in zip(gold, answers, strict=True):
        if answer is None:
            continue
        exact += max(plain_words(answer) == plain_words(text) for text in texts)
        f1 += max(plain_f1(plain_words(answer), plain_words(text)) for text in texts)
    return {"exact": 100.0 * exact / len(gold), "f1": 100.0 * f1 / len(gold)}


def plain_v2_marks(gold, answers):
    """Two dictionaries by question, without those that are unanswered."""
    exact, f1 = {}, {}
    for question, (texts, answer) in enumerate(zip(gold, answers, strict=True)):
        if answer is None:
            continue
        pairs = [(plain_words(answer), plain_words(text)) for text in texts if plain_words(text)]
        pairs = pairs or [(plain_words(answer), [])]
        exact[question] = max(int(one == other) for one, other in pairs)
        f1[question] = max(plain_f1(*pair) if all(pair) else int(pair[0] == pair[1]) for pair in pairs)
    return exact, f1


def plain_v2(gold, answers, odds, threshold):
    marks = plain_v2_marks(gold, answers)
    for values in marks:
        for question in values:
            if odds[question] > threshold:
                values[question] = float(not gold[question])
    scores = {}
    for part, wanted in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        some = [question for question in marks[0] if bool(gold[question]) in wanted]
        for name, values in zip(("exact", "f1"), marks, strict=True):
            if some:
                # Python's `sum` as it was up to 3.11, where it adds one by one.
                total = functools.reduce(operator.add, (values[question] for question in some))
                scores[part + name] = 100.0 * total / len(some)
    return scores


def plain_best(gold, answers, odds):
    found = {}
    for name, values in zip(("exact", "f1"), plain_v2_marks(gold, answers), strict=True):
        now = best = sum(not texts for texts in gold)
        threshold = 0.0
        for question in sorted(range(len(gold)), key=odds.__getitem__):
            if question in values:
                if gold[question]:
                    now += values[question]
                elif answers[question]:
                    now -= 1
                if now > best:
                    best, threshold = now, odds[question]
        found |= {f"best_{name}": 100.0 * best / len(values), f"best_{name}_thresh": threshold}
    return found


def sample_questions(seed, no_answer):
    """Some questions' gold answers, answers and null odds; at least one question is answered."""
    rng = random.Random(seed)

    def text():
        return rng.choice(["", " "]).join(rng.choices(PARTS, k=rng.randint(0, 6)))

    size = rng.randint(1, 30)
    gold = [[text() for _ in range(rng.randint(0 if no_answer else 1, 3))] for _ in range(size)]
    answers = [rng.choice([None, "", text(), text(), *texts, *texts]) for texts in gold]
    answers[rng.randrange(size)] = text()
    return gold, answers, [rng.choice([-2.5, -1.0, 0.0, 0.5, 0.5, rng.gauss(0, 3)]) for _ in gold]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  Cat,\tsat on a mat.", "cat sat on mat"),
        ("A-the an'a", "athe ana"),  # punctuation goes first, so that these are no articles
        ("“the—end” … ¿the?", "“ —end” … ¿"),  # of the marks only ASCII's go
        ("Ｔhe\u00a0(THE) theme", "ｔhe theme"),
        (" \u3000\n", ""),
    ],
)
def test_normalization(text, wanted):
    assert " ".join(split_normalized(text)) == wanted


def test_answers_are_scored_by_the_rules_of_version_1():
    gold = [["the red cat", "a dog"], ["The!"], ["x"], ["red red cat"]]
    marks = score_answers(gold, ["Cat red", "an", None, "red cat cat"], "v1")
    assert marks.exact.tolist() == [0, 1, 0, 0]
    assert marks.f1.tolist() == [1, 0, 0, 2 / 3]  # 0: both sides of the second are empty
    assert marks.is_answered.tolist() == [True, True, False, True]
    assert average_scores(marks) == {"exact": 25.0, "f1": 100.0 * (1 + 2 / 3) / 4}


def test_answers_are_scored_by_the_rules_of_version_2():
    gold = [["the", "red cat"], ["the", "?"], [], [], ["x"], ["y"]]
    marks = score_answers(gold, ["the", "", "", "z", "the x", None], "v2")
    assert marks.exact.tolist() == [0, 1, 1, 0, 1, 0]
    assert marks.f1.tolist() == [0, 1, 1, 0, 1, 0]
    assert average_scores(marks, np.array([True, True, False, False, True, True])) == {
        "exact": 60.0,
        "f1": 60.0,
        "HasAns_exact": 100.0 * 2 / 3,
        "HasAns_f1": 100.0 * 2 / 3,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
    }


def test_scores_of_no_questions_are_zero():
    nothing, none = score_answers([], [], "v2"), np.zeros(0, bool)
    assert average_scores(nothing) == average_scores(nothing, none) == {"exact": 0.0, "f1": 0.0}


@pytest.mark.slow
def test_version_1_equals_its_rule_to_the_last_bit():
    for seed in range(800):
        gold, answers, _ = sample_questions(seed, no_answer=False)
        assert average_scores(score_answers(gold, answers, "v1")) == plain_v1(gold, answers), seed


@pytest.mark.slow
def test_version_2_equals_its_rule_to_the_last_bit():
    for seed in range(800):
        gold, answers, odds = sample_questions(seed, no_answer=True)
        marks, has_answer = score_answers(gold, answers, "v2"), np.array([bool(texts) for texts in gold])
        exact, f1 = plain_v2_marks(gold, answers)
        assert marks.exact[marks.is_answered].tolist() == list(exact.values()), seed
        assert marks.f1[marks.is_answered].tolist() == list(f1.values()), seed
        for threshold in (-1.0, 0.5, 99.0):
            kept = apply_threshold(marks, np.array(odds), has_answer, threshold)
            assert average_scores(kept, has_answer) == plain_v2(gold, answers, odds, threshold), seed
        empty = np.array([answer == "" for answer in answers])
        assert compute_best_scores(marks, np.array(odds), has_answer, empty) == plain_best(
            gold, answers, odds
        )


@pytest.mark.slow
def test_korquads_f1_equals_its_rule_to_the_last_bit():
    for seed in range(800):
        gold, answers, _ = sample_questions(seed, no_answer=False)
        letters = [None if answer is None else plain_letters(answer) for answer in answers]
        wanted = [
            0 if some is None else max(plain_f1(some, plain_letters(text)) for text in texts)
            for some, texts in zip(letters, gold, strict=True)
        ]
        assert compute_char_f1(gold, answers).tolist() == wanted, seed


def test_korquads_f1_compares_characters():
    gold = [["《한국》의 서울", "부산"], ["the"], ["ΑΣ'Α"], ["서울"]]
    found = compute_char_f1(gold, ["한국의 ‘서울’은", "a", "ας α", None])
    assert found.tolist() == [2 * (5 / 6) / (5 / 6 + 1), 0, 1, 0]


def test_sums_of_many_questions_are_those_of_adding_one_by_one():
    f1 = np.random.default_rng(0).random(10_000)
    total = 0
    for value in f1.tolist():
        total += value
    marks = AnswerScores(np.zeros(len(f1)), f1, np.ones(len(f1), bool))
    assert average_scores(marks)["f1"] == 100.0 * total / len(f1) != 100.0 * f1.sum() / len(f1)


questions = st.lists(
    st.tuples(
        st.booleans(),
        st.floats(0, 1),
        st.one_of(st.integers(-2, 2), st.floats(-1e6, 1e6)),
        st.booleans(),
    ),
    min_size=1,
)


@pytest.mark.slow
@given(questions=questions, kind=st.sampled_from([np.float32, np.float64]))
def test_sweep_predicts_the_scores_of_each_threshold(questions, kind):
    has_answer, f1, odds, answered = (np.array(column) for column in zip(*questions, strict=True))
    answered[0], odds = True, odds.astype(kind)
    f1 = np.where(answered, np.where(has_answer, f1, f1.round()), 0.0)
    marks = AnswerScores((f1 == 1).astype(float), f1, answered)
    swept = sweep_thresholds(marks, odds, ~has_answer)
    assert np.isfinite(swept.threshold).all()
    assert (np.diff(swept.threshold) > 0).all()
    assert swept.threshold[1:].tolist() == sorted(set(odds[answered].tolist()))
    for threshold, exact, f1 in zip(swept.threshold.tolist(), swept.exact, swept.f1, strict=True):
        scores = average_scores(apply_threshold(marks, odds, has_answer, threshold), has_answer)
        assert (scores["exact"], scores["f1"]) == pytest.approx((exact, f1), abs=1e-9)
    best = apply_threshold(marks, odds.astype(float), has_answer, fit_threshold(swept))
    assert average_scores(best, has_answer)["f1"] == pytest.approx(swept.f1.max(), abs=1e-8)


@pytest.mark.parametrize(
    ("f1", "tau"), [([0.0, 0.0, 0.0], 0.0), ([1.0, 0.0, 0.0], 1.5), ([1.0, 1.0, 0.0], 3.0), ([1.0] * 3, 5.0)]
)
def test_tau_is_far_from_the_odds_of_any_question(f1, tau):
    marks = AnswerScores(np.array(f1), np.array(f1), np.ones(3, bool))
    swept = sweep_thresholds(marks, np.array([1.0, 2.0, 4.0]), np.zeros(3, bool))
    assert fit_threshold(swept) == tau


def test_tau_between_adjacent_floats_is_the_lower():
    low, high = 1.0, np.nextafter(1.0, 2)
    high, top = np.nextafter(high, 2), np.nextafter(np.nextafter(high, 2), 2)
    for one, other in (
        (low, np.nextafter(low, 2)),
        (np.nextafter(low, 2), high),
        (high, top),
        (1e300, np.inf),
    ):
        marks = AnswerScores(np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.ones(2, bool))
        swept = sweep_thresholds(marks, np.array([one, other]), np.array([False, True]))
        assert one <= fit_threshold(swept) < other


def test_no_answer_is_correct_if_normalization_empties_the_gold_answer():
    gold, spans = [["The"], ["."], ["cat"], []], ["x", "x", "cat", "x"]
    nothing = score_answers(gold, [""] * 4, "v2")
    swept = sweep_thresholds(score_answers(gold, spans, "v2"), np.array([4.0, 3.0, 1.0, 2.0]), nothing.exact)
    assert swept.f1[0] == average_scores(nothing, np.array([True, True, True, False]))["f1"] == 75
    assert fit_threshold(swept) == 1.5


def test_sweep_changes_questions_with_equal_odds_together():
    has_answer, odds = np.array([True, False, False]), np.array([0.5, 0.5, 0.5])
    marks = score_answers([["x"], [], []], ["x", "y", "y"], "v2")
    assert (
        fit_threshold(sweep_thresholds(marks, odds, ~has_answer)) == -0.5
    )  # all or nothing, and nothing is better
    found = compute_best_scores(marks, odds, has_answer, np.zeros(3, bool))
    assert found["best_f1"] == 100.0
    assert found["best_f1_thresh"] == 0.5


def test_lowest_of_equal_thresholds_is_fitted_despite_rounding():
    f1 = np.array([0.1, 0.1, 0.6, 0.2, 0.0])  # 1 and these four less 1 are a little more than 1
    marks = AnswerScores(np.zeros(5), f1, np.ones(5, bool))
    swept = sweep_thresholds(marks, np.arange(5.0), np.array([False, False, False, False, True]))
    assert swept.f1[0] < swept.f1[5]
    assert fit_threshold(ThresholdSweep(swept.threshold[[0, 5]], swept.exact[[0, 5]], swept.f1[[0, 5]])) < 0


def test_korean_is_detected_by_its_letters():
    assert is_korean(["한국 1945!!", "BERT 모델은"])
    assert not is_korean(["서울 is a city of South Korea", "日本"])
    assert not is_korean(["", "1945"])


@pytest.mark.parametrize(
    ("question", "context", "wanted"),
    [
        ("Who fed the cat?", "\n It rained. Dr. Ames FED her CAT!  The end.", "Dr. Ames FED her CAT!"),
        ("Why why why?", "Rain fell. Why not? Because.", "Why not?"),
        ("Which ship?", "Was it? Ship two sank.", "Ship two sank."),  # signs are no words
        ("What is it?", "\n\n\nFirst one. Second one.", "First one."),
        ("누가 배를 만들었나?", "서울은 크다. 배는 목수가 만들었다.", "배는 목수가 만들었다."),
        ("船は何色か", "空は青い。船は白い。", "船は白い。"),
        ("谁造了船", "天是蓝的。木匠造了船。", "木匠造了船。"),
        ("Any?", " \n ", ""),
        ("half \ud800 pair", "One. A \ud800 pair 😀. Two.", "A \ud800 pair 😀."),
    ],
)
def test_overlap_baseline_predicts_the_sentence_with_most_question_words(question, context, wanted):
    assert predict_overlap([question, question], [context, "x"]) == [wanted, "x"]


def test_each_distinct_context_is_split_once_by_the_rules_of_its_language(monkeypatch):
    asked = []
    splitter = "bertkit.stats.baseline_models.get_sentence_boundaries"
    monkeypatch.setattr(splitter, lambda *call: asked.append(call) or [])
    contexts = ["한국어 BERT 모델", "東京のホテル", "木匠造了船", "A cat", "A cat", "1945"]
    predict_overlap([""] * 6, contexts)
    assert sorted(asked) == sorted(zip(["ko", "ja", "zh", "en", "en"], [*contexts[:4], "1945"], strict=True))


def test_the_evaluate_interface_gives_the_same_scores():
    references = [
        {"id": "1", "answers": {"text": ["a red cat", "cat"], "answer_start": [0, 6]}},
        {"id": "2", "answers": {"text": [], "answer_start": []}},
        {"id": "3", "answers": {"text": ["dog"], "answer_start": [4]}},
    ]
    prediction_by_id = {"3": ("big dog", 0.9), "1": ("red cat", 0.1), "2": ("dog", 0.5)}  # in another order
    predictions = [{"id": id, "prediction_text": text} for id, (text, _) in prediction_by_id.items()]
    answered = [row for row in references if row["id"] != "2"]
    found = Squad().compute(predictions=[predictions[0], predictions[1]], references=answered)
    assert found == average_scores(
        score_answers([["a red cat", "cat"], ["dog"]], ["red cat", "big dog"], "v1")
    )

    for row in predictions:
        row["no_answer_probability"] = prediction_by_id[row["id"]][1]
    found = SquadV2().compute(predictions=predictions, references=references, no_answer_threshold=0.4)
    assert found["exact"] == found["f1"] == 100.0 * 2 / 3
    assert found["NoAns_f1"] == 100.0
    assert found["best_f1"] == found["best_exact"] == 100.0 * 2 / 3
    assert found["best_f1_thresh"] == 0.1
