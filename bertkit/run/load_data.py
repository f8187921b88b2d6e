"""The data of a run: its rows are loaded, parsed, corrected by `--label-fixes`, and split.

The data of a finished run is loaded again in the same way.
"""

import copy
import dataclasses
import hashlib
import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

import msgspec
import numpy as np

from bertkit.data.columns import require_column
from bertkit.data.groups_and_times import (
    GROUP_FLAG,
    TIME_FLAG,
    check_groups,
    count_groups,
    describe_sides,
    find_obvious_groups,
    find_time_column,
    find_time_ranges,
    hash_groups,
)
from bertkit.data.sources import LoadedDataset
from bertkit.data.split import (
    find_split_overlap,
    make_splits,
    sample_per_class,
    sample_rows,
    to_membership,
)
from bertkit.data.table import UNLABELED_ROWS, Rows, Splits, describe_changes, fingerprint_splits
from bertkit.data.weights_and_soft_labels import WEIGHT_FLAG, describe_weights, read_weights
from bertkit.errors import UserError, format_count, format_list, shorten_repr
from bertkit.run.resolve_settings import fill_data_dir, require_data_objects
from bertkit.run_directory import RunDir, format_python_call
from bertkit.settings.declaration import fill_unset, get_settings, is_column_setting, select_unset
from bertkit.settings.recipes import list_passed_data
from bertkit.settings.run_settings import RunConfig
from bertkit.settings.validation import DataObject
from bertkit.tasks import task_class
from bertkit.tasks.base import Task, describe_unread_columns, list_read_columns
from bertkit.tasks.trained_model import load_run_task
from bertkit.utils.files import expand_home
from bertkit.utils.reporting import report_info, report_warning, silence_reports
from bertkit.utils.text import validate


@dataclass(frozen=True)
class LoadedData:
    """The data of a run, before a model is chosen.

    Attributes:
        task: The task, with the columns and the labels that `parse_dataset` determined.
        requested: The settings of the user, with `data` and `data_dir`, but without other defaults.
        dataset: The parsed dataset, before validation rows are held out and rows are sampled.
        splits: Rows by split, after validation rows are held out and rows are sampled.
    """

    task: Task
    requested: Any
    dataset: LoadedDataset
    splits: Splits

    def for_run(self, settings: dict[str, Any], splits: Splits) -> "LoadedData":
        """Return the same data with other settings and splits, for one of several runs.

        The settings must not change how rows are parsed.
        """
        task = type(self.task)(dataclasses.replace(self.task.config, **settings))
        task.state = copy.deepcopy(self.task.state)
        return LoadedData(task, dataclasses.replace(self.requested, **settings), self.dataset, splits)


def create_task(task_name: str, config: RunConfig) -> Task:
    """Create a task, and fill in the settings `data` and `data_dir`."""
    config = fill_unset(config, {"data": config.resolve_data_name()})
    if not config.data:
        raise UserError(
            "--data: is required; pass a known dataset (see bertkit data ls), a file, a directory, or sample"
        )
    return task_class(task_name)(fill_data_dir(config))


def load_data(task_name: str, config: RunConfig) -> LoadedData:
    """Load and parse the data, and fill in the default settings of the dataset, which defines the splits."""
    task = create_task(task_name, config)
    requested = task.config
    dataset = task.load_data()
    ineffective = task.config.list_ineffective_settings()
    defaults = select_dataset_defaults(dataset, type(task))
    defaults = {name: value for name, value in defaults.items() if name not in ineffective}
    task.resolve(**select_unset(task.config, defaults))
    dataset = parse_all_rows(task, dataset)
    return LoadedData(task, requested, dataset, dataset.splits)


def select_dataset_defaults(dataset: LoadedDataset, task_type: type[Task]) -> dict[str, Any]:
    """Return the default settings of a dataset, without those that the task does not have.

    Settings that name columns are also left out if the rows lack these columns. A user's copy of a known
    dataset may have other columns.
    """
    row_columns = set(dataset.splits["train"].columns)
    task_settings = get_settings(task_type.definition.config)
    selected = {}
    for key, value in dataset.defaults.items():
        name = task_type.definition.config.column_aliases.get(key, key)
        columns = {value} if isinstance(value, str) else value
        if name in task_settings and (not is_column_setting(name) or row_columns.issuperset(columns)):
            selected[name] = value
    return selected


