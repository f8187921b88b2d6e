"""The judgement of a model: whether it is better than others on the same rows, and what to try if not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertkit.errors import format_count
from bertkit.stats.calibration import Decisions, compute_calibration
from bertkit.stats.significance import ScoreDifference, Scorer, compare_scorers
from bertkit.utils.text import format_signed

Verdict = Literal["better", "no_difference", "worse"]
# Exit statuses of the commands that compare two models.
EXIT_STATUSES: Mapping[Verdict, int] = {"better": 0, "no_difference": 3, "worse": 4}
POWER = 0.8  # probability with which a detectable difference is shown
MIN_ROWS = 10  # the bootstrap of fewer rows shows nothing
SIGNIFICANCE_LEVEL = 0.05  # two-sided, so the probability of a false "better" is at most half of it
MIN_STEPS = 100  # fewer optimizer steps hardly train a new head
MAX_TRUNCATED = 0.05  # fraction of the training texts
MAX_UNK = 0.05  # fraction of their tokens
MAX_ECE = 0.05
MIN_CALIBRATION_ROWS = 100  # on fewer rows, `calibrate` may make probabilities worse
MANY_ROWS = 100  # with fewer validation rows, cross-validation shows more
MAJORITY = "majority"  # the baseline that predicts the same for all rows


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """What may be changed about the training of a model.

    Attributes:
        steps: Number of optimizer steps; None if the head was fitted without steps.
        longer_training: Flag with a value that trains longer, such as `--epochs 6`.
        is_last_best: Whether the last evaluation had the best score, so that longer training may help.
        unk_fraction: Fraction of the tokens that the tokenizer does not know.
        truncated: Fraction of the training texts that are truncated.
        longer_texts: Flag with a value that truncates less, such as `--max-length 512`, if there is one.
        unit: What the task calls a row.
        study: Command that scores all rows by cross-validation; None if there is none.
    """

    steps: int | None
    longer_training: str
    is_last_best: bool = True
    unk_fraction: float = 0.0
    truncated: float = 0.0
    longer_texts: str | None = None
    unit: str = "row"
    study: str | None = None


@dataclass(frozen=True)
class Judgement:
    """Whether a model is better than others, by one score.

    Attributes:
        verdict: "better" if it is shown to be better than all others.
        against: The other model that decides: the best one of those with this verdict.
        metric: Name of the score.
        difference: Score of the model minus that of the other one.
        interval: 95 % interval of the difference, from the paired bootstrap.
        p: Two-sided p-value of the difference.
        detectable: True difference that is shown with a probability of 0.8 on as many rows; None if there are
            too few rows, or the models do not differ.
        text: One or two sentences: the verdict with its numbers, and what follows or what to try.
    """

    verdict: Verdict
    against: str
    metric: str
    difference: float
    interval: list[float]
    p: float
    detectable: float | None
    text: str


def find_verdict(difference: ScoreDifference, is_higher_better: bool, num_rows: int) -> Verdict:
    """Return the verdict on a difference: enough rows, its test and its 95 % interval must show it."""
    low, high = difference.interval
    if num_rows < MIN_ROWS or difference.p >= SIGNIFICANCE_LEVEL or low <= 0 <= high:
        return "no_difference"
    return "better" if (difference.difference > 0) == is_higher_better else "worse"


def judge(
    scorer: Scorer,
    others: Mapping[str, Scorer],
    metric: str,
    is_higher_better: bool,
    *,
    rows: str,
    training: TrainingFacts | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Judgement | None:
    """Compare a model with others on the same rows.

    Args:
        scorer: The scores of the model.
        others: The scores of other models, or of baselines, by name.
        metric: Name of the score that decides.
        rows: The rows in words, such as "600 rows".
        training: What the advice on training depends on; None for no such advice.
        name: Name of the model, if it is compared with other trained models; None for baselines.
        seed: Seed of the bootstrap.

    Returns:
        The judgement, or None if no other model has the score.
    """
    compared = {name: compare_scorers(other, scorer, seed) for name, other in others.items()}
    differences = {name: found[metric] for name, found in compared.items() if metric in found}
    if not differences:
        return None
    sign = 1 if is_higher_better else -1
    verdicts = {
        name: find_verdict(found, is_higher_better, scorer.size) for name, found in differences.items()
    }
    order: list[Verdict] = ["worse", "no_difference", "better"]
    verdict = min(verdicts.values(), key=order.index)
    candidates = [name for name in differences if verdicts[name] == verdict]
    against = min(candidates, key=lambda name: sign * differences[name].difference)
    found = differences[against]
    score = scorer.score_all()[metric]
    sentence = _describe_verdict(verdict, against, len(differences), found, sign, rows)
    low, high = found.interval
    numbers = f"{metric} {score:.3f}, {against} {score - found.difference:.3f}"
    if low == high == 0:  # then an interval would look more certain than it is
        text = f"{sentence}: {numbers} (no difference)."
    else:
        text = (
            f"{sentence}: {numbers} (difference {format_signed(found.difference, '+.3f')}, 95 % interval "
            f"{format_signed(low, '+.3f')} to {format_signed(high, '+.3f')})."
        )
    perfect = [
        name
        for name, model in ((against, others[against]), ("the model", scorer))
        if verdict == "no_difference" and model.is_correct is not None and model.is_correct.all()
    ]
    if perfect:
        who = "Both make" if len(perfect) == 2 else f"{perfect[0][0].upper()}{perfect[0][1:]} makes"
        text += f" {who} no error on them; rows that are more difficult may show a difference."
    elif training is not None and verdict != "better":
        failure = _describe_failure(metric, score, sign, compared.get(MAJORITY, {}), scorer.size)
        text += _advise(training, failure, verdict, sign * found.difference > 0, scorer.size)
    detectable = None
    if scorer.size >= MIN_ROWS and low < high:
        detectable = estimate_detectable_difference(found)
    if name is not None and not perfect:
        if verdict == "no_difference":
            text += " Choose by cost, or compare on more rows"
            if detectable is not None:
                text += f": these show a difference of {detectable:.3f} with a probability of {POWER:g}"
            text += "."
        else:
            text += f" Prefer {against if verdict == 'worse' else name}."
    return Judgement(verdict, against, metric, found.difference, found.interval, found.p, detectable, text)


def estimate_detectable_difference(found: ScoreDifference) -> float:
    """Return the true difference that a test on as many rows shows with the probability `POWER`.

    It is (z(0.975) + z(0.8)) standard errors of the difference (Cohen 1988), whose 95 % interval is known.
    """
    from scipy.stats import norm

    low, high = found.interval
    standard_error = (high - low) / (2 * norm.ppf(1 - SIGNIFICANCE_LEVEL / 2))
    return float((norm.ppf(1 - SIGNIFICANCE_LEVEL / 2) + norm.ppf(POWER)) * standard_error)


def _describe_verdict(
    verdict: Verdict, against: str, num_others: int, found: ScoreDifference, sign: int, rows: str
) -> str:
    if verdict == "better":
        others = "every baseline" if num_others > 1 else against
        return f"Better than {others} on these {rows}"
    if verdict == "worse":
        return f"Worse than {against} on these {rows}"
    if sign * found.difference > 0:
        return f"Not shown to be better than {against} on these {rows}"
    return f"No better than {against} on these {rows}"


def _describe_failure(
    metric: str, score: float, sign: int, constant: Mapping[str, ScoreDifference], num_rows: int
) -> str:
    """Return a sentence if the model has learned nothing, else an empty text.

    `constant` are the differences from `MAJORITY`. F1 and exact match are 0 without any correct answer.
    """
    if sign > 0 and score == 0:
        return f"It has learned nothing yet: {metric} is 0."
    if "rmse" in constant:
        has_learned = find_verdict(constant["rmse"], False, num_rows) == "better"
    else:
        has_learned = metric not in constant or constant[metric].difference != 0
    return "" if has_learned else "It predicts no better than a constant."


def _advise(training: TrainingFacts, failure: str, verdict: Verdict, has_gain: bool, num_rows: int) -> str:
    """Return a sentence on what to try, after `failure` if the model has learned nothing.

    With more validation rows, a gain that the model already has may be shown. Cross-validation may show that
    two models differ, but does not make a model better that is worse or has learned nothing.
    """
    steps, advice = training.steps, []
    may_be_short = training.is_last_best or verdict == "worse"
    if steps == 0:
        return " It was not trained."
    if steps is not None and (failure or (steps < MIN_STEPS and may_be_short)):
        advice.append(f"{training.longer_training} (it trained for {format_count(steps, 'step')})")
    if training.unk_fraction > MAX_UNK:
        advice.append(
            f"a --model for the language of the texts ({training.unk_fraction:.0%} of the tokens are [UNK])"
        )
    if training.truncated > MAX_TRUNCATED and training.longer_texts:
        advice.append(f"{training.longer_texts} ({training.truncated:.0%} of the texts are truncated)")
    if training.study and num_rows < MANY_ROWS and verdict == "no_difference" and not failure:
        advice.append(f"{training.study}, which scores all {training.unit}s,")
    advice.append(f"more {'validation' if has_gain else 'training'} {training.unit}s")
    return f"{failure and f' {failure}'} Try {' or '.join(advice)}."


def describe_overconfidence(decisions: Decisions, command: str) -> str | None:
    """Return a sentence if the model is overconfident, with the command that calibrates it; else None.

    The expected calibration error of few rows is high by chance. The mean confidence must therefore exceed
    the accuracy by more than twice the standard error over rows.
    """
    if decisions.num_rows < MIN_CALIBRATION_ROWS:
        return None
    confidence, is_correct = decisions.compute_reliability()
    ece = compute_calibration(confidence, is_correct).ece
    counts = np.bincount(decisions.row, minlength=decisions.num_rows)
    sums = np.bincount(decisions.row, confidence - is_correct, minlength=decisions.num_rows)
    gaps = sums[counts > 0] / counts[counts > 0]
    if ece <= MAX_ECE or gaps.mean() <= 2 * gaps.std() / len(gaps) ** 0.5:
        return None
    return (
        f"Overconfident: the mean probability of its predictions is {confidence.mean():.2f}, and "
        f"{is_correct.mean():.2f} of them are correct (ECE {ece:.2f}); run {command}."
    )
