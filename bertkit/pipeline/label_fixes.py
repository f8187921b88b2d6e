"""Apply the decisions of `--label-fixes` to parsed training rows."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertkit.data.label_fixes import EXPORT_HINT, LabelFix, get_row_name, hash_inputs, read_label_fixes
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, format_list, shorten_repr
from bertkit.tasks.base import Task

# Types of `LabelFix.part` and `LabelFix.new`, by `InputSchema.label_key`.
TYPES_BY_KEY: Mapping[str, tuple[type, type]] = {"word": (int, str), "label": (str, bool)}


@dataclass(frozen=True)
class FixedRows:
    """Training rows after label fixes.

    Attributes:
        rows: The rows.
        provenance: The file of the fixes, its checksum, and the numbers of changed and of dropped rows.
    """

    rows: Rows
    provenance: dict[str, Any]

    def describe(self) -> str:
        """Return one line for the console."""
        changed, dropped = self.provenance["changed"], self.provenance["dropped"]
        return (
            f"{Path(self.provenance['file']).name}: {format_count(changed, 'training row')} changed, "
            f"{dropped:,} dropped"
        )


def apply_label_fixes(task: Task, rows: Rows, path: Path) -> FixedRows:
    """Change the labels of parsed training rows, and drop rows, as a file of label fixes says.

    Args:
        task: The task, whose labels are known.
        rows: The training rows, before they are split.
        path: The file.

    Raises:
        UserError: The file is not valid, or a row does not have the recorded text or label.
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
    return FixedRows(_drop_rows(task, rows, fixed, dropped, path), {
        "file": str(path.resolve()), "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "changed": len(changed), "dropped": len(dropped),
    })  # fmt: skip


def _check_part(fix: LabelFix, key: Literal["word", "label"] | None) -> None:
    """Raise a `UserError` if a fix does not select a part of the label as the labels of the task require.

    Args:
        fix: The fix.
        key: See `InputSchema.label_key`.
    """
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
    """Return the index of the row of each fix."""
    numbers = [number for _, number in {fix.row for fix in fixes} if number.bit_length() < 64]
    candidates = np.flatnonzero(np.isin(rows.row_numbers, np.array(numbers, dtype=np.int64)))
    texts = hash_inputs(rows.select(candidates), task.input_schema.text_columns)
    indices_by_row: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    for index, text in zip(candidates.tolist(), texts, strict=True):
        indices_by_row[get_row_name(rows, index)][text] = index
    return [_find_row(fix, indices_by_row.get(fix.row, {})) for fix in fixes]


def _find_row(fix: LabelFix, index_by_text: Mapping[str, int]) -> int:
    """Return the index of the row with the text of a fix, among those with its file name and number."""
    file, number = fix.row
    if not index_by_text:
        raise UserError(
            f"{fix.location}: the training rows have no row {number} of {file}; pass the data that the "
            "decisions were made on"
        )
    if fix.text not in index_by_text:
        raise UserError(
            f"{fix.location}: row {number} of {file} has another text than the reviewed row; pass the data "
            "that the decisions were made on"
        )
    return index_by_text[fix.text]


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
