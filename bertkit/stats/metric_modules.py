"""Metric modules of the library `evaluate`, which users name with `--metric`, and what they score.

A module is Python code. It is loaded only if the user names it, never because a file of a run names it.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bertkit.data.hub import require_reachable, summarize_error
from bertkit.errors import UserError, format_list, shorten_repr
from bertkit.stats.scores import Scores
from bertkit.stats.significance import Scorer
from bertkit.utils.files import expand_home, split_at_colon
from bertkit.utils.plugins import Plugin, find_plugin

NUM_MODULE_RESAMPLES = 100  # fewer than for bertkit's scores, because a call of a module takes milliseconds
MODULE_TYPES = ("metric", "comparison", "measurement")
PYTHON_TYPES = {bool: "bool", int: "int", float: "float", str: "string"}
PIP_COMMAND = re.compile(r"using 'pip install (.+?)'")  # in the ImportError of `evaluate`
LOWER_IS_BETTER = re.compile(
    r"(?:^|_)(?:loss|error|mse|rmse|mae|mape|perplexity|brier|brier_score|nll|ece|aurc|wer|cer|bits_per_byte)$",
    re.IGNORECASE,
)


def is_lower_better(score_name: str) -> bool:
    """Return whether a score is an error or a loss, according to its name."""
    return LOWER_IS_BETTER.search(score_name) is not None


@dataclass(frozen=True)
class DecodedPredictions:
    """Predictions and gold labels as the modules of `evaluate` expect them.

    The value of a row is a label id, a number, a list of 0 and 1, a list of tags, or a dictionary with an
    answer.
    """

    predictions: list[Any]
    references: list[Any]
    labels: Sequence[str] = ()

    def select(self, rows: np.ndarray) -> "DecodedPredictions":
        """Return a sample of the rows. Each answer gets its own id: modules count a repeated id only once."""
        predictions, references = (
            [
                values[row] | {"id": str(number)} if isinstance(values[row], dict) else values[row]
                for number, row in enumerate(rows)
            ]
            for values in (self.predictions, self.references)
        )
        return dataclasses.replace(self, predictions=predictions, references=references)

    def use_label_names(self) -> "DecodedPredictions":
        """Return the values with label names in place of label ids."""

        def name(value: Any) -> Any:
            if isinstance(value, list):
                return [label for label, is_member in zip(self.labels, value, strict=True) if is_member]
            return self.labels[value]

        return DecodedPredictions(list(map(name, self.predictions)), list(map(name, self.references)))


@dataclass(frozen=True)
class MetricModule:
    """A module that computes scores of decoded predictions."""

    flag: str
    name: str
    module: Any
    arguments: Mapping[str, Any]
    features: Mapping[str, Any] = field(default_factory=dict)  # of its inputs; `bind` chooses them
    takes_label_names: bool = False

    def bind(self, examples: DecodedPredictions) -> "MetricModule":
        """Return the module with features that accept label ids or, if none do, label names."""
        features = self.module.features
        alternatives = features if isinstance(features, list) else [features]
        for takes_label_names in (False, True) if examples.labels else (False,):
            decoded = examples.use_label_names() if takes_label_names else examples
            for inputs in alternatives:
                if set(inputs) == {"predictions", "references"} and all(
                    _accepts(feature, value)
                    for name, feature in inputs.items()
                    for value in getattr(decoded, name)
                ):
                    return dataclasses.replace(self, features=inputs, takes_label_names=takes_label_names)
        taken = " or ".join(map(_describe_inputs, alternatives))
        given = _describe_inputs(
            {"predictions": examples.predictions[0], "references": examples.references[0]}
        )
        raise UserError(
            f"{self.flag}: takes {taken}, but this task gives {given}; pass a module for these types"
        )

    def compute(self, decoded: DecodedPredictions) -> tuple[Scores, list[str]]:
        """Return the values that are single numbers, maybe NaN or infinite, and the names of the others."""
        if self.takes_label_names:
            decoded = decoded.use_label_names()
        inputs = {
            # modules refuse dictionaries with other keys
            name: [{key: value[key] for key in feature} for value in getattr(decoded, name)]
            if isinstance(feature, Mapping)
            else getattr(decoded, name)
            for name, feature in self.features.items()
        }
        with _report_errors(self.flag, "pass other arguments (NAME:KEY=VALUE) or another module"):
            result = self.module.compute(**inputs, **self.arguments)
        if not isinstance(result, dict):
            raise UserError(
                f"{self.flag}: returned {shorten_repr(result)}, not a dictionary of numbers; correct the "
                "module"
            )
        scores = {
            str(name): float(value)
            for name, value in result.items()
            if isinstance(value, (int, float, np.integer, np.floating))
            or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iuf")
        }
        if not scores:
            raise UserError(
                f"{self.flag}: returned {shorten_repr(result)}, without any number; choose another module, "
                "or other arguments"
            )
        return scores, [str(name) for name in result if str(name) not in scores]

    def make_scorer(self, decoded: DecodedPredictions) -> Scorer:
        """Return a scorer of rows for intervals. It has no score for samples that the module refuses."""

        def score(rows: np.ndarray) -> Scores:
            try:
                scores, _ = self.compute(decoded.select(rows))
            except UserError:  # for example, a sample with a single class
                return {}
            return {name: value for name, value in scores.items() if math.isfinite(value)}

        return Scorer(score, len(decoded.references), num_resamples=NUM_MODULE_RESAMPLES)


def _accepts(feature: Any, value: Any) -> bool:
    """Return whether a feature of `datasets` accepts a value without changing its type."""
    if isinstance(feature, Mapping):
        return isinstance(value, dict) and all(
            key in value and _accepts(item, value[key]) for key, item in feature.items()
        )
    if (item_feature := _get_item_feature(feature)) is not None:
        return isinstance(value, list) and all(_accepts(item_feature, item) for item in value)
    dtype = str(getattr(feature, "dtype", ""))
    if isinstance(value, str):
        return dtype in ("string", "large_string")
    if isinstance(value, int):
        return dtype.startswith(("int", "uint", "float"))
    return isinstance(value, float) and dtype.startswith("float")


def _get_item_feature(feature: Any) -> Any:
    """Return the feature of the items of a list; None if the feature is no list."""
    return feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)


def _describe_inputs(inputs: Mapping[str, Any]) -> str:
    return format_list(f"{name}: {_describe_type(item)}" for name, item in inputs.items())


def _describe_type(item: Any) -> str:
    """Return the type of a feature, or of a value."""
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{key}: {_describe_type(part)}" for key, part in item.items()) + "}"
    if item == []:
        return "list"
    if (part := _get_item_feature(item)) is not None:
        return f"list of {_describe_type(part)}"
    return PYTHON_TYPES.get(type(item)) or str(getattr(item, "dtype", type(item).__name__))


def name_scores(module_name: str, names: Sequence[str], taken: set[str]) -> dict[str, str]:
    """Return the name in `metrics.json` of each score of a module, and add it to the names that are `taken`.

    A score keeps its name, unless another score has it. It is then called `MODULE_NAME`, with a number at the
    end if that name is taken, too.
    """
    new_names = {}
    for name in names:
        prefixed = f"{module_name}_{name}"
        candidates = chain([name, prefixed], (f"{prefixed}_{number}" for number in count(2)))
        new_names[name] = next(candidate for candidate in candidates if candidate not in taken)
        taken.add(new_names[name])
    return new_names


# ---- loading


def _find_file(source: str) -> Path | None:
    """Return the file of a local module, or None. In a directory, it has the name of the directory."""
    path = expand_home(source)
    file = path / f"{path.absolute().name}.py" if path.is_dir() else path
    return file.absolute() if file.suffix == ".py" and file.is_file() else None


def _split_value(value: str) -> tuple[str, str]:
    """Split `NAME_OR_PATH[:KEY=VALUE,...]`; the path of a file may contain a colon."""
    return (value, "") if _find_file(value) else split_at_colon(value)


def make_absolute(value: str) -> str:
    """Return a value of `--metric` with an absolute path, if it names a local module."""
    source, _ = _split_value(value)
    file = _find_file(source)
    return value if file is None else f"{file}{value[len(source) :]}"


def parse_arguments(value: str) -> tuple[str, dict[str, Any]]:
    """Return the name or path in a value of `--metric`, and the keyword arguments of `compute`."""
    source, options = _split_value(value)
    arguments = {}
    for option in filter(None, options.split(",")):
        key, separator, text = option.partition("=")
        if not separator:
            raise UserError(f"--metric {value}: {option!r} is not an argument; write {source}:KEY=VALUE")
        try:
            arguments[key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"--metric {value}: cannot parse {text!r} as YAML; quote it") from error
    return source, arguments


def load_module(value: str) -> MetricModule:
    """Load a module from a file, a plugin, the cache of `evaluate` or the Hub, in this order."""
    flag, (source, arguments) = f"--metric {value}", parse_arguments(value)
    file = _find_file(source)
    if file is None and (plugin := find_plugin("metric", source)):
        return MetricModule(flag, source, _load_plugin(flag, plugin), arguments)
    with _report_errors(flag, "correct the module"):
        from evaluate.loading import evaluation_module_factory, import_main_class

        imported = evaluation_module_factory(str(file)) if file else _import_from_hub(flag, source)
        if (module_class := import_main_class(imported.module_path)) is None:
            raise UserError(f"{flag}: defines no subclass of evaluate.Metric; define one in this file")
        # The inputs are kept in memory, not in files.
        module = module_class(keep_in_memory=True, hash=imported.hash)
        module.download_and_prepare()
    return MetricModule(flag, Path(source).name.removesuffix(".py"), module, arguments)


def _load_plugin(flag: str, plugin: Plugin) -> Any:
    from evaluate import Metric

    module_class = plugin.load()
    if not (isinstance(module_class, type) and issubclass(module_class, Metric)):
        raise plugin.make_error("does not extend evaluate.Metric")
    with _report_errors(flag, f"update {plugin.distribution}"):
        return module_class(keep_in_memory=True)


def _import_from_hub(flag: str, source: str) -> Any:
    """Return the latest cached code of a module on the Hub, or else download it."""
    from evaluate.loading import CachedEvaluationModuleFactory, evaluation_module_factory

    is_dir = expand_home(source).is_dir()
    if is_dir or source.endswith(".py") or source.startswith((".", "~", "/")) or source.count("/") > 1:
        problem = "the directory contains no .py file of its name" if is_dir else "the file does not exist"
        raise UserError(f"{flag}: {problem}; pass the .py file of a module, or its name on the Hub")
    for repo in [source] if "/" in source else [f"evaluate-{kind}/{source}" for kind in MODULE_TYPES]:
        try:
            return CachedEvaluationModuleFactory(repo.replace("/", "--")).get_module()
        except FileNotFoundError:
            continue
    problem = f"{flag}: {source} is neither a local file nor "
    require_reachable(f"{problem}in the cache of evaluate", "pass the path of a module")
    try:
        return evaluation_module_factory(source)
    except FileNotFoundError as error:
        raise UserError(f"{problem}a module on the Hub; check the name") from error


@contextmanager
def _report_errors(flag: str, fix: str) -> Iterator[None]:
    """Turn every exception of the code of a module into a `UserError`, because users write this code."""
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        packages = PIP_COMMAND.search(str(error))
        missing = packages[1] if packages else error.name
        if missing is None:
            raise UserError(f"{flag}: cannot be imported ({summarize_error(error)}); {fix}") from error
        raise UserError(f"{flag}: needs packages that are missing; run pip install {missing}") from error
    except (Exception, SystemExit) as error:  # arbitrary code of the user
        reason = " ".join(str(error).split())
        problem = f"raised {type(error).__name__}" + (f" ({reason[:300]})" if reason else "")
        raise UserError(f"{flag}: {problem}; {fix}") from error
