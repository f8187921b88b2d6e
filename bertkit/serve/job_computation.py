"""The predictions of several requests in one computation."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from bertkit.data.rows import Rows
from bertkit.infer.predictor import Predictor
from bertkit.serve.batcher import ComputationStoppedError, Job, Records
from bertkit.utils.reporting import Reporter

T = TypeVar("T")
REQUEST = "request"  # the file of the rows in error messages


class StoppingReporter(Reporter):
    """A reporter that stops the computation between two forward passes, once all its jobs are cancelled.

    Args:
        jobs: The jobs that are computed.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs

    def track(
        self, batches: Iterable[T], total: int, description: str, get_size: Callable[[T], int] = lambda _: 1
    ) -> Iterator[T]:
        """Yield batches until all jobs are cancelled.

        Raises:
            ComputationStoppedError: All jobs are cancelled.
        """
        for batch in batches:
            if all(job.is_cancelled for job in self.jobs):
                raise ComputationStoppedError
            yield batch


def predict_rows(
    predictor: Predictor, rows: Records, scores: Any, reporter: Reporter | None = None
) -> Records:
    """Return the records of rows, as `bertkit predict` does."""
    table = Rows.from_dicts(rows, REQUEST)
    predictor.map_columns(table)
    return list(predictor.iter_records(table, predictor.evaluate_without_labels(table, reporter), scores))


def compute_jobs(predictor: Predictor, jobs: Sequence[Job]) -> list[Records | Exception]:
    """Return the records of each request, or its error.

    Requests with different columns are computed separately. A column of one request would otherwise be added
    to the records of another one. Requests with documents are computed separately, too, because the same name
    of a document in two requests means two documents.
    """
    group_columns = frozenset(predictor.task.input_schema.group_columns)
    indices_by_columns: dict[Any, list[int]] = defaultdict(list)
    for index, job in enumerate(jobs):
        columns = frozenset(column for row in job.rows for column in row)
        own_group = index if columns & group_columns else None
        indices_by_columns[columns, job.all_scores, own_group].append(index)
    results: list[Records | Exception] = [[] for _ in jobs]
    for indices in indices_by_columns.values():
        for index, result in zip(indices, _compute_group(predictor, [jobs[i] for i in indices]), strict=True):
            results[index] = result
    return results


def _compute_group(predictor: Predictor, jobs: Sequence[Job]) -> list[Records | Exception]:
    """Compute requests together; if that fails, compute each one separately, to find the wrong ones."""
    rows, scores = [row for job in jobs for row in job.rows], "all" if jobs[0].all_scores else "compact"
    try:
        records = predict_rows(predictor, rows, scores, StoppingReporter(jobs))
    except Exception as error:  # noqa: BLE001 - even a bug must not fail the other requests
        if len(jobs) == 1 or isinstance(error, ComputationStoppedError):
            return [error] * len(jobs)
        return [_compute_group(predictor, [job])[0] for job in jobs]
    results: list[Records | Exception] = []
    position = 0
    for job in jobs:
        results.append(_number_records(records[position : position + len(job.rows)]))
        position += len(job.rows)
    return results


def _number_records(records: Records) -> Records:
    """Return the records of one request, numbered from 0. The id of `qa` is a text."""
    return [record | {"id": type(record["id"])(index)} for index, record in enumerate(records)]
