"""Class names of columns that hold class ids, as the `datasets` library declares them in Arrow schemas."""

import json
from collections.abc import Sequence
from typing import Any

from bertkit.data.readers.json import JSON_ERRORS
from bertkit.errors import UserError, format_list


def read_class_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Return the class names of each column, in the order of their ids.

    The `datasets` library writes them to the metadata of Parquet and Arrow files. Its own parser refuses the
    whole schema if one column has a feature that this version does not know, or other types than in the file.
    """
    try:
        features: Any = json.loads(metadata.get(b"huggingface", b"{}"))
    except JSON_ERRORS:  # metadata of another program
        return {}
    for key in ("info", "features"):
        features = features.get(key) if isinstance(features, dict) else None
    if not isinstance(features, dict):
        return {}
    elements = {name: _get_element_feature(feature) for name, feature in features.items()}
    return {name: element["names"] for name, element in elements.items() if _is_class_label(element)}


def map_class_ids(
    place: object, first_row: int, column: str, class_ids: list[Any], names: Sequence[str]
) -> list[Any]:
    """Return the names of class ids. None and negative ids (on the Hub, -1 means "no label") become None.

    Args:
        place: The file or object, for errors.
        first_row: Number of the first row, for errors.
        column: Name of the column, for errors.
        class_ids: The ids.
        names: Names of the ids 0, 1, ...

    Raises:
        UserError: An id has no name.
    """
    for row, class_id in enumerate(class_ids, start=first_row):
        if class_id is not None and class_id >= len(names):
            classes = f"there are names of {len(names)} classes ({format_list(names)})"
            raise UserError(
                f"{place}: row {row}: column {column!r} holds class {class_id}, and {classes}; "
                "correct the row or the names"
            )
    return [names[class_id] if class_id is not None and class_id >= 0 else None for class_id in class_ids]


def _is_class_label(feature: Any) -> bool:
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return False
    names = feature.get("names")
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)


def _get_element_feature(feature: Any) -> Any:
    """Return the feature of the elements if a feature is a list; otherwise return the feature.

    Older versions of `datasets` wrote a list of one feature instead of an object.
    """
    if isinstance(feature, list):
        return feature[0] if feature else None
    return feature.get("feature", feature) if isinstance(feature, dict) else None
