"""`bertkit label-issues STUDY`: print the most probable label issues of a study."""

from typing import TYPE_CHECKING, Any

from bertkit.cli.options import build_command
from bertkit.cli.streams import print_json
from bertkit.commands.configs import LABEL_ISSUES_HELP, LabelIssuesConfig

if TYPE_CHECKING:
    from bertkit.commands.label_issues import LabelIssues

MAX_PRINTED = 20
MAX_TEXT_CHARS = 60


def _run(settings: dict[str, Any], as_json: bool) -> None:
    from bertkit.commands.label_issues import find_label_issues

    result = find_label_issues(settings)
    if as_json:
        print_json(result.summary)
    else:
        print_label_issues(result)


def print_label_issues(result: "LabelIssues") -> None:
    """Print the first issues as a table, and where all issues are."""
    from bertkit.cli.console import out_console, print_records
    from bertkit.commands.label_issues import describe_counts

    if result.records:
        print_records([_format_issue(record) for record in result.records[:MAX_PRINTED]])
    out_console.print(describe_counts(result), markup=False, soft_wrap=True)
    out_console.print(f"review: {result.summary['page']}", markup=False, soft_wrap=True)


def _format_issue(record: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of an issue."""
    values = (
        " ".join(map(str, value)) if isinstance(value, list) else str(value)
        for value in record["inputs"].values()
    )
    text = " ".join(" | ".join(values).split())
    part: dict[str, Any] = {name: record[name] for name in ("word", "label") if name in record}
    if "word" in record:
        part["word"] = record["inputs"]["tokens"][record["word"]]
    return {
        "row": f"{record['file']}: {record['row']}", **part,
        "text": text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 3]}...",
        "given": _format_label(record["given"]), "suggested": _format_label(record["suggested"]),
        "reason": record["reason"],
        "score": float(record["score"]),
    }  # fmt: skip


def _format_label(label: Any) -> Any:
    """Return a label as it is; that of a label set is whether the row has it."""
    return ("absent", "present")[label] if isinstance(label, bool) else label


label_issues = build_command(LabelIssuesConfig, LABEL_ISSUES_HELP, _run)
