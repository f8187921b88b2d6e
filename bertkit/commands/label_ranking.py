"""`predict --rank-for-labeling`: the order in which unlabeled rows should be labeled.

The rows to label should cover what the model is uncertain about. A set S of rows covers

    f(S) = sum over rows j of  w_j * max over i in S of s_ij,

where the weight w_j is high for uncertain rows, and s_ij is the similarity of two rows. This function,
facility location, is submodular. The greedy order is therefore good at every length: its first k rows cover
at least 1 - 1/e of what the best k rows cover (Nemhauser et al. 1978). Wei et al. (2015) choose rows to label
by it.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.features import Features
from bertkit.data.labels import find_label_cells
from bertkit.data.table import Rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.models.encoder import Encoder
from bertkit.models.pooling import average_ranges, select_pooled_tokens
from bertkit.run.predictor import Predictor
from bertkit.tasks.base import Evaluation, Task
from bertkit.utils.reporting import report_info, report_warning

# The most uncertain rows, which are ordered by facility location; their similarities take 100 MB.
MAX_CANDIDATES = 5_000
RANK_EXPONENT = 4  # of the weight by rank: the median row counts a sixteenth of the most uncertain one
BIAS_WARNING = (
    "scores measured on rows that are chosen like this are biased; evaluate on rows that are chosen at random"
)


# Keys that `predict` writes, apart from inputs. `probability` and `probability of LABEL` are columns of CSV.
PREDICTION_KEYS = {
    "id", "predicted", "probability", "probabilities", "abstained", "prediction_set", "entities", "answer",
    "start", "end", "score", "null_odds", "nbest", "scores", "explanation", "completeness_error", "rank",
    "uncertainty", "out_of_scope", "scope_score",
}  # fmt: skip


# ---- the order


def rank_rows(
    uncertainty: np.ndarray,
    compute_vectors: Callable[[np.ndarray], np.ndarray],
    tier: np.ndarray | None = None,
) -> np.ndarray:
    """Return [n] the indices of all rows in the order in which they should be labeled.

    Args:
        uncertainty: [n] uncertainty of each prediction, from 0 to 1.
        compute_vectors: Returns the vectors [k, size] of the rows with these k indices.
        tier: [n] int. Rows of a higher tier follow all rows of a lower one. Those of tier 0, or of the lowest
            one that occurs, are ordered by facility location.
    """
    num_rows = len(uncertainty)
    tier = np.zeros(num_rows, int) if tier is None else tier
    order = np.lexsort((np.arange(num_rows), -uncertainty, tier))
    num_first = int((tier == tier[order[:1]]).sum())  # 0 without rows
    candidates = order[: min(num_first, MAX_CANDIDATES)]
    if len(candidates) < 3:  # the order of two rows is that of their uncertainty
        return order
    # Probabilities of a model of few rows hardly differ, and those of most rows are close to 0 or 1 if it is
    # trained on many. The rank keeps the emphasis on the most uncertain rows in both cases.
    weights = uncertainty[candidates] * (1 - np.arange(len(candidates)) / num_first) ** RANK_EXPONENT
    covering = order_by_facility_location(weights, compute_vectors(candidates))
    return np.concatenate([candidates[covering], order[len(candidates) :]])


def order_by_facility_location(weights: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the greedy order [n] of rows by facility location; the first row wins ties.

    The similarity is the squared cosine of the vectors after their mean is subtracted, or 0 if the cosine is
    negative. Vectors of encoders have a large common part, which would make all rows similar.

    Args:
        weights: [n] weight of each row.
        vectors: [n, size] vector of each row.
    """
    centered = vectors.astype(np.float32) - vectors.mean(0, dtype=np.float64).astype(np.float32)
    lengths = np.linalg.norm(centered, axis=1, keepdims=True)
    centered /= np.maximum(lengths, np.finfo(np.float32).tiny)
    similarity = centered @ centered.T
    np.maximum(similarity, 0, out=similarity)
    np.square(similarity, out=similarity)
    np.fill_diagonal(similarity, 1)
    weights = weights.astype(np.float32)
    covered = np.zeros(len(weights), np.float32)  # of each row j: max of s_ij over the rows i so far
    # Gains only decrease, so an old gain is an upper bound (lazy evaluation, Minoux 1978).
    bounds = [(-gain, row) for row, gain in enumerate((similarity @ weights).tolist())]
    heapq.heapify(bounds)
    order: list[int] = []
    while bounds:
        _, row = heapq.heappop(bounds)
        gain = float(np.maximum(similarity[row] - covered, 0) @ weights)
        if bounds and (-gain, row) > bounds[0]:
            heapq.heappush(bounds, (-gain, row))
            continue
        order.append(row)
        np.maximum(covered, similarity[row], out=covered)
    return np.array(order)