def resolve_row_columns(task: Task, read: Splits, splits: Splits) -> list[str]:
    """Check the columns of groups, times and weights in parsed rows; return notes on them.

    Only training rows need weights. `read` are the rows as they were read, whose columns an error names.
    """
    group_column, time_column, weight_column = (
        task.config.group_column, task.config.time_column, task.config.weight_column,
    )  # fmt: skip
    notes = []
    flags = {GROUP_FLAG: group_column, TIME_FLAG: time_column, WEIGHT_FLAG: weight_column}
    for flag, column in flags.items():
        if column is not None:
            if column in task.input_schema.gold_columns or (
                column in read["train"].columns and column not in splits["train"].columns
            ):
                raise UserError(f"{flag} {column}: is the column of the labels; name another column")
            for name in ["train"] if flag == WEIGHT_FLAG else splits:
                if column not in splits[name].columns:
                    require_column(read[name], column, flag)
                require_column(splits[name], column, flag)
    if weight_column is not None:
        read_weights(splits["train"], weight_column)  # refuses values that are no weights
        notes.append(describe_weights(splits["train"], weight_column))
    if group_column is not None:
        notes += check_groups(splits["train"], group_column)
    if time_column is not None:
        task.state.time_column = find_time_column(splits, time_column)
    return notes


def parse_dataset(task: Task, dataset: LoadedDataset) -> LoadedDataset:
    """Return the dataset with parsed rows, and with notes on the columns that split them or are not read."""
    parsed = task.parse_dataset(dataset)
    parsed = dataclasses.replace(
        parsed, notes=[*parsed.notes, *resolve_row_columns(task, dataset.splits, parsed.splits)]
    )
    if dataset.defaults:  # the registry names the columns of a known dataset
        return parsed
    unread = describe_unread_columns(task, dataset.splits["train"])
    return dataclasses.replace(parsed, notes=[*parsed.notes, *unread])


def parse_all_rows(task: Task, dataset: LoadedDataset) -> LoadedDataset:
    """Parse the rows of a dataset, and apply `--label-fixes` to the training rows.

    The fixes come before the split, so that no row is held out with a label that was changed.
    """
    dataset = parse_dataset(task, dataset)
    splits = {name: task.parse_rows(rows)[0] for name, rows in dataset.splits.items()}
    dataset = dataclasses.replace(dataset, splits=splits)
    path = task.config.label_fixes
    if path is None:
        return dataset
    splits["train"], fixes = apply_label_fixes(task, splits["train"], expand_home(path))
    changed = format_count(fixes["changed"], "training row")
    notes = [*dataset.notes, f"{Path(fixes['file']).name}: {changed} changed, {fixes['dropped']:,} dropped"]
    if fixes["dropped"] and task.config.max_train_samples:
        notes.append("the dropped rows change which rows --max-train-samples selects")
    return dataclasses.replace(dataset, splits=splits, notes=notes, label_fixes=fixes)


# ---- splits


def split_parsed_rows(task: Task, dataset: LoadedDataset) -> Splits:
    """Return the splits that a run uses, from the rows of a parsed dataset, and report how they were made."""
    splits, notes = split_and_sample(task, dataset.splits)
    task.validate_splits(splits)
    for note in [*dataset.notes, *notes]:
        report_info(note)
    for section in summarize_split_columns(task, splits).values():
        report_info(describe_sides(section))
    if task.config.keep_overlap:
        rows = format_count(len(splits["train"]), f"training {task.definition.unit}")
        for reason, is_affected in find_split_overlap(splits, task.split_keys).items():
            report_warning(
                f"{is_affected.sum():,} of {rows} are {reason} and are kept (--keep-overlap): "
                "its scores are too high"
            )
    return splits


def summarize_split_columns(task: Task, splits: Splits) -> dict[str, Any]:
    """Return the sections "groups" and "time" of the data in `metrics.json`, which exist with their flags."""
    group_column, time_column = task.config.group_column, task.state.time_column
    return {
        **({"groups": count_groups(splits, group_column)} if group_column else {}),
        **({"time": find_time_ranges(splits, time_column)} if time_column else {}),
    }


def describe_group_risk(task: Task, train: Rows, held_out: Rows) -> list[str]:
    """Return a note if rows were split at random although a column says which of them belong together."""
    if task.config.group_column or task.config.time_column or not task.definition.predicts_rows:
        return []
    column = find_obvious_groups(train, list_read_columns(task))
    if column is None:
        return []
    count = int(np.isin(hash_groups(held_out, column), hash_groups(train, column)).sum())
    if not count:
        return []
    return [
        f"{count:,} of {format_count(len(held_out), f'held-out {task.definition.unit}')} have a {column} "
        "that training rows have, too, so scores may be too high; "
        f"{GROUP_FLAG} {shlex.quote(column)} keeps each on one side"
    ]


