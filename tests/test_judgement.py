"""The judgement of a run: its thresholds, and where it is shown."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROW_MAKERS, make_features, make_toy_rows, write_rows
from transformers import BertConfig

from bertkit.reports import card
from bertkit.run.session import Session
from bertkit.run_directory import RunDir
from bertkit.stats.calibration import Decisions
from bertkit.stats.judgement import TrainingFacts, describe_overconfidence, find_verdict, judge
from bertkit.stats.scores import score_regression
from bertkit.stats.significance import ScoreDifference, Scorer
from bertkit.tasks.base import make_label_scorer
from bertkit.tasks.pretrain.config import PretrainConfig
from bertkit.tasks.text.config import ClassifyConfig
from bertkit.tasks.text.task import Classify


def make_scorer(is_correct):
    """A scorer of accuracy."""
    is_correct = np.array(is_correct, bool)
    return Scorer(lambda rows: {"accuracy": float(is_correct[rows].mean())}, len(is_correct), is_correct)


def make_accuracy(correct, total=200):
    return make_scorer(np.arange(total) < correct)


FACTS = TrainingFacts(
    steps=500, longer_training="--epochs 6", longer_texts="--max-length 512", study="bertkit study"
)


def judge_accuracy(correct, others, **facts):
    training = TrainingFacts(**vars(FACTS) | facts)
    others = {name: make_accuracy(value) for name, value in others.items()}
    return judge(make_accuracy(correct), others, "accuracy", True, rows="200 rows", training=training)


# ---- the verdict


@pytest.mark.parametrize(
    ("difference", "interval", "p", "verdict"),
    [
        (0.1, [0.01, 0.2], 0.049, "better"),
        (0.1, [0.01, 0.2], 0.05, "no_difference"),  # the test does not show it
        (0.1, [0.0, 0.2], 0.049, "no_difference"),  # the interval does not show it
        (-0.1, [-0.2, -0.01], 0.049, "worse"),
        (-0.1, [-0.2, 0.0], 0.049, "no_difference"),
    ],
)
def test_a_verdict_needs_the_test_and_the_interval(difference, interval, p, verdict):
    found = ScoreDifference(difference, interval, p, "bootstrap")
    opposite = {"better": "worse", "worse": "better"}
    assert find_verdict(found, True, num_rows=10) == verdict
    assert find_verdict(found, False, num_rows=10) == opposite.get(verdict, verdict)
    assert find_verdict(found, True, num_rows=9) == "no_difference"


def test_the_least_favorable_comparison_decides():
    judgement = judge_accuracy(180, {"majority": 100, "tfidf": 179, "linear_probe": 140})
    assert (judgement.verdict, judgement.against) == ("no_difference", "tfidf")
    judgement = judge_accuracy(120, {"majority": 100, "tfidf": 170, "linear_probe": 180})
    assert (judgement.verdict, judgement.against) == ("worse", "linear_probe")
    judgement = judge_accuracy(180, {"majority": 100, "tfidf": 120})
    assert (judgement.verdict, judgement.against) == ("better", "tfidf")
    assert judgement.difference == pytest.approx(0.3)
    assert judgement.interval[0] < 0.3 < judgement.interval[1]


@pytest.mark.parametrize(
    ("correct", "others", "start"),
    [
        (180, {"majority": 100, "tfidf": 120}, "Better than every baseline on these 200 rows: accuracy "
         "0.900, tfidf 0.600 (difference +0.300, 95 % interval "),
        (180, {"majority": 100}, "Better than majority on these 200 rows: "),
        (181, {"majority": 100, "tfidf": 180}, "Not shown to be better than tfidf on these 200 rows: "),
        (180, {"majority": 100, "tfidf": 180}, "No better than tfidf on these 200 rows: "),
        (179, {"majority": 100, "tfidf": 180}, "No better than tfidf on these 200 rows: "),
        (120, {"majority": 100, "tfidf": 180}, "Worse than tfidf on these 200 rows: "),
    ],
)  # fmt: skip
def test_sentences(correct, others, start):
    assert judge_accuracy(correct, others).text.startswith(start)


def test_lower_losses_are_better():
    losses = np.linspace(2, 3, 50)
    model = Scorer(lambda rows: {"loss": float(losses[rows].mean())}, 50)
    others = {"unigram": Scorer.constant({"loss": 6.0}), "majority": Scorer.constant({"rtd_loss": 0.1})}
    judgement = judge(model, others, "loss", False, rows="50 examples")
    assert (judgement.verdict, judgement.against) == ("better", "unigram")
    assert judgement.text.startswith("Better than unigram on these 50 examples: loss 2.500, unigram 6.000")
    assert judge(model, others, "rtd_f1", True, rows="50 examples") is None


# ---- the advice


def test_no_advice_if_the_model_is_better():
    assert "Try" not in judge_accuracy(180, {"tfidf": 100}, steps=1, truncated=1.0).text


@pytest.mark.parametrize(
    ("facts", "advice"),
    [
        ({}, "Try more training rows."),
        ({"steps": 100}, "Try more training rows."),
        ({"steps": 99}, "Try --epochs 6 (it trained for 99 steps) or more training rows."),
        ({"steps": None}, "Try more training rows."),
        ({"steps": 99, "is_last_best": False}, "Try more training rows."),
        ({"steps": 0}, "It was not trained."),
        ({"unk_fraction": 0.05}, "Try more training rows."),
        (
            {"unk_fraction": 0.051},
            "Try a --model for the language of the texts (5% of the tokens are [UNK]) or more training rows.",
        ),
        ({"truncated": 0.05}, "Try more training rows."),
        ({"truncated": 0.051}, "Try --max-length 512 (5% of the texts are truncated) or more training rows."),
        ({"truncated": 0.5, "longer_texts": None}, "Try more training rows."),
    ],
)
def test_advice(facts, advice):
    text = judge_accuracy(149, {"majority": 100, "tfidf": 150}, **facts).text
    assert text.partition("). ")[2] == advice


def test_a_model_that_is_worse_after_few_steps_should_train_longer():
    text = judge_accuracy(100, {"tfidf": 150}, steps=99, is_last_best=False).text
    assert text.endswith(" Try --epochs 6 (it trained for 99 steps) or more training rows.")


@pytest.mark.parametrize(
    ("num_rows", "loss", "advice"),
    [
        (100, 1, "Try more training rows."),
        (99, 1, "Try bertkit study, which scores all rows, or more training rows."),
        (99, 20, "Try more training rows."),  # it is worse, which is shown already
    ],
)
def test_cross_validation_is_advised_with_few_validation_rows(num_rows, loss, advice):
    model = make_accuracy(num_rows - 20 - loss, num_rows)
    other = make_accuracy(num_rows - 20, num_rows)
    judgement = judge(model, {"tfidf": other}, "accuracy", True, rows="rows", training=FACTS)
    assert judgement.text.endswith(advice)


def test_a_gain_that_is_not_shown_needs_more_validation_rows():
    assert judge_accuracy(152, {"tfidf": 150}).text.endswith(" Try more validation rows.")
    assert judge_accuracy(150, {"tfidf": 150}).text.endswith(" Try more training rows.")


@pytest.mark.parametrize(
    ("correct", "other", "who"),
    [(200, 200, "Both make"), (200, 199, "The model makes"), (199, 200, "Tfidf makes")],
)
def test_no_advice_to_train_if_nothing_is_left_to_learn(correct, other, who):
    text = judge_accuracy(correct, {"majority": 100, "tfidf": other}, steps=1).text
    assert text.endswith(f"{who} no error on them; rows that are more difficult may show a difference.")


def test_a_model_that_is_worse_than_one_without_errors_gets_advice():
    assert judge_accuracy(150, {"tfidf": 200}).text.endswith(" Try more training rows.")


def test_a_difference_of_zero_on_all_samples_has_no_interval():
    text = judge_accuracy(150, {"tfidf": 150}).text
    assert "accuracy 0.750, tfidf 0.750 (no difference). Try" in text


def test_a_regression_with_the_right_order_and_the_wrong_scale_predicts_no_better_than_a_constant():
    gold = np.arange(100.0)

    def make(predicted):
        return make_label_scorer(score_regression, gold, predicted)

    others = {"majority": make(np.full(100, gold.mean())), "tfidf": make(gold + 1)}
    judgement = judge(make(gold / 100), others, "pearson", True, rows="100 rows", training=FACTS)
    assert (
        "It predicts no better than a constant. Try --epochs 6 (it trained for 500 steps)" in judgement.text
    )
    noise = np.random.default_rng(0).normal(gold.mean(), 1, 100)  # its error differs by chance
    judgement = judge(make(noise), others, "pearson", True, rows="100 rows", training=FACTS)
    assert "It predicts no better than a constant." in judgement.text
    judgement = judge(make(gold + 2), others, "pearson", True, rows="100 rows", training=FACTS)
    assert "constant" not in judgement.text


@pytest.mark.parametrize(
    ("f1", "sentence"),
    [(0.0, "It has learned nothing yet: f1 is 0. Try --epochs 6 (it trained for 500 steps) or more "),
     (0.01, "Try more ")],
)  # fmt: skip
def test_a_score_of_zero_means_that_nothing_was_learned(f1, sentence):
    """It also does without a baseline `majority`, as on questions that all have an answer."""
    others = {"overlap": Scorer(lambda _: {"f1": 0.2}, 50)}
    judgement = judge(Scorer(lambda _: {"f1": f1}, 50), others, "f1", True, rows="50 rows", training=FACTS)
    assert judgement.text.partition("). ")[2] == f"{sentence}training rows."
    losses = {"unigram": Scorer(lambda _: {"loss": 0.0}, 50)}
    judgement = judge(Scorer(lambda _: {"loss": 0.0}, 50), losses, "loss", False, rows="", training=FACTS)
    assert "nothing" not in judgement.text


def test_a_constant_prediction_is_named():
    text = judge_accuracy(100, {"majority": 100, "tfidf": 150}).text
    assert text.endswith(
        "It predicts no better than a constant. Try --epochs 6 (it trained for 500 steps) or more training "
        "rows."
    )


@pytest.mark.parametrize(
    ("max_length", "methods", "new_tokens", "longer_texts"),
    [
        (64, [], [], "--max-length 128"),
        (65, [], [], "--long-texts windows"),
        (65, ["contrastive"], [], None),  # which refuses windows, as markers of entities do
        (65, [], ["[E1]"], None),
        (64, ["contrastive"], [], "--max-length 128"),
    ],
)
def test_only_a_flag_that_is_accepted_is_advised(max_length, methods, new_tokens, longer_texts):
    facts = collect_facts(max_length=max_length, methods=methods, new_tokens=new_tokens)
    assert facts.longer_texts == longer_texts
    assert facts.study == "bertkit study classify --recipe 'my run/run.yaml' --folds 5"


@pytest.mark.parametrize(
    ("num_steps", "set_steps", "longer_training"),
    [
        (9, None, "--epochs 36"),  # then it trains for 108 steps
        (50, None, "--epochs 6"),
        (500, None, "--epochs 6"),
        (49, 49, "--max-steps 147"),
        (50, 50, "--max-steps 100"),
    ],
)
def test_the_advised_training_is_twice_as_long_and_not_too_short(num_steps, set_steps, longer_training):
    assert collect_facts(num_steps=num_steps, max_steps=set_steps).longer_training == longer_training


@pytest.mark.parametrize(
    ("limit", "longer_training"),
    [({"word_budget": 5_000}, "--word-budget 60000"), ({"time_limit": 0.5}, "--time-limit 6")],
)
def test_a_limit_of_words_or_minutes_is_raised_because_it_excludes_other_flags(limit, longer_training):
    config = PretrainConfig(data="a.txt", max_length=64, max_steps=9, **limit)
    assert collect_facts(config=config).longer_training == longer_training


def collect_facts(*, max_length=64, methods=(), new_tokens=(), num_steps=9, max_steps=None, config=None):
    settings = {"max_length": max_length, "epochs": 3.0, "max_steps": max_steps}
    task = Classify(ClassifyConfig(data="a.csv", **settings))
    config = config or task.config
    task.state.new_tokens = new_tokens
    prepared = SimpleNamespace(
        task=task, config=config, methods=methods, has_training_steps=True, trained_length=None,
        model_config=BertConfig(max_position_embeddings=128),
        features={"train": make_features([[8]])},
    )  # fmt: skip
    state = SimpleNamespace(max_steps=num_steps, global_step=num_steps, best_global_step=num_steps)
    session = SimpleNamespace(
        prepared=prepared, trainer=SimpleNamespace(state=state), run_dir=RunDir(Path("my run"))
    )
    return Session.collect_training_facts(session)


# ---- overconfidence


def make_decisions(num_rows, confidence, accuracy):
    """Decisions between two classes with the same confidence, a fraction of which is correct."""
    logits = np.tile([0.0, np.log(confidence / (1 - confidence))], (num_rows, 1))
    return Decisions.from_classes(logits, (np.arange(num_rows) < accuracy * num_rows).astype(int))


@pytest.mark.parametrize(
    ("num_rows", "confidence", "accuracy", "is_overconfident"),
    [
        (100, 0.95, 0.8, True),
        (99, 0.95, 0.8, False),  # too few rows to calibrate on
        (2000, 0.851, 0.8, True),
        (2000, 0.849, 0.8, False),  # ECE below 0.05
        (100, 0.86, 0.8, False),  # within twice the standard error, 0.04
        (2000, 0.7, 0.9, False),  # underconfident
    ],
)
def test_overconfidence(num_rows, confidence, accuracy, is_overconfident):
    decisions = make_decisions(num_rows, confidence, accuracy)
    assert (describe_overconfidence(decisions, "bertkit calibrate RUN") is not None) == is_overconfident


def test_the_sentence_on_overconfidence():
    assert describe_overconfidence(make_decisions(200, 0.95, 0.8), "bertkit calibrate RUN") == (
        "Overconfident: the mean probability of its predictions is 0.95, and 0.80 of them are correct (ECE "
        "0.15); run bertkit calibrate RUN."
    )


# ---- where it is shown


@pytest.mark.slow
@pytest.mark.parametrize("task", [*ROW_MAKERS, "pretrain-mlm-nsp"])
def test_each_task_has_a_judgement(runs, task):
    folder = runs / task
    metrics = json.loads((folder / "metrics.json").read_text())
    judgement = metrics["judgement"]
    assert judgement["against"] in metrics["baselines"]
    name = judgement["metric"]
    other = metrics["baselines"][judgement["against"]][name]
    assert judgement["difference"] == pytest.approx(metrics["validation"][name] - other)
    for file in ("report.html", "README.md"):
        shown = (folder / file).read_text().replace("&#39;", "'").replace("&gt;", ">")
        assert judgement["text"] in shown, file


@pytest.mark.slow
def test_console_and_json(cli, tmp_path, tiny):
    data = write_rows(tmp_path / "data.jsonl", make_toy_rows(60))
    args = ("--data", data, "--model", tiny, "--max-steps", 2, "-o", tmp_path / "run")
    _, printed, _ = cli("classify", *args, "--json")
    judgement = json.loads(printed)["judgement"]
    _, printed, _ = cli("classify", "--resume", "-o", tmp_path / "run")
    assert f"{judgement['text']}\nrun: {tmp_path / 'run'}\n" in printed
    assert "tokens/s" not in printed
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    _, printed, _ = cli(
        "evaluate", tmp_path / "run", "--compare", copy, "--json", "-o", tmp_path / "compared"
    )
    compared = json.loads(printed)
    assert compared["judgement"]["verdict"] == "no_difference"
    assert compared["judgement"]["against"] == str(copy)
    assert compared["judgement"]["difference"] == 0


def test_calibration_ends_the_advice_to_calibrate():
    metrics = {"judgement": {"text": "Better.", "calibration": "Overconfident."}}
    assert card.list_judgement(metrics) == ["Better.", "Overconfident."]
    assert card.list_judgement(metrics, is_calibrated=True) == ["Better."]
    assert card.list_judgement({}) == []


@pytest.mark.parametrize("folder", ["/home/me/runs/a", "'/home/me/my runs/a'"])
def test_the_card_on_the_hub_names_no_local_path(folder):
    recipe = f"{folder[:-1]}/run.yaml'" if folder.endswith("'") else f"{folder}/run.yaml"
    text = (
        f"No better. Try bertkit study classify --recipe {recipe} --folds 5, which scores all rows, or more "
        f"training rows. Overconfident: ... (ECE 0.15); run bertkit calibrate {folder}."
    )
    assert card.rewrite_for_hub(f"# a\n\n{text}\n", "me/model") == (
        "# model\n\nNo better. Try bertkit study classify --recipe RUN/run.yaml --folds 5, which scores all "
        "rows, or more training rows. Overconfident: ... (ECE 0.15); run bertkit calibrate RUN.\n"
    )


@pytest.mark.slow
def test_the_detectable_difference_is_shown_with_a_probability_of_80_percent():
    """On samples of rows, two models whose accuracies differ by it are found to differ in 80 % of them."""
    rng = np.random.default_rng(0)
    size, gain, discordant = 800, 0.034, 0.12
    found = []
    for _ in range(200):
        draw = rng.random(size)
        first, second = np.ones((2, size), bool)
        first[draw < (discordant + gain) / 2] = False
        second[(draw >= (discordant + gain) / 2) & (draw < discordant)] = False
        found.append(judge(make_scorer(second), {"other": make_scorer(first)}, "accuracy", True, rows="rows"))
    detectable = np.mean([each.detectable for each in found])
    assert detectable == pytest.approx(2.8 * (discordant / size) ** 0.5, rel=0.1)
    power = np.mean([each.verdict == "better" for each in found])
    assert detectable == pytest.approx(gain, rel=0.1)
    assert 0.7 < power < 0.9


@pytest.mark.parametrize(
    ("correct", "other", "end"),
    [
        (160, 100, "Prefer ours."),
        (100, 160, "Prefer other."),
        (150, 151, "with a probability of 0.8."),
        (150, 150, "Choose by cost, or compare on more rows."),
        (200, 200, "may show a difference."),
    ],
)
def test_what_follows_from_a_comparison_of_two_models(correct, other, end):
    scorers = [make_accuracy(number) for number in (correct, other)]
    judgement = judge(scorers[0], {"other": scorers[1]}, "accuracy", True, rows="200 rows", name="ours")
    assert judgement.text.endswith(end)
    assert (judgement.detectable is None) == (correct == other)
    few = [make_accuracy(number, 8) for number in (6, 5)]
    judgement = judge(few[0], {"other": few[1]}, "accuracy", True, rows="8 rows", name="ours")
    assert judgement.detectable is None
    assert judgement.text.endswith("Choose by cost, or compare on more rows.")