# ---- the rows of a command


def require_rankable(predictor: Predictor, run: str) -> None:
    """Refuse models without an encoder, and predictions without an uncertainty."""
    if not predictor.loaded_models:
        raise UserError(
            f"--rank-for-labeling: {run} is an exported or a linear model, which returns no vectors of "
            "texts; pass a run of another method"
        )
    state = predictor.task.state
    if state.label_type and not state.labels:  # of a regression
        raise UserError(
            f"--rank-for-labeling: {run} predicts numbers, which have no uncertainty; omit it, or pass a run "
            "that predicts labels"
        )


def find_labeled(task: Task, rows: Rows) -> np.ndarray:
    """Return [n] bool, whether each row, as it was read, has a label already."""
    has_label = np.zeros(len(rows), bool)
    for column in task.input_schema.gold_columns:
        names = [column] if column in rows.columns else list(map(str.strip, column.split(",")))
        if set(names) <= set(rows.columns):
            has_label |= np.all([find_label_cells(rows[name], task.state.labels) for name in names], axis=0)
    return has_label


@dataclass(frozen=True, kw_only=True)
class SequenceFeatures(Features):
    """Some sequences of other features, each as an example of its own."""

    parent: Features
    numbers: np.ndarray

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return self.parent.get_sequence(int(self.numbers[number]))

    @property
    def sequence_lengths(self) -> np.ndarray:
        return self.parent.sequence_lengths[self.numbers]