def split_and_sample(task: Task, splits: Splits) -> tuple[Splits, list[str]]:
    """Hold out a validation split, remove training rows that are in another split, and sample rows.

    Returns:
        The splits, and notes that describe these changes.
    """
    config = task.config
    seed = config.seed if config.split_seed is None else config.split_seed
    all_splits, notes = make_splits(
        splits, task.split_keys, config.validation_fraction, seed, config.keep_overlap
    )
    if not config.keep_overlap:
        notes += _check_removed_classes(task, splits, all_splits)
    if "validation" not in splits:
        notes += describe_group_risk(task, all_splits["train"], all_splits["validation"])
    sampled = {
        name: sample_training_rows(task, rows, seed)
        if name == "train"
        else sample_rows(rows, config.max_eval_samples, seed)
        for name, rows in all_splits.items()
    }
    return sampled, notes


def sample_training_rows(task: Task, rows: Rows, seed: int) -> Rows:
    """Return `--shots` rows per class, or at most `--max-train-samples` rows."""
    shots = task.config.shots
    if shots is None:
        return sample_rows(rows, task.config.max_train_samples, seed)
    classifier: Any = task
    if task.config.max_train_samples is not None:
        raise UserError(f"--shots {shots}: replaces --max-train-samples; omit one of them")
    if not classifier.labels:
        raise UserError(f"--shots {shots}: regression has no classes; use --max-train-samples")
    labels = classifier.encode_labels(rows, required=True)
    membership = to_membership(labels, len(classifier.labels))
    return sample_per_class(rows, membership, classifier.labels, shots, seed)


def _check_removed_classes(task: Task, splits: Splits, new_splits: Splits) -> list[str]:
    """Check that each class still has training rows; return a note on the classes that are all held out."""
    is_held_out = "validation" not in splits
    num_held_out = len(new_splits["validation"]) if is_held_out else 0
    has_columns = task.config.group_column or task.config.time_column  # then strata can be held out
    if not has_columns and len(new_splits["train"]) + num_held_out == len(splits["train"]):
        return []  # no row was removed
    missing = task.split_keys(splits["train"]).classes - task.split_keys(new_splits["train"]).classes
    held_out = missing & task.split_keys(new_splits["validation"]).classes if is_held_out else set()
    if removed := sorted(missing - held_out):
        raise UserError(
            f"{splits['train'].files[0]}: every training row of {format_list(map(repr, removed))} is also in "
            "an evaluation split; keep these rows with --keep-overlap, or remove them from that split"
        )
    names = format_list(map(repr, sorted(held_out)))
    fix = "add earlier rows" if task.config.time_column else "pass another --split-seed"
    return [f"every row of {names} is held out for validation; {fix}"] if names else []


# ---- the data of a finished run


def select_data_again(config: RunConfig, data: DataObject) -> dict[str, Any]:
    """Return the settings by which one object with all splits replaces those that were not saved."""
    return {**dict.fromkeys(list_passed_data(config)), "data": data}


def require_same_data(folder: Path, fingerprints: dict[str, str]) -> None:
    """Raise a `UserError` unless the data has the fingerprints of a finished run."""
    if (folder / RunDir.LOGITS_FILE).exists():
        raise UserError(
            f"{folder}: is a fold of a study or a ladder, whose rows cannot be loaded again; train it alone"
        )
    saved = RunDir(folder).read_provenance()["data"]
    saved = {name: fingerprint for name, fingerprint in saved.items() if name != UNLABELED_ROWS}
    if changes := describe_changes(saved, fingerprints):
        raise UserError(f"{folder}: the data of this run has changed ({changes}); restore the data")


