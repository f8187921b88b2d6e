"""A classifier of texts with the interface of scikit-learn, which trains like `bertkit.classify`."""

import inspect
import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from bertkit import api
from bertkit.data.labels import normalize_label
from bertkit.errors import UserError, format_count, format_list, shorten_repr, suggest_similar
from bertkit.run.predictor import Predictor
from bertkit.run_directory import RunDir
from bertkit.settings.declaration import Panel, get_settings
from bertkit.tasks.text.config import ClassifyConfig
from bertkit.utils.compat import Self

TEXT_COLUMNS, LABEL_COLUMN, WEIGHT_COLUMN = ("text", "text_pair"), "label", "sample_weight"
# Settings that name rows, which `fit` receives, and those of a run that is resumed or not finished.
DATA_SETTINGS = frozenset({"data", "validation", "test", "label_fixes", "resume", "dry_run"})
SETTINGS = {
    "recipe": "Name of a shipped recipe, or a file; settings override the recipe.",
    **{
        name: field.metadata.help
        for name, field in get_settings(ClassifyConfig).items()
        if field.metadata.panel not in (Panel.COLUMNS, Panel.FILES)
        and field.metadata.applies_to != "single run"
        and "_column" not in name
        and name not in DATA_SETTINGS
    },
}


class Classifier(ClassifierMixin, BaseEstimator):
    """A fine-tuned text classifier as an estimator of scikit-learn.

    `Classifier(model="minilm").fit(texts, labels).predict(texts)` trains like `bertkit.classify`. It has the
    settings of `bertkit.classify`, except those that name data; None means the default.

    `X` is a list, an array or a `Series` of texts; or pairs of texts, such as a `DataFrame` with two columns
    or a list of tuples. `y` has one label for each text: a text, an integer or a boolean.

    The run is in a temporary directory, which is removed with the estimator, unless `output_dir` is set. A
    pickle contains the files of the model, so that it can be loaded on another machine. It contains no rows.

    Attributes:
        classes_: The labels in the order of `predict_proba`, sorted.
        run_: The `Run`: `.metrics` are the content of `metrics.json` in `.output_dir`.
    """

    def __init__(self, **settings: Any) -> None:
        for name in settings:
            if name not in SETTINGS:
                hint = suggest_similar(name, SETTINGS) or f"; the settings are {format_list(SETTINGS)}"
                raise UserError(f"Classifier(): unknown setting {name!r}{hint}")
        self.__dict__.update(dict.fromkeys(SETTINGS) | settings)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803 - scikit-learn's names
        """Fine-tune on texts `X` and their labels `y`; a part of the rows is held out for validation.

        `sample_weight` has a number for each row, as in the column of `weight_column`.
        """
        columns: dict[str, list[Any]] = dict(_read_texts(X))
        text_names = tuple(columns)
        labels, classes = _read_labels(y, len(columns["text"]))
        names = _name_classes(classes)
        if self.out_of_scope in names:
            raise UserError(f"out_of_scope {self.out_of_scope!r}: is a class of y; pass a file of texts")
        columns[LABEL_COLUMN] = [names[label] for label in labels]
        if sample_weight is not None:
            columns[WEIGHT_COLUMN] = np.ravel(sample_weight).tolist()
            if len(columns[WEIGHT_COLUMN]) != len(labels):
                count = format_count(len(columns[WEIGHT_COLUMN]), "number")
                raise UserError(
                    f"sample_weight: has {count} for {format_count(len(labels), 'row')}; pass one for each"
                )
            for number, weight in enumerate(columns[WEIGHT_COLUMN], start=1):
                if not (isinstance(weight, (int, float)) and 0 <= weight < np.inf):
                    raise UserError(f"sample_weight: row {number} is {weight!r}; pass a number, 0 or more")
        settings: dict[str, Any] = {
            "data": pd.DataFrame(columns, dtype=object),
            "label_column": LABEL_COLUMN,
            "weight_column": None if sample_weight is None else WEIGHT_COLUMN,
            "problem": "binary" if len(classes) == 2 else "multi-class",
            **{f"{name}_column": name for name in text_names},
            **{name: _to_python(value) for name, value in self.get_params().items() if value is not None},
        }
        temporary = _TemporaryDirectory() if self.output_dir is None else None
        folder = Path(self.output_dir).absolute() if temporary is None else temporary.path / "run"
        run = api.classify(**settings | {"output_dir": str(folder)})
        if temporary:
            shutil.rmtree(RunDir(folder).checkpoints, ignore_errors=True)
        self.classes_, self.run_ = classes, run
        self._names, self._text_names, self._folder, self._temporary = names, text_names, folder, temporary
        self._predictor: Predictor | None = None  # loaded at first use
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the probabilities of the classes, `[n, classes]`, in the order of `classes_`."""
        check_is_fitted(self)
        columns = _read_texts(X)
        if tuple(columns) != self._text_names:
            found, trained = (_describe_inputs(names) for names in (columns, self._text_names))
            raise UserError(f"X: contains {found}, but fit() was called with {trained}; pass {trained}")
        if self._predictor is None:
            self._predictor = api.load(self._folder, _to_python(self.device) or "auto")
        rows = (dict(zip(columns, texts, strict=True)) for texts in zip(*columns.values(), strict=True))
        probabilities = [record["probabilities"] for record in self._predictor.predict(rows)]
        return np.array([[row[name] for name in self._names] for row in probabilities], np.float64)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the most probable class of each text, `[n]`."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = tags.no_validation = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and, after `fit`, the files of the model, which contain no rows."""
        state = vars(self).copy()
        if "run_" in state:
            if not self._folder.is_dir():
                raise UserError(
                    f"{self._folder}: does not exist, so the classifier cannot be saved; fit it again"
                )
            files = RunDir(self._folder).list_uploaded_files()
            contents = {path.relative_to(self._folder).as_posix(): path.read_bytes() for path in files}
            state |= {"_predictor": None, "_temporary": None, "_contents": contents}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        contents: dict[str, bytes] = state.pop("_contents", {})
        self.__dict__.update(state)
        if not contents:
            return
        self._temporary = _TemporaryDirectory()
        self._folder = self._temporary.path / "run"
        self.run_ = replace(self.run_, output_dir=self._folder)
        for name, content in contents.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