class LabelRanking:
    """Predicted rows, which are added in chunks, and their order for labeling. All rows stay in memory."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.records: list[dict[str, Any]] = []
        self._num_rows = 0
        self._features: list[Features] = []
        self._sequence_rows: list[np.ndarray] = []  # of each chunk: [sequences] index of the row
        self._uncertainty: list[np.ndarray] = []
        self._identity: list[np.ndarray] = []  # [rows], equal for rows with the same input
        self._has_label: list[np.ndarray] = []
        self._has_text: list[np.ndarray] = []

    def prepare_rows(self, rows: Rows) -> Rows:
        """Return the rows without the columns of an earlier ranking, and with a column to fill in labels."""
        columns = dict(rows.columns)
        if {"rank", "uncertainty"} <= columns.keys():
            schema = self.predictor.task.input_schema
            read = {*schema.text_columns, *schema.gold_columns, *schema.group_columns, *schema.span_columns}
            read.update(self.predictor.columns.values())  # that the user named
            earlier = [
                name
                for name in columns
                if (name in PREDICTION_KEYS or name.startswith("probability of ")) and name not in read
            ]
            if not self._num_rows:
                report_info(f"replacing the columns of an earlier ranking: {format_list(earlier)}")
            columns = {name: values for name, values in columns.items() if name not in earlier}
        task = self.predictor.task
        label_column = getattr(task.config, task.label_setting)
        if label_column and label_column not in columns and task.label_setting not in self.predictor.columns:
            for name in map(str.strip, label_column.split(",")):  # label sets may be columns of 0 and 1
                columns.setdefault(name, [None] * len(rows))
        return rows.replace_columns(columns)

    def add(self, rows: Rows, evaluation: Evaluation) -> list[dict[str, Any]]:
        """Add a chunk of rows, as they were read; return further keys of their records."""
        features, parsed = evaluation.outputs.features, evaluation.outputs.rows
        sequence_rows = np.repeat(features.row_index, np.diff(features.sequence_offsets))
        num_tokens = features.sequence_lengths - features.template.num_special_tokens
        uncertainty = evaluation.compute_uncertainty()
        # A file of nested questions has fewer rows than questions, and its labels are no columns.
        has_label = (
            find_labeled(self.predictor.task, rows)
            if len(rows) == len(parsed)
            else np.zeros(len(parsed), bool)
        )
        self._features.append(features)
        self._sequence_rows.append(sequence_rows + self._num_rows)
        self._uncertainty.append(uncertainty)
        self._identity.append(self.predictor.task.make_split_keys(parsed).identity)
        self._has_label.append(has_label)
        self._has_text.append(np.bincount(sequence_rows, num_tokens, minlength=len(parsed)) > 0)
        self._num_rows += len(parsed)
        return [{"rank": None, "uncertainty": value} for value in uncertainty.tolist()]

    def order_records(self) -> list[dict[str, Any]]:
        """Return the records in the order for labeling, with their ranks from 1; there is at least one."""
        identity, has_label, has_text = map(np.concatenate, (self._identity, self._has_label, self._has_text))
        # Of rows with the same input, the first one with a label is kept, or else the first one.
        labeled_first = np.argsort(~has_label, kind="stable")
        is_repeated = np.ones(self._num_rows, bool)
        is_repeated[labeled_first[np.unique(identity[labeled_first], return_index=True)[1]]] = False
        tier = np.select([~has_text, has_label, is_repeated], [3, 2, 1], 0)
        order = rank_rows(np.concatenate(self._uncertainty), self._compute_vectors, tier)
        for rank, row in enumerate(order.tolist(), start=1):
            self.records[row]["rank"] = rank
        self._report(np.bincount(tier, minlength=4).tolist())
        return [self.records[row] for row in order.tolist()]

    def _compute_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the vector of each of these rows, [k, hidden_size].

        It is the mean over the tokens of the last layer but one, because some models compute only [CLS] in
        the last layer. The vector of several sequences, such as windows, is the mean of their vectors.
        """
        model, tokenizer = self.predictor.loaded_models[0], self.predictor.tokenizer
        layer = max(0, model.config.num_hidden_layers - 1)
        encoder = Encoder(model.base_model, tokenizer.pad_token_id, [layer])
        positions = np.full(self._num_rows, -1)
        positions[rows] = np.arange(len(rows))
        sums, counts = np.zeros((len(rows), encoder.dimension), np.float32), np.zeros(len(rows))
        for features, sequence_rows in zip(self._features, self._sequence_rows, strict=True):
            numbers = np.flatnonzero(positions[sequence_rows] >= 0)
            if not len(numbers):
                continue
            sequences = SequenceFeatures(
                parent=features, numbers=numbers, sequence_offsets=np.arange(len(numbers) + 1), labels=None
            )
            tokens = select_pooled_tokens("mean", sequences.sequence_lengths, model.config)
            vectors = np.empty((len(numbers), encoder.dimension), np.float32)
            batch_size = self.predictor.task.config.eval_batch_size
            encoder.encode_into(vectors, sequences, average_ranges(tokens), batch_size)
            np.add.at(sums, positions[sequence_rows[numbers]], vectors)
            np.add.at(counts, positions[sequence_rows[numbers]], 1)
        return sums / np.maximum(counts, 1)[:, None].astype(np.float32)

    def _report(self, counts: list[int]) -> None:
        """Report how rows were ordered, given the number of rows of each tier, and warn about scores."""
        first = next(tier for tier, count in enumerate(counts) if count)
        if counts[first] > MAX_CANDIDATES:
            report_info(
                f"the {MAX_CANDIDATES:,} most uncertain rows are ordered by uncertainty and diversity, the "
                "others by uncertainty alone"
            )
        names = ("", " with the input of another row", " with a label", " without text")
        last = [
            format_count(count, "row") + name
            for tier, (count, name) in enumerate(zip(counts, names, strict=True))
            if count and tier > first
        ]
        if last:
            report_info(f"last: {', '.join(last)}")
        report_warning(BIAS_WARNING)
