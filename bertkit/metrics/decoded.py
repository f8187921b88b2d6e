"""Decoded predictions, which the modules of `evaluate` score, and the types that a module accepts."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.errors import format_list

PYTHON_TYPES = {bool: "bool", int: "int", float: "float", str: "string"}


@dataclass(frozen=True)
class DecodedPredictions:
    """Predictions and gold labels as the modules of `evaluate` expect them.

    Attributes:
        predictions: One value for each row: a label id, a number, a list of 0 and 1, a list of tags, or a
            dictionary with an answer.
        references: The gold values, in the same form.
        labels: Names of the label ids. Empty if the values are not label ids.
    """

    predictions: list[Any]
    references: list[Any]
    labels: Sequence[str] = ()

    def select(self, rows: np.ndarray) -> "DecodedPredictions":
        """Return a sample of the rows, in which every row has its own id."""
        return dataclasses.replace(
            self,
            predictions=[_replace_id(self.predictions[row], index) for index, row in enumerate(rows)],
            references=[_replace_id(self.references[row], index) for index, row in enumerate(rows)],
        )

    def use_label_names(self) -> "DecodedPredictions":
        """Return the values with label names in place of label ids."""
        return DecodedPredictions(
            [self._name_labels(value) for value in self.predictions],
            [self._name_labels(value) for value in self.references],
        )

    def _name_labels(self, value: Any) -> Any:
        if isinstance(value, list):
            return [label for label, is_member in zip(self.labels, value, strict=True) if is_member]
        return self.labels[value]


def _replace_id(value: Any, index: int) -> Any:
    """Replace the id of an answer, because modules count repeated ids of a sample only once."""
    return value | {"id": str(index)} if isinstance(value, dict) else value


# ---- features


def list_features(module: Any) -> list[Mapping[str, Any]]:
    """Return the alternative features of a module; most modules have only one."""
    features = module.features
    return list(features) if isinstance(features, list) else [features]


def accepts_all(features: Mapping[str, Any], decoded: DecodedPredictions) -> bool:
    """Return whether features accept predictions and references, and need nothing else."""
    if set(features) != {"predictions", "references"}:
        return False
    return all(_accepts(features["predictions"], value) for value in decoded.predictions) and all(
        _accepts(features["references"], value) for value in decoded.references
    )


def _accepts(feature: Any, value: Any) -> bool:
    """Return whether a feature of `datasets` accepts a value without changing its type."""
    if isinstance(feature, Mapping):
        return isinstance(value, dict) and all(
            key in value and _accepts(item, value[key]) for key, item in feature.items()
        )
    if isinstance(feature, list) or hasattr(feature, "feature"):
        item_feature = feature[0] if isinstance(feature, list) else feature.feature
        return isinstance(value, list) and all(_accepts(item_feature, item) for item in value)
    dtype = str(getattr(feature, "dtype", ""))
    if isinstance(value, str):
        return dtype in ("string", "large_string")
    if isinstance(value, int):
        return dtype.startswith(("int", "uint", "float"))
    return isinstance(value, float) and dtype.startswith("float")


def select_keys(values: list[Any], feature: Any) -> list[Any]:
    """Return dictionaries with only the keys of a feature, because modules refuse other keys."""
    if not isinstance(feature, Mapping):
        return values
    return [{key: value[key] for key in feature} for value in values]


def describe_features(features: Mapping[str, Any]) -> str:
    """Return the types of the inputs of a module."""
    return format_list(f"{name}: {_describe_feature(feature)}" for name, feature in features.items())


def _describe_feature(feature: Any) -> str:
    if isinstance(feature, Mapping):
        return "{" + ", ".join(f"{key}: {_describe_feature(item)}" for key, item in feature.items()) + "}"
    if isinstance(feature, list) or hasattr(feature, "feature"):
        return f"list of {_describe_feature(feature[0] if isinstance(feature, list) else feature.feature)}"
    return str(getattr(feature, "dtype", type(feature).__name__))


def describe_predictions(decoded: DecodedPredictions) -> str:
    """Return the types of the first prediction and the first reference."""
    values = {"predictions": decoded.predictions[0], "references": decoded.references[0]}
    return format_list(f"{name}: {_describe_value(value)}" for name, value in values.items())


def _describe_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_describe_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"list of {_describe_value(value[0])}" if value else "list"
    return PYTHON_TYPES.get(type(value), type(value).__name__)