# `help()` shows both, and scikit-learn reads the names of the parameters from the signature.
Classifier.__init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in SETTINGS),
    ]
)
_help_lines = "\n".join(f"    {name}: {help}" for name, help in SETTINGS.items())
Classifier.__doc__ = f"{inspect.cleandoc(Classifier.__doc__ or '')}\n\nSettings:\n{_help_lines}\n"


class _TemporaryDirectory:
    """A directory that is removed with this object, or when the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="bertkit-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a process that was forked from it
        shutil.rmtree(folder, ignore_errors=True)


# ---- X and y


def _describe_inputs(columns: Collection[str]) -> str:
    return "single texts" if len(columns) == 1 else "pairs of texts"


def _read_texts(X: Any) -> dict[str, list[str]]:  # noqa: N803
    """Return the texts of each row by column: `text`, and `text_pair` for pairs."""
    if isinstance(X, str) or not isinstance(X, Iterable):
        raise UserError(f"X: {shorten_repr(X)} is not a list of texts; pass a list, an array or a Series")
    rows = X.itertuples(index=False, name=None) if isinstance(X, pd.DataFrame) else X
    cells = [(row,) if isinstance(row, str) else _to_python(row) for row in rows]
    if not cells:
        raise UserError("X: contains no rows; pass at least one text")
    for number, row in enumerate(cells, start=1):
        is_valid = (
            isinstance(row, (list, tuple))
            and len(row) in (1, 2)
            and all(isinstance(cell, str) for cell in row)
        )
        if not is_valid:
            value = row[0] if isinstance(row, (list, tuple)) and len(row) == 1 else row
            raise UserError(
                f"X: row {number} is {shorten_repr(value)}; pass a text for each row, or two texts for a pair"
            )
        if len(row) != len(cells[0]):
            raise UserError(f"X: row 1 and row {number} differ in the number of texts; pass texts or pairs")
    return {
        name: list(map(str, column))
        for name, column in zip(TEXT_COLUMNS, zip(*cells, strict=True), strict=False)
    }


def _read_labels(y: Any, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the class of each row `[n]`, and the classes, sorted."""
    fix = "pass one label for each text"
    try:
        values = np.asarray(y)
    except ValueError as error:
        raise UserError(f"y: the rows have several labels; {fix}") from error
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise UserError(f"y: has the shape {values.shape}; {fix}")
    if len(values) != num_rows:
        raise UserError(
            f"y: has {format_count(len(values), 'label')} for {format_count(num_rows, 'row')}; {fix}"
        )
    if (missing := np.flatnonzero(pd.isna(values))).size:
        raise UserError(
            f"y: row {missing[0] + 1} has no label; remove the row from X and y, or fill in the label"
        )
    labels = values.tolist()
    if len({isinstance(label, str) for label in labels}) > 1:
        raise UserError("y: contains texts and numbers; pass labels of one type")
    values = np.array(labels)  # an array of objects becomes one of their type
    if (kind := type_of_target(values)) not in ("binary", "multiclass"):
        raise UserError(f"y: is {kind}, but Classifier() predicts classes; {fix}")
    classes, indices = np.unique(values, return_inverse=True)
    if len(classes) == 1:
        raise UserError(f"y: every label is {labels[0]!r}; pass rows of at least two classes")
    return indices, classes


def _name_classes(classes: np.ndarray) -> list[str]:
    """Return the labels of the run; `class` precedes a text that the labels of a file cannot have."""
    texts = [str(label) for label in classes.tolist()]
    names = [text if normalize_label(text) == text else f"class {text}".strip() for text in texts]
    if len(set(names)) < len(names):
        raise UserError(
            f"y: some of the labels {format_list(map(repr, texts))} differ in blanks only; rename them"
        )
    return names


def _to_python(value: Any) -> Any:
    """Return the value of a NumPy scalar or array, as grids of parameters contain them."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
