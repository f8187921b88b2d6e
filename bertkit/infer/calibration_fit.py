"""What `calibrate` fits to probabilities: a temperature, or the probability that an answer is right.

All reported scores are cross-fitted: the numbers that are applied to a fold are fitted on the other folds.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.errors import UserError

if TYPE_CHECKING:
    from bertkit.metrics.calibration import Decisions
    from bertkit.tasks.qa_predictions import QaEvaluation

# A smaller relative change of the temperature is rounding, and leaves the weights as they are.
MIN_CHANGE = 1e-6


@dataclass(frozen=True)
class RowConfidence:
    """The calibrated confidence in the prediction of each row.

    Attributes:
        fitted: [rows] confidence by the numbers that are fitted on all rows.
        by_fold: [folds, rows] confidence by the numbers that are fitted on all folds except this one.
        folds: [rows] index of the fold of each row.
        is_correct: [rows] bool, whether the prediction is correct.
    """

    fitted: np.ndarray
    by_fold: np.ndarray
    folds: np.ndarray
    is_correct: np.ndarray

    @property
    def cross_fitted(self) -> np.ndarray:
        """[rows] confidence by numbers that are fitted without the row's fold."""
        return self.by_fold[self.folds, np.arange(len(self.folds))]


# ---- temperature


@dataclass(frozen=True)
class TemperatureFit:
    """A temperature, and the decisions that it was fitted on.

    Attributes:
        trained: The decisions of the model as it was trained, without any temperature.
        calibrated: The same decisions; the logits of each fold are divided by the temperature of other folds.
        fold_temperatures: The temperature of each fold.
        temperature: The temperature that is fitted on all rows.
        folds: [rows] index of the fold of each row.
    """

    trained: "Decisions"
    calibrated: "Decisions"
    fold_temperatures: list[float]
    temperature: float
    folds: np.ndarray

    def keep_unchanged(self, previous: float) -> "TemperatureFit":
        """Return the fit with the previous temperature of the run if the new one differs only by rounding."""
        has_changed = abs(self.temperature / previous - 1) > MIN_CHANGE
        return self if has_changed else dataclasses.replace(self, temperature=previous)

    @property
    def cross_fitted_factors(self) -> np.ndarray:
        """[decisions] the factors from `trained` to `calibrated`."""
        return 1 / np.array(self.fold_temperatures)[self.folds[self.trained.row]]

    def compute_confidence(self) -> RowConfidence:
        """Return the confidence in the prediction of each row."""
        fitted, is_correct = self.trained.scale(1 / self.temperature).compute_row_confidence()
        by_fold = [
            self.trained.scale(1 / temperature).compute_row_confidence()[0]
            for temperature in self.fold_temperatures
        ]
        return RowConfidence(fitted, np.stack(by_fold), self.folds, is_correct)

    def describe(self) -> dict[str, Any]:
        """Return the part of `calibration.json` about the temperature."""
        from bertkit.metrics.calibration import ProbabilityScorer, compute_calibration

        parts = {"before": self.trained, "after": self.calibrated}
        return {
            "method": "temperature",
            "temperature": self.temperature,
            "fold_temperatures": self.fold_temperatures,
            "decisions": len(self.trained.gold),
            "scores": {name: ProbabilityScorer(part).score_all() for name, part in parts.items()},
            "reliability": {
                name: compute_calibration(*part.compute_confidence()).to_dict()
                for name, part in parts.items()
            },
        }


def fit_run_temperature(run: Path, decisions: "Decisions", folds: np.ndarray) -> TemperatureFit:
    """Fit a temperature on all decisions, and score it by cross-fitting.

    Args:
        run: The run, for errors.
        decisions: The decisions of the model as it was trained.
        folds: [rows] index of the fold of each row.

    Raises:
        UserError: The decisions do not determine a temperature.
    """
    from bertkit.metrics.temperature import cross_fit, fit_temperature, is_at_bound

    temperature = fit_temperature(decisions)
    if is_at_bound(temperature):
        problem = _explain_bound(decisions, temperature)
        raise UserError(f"{run}: {problem}; pass other labeled rows with --data")
    fold_temperatures, calibrated = cross_fit(decisions, folds)
    return TemperatureFit(decisions, calibrated, fold_temperatures, temperature, folds)


def _explain_bound(decisions: "Decisions", temperature: float) -> str:
    """Return why the rows do not determine a temperature."""
    if temperature > 1:
        return "the predictions are not better than guessing"
    _, is_correct = decisions.compute_confidence()
    if is_correct.all():
        return "all rows are classified correctly, which does not show how confident the model should be"
    return "the logits hardly differ between classes, because the model is hardly trained"


# ---- answers


@dataclass(frozen=True)
class AnswerFit:
    """The probability that an answer is right.

    Attributes:
        weights: The weights that are fitted on all rows; see `bertkit.metrics.answer_probability`.
        confidence: The probability of each answer.
        before: [rows] probability of each answer in its n-best list.
    """

    weights: Mapping[str, float]
    confidence: RowConfidence
    before: np.ndarray

    def describe(self) -> dict[str, Any]:
        """Return the part of `calibration.json` about the probabilities."""
        from bertkit.metrics.calibration import ProbabilityScorer, compute_calibration, make_yes_no_decisions

        is_correct = self.confidence.is_correct
        parts = {"before": self.before, "after": self.confidence.cross_fitted}
        decisions = {name: make_yes_no_decisions(part, is_correct) for name, part in parts.items()}
        return {
            "method": "logistic regression",
            "weights": dict(self.weights),
            "decisions": len(is_correct),
            "scores": {name: ProbabilityScorer(part).score_all() for name, part in decisions.items()},
            "reliability": {
                name: compute_calibration(part, is_correct).to_dict() for name, part in parts.items()
            },
        }


def fit_answers(run: Path, evaluation: "QaEvaluation", folds: np.ndarray) -> AnswerFit:
    """Fit the probability that an answer is right.

    Args:
        run: The run, for errors.
        evaluation: The answers to the questions.
        folds: [questions] index of the fold of each question.

    Raises:
        UserError: All answers are right, or all are wrong.
    """
    from bertkit.metrics.answer_probability import compute_answer_probability, fit_answer_weights

    features, is_correct = evaluation.answer_features, evaluation.compute_correct()
    by_fold = []
    for fold in [*range(folds.max() + 1), -1]:  # the last fit is that on all rows
        is_used = folds != fold
        if len(set(is_correct[is_used].tolist())) < 2:
            word = "right" if is_correct[is_used][0] else "wrong"
            raise UserError(
                f"{run}: almost all answers are {word}, which does not show when they are not; pass other "
                "questions with --data"
            )
        selected = {name: values[is_used] for name, values in features.items()}
        weights = fit_answer_weights(selected, is_correct[is_used])
        by_fold.append(compute_answer_probability(features, weights))
    confidence = RowConfidence(by_fold[-1], np.stack(by_fold[:-1]), folds, is_correct)
    return AnswerFit(weights, confidence, evaluation.compute_nbest_probability())
