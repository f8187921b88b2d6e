"""Methods whose head reads the vectors of an encoder: `--features`, and `--method` with its two values."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bertkit.data.collators import VectorCollator
from bertkit.data.features import TARGETS, WEIGHTS, Features
from bertkit.data.split import to_membership
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.errors import UserError
from bertkit.methods.base import Method, PreparedRun, TrainingInputs
from bertkit.models.encoder import POOLINGS, FrozenEncoder, VectorFeatures, compute_vectors
from bertkit.models.losses import CosineSimilarityLoss
from bertkit.stats.linear_probe import LinearProbe as FittedProbe
from bertkit.stats.linear_probe import fit_linear_layer, scale_penalty
from bertkit.tasks.text.task import fit_probe
from bertkit.training.scoring import predict_logits
from bertkit.utils import distributed
from bertkit.utils.reporting import report_info


class FrozenFeatures(Method):
    """Vectors of a frozen encoder are computed once; only the head is trained (Devlin et al. 2018, 5.3)."""

    flag = "--features"
    # A head on a frozen encoder needs a higher learning rate and more epochs than fine-tuning.
    default_hyperparameters = {"learning_rate": 1e-3, "epochs": 10.0}

    def precompute(
        self, run: PreparedRun, model: Any, features: dict[str, Features], collator: Any
    ) -> dict[str, Features]:
        computed: dict[str, Any] = dict(features)
        for split, part in computed.items():
            vectors = compute_vectors(model, part, collator, run.config.eval_batch_size)
            computed[split] = VectorFeatures(part, vectors)
        return computed


CONTRASTIVE_PENALTY = 1.0  # of the weights of the head: that of SetFit


class Contrastive(Method):
    """The encoder learns from pairs of rows, and the head is fitted to its vectors (Tunstall et al. 2022)."""

    flag = "--method contrastive"
    default_hyperparameters = {"epochs": 1.0, "batch_size": 16}  # those of SetFit
    needs_all_weights = True

    def prepare(self, run: PreparedRun) -> None:
        if run.task.uses_windows:
            raise UserError(
                f"--long-texts windows: {self.flag} reads one sequence per text; use another value"
            )

    def convert(self, run: PreparedRun, inputs: TrainingInputs) -> TrainingInputs:
        task: Any = run.task  # with classes, like every task that has the setting `method`
        membership = to_membership(_get_training_labels(inputs.examples).labels, len(task.labels))
        pairs = PairFeatures.from_rows(inputs.examples, membership, run.config.seed)
        return TrainingInputs(pairs, VectorCollator(inputs.collator), CosineSimilarityLoss())

    def before_evaluation(self, run: PreparedRun, model: Any, features: Features, collator: Any) -> None:
        task: Any = run.task
        config = run.config
        vectors = predict_logits(
            model, features, VectorCollator(collator), config.eval_batch_size, "computing vectors"
        )
        labels, num_labels = _get_training_labels(features), len(task.labels)
        penalty = scale_penalty(CONTRASTIVE_PENALTY, labels, num_labels)
        layer = distributed.on_main_process(
            fit_linear_layer, vectors, labels, num_labels, penalty, config.class_weights == "balanced"
        )
        model.set_output_layer(layer.weight, layer.bias)


class LinearProbe(Method):
    """The encoder is not trained, and the head is fitted to its vectors."""

    flag = "--method linear-probe"
    has_training_steps = False
    needs_all_weights = True

    def before_evaluation(self, run: PreparedRun, model: Any, features: Any, collator: Any) -> None:
        task: Any = run.task
        config = run.config
        encoder = FrozenEncoder(config.model, collator.pad_token_id)

        def fit() -> FittedProbe:
            vectors = encoder.compute_vectors(features)
            balanced = config.class_weights == "balanced"
            groups = task.split_keys(run.splits["train"]).column_group
            return fit_probe(task, vectors, _get_training_labels(features), balanced, groups)

        probe = distributed.on_main_process(fit)
        pooling = POOLINGS[probe.pooling]
        report_info(f"linear probe: {pooling} pooling, penalty {probe.penalty:g}")
        model.set_pooling(pooling, normalize=False)
        model.set_output_layer(*probe.layer)


def _get_training_labels(features: Features) -> TrainingLabels:
    assert features.labels is not None
    return TrainingLabels(features.labels, features.weights, features.targets)


# ---- pairs

# Pairs of each kind per row and epoch. Tunstall et al. 2022, section 3.1, have 20. On one of two datasets
# with 16 rows, 20 were better than 5; with 128 rows, they were not.
MAX_PAIRS_PER_ROW, MIN_PAIRS_PER_ROW = 20, 5
FEW_PAIRS = 1_280  # in an epoch (80 steps of 16): up to it, rows are in more than MIN_PAIRS_PER_ROW pairs
MAX_PAIRS = 8_000  # pairs in an epoch; many rows are in fewer pairs each
MAX_ATTEMPTS = 100  # for a partner without a common label, which may not exist


class Pairs(NamedTuple):
    """The pairs of an epoch."""

    rows: np.ndarray  # [pairs, 2] indices of the rows
    similarity: np.ndarray  # [pairs] 1.0 if both rows have a common label, else 0.0


def sample_pairs(membership: np.ndarray, repeats: int, rng: np.random.Generator) -> Pairs:
    """Pair each row `repeats` times with a row that has a common label, and as often with one that has none.

    The number of pairs depends only on `membership` and `repeats`. If a row has a common label with all
    others, it is paired with any of them. `membership` is [n, labels], whether a row has a label.
    """
    num_rows = len(membership)
    labeled = np.tile(np.flatnonzero(membership.any(1)), repeats)
    similar = np.stack([labeled, _sample_similar(membership, labeled, rng)], 1)
    first = np.tile(np.arange(num_rows), repeats)
    second = rng.integers(num_rows, size=len(first))
    for _ in range(MAX_ATTEMPTS):
        rejected = np.flatnonzero(_have_common_label(membership, first, second))
        if not len(rejected):
            break
        second[rejected] = rng.integers(num_rows, size=len(rejected))
    rows = np.concatenate([similar, np.stack([first, second], 1)])
    return Pairs(rows, _have_common_label(membership, rows[:, 0], rows[:, 1]).astype(np.float32))


def _have_common_label(membership: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (membership[first] & membership[second]).any(1)


def _sample_similar(membership: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return another row with one of the labels of each row, or the row itself if no other has the label."""
    num_rows = len(membership)
    row_labels = np.nonzero(membership)[1]  # labels of all rows, ordered by row
    members = np.flatnonzero(membership.T)  # `label * num_rows + row`, in ascending order
    counts_by_row, counts_by_label = membership.sum(1), membership.sum(0)
    first_label = np.cumsum(counts_by_row) - counts_by_row
    first_member = np.cumsum(counts_by_label) - counts_by_label
    label = row_labels[first_label[rows] + rng.integers(counts_by_row[rows])]
    count, start = counts_by_label[label], first_member[label]
    position = np.searchsorted(members, label * num_rows + rows) - start  # of the row among the members
    step = rng.integers(1, np.maximum(count, 2))
    return members[start + (position + step) % count] % num_rows


