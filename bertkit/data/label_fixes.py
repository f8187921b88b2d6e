"""Label fixes: decisions to keep, change or drop labels of training rows, one JSON object per line."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, TypedDict

from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.utils.compat import NotRequired
from bertkit.utils.serialization import validate

TEXT_DIGITS = 16  # hexadecimal digits of the SHA-256 that identifies the texts of a row
EXPORT_HINT = "export the decisions from label_issues.html again"
Action = Literal["keep", "change", "drop"]
FixRecord = TypedDict(
    "FixRecord",
    {
        "file": str, "row": int, "text": str, "action": Action, "from": Any,
        "to": NotRequired[str | int | float | bool | None],
        "word": NotRequired[int], "label": NotRequired[str],
    },
)  # fmt: skip


@dataclass(frozen=True)
class LabelFix:
    """The decision about one label.

    Attributes:
        location: File and line of the decision, for errors.
        row: Name of the file and number of the row; see `Rows.row_numbers`.
        text: The result of `hash_inputs` for the row.
        action: What to do with the label, or with the row if it is "drop".
        old: The label before the change.
        new: The label after the change.
        part: Index of the word whose tag is `old`, or the label of a label set that is present if `old` is
            true. None if `old` is the label of the row.
    """

    location: str
    row: tuple[str, int]
    text: str
    action: Action
    old: Any
    new: Any
    part: int | str | None

    @classmethod
    def from_record(cls, record: Any, location: str) -> "LabelFix":
        """Return the decision of one line.

        Raises:
            UserError: The record does not have the keys of a label fix.
        """
        fields: FixRecord = validate(record, FixRecord, location, EXPORT_HINT)
        if fields["action"] == "change" and fields.get("to") is None:
            raise UserError(f"{location}: has no new label in 'to'; add it, or choose another action")
        return cls(
            location, (fields["file"], fields["row"]), fields["text"], fields["action"], fields["from"],
            fields.get("to"), fields.get("word", fields.get("label")),
        )  # fmt: skip


def read_label_fixes(path: Path) -> list[LabelFix]:
    """Return the decisions in a file.

    Raises:
        UserError: The file cannot be read, or a line is not a label fix.
    """
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
        fix = LabelFix.from_record(_parse_line(line, f"{path}: line {number}"), f"{path}: line {number}")
        if (first := seen.setdefault((fix.row, fix.part), f"line {number}")) != f"line {number}":
            raise UserError(f"{fix.location}: decides about the same label as {first}; remove one of the two")
        fixes.append(fix)
    return fixes


def _parse_line(line: str, location: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{location}: cannot parse it as JSON ({error}); correct or remove the line"
        ) from error


def hash_inputs(rows: Rows, columns: Iterable[str]) -> list[str]:
    """Return a digest of each row's values in the input columns.

    It is the beginning of the SHA-256 of the values as a JSON list, without spaces, in UTF-8.
    """
    return [hash_texts(values) for values in zip(*(rows[column] for column in columns), strict=True)]


def hash_texts(values: Sequence[Any]) -> str:
    """Return the digest of the input values of one row; see `hash_inputs`."""
    text = json.dumps(list(values), ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:TEXT_DIGITS]


def get_row_name(rows: Rows, index: int) -> tuple[str, int]:
    """Return the name of a row's file, without its directory, and the number of the row."""
    return PurePath(rows.files[rows.file_index[index]]).name, int(rows.row_numbers[index])
