"""Rows of tokens and tags, or of a text and spans in it, in the one form that tagging works on."""

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import Any

from bertkit.data.columns import require_column
from bertkit.data.ner.columns import match_split_columns
from bertkit.data.ner.documents import DocumentPosition
from bertkit.data.ner.schemes import Scheme, count_violations, detect_scheme, find_invalid_tag, to_iob2
from bertkit.data.ner.spans import convert_spans_to_tags, extract_entities, parse_span, strip_span
from bertkit.data.ner.tags import build_iob2_labels
from bertkit.data.ner.words import join_words, split_words
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, format_list, suggest_similar
from bertkit.utils.text import has_lone_surrogate

RESERVED_COLUMNS = ("tokens", "text", "tags", "iob2", "context")  # columns made here
WIDENED_SPANS_NOTE = "spans end inside a word and are taken for the whole word"
MAX_ENTITY_TYPES = 200  # more different types than this are no types: another column was taken for the tags


def parse_split(
    rows: Rows, split: str, columns: tuple[str, str], train_scheme: Scheme | None
) -> tuple[Rows, Scheme | None, list[str]]:
    """A split in the one form (see `in_tokens`), its tags also in IOB2, their scheme, and notes.

    Args:
        columns: the training rows' columns of tokens and tags.
        like: the training rows' scheme.
    """
    token, tag = match_split_columns(rows, columns)
    found = normalize_sentences(rows, token, tag)
    wider = _wider(rows, token, tag, found)
    rows, notes = _without_empty(found, split)
    if wider:
        notes.append(f"{wider:,} {split} {WIDENED_SPANS_NOTE}")
    if "tags" not in rows.columns:
        return rows, None, notes
    rows, scheme, more = _in_iob2(rows, split, train_scheme)
    return rows, scheme, notes + more


def normalize_sentences(rows: Rows, token_column: str, tag_column: str | None) -> Rows:
    """The rows with `tokens`, the `text` they stand in, their `context` and, where they are tagged, `tags`.

    A text is taken apart by `words_of`, and its spans become IOB2 tags. Columns of the same names that
    are something else are kept as `input_NAME`.

    Raises:
        UserError: a row whose tokens, tags or spans are none, or do not fit each other.
    """
    require_column(rows, token_column, "the tokens")
    values = rows[token_column]
    tokens = [_tokens(rows, index, value, token_column) for index, value in enumerate(values)]
    texts = [v if isinstance(v, str) else join_words(t) for v, t in zip(values, tokens, strict=True)]
    columns: dict[str, list[Any]] = {
        f"input_{name}" if name in RESERVED_COLUMNS else name: column
        for name, column in rows.columns.items()
        if name not in (token_column, tag_column)
    }
    alone = [DocumentPosition([sentence], 0) for sentence in zip(tokens, texts, strict=True)]
    columns |= {"tokens": tokens, "text": texts, "context": alone}
    if tag_column in rows.columns and any(value is not None for value in rows[tag_column]):
        columns["tags"] = [
            convert_spans_to_tags(rows, index, value, texts[index], tokens[index])
            if isinstance(values[index], str)
            else _tags(rows, index, value, tokens[index], tag_column)
            for index, value in enumerate(rows[tag_column])
        ]
    return replace(rows, columns=columns)


def is_normalized(rows: Rows) -> bool:
    """Whether the rows are in that form: a user's own `tokens` and `text` may be anything."""
    return isinstance(next(iter(rows.columns.get("context", ())), None), DocumentPosition)


def _tokens(rows: Rows, index: int, value: Any, column: str) -> list[str]:
    if isinstance(value, str):
        return split_words(value)
    if not isinstance(value, (list, tuple)):
        what = "nothing" if value is None else repr(value)
        raise UserError(
            f"{rows.format_location(index)}: column {column!r} holds {what}, neither a list of tokens nor a text"
        )
    if not all(isinstance(token, str) for token in value):
        place = next(place for place, token in enumerate(value) if not isinstance(token, str))
        raise UserError(
            f"{rows.format_location(index, place)}: token {place + 1} is {value[place]!r}, not a text"
        )
    return list(value)


