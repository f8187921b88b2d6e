"""Markers of the two entities of a relation, as tokens in the text (Zhou and Chen 2022, typed markers)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.features import TextFeatures
from bertkit.data.table import ComputedColumn, Rows
from bertkit.errors import UserError, shorten_repr
from bertkit.utils.text import parse_literal

ROLES = ("S", "O")  # subject and object
EXAMPLE_TEXT = "[S]...[/S] ... [O]...[/O]"  # a text with marked entities, in example rows
MARKER = re.compile(r"\[(/?)([SO])(?::([^\[\]]*))?\]")  # the groups are a slash at the end, role and type
SPAN_HELP = 'such as {"start": 0, "end": 3, "type": "PER"}, or with start_idx and an inclusive end_idx'


@dataclass(frozen=True)
class Entity:
    """An entity at the characters from `start` to `stop` (exclusive); `type` is empty if it has none."""

    start: int
    stop: int
    type: str


def format_marker(role: str, entity_type: str, is_end: bool = False) -> str:
    """Return a marker such as `[S:PER]`, or `[/S:PER]` at the end of an entity."""
    return f"[{'/' * is_end}{role}{':' * bool(entity_type)}{entity_type}]"


def list_markers(types_by_role: Sequence[Iterable[str]]) -> list[str]:
    """Return the markers of all types of subjects and objects, and those without a type."""
    return [
        format_marker(role, entity_type, is_end)
        for role, types in zip(ROLES, types_by_role, strict=True)
        for entity_type in sorted({"", *types})
        for is_end in (False, True)
    ]


def parse_entity(value: Any) -> Entity | None:
    """Return the entity of a cell: a mapping, or its JSON or Python notation. None if it is not valid."""
    if isinstance(value, str):
        value = parse_literal(value)
    if not isinstance(value, dict):
        return None
    start, stop = value.get("start", value.get("start_idx")), value.get("end")
    if stop is None and _is_index(value.get("end_idx")):
        stop = value["end_idx"] + 1
    if start is None or stop is None or not (_is_index(start) and _is_index(stop)):
        return None
    entity_type = value.get("type")
    if entity_type is not None and not isinstance(entity_type, (str, int)):
        return None
    return Entity(start, stop, "" if entity_type is None else str(entity_type).strip())


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def mark_entities(text: str, entities: Sequence[Entity]) -> str:
    """Return the text with markers around the subject and the object, which must not overlap."""
    for role, entity in sorted(zip(ROLES, entities, strict=True), key=lambda pair: -pair[1].start):
        start, end = format_marker(role, entity.type), format_marker(role, entity.type, is_end=True)
        span = text[entity.start : entity.stop]
        text = f"{text[: entity.start]}{start}{span}{end}{text[entity.stop :]}"
    return text


def has_markers(text: str) -> bool:
    """Return whether a text contains the markers of both entities; takes time linear in its length."""
    markers = [match[1] + match[2] for match in MARKER.finditer(text)]  # such as "S" and "/S"
    return all(role in markers and f"/{role}" in markers[markers.index(role) :] for role in ROLES)


def remove_unknown_types(text: str, types: Sequence[Iterable[str]]) -> str:
    """Return a text with markers, where those of unknown types have no type, such as `[S]`."""
    types_by_role = dict(zip(ROLES, types, strict=True))

    def replace(match: re.Match[str]) -> str:
        slash, role, entity_type = match.groups()
        is_known = entity_type in types_by_role[role]
        return match[0] if is_known else format_marker(role, "", is_end=bool(slash))

    return MARKER.sub(replace, text)


def collect_types(rows: Rows, columns: Sequence[str]) -> list[list[str]]:
    """Return the different types of the subjects and of the objects, sorted."""
    return [
        sorted({entity.type for value in rows[column] if (entity := parse_entity(value))} - {""})
        for column in columns
    ]


def mark_rows(rows: Rows, text_column: str, columns: Sequence[str], types: Sequence[Iterable[str]]) -> Rows:
    """Return the rows with markers in the texts. An entity with an unknown type has markers without a type.

    Rows without the columns must contain the markers already. In texts with markers, only unknown types are
    removed. The columns are not read, because their positions are those of the text without markers.
    """
    known_types = [set(role_types) for role_types in types]
    if not any(column in rows.columns for column in columns):
        for index, text in enumerate(rows[text_column]):
            if not has_markers(text):
                raise UserError(
                    f"{rows.format_location(index)}: column {text_column!r} has no marked entities; mark "
                    "them, such as '[S]Ann[/S] lives in [O]Rome[/O]', or add the columns of the entities"
                )
        marked = ComputedColumn(lambda text: remove_unknown_types(text, known_types), [rows[text_column]])
        return rows.with_column(text_column, marked)
    for column, role in zip(columns, ("subject", "object"), strict=True):
        if column not in rows.columns:
            raise UserError(f"{rows.files[0]}: no column {column!r} (the {role} of the relation); add it")
    for index, values in enumerate(
        zip(rows[text_column], *(rows[column] for column in columns), strict=True)
    ):
        _check_entities(rows, index, values, columns)

    def mark(text: str, *values: Any) -> str:
        if has_markers(text):
            return remove_unknown_types(text, known_types)
        entities = [parse_entity(value) for value in values]
        return mark_entities(
            text,
            [
                entity if entity.type in role_types else Entity(entity.start, entity.stop, "")
                for entity, role_types in zip(entities, known_types, strict=True)
                if entity is not None
            ],
        )

    marked = ComputedColumn(mark, [rows[column] for column in (text_column, *columns)])
    return rows.with_column(text_column, marked)


def _check_entities(rows: Rows, index: int, values: Sequence[Any], columns: Sequence[str]) -> None:
    """Check the entities of a row: their form, their bounds, and that they do not overlap."""
    text, *cells = values
    if has_markers(text):
        return
    entities = []
    for column, cell in zip(columns, cells, strict=True):
        where = f"{rows.format_location(index)}: column {column!r}"
        entity = parse_entity(cell)
        if entity is None:
            raise UserError(f"{where}: cannot parse {shorten_repr(cell)} as an entity; write it {SPAN_HELP}")
        if set("[]") & set(entity.type):
            raise UserError(f"{where}: the type {shorten_repr(entity.type)} contains a bracket; rename it")
        if not 0 <= entity.start < entity.stop <= len(text):
            raise UserError(
                f"{where}: characters {entity.start} to {entity.stop} are not in the text of {len(text)} "
                "characters; correct the positions"
            )
        entities.append(entity)
    first, second = sorted(entities, key=lambda entity: entity.start)
    if second.start < first.stop:
        raise UserError(
            f"{rows.format_location(index)}: the entities overlap at character {second.start}; correct one "
            "of them, or remove the row"
        )


def describe_lost_markers(features: TextFeatures, marker_ids: Sequence[int]) -> list[str]:
    """Return a warning if truncation removed markers of entities."""
    if not features.num_truncated:
        return []
    num_lost = sum(
        np.isin(features.get_sequence(index)[0], marker_ids).sum() < 2 * len(ROLES)
        for index in range(len(features))
    )
    if not num_lost:
        return []
    return [
        f"{num_lost:,} of {len(features):,} training texts lost markers of an entity by truncation; pass a "
        "longer --max-length"
    ]
