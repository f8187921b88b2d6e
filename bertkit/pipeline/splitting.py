"""Split the parsed rows of a run into training and evaluation rows, by the settings of the run."""

from bertkit.data.rows import Rows, Splits
from bertkit.data.split import count_overlap, make_splits, sample_rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.tasks.base import Task
from bertkit.utils.reporting import Reporter


def split_and_sample(task: Task, splits: Splits) -> tuple[Splits, list[str]]:
    """Hold out a validation split, remove training rows that are in another split, and sample rows.

    Returns:
        The splits, and notes that describe these changes.

    Raises:
        UserError: There are too few rows, or a class has no training row left.
    """
    config = task.config
    seed = config.seed if config.split_seed is None else config.split_seed
    all_splits, notes = make_splits(
        splits, task.split_keys, config.validation_fraction, seed, config.keep_overlap
    )
    if not config.keep_overlap:
        notes += _check_removed_classes(task, splits, all_splits)
    sampled = {}
    for split, rows in all_splits.items():
        if split == "train":
            sampled[split] = sample_training_rows(task, rows, seed)
        else:
            sampled[split] = sample_rows(rows, config.max_eval_samples, seed)
    return sampled, notes


def sample_training_rows(task: Task, rows: Rows, seed: int) -> Rows:
    """Return `--shots` rows per class, or at most `--max-train-samples` rows.

    Raises:
        UserError: A class has too few rows, or the settings contradict each other or the labels.
    """
    from bertkit.data.few_labels import sample_per_class, to_membership
    from bertkit.tasks.sequence import SequenceTask

    if not isinstance(task, SequenceTask) or task.config.shots is None:
        return sample_rows(rows, task.config.max_train_samples, seed)
    shots = task.config.shots
    if task.config.max_train_samples is not None:
        raise UserError(f"--shots {shots}: replaces --max-train-samples; leave out one of them")
    if not task.labels:
        raise UserError(f"--shots {shots}: regression has no classes; use --max-train-samples")
    labels = task.encode_labels(rows, required=True)
    assert labels is not None
    return sample_per_class(rows, to_membership(labels, len(task.labels)), task.labels, shots, seed)


def _check_removed_classes(task: Task, splits: Splits, new_splits: Splits) -> list[str]:
    """Check that each class still has training rows, after those in another split were removed.

    Args:
        task: The task.
        splits: The splits before rows were removed and held out.
        new_splits: The splits that the run uses, before rows are sampled.

    Returns:
        A note on the classes whose rows are all held out.

    Raises:
        UserError: All training rows of a class are also in an evaluation split.
    """
    is_held_out = "validation" not in splits
    num_held_out = len(new_splits["validation"]) if is_held_out else 0
    if len(new_splits["train"]) + num_held_out == len(splits["train"]):
        return []  # no row was removed
    missing = task.split_keys(splits["train"]).classes - task.split_keys(new_splits["train"]).classes
    held_out = missing & task.split_keys(new_splits["validation"]).classes if is_held_out else set()
    if removed := sorted(missing - held_out):
        raise UserError(
            f"{splits['train'].files[0]}: every training row of {format_list(map(repr, removed))} is also in "
            "an evaluation split; keep these rows with --keep-overlap, or remove them from that split"
        )
    names = format_list(map(repr, sorted(held_out)))
    return [f"every row of {names} is held out for validation; pass another --split-seed"] if names else []


def warn_about_overlap(task: Task, splits: Splits, reporter: Reporter) -> None:
    """Warn about training rows that are also in an evaluation split, which makes its scores too high."""
    if overlap := count_overlap(splits, task.split_keys):
        rows = format_count(len(splits["train"]), f"training {task.spec.unit}")
        reporter.warn(
            f"{overlap:,} of {rows} are also in an evaluation split and are kept (--keep-overlap): "
            "its scores are too high"
        )