def reload_run_data(
    folder: Path, data: DataObject | None = None, function: str = "evaluate"
) -> tuple[LoadedDataset, Splits]:
    """Load the data of a finished run again, with the settings of the run.

    Args:
        folder: The run directory.
        data: The object that the run was trained on; ignored if the run was trained on files.
        function: Python function that accepts the object, for the error message.

    Returns:
        The dataset, and the splits. Those of an ensemble are only the training rows, unless the dataset has a
        validation split: the members were trained on all other rows.
    """
    task = load_run_task(folder, accepts_ensemble=True)
    if data and list_passed_data(task.config):
        task.resolve(**select_data_again(task.config, data))
    require_data_objects(task.config, format_python_call(function, {"run": str(folder)}, ["data"]))
    is_ensemble = bool(RunDir(folder).find_members())
    with silence_reports():
        dataset = task.load_data()
        has_validation = "validation" in dataset.splits
        dataset = parse_all_rows(task, dataset)
        if is_ensemble and not has_validation:
            return dataset, {"train": dataset.splits["train"]}
        splits = split_parsed_rows(task, dataset)
    if not is_ensemble:  # its members have the fingerprints of their own folds
        require_same_data(folder, fingerprint_splits(splits))
    return dataset, splits


# ---- label fixes

EXPORT_HINT = "export the decisions from label_issues.html again"


class LabelFix(msgspec.Struct):
    """The decision about one label, from a line of the file."""

    file: str
    row_number: int = msgspec.field(name="row")  # see `Rows.row_numbers`
    text: str  # result of `hash_inputs` for the row
    action: Literal["keep", "change", "drop"]
    old: Any = msgspec.field(name="from")
    new: str | int | float | bool | None = msgspec.field(name="to", default=None)
    word: int | msgspec.UnsetType = msgspec.UNSET  # index of the word whose tag is `old`
    label: str | msgspec.UnsetType = msgspec.UNSET  # of a label set; it is present if `old` is true
    location: str = ""  # file and line of the decision, for errors

    @property
    def row(self) -> tuple[str, int]:
        """Name of the file and number of the row."""
        return self.file, self.row_number

    @property
    def part(self) -> int | str | None:
        """The word or the label; None if `old` is the label of the row."""
        part = self.label if isinstance(self.word, msgspec.UnsetType) else self.word
        return None if isinstance(part, msgspec.UnsetType) else part


def read_label_fixes(path: Path) -> list[LabelFix]:
    """Return the decisions in a file."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(f"--label-fixes {path}: cannot be read ({reason}); check the path") from error
    fixes: list[LabelFix] = []
    seen: dict[Any, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        location = f"{path}: line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{location}: cannot parse it as JSON ({error}); correct or remove the line"
            ) from error
        fix: LabelFix = validate(record, LabelFix, location, EXPORT_HINT)
        fix.location = location
        if fix.action == "change" and fix.new is None:
            raise UserError(f"{location}: has no new label in 'to'; add it, or choose another action")
        if (first := seen.setdefault((fix.row, fix.part), f"line {number}")) != f"line {number}":
            raise UserError(f"{location}: decides about the same label as {first}; remove one of the two")
        fixes.append(fix)
    return fixes


def hash_inputs(rows: Rows, columns: Iterable[str]) -> list[str]:
    """Return a digest of each row's values in the input columns.

    It is the beginning of the SHA-256 of the values as a JSON list, without spaces, in UTF-8.
    """
    digests = []
    for values in zip(*(rows[column] for column in columns), strict=True):
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        digests.append(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16])
    return digests


def get_row_name(rows: Rows, index: int) -> tuple[str, int]:
    """Return the name of a row's file, without its directory, and the number of the row."""
    return PurePath(rows.files[rows.file_index[index]]).name, int(rows.row_numbers[index])


# Types of `LabelFix.part` and `LabelFix.new`, by `InputSchema.label_key`.
TYPES_BY_KEY: Mapping[str, tuple[type, type]] = {"word": (int, str), "label": (str, bool)}


def apply_label_fixes(task: Task, rows: Rows, path: Path) -> tuple[Rows, dict[str, Any]]:
    """Change the labels of parsed training rows, and drop rows, as a file of label fixes says.

    Returns:
        The rows, and the file with its checksum and the numbers of changed and of dropped rows.
    """
    fixes = read_label_fixes(path)
    for fix in fixes:
        _check_part(fix, task.input_schema.label_key)
    indices = _match_rows(task, rows, fixes)
    labels = task.get_labels(rows.select(indices))
    label_by_index = dict(zip(indices, labels, strict=True))
    new_labels: dict[int, Any] = {}
    dropped: set[int] = set()
    for fix, index in zip(fixes, indices, strict=True):
        _check_label(fix, label_by_index[index])
        if fix.action == "drop":
            dropped.add(index)
        elif fix.action == "change":
            new_labels[index] = _set_label(fix, new_labels.get(index, label_by_index[index]))
    changed = {index: label for index, label in new_labels.items() if index not in dropped}
    locations = {index: fix.location for fix, index in zip(fixes, indices, strict=True)}
    fixed = _replace_labels(task, rows, changed, locations)
    return _drop_rows(task, rows, fixed, dropped, path), {
        "file": str(path.resolve()), "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "changed": len(changed), "dropped": len(dropped),
    }  # fmt: skip