def choose_repeats(num_rows: int) -> int:
    """Return how often each row is paired with a similar row in an epoch, and with a dissimilar one."""
    repeats = min(MAX_PAIRS_PER_ROW, max(MIN_PAIRS_PER_ROW, FEW_PAIRS // (2 * num_rows)))
    return max(1, min(repeats, MAX_PAIRS // (2 * num_rows)))


@dataclass(frozen=True, kw_only=True, eq=False)
class PairFeatures(Features):
    """Pairs of rows as examples with two sequences each; each epoch has other pairs, but the same number.

    The key of an example is `epoch * n + index`. It determines the example in every worker, rank and resumed
    run. Rows are paired by their most probable labels. If labels have probabilities, the target of a pair is
    the probability that both rows have a common label. The weight of a pair is the product of the weights.
    """

    row_features: Features  # the rows, with one sequence each
    membership: np.ndarray  # [rows, labels] whether a row has a label
    repeats: int  # pairs of each kind per row and epoch
    seed: int
    cached_pairs: dict[int, Pairs] = field(default_factory=dict)  # of the most recent epoch

    @classmethod
    def from_rows(cls, row_features: Features, membership: np.ndarray, seed: int) -> "PairFeatures":
        num_rows = len(membership)
        repeats = choose_repeats(num_rows)
        num_pairs = repeats * int(num_rows + membership.any(1).sum())
        return cls(
            sequence_offsets=2 * np.arange(num_pairs + 1), labels=None, row_features=row_features,
            membership=membership, repeats=repeats, seed=seed,
        )  # fmt: skip

    def get_pairs(self, epoch: int) -> Pairs:
        if epoch not in self.cached_pairs:
            rng = np.random.default_rng([self.seed, epoch])
            self.cached_pairs.clear()
            self.cached_pairs[epoch] = sample_pairs(self.membership, self.repeats, rng)
        return self.cached_pairs[epoch]

    def __getitem__(self, index: int) -> dict[str, Any]:
        epoch, index_in_epoch = divmod(index, len(self))
        pairs = self.get_pairs(epoch)
        first, second = (self.row_features[row] for row in pairs.rows[index_in_epoch].tolist())
        item = {name: first[name] + second[name] for name in ("input_ids", "token_type_ids")}
        item["labels"] = pairs.similarity[index_in_epoch]
        if TARGETS in first:
            both = first[TARGETS] * second[TARGETS]  # [classes] probability that both rows have the label
            is_set = self.row_features.labels.ndim == 2  # type: ignore[union-attr]
            item["labels"] = 1 - (1 - both).prod() if is_set else both.sum()
        if WEIGHTS in first:
            item[WEIGHTS] = first[WEIGHTS] * second[WEIGHTS]
        return item

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return self.row_features.get_sequence(self.get_pairs(0).rows.flat[number])

    @property
    def sequence_lengths(self) -> np.ndarray:
        return self.row_features.sequence_lengths[self.get_pairs(0).rows.ravel()]

    def length_keys_for_epoch(self, epoch: int) -> np.ndarray:
        return self.row_features.sequence_lengths[self.get_pairs(epoch).rows].max(1)

    def batch_size_for(self, tokens: int) -> int:
        return max(1, tokens // (2 * int(self.row_features.sequence_lengths.max())))

    def example_keys_for_epoch(self, epoch: int, examples: np.ndarray) -> np.ndarray:
        return epoch * len(self) + examples