def _tags(rows: Rows, index: int, value: Any, tokens: Sequence[str], column: str) -> list[str]:
    if not isinstance(value, (list, tuple)):
        what = "no tags" if value is None else f"{value!r}, not a list of tags,"
        raise UserError(
            f"{rows.format_location(index)}: {what} in column {column!r} for {format_count(len(tokens), 'token')}"
        )
    if len(value) != len(tokens):
        raise UserError(
            f"{rows.format_location(index)}: {format_count(len(value), 'tag')} in column {column!r} for "
            f"{format_count(len(tokens), 'token')}"
        )
    for place, tag in enumerate(value):
        if not isinstance(tag, str) or not tag:
            numbers = isinstance(tag, int)
            what = "a number that nothing names; write the tag itself" if numbers else "no tag"
            raise UserError(
                f"{rows.format_location(index, place)}: tag {tag!r} of {tokens[place]!r} is {what}"
            )
    return list(value)


def _wider(before: Rows, token: str, tag: str | None, rows: Rows) -> int:
    """How many spans are not what their tags stand for."""
    if tag not in before.columns or "tags" not in rows.columns:
        return 0
    count = 0
    for index, (value, some) in enumerate(zip(before[token], before[tag], strict=True)):
        if isinstance(value, str):
            made = extract_entities(rows["tags"][index], rows["tokens"][index], value)
            whole = {(entity["start"], entity["end"]) for entity in made}
            count += sum(strip_span(value, span) not in whole for span in map(parse_span, some) if span)
    return count


def _without_empty(rows: Rows, split: str) -> tuple[Rows, list[str]]:
    """The rows that have tokens, and a note where some have none."""
    kept = [index for index, tokens in enumerate(rows["tokens"]) if tokens]
    if not kept:
        raise UserError(f"{rows.files[0]}: no row has a token")
    if len(kept) == len(rows):
        return rows, []
    return rows.select(kept), [f"{len(rows) - len(kept):,} {split} rows left out: they have no tokens"]


def _in_iob2(rows: Rows, split: str, like: Scheme | None) -> tuple[Rows, Scheme, list[str]]:
    """The rows with their tags in IOB2, the scheme they came in, and notes on it.

    Args:
        like: the training rows' scheme, which holds where the tags do not speak against it.

    Raises:
        UserError: a tag that is none.
    """
    tags = rows["tags"]
    _check_halves(rows)
    scheme = detect_scheme(tags, like)
    if wrong := find_invalid_tag(tags, scheme):
        index, place = wrong
        raise UserError(f"{rows.format_location(index, place)}: {tags[index][place]!r} is no tag of {scheme}")
    notes = [f"the {split} tags are {scheme}"] if like not in (None, scheme) else []
    if count := count_violations(tags, scheme):
        notes.append(f"{count:,} {split} tags are illegal in {scheme.name} and read by conlleval's rule")
    return rows.with_column("iob2", to_iob2(tags, scheme)), scheme, notes


def _check_halves(rows: Rows) -> None:
    """Raise a `UserError` at a tag that no file of predictions can hold."""
    halves = set(filter(has_lone_surrogate, set(chain.from_iterable(rows["tags"]))))
    if halves:
        index, place = _first(rows["tags"], halves)
        raise UserError(
            f"{rows.format_location(index, place)}: tag {rows['tags'][index][place]!a} holds half of a surrogate pair, "
            "which no file of predictions can; give it another name"
        )


def _first(lists: Sequence[Sequence[str]], wanted: Set[str]) -> tuple[int, int]:
    """The row, and the place in it, of the first tag that is one of these."""
    index = next(index for index, tags in enumerate(lists) if wanted & set(tags))
    return index, next(place for place, tag in enumerate(lists[index]) if tag in wanted)


def collect_types(rows: Rows, tag_column: str) -> list[str]:
    """The types of the entities, sorted. Raises `UserError` where there are none, or far too many."""
    types = sorted({tag[2:] for tag in set(chain.from_iterable(rows["iob2"])) - {"O"}})
    if not types:
        raise UserError(
            f"{rows.files[0]}: all tags in column {tag_column!r} are O; there is nothing to learn"
        )
    if len(types) > MAX_ENTITY_TYPES:
        raise UserError(
            f"{rows.files[0]}: column {tag_column!r} has {len(types):,} different types; is it the tags? "
            "--tag-column names them"
        )
    return types


def check_types(rows: Rows, types: Sequence[str]) -> None:
    """Raise a `UserError` at the first tag of a type that is none of these."""
    known = set(build_iob2_labels(types))
    strange = set(chain.from_iterable(rows["iob2"])) - known
    if not strange:
        return
    index, place = _first(rows["iob2"], strange)
    kind = rows["iob2"][index][place][2:]
    raise UserError(
        f"{rows.format_location(index, place)}: tag {rows['tags'][index][place]!r} does not occur in the training rows "
        f"(they have {format_list(types)}){suggest_similar(kind, types)}"
    )
