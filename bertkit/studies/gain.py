"""The gain of the ensemble over its members, on labeled rows that no member was trained on, and its cost."""

import statistics
import time
from pathlib import Path
from typing import Any

from bertkit.data.split import sample_rows
from bertkit.data.table import Rows
from bertkit.run.predictor import load_predictor
from bertkit.run_directory import read_members
from bertkit.stats.scores import Scores
from bertkit.studies.plan import StudyPlan, parse_labeled_rows
from bertkit.studies.splits import get_split_seed
from bertkit.training.failures import OutOfMemory, release_memory, report_out_of_memory

NO_ROWS = "the data has no labeled validation or test split"
OVERLAP = "with --keep-overlap, the members may have been trained on the rows of other splits"
MEMORY = "all members together do not fit into memory"


def measure_gain(plan: StudyPlan, ensemble: Path) -> dict[str, Any]:
    """Return the score of the ensemble beside those of its members, and the seconds for 1,000 rows.

    Args:
        plan: The study.
        ensemble: Directory of the ensemble.

    Returns:
        `members` and `reason`. The reason is None if the gain was measured; further keys then follow.
    """
    members = read_members(ensemble)
    result: dict[str, Any] = {"members": len(members), "reason": "it has a single member"}
    if len(members) == 1:
        return result
    if plan.config.keep_overlap:
        return result | {"reason": OVERLAP}
    split, rows = _find_rows(plan)
    if rows is None:
        return result | {"reason": NO_ROWS}
    try:
        measured = _measure(plan, ensemble, rows)
    except OutOfMemory as error:
        return result | {"reason": str(error)}
    finally:
        release_memory()
    if measured is None:
        return result | {"reason": f"{plan.metric} is the score of a module of --metric"}
    return {**result, "reason": None, "split": split, "rows": len(rows), **measured}


def _find_rows(plan: StudyPlan) -> tuple[str, Rows | None]:
    """Return a labeled split that no final run was trained on; with folds, that is a split of the dataset."""
    if not plan.config.folds:
        return "test", plan.splits.final[0].splits["test"]
    for split in ("test", "validation"):
        if (rows := parse_labeled_rows(plan.run_group.data, split)) is not None:
            return split, sample_rows(rows, plan.config.max_eval_samples, get_split_seed(plan.config))
    return "", None


def _measure(plan: StudyPlan, ensemble: Path, rows: Rows) -> dict[str, Any] | None:
    """Return the scores of the ensemble and its members; None if bertkit does not compute the metric."""
    members = []
    for folder in read_members(ensemble):
        members.append(_score(folder, rows))
        release_memory()
    scores, seconds = _score(ensemble, rows)
    if plan.metric not in scores:
        return None
    member_scores = [member[plan.metric] for member, _ in members]
    mean = statistics.fmean(member_scores)
    return {
        "score": scores[plan.metric],
        "member_scores": member_scores,
        "mean_member_score": mean,
        "gain": scores[plan.metric] - mean,
        "seconds_per_1000_rows": seconds,
        "mean_member_seconds_per_1000_rows": statistics.fmean(seconds for _, seconds in members),
    }


def _score(folder: Path, rows: Rows) -> tuple[Scores, float]:
    """Return the scores of a run or an ensemble, and its seconds for 1,000 tokenized rows."""
    with report_out_of_memory(MEMORY):
        predictor = load_predictor(folder)
        predictor.task.featurize(rows, predictor.tokenizer)  # stores the tokens, so that all are timed alike
        started = time.monotonic()
        outputs = predictor.compute_outputs(rows, "scoring the ensemble")
        seconds = time.monotonic() - started
    return predictor.task.evaluate(outputs).scores, 1000 * seconds / len(rows)