def _check_part(fix: LabelFix, key: Literal["word", "label"] | None) -> None:
    """Check that a fix selects a part of the label as `InputSchema.label_key` of the task requires."""
    if key is None:
        if fix.part is not None:
            raise UserError(
                f"{fix.location}: selects a part of the label with 'word' or 'label', but each row has a "
                f"single label; {EXPORT_HINT}"
            )
        return
    part_type, new_type = TYPES_BY_KEY[key]
    if not isinstance(fix.part, part_type):
        raise UserError(
            f"{fix.location}: lacks the key {key!r}, which selects one of the row's labels; {EXPORT_HINT}"
        )
    if fix.action == "change" and not isinstance(fix.new, new_type):
        raise UserError(
            f"{fix.location}: cannot change the label to {shorten_repr(fix.new)}; write "
            f"{'a tag' if key == 'word' else 'true or false'} in 'to'"
        )


def _match_rows(task: Task, rows: Rows, fixes: Sequence[LabelFix]) -> list[int]:
    """Return the index of the row of each fix: the row of its file and number, with its text."""
    numbers = [number for _, number in {fix.row for fix in fixes} if number.bit_length() < 64]
    candidates = np.flatnonzero(np.isin(rows.row_numbers, np.array(numbers, dtype=np.int64)))
    texts = hash_inputs(rows.select(candidates), task.input_schema.text_columns)
    indices_by_row: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    for index, text in zip(candidates.tolist(), texts, strict=True):
        indices_by_row[get_row_name(rows, index)][text] = index
    indices = []
    for fix in fixes:
        (file, number), index_by_text = fix.row, indices_by_row.get(fix.row, {})
        if not index_by_text:
            raise UserError(
                f"{fix.location}: the training rows have no row {number} of {file}; pass the data that the "
                "decisions were made on"
            )
        if fix.text not in index_by_text:
            raise UserError(
                f"{fix.location}: row {number} of {file} has another text than the reviewed row; pass the "
                "data that the decisions were made on"
            )
        indices.append(index_by_text[fix.text])
    return indices


def _check_label(fix: LabelFix, label: Any) -> None:
    """Raise a `UserError` if the label of the row is not the one that was reviewed."""
    if isinstance(fix.part, int):
        given = label[fix.part] if 0 <= fix.part < len(label) else None
    else:
        given = label if fix.part is None else fix.part in label
    if given != fix.old:
        file, number = fix.row
        raise UserError(
            f"{fix.location}: row {number} of {file} has the label {shorten_repr(given)}, not "
            f"{shorten_repr(fix.old)}; pass the data that the decisions were made on"
        )


def _set_label(fix: LabelFix, label: Any) -> Any:
    """Return the label of a row after a fix."""
    if isinstance(fix.part, int):
        return [*label[: fix.part], fix.new, *label[fix.part + 1 :]]
    if isinstance(fix.part, str):
        others = [name for name in label if name != fix.part]
        return [*others, fix.part] if fix.new else others
    return fix.new


def _replace_labels(task: Task, rows: Rows, labels: Mapping[int, Any], locations: Mapping[int, str]) -> Rows:
    """Return the rows with other labels; an error names the location of the fix."""
    try:
        return task.replace_labels(rows, labels) if labels else rows
    except UserError:
        for index, label in labels.items():
            try:
                task.replace_labels(rows, {index: label})
            except UserError as error:
                raise UserError(f"{locations[index]}: {error}") from error
        raise


def _drop_rows(task: Task, rows: Rows, fixed: Rows, dropped: set[int], path: Path) -> Rows:
    """Return the fixed rows without those that are dropped; check that all classes of `rows` remain."""
    classes = task.split_keys(rows).classes
    if dropped:
        fixed = fixed.select(np.setdiff1d(np.arange(len(rows)), sorted(dropped)))
    if not len(fixed):
        raise UserError(f"--label-fixes {path}: drops every training row; keep some")
    if missing := classes - task.split_keys(fixed).classes:
        raise UserError(
            f"--label-fixes {path}: no training row of {format_list(map(repr, sorted(missing)))} remains; "
            "keep some of them, or remove the label from the data"
        )
    return fixed
