"""The page on which label issues are reviewed; it exports the decisions as a file of label fixes."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from bertkit.reports.page import render_template
from bertkit.tasks.view import MAX_BYTES, MAX_EXAMPLES, TEXT_LENGTHS, dump_compact_json

ELLIPSIS = " …"


def render_review_page(
    study: str, task: str, num_rows: int, issues: Sequence[Mapping[str, Any]], choices: Sequence[Any]
) -> str:
    """Render the page of all issues; if it would be too large, shorten texts and leave out the last issues.

    `choices` are the labels that the reviewer can choose from; empty if there is only the suggested one.
    """
    shown, length, data = list(issues[:MAX_EXAMPLES]), TEXT_LENGTHS[0], ""
    digest = blake2b(dump_compact_json(list(issues)).encode(errors="replace"), digest_size=8)
    # The browser stores the decisions under this key.
    settings = {"task": task, "choices": list(choices), "key": digest.hexdigest()}
    for length in TEXT_LENGTHS:
        data = _dump(settings, shown, length)
        if len(data) <= MAX_BYTES:
            break
    while len(data) > MAX_BYTES:
        shown = shown[: len(shown) // 2]
        data = _dump(settings, shown, length)
    return render_template(
        "label_review.html", "review.js", title=f"Label issues of {study}", task=task, num_rows=num_rows,
        num_issues=len(issues), num_shown=len(shown), text_length=length, data=data,
    )  # fmt: skip


def _dump(settings: Mapping[str, Any], issues: Sequence[Mapping[str, Any]], length: int | None) -> Any:
    """Return JSON for a script element, with texts of at most `length` characters."""
    rows = [_pack(issue, length) for issue in issues]
    return htmlsafe_json_dumps({**settings, "issues": rows}, dump_compact_json)


def _pack(issue: Mapping[str, Any], length: int | None) -> dict[str, Any]:
    """Return an issue with its inputs as pairs of a name and a list: text before, marked word, text after."""
    fields = [[name, _split_value(value, issue.get("word"))] for name, value in issue["inputs"].items()]
    for _, parts in fields:
        parts[:] = [
            _shorten(part, length, from_end=index == 0 and len(parts) > 1) for index, part in enumerate(parts)
        ]
    return {key: value for key, value in issue.items() if key != "inputs"} | {"fields": fields}


def _split_value(value: Any, word: int | None) -> list[str]:
    """Return a text in one part, numbered endings, or a sentence in three parts around the word at `word`."""
    if isinstance(value, (list, tuple)):
        words = list(map(str, value))
        if word is None:  # endings, which labels name by their index
            return [" · ".join(f"{index}: {text}" for index, text in enumerate(words))]
        return [" ".join(words[:word]), words[word], " ".join(words[word + 1 :])]
    return ["" if value is None else str(value)]


def _shorten(text: str, length: int | None, from_end: bool) -> str:
    if length is None or len(text) <= length:
        return text
    return ELLIPSIS.strip() + text[-length:] if from_end else text[:length] + ELLIPSIS
