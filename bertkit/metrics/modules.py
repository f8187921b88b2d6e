"""Metric modules of the library `evaluate`, which users name with `--metric`.

A module is Python code. It is loaded only if the user names it, never because a file of a run names it.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bertkit.errors import UserError, shorten_repr
from bertkit.hub.client import require_reachable, summarize_error
from bertkit.metrics.classification import Scores
from bertkit.metrics.decoded import (
    DecodedPredictions,
    accepts_all,
    describe_features,
    describe_predictions,
    list_features,
    select_keys,
)
from bertkit.metrics.significance import Scorer
from bertkit.utils.paths import expand_home, split_at_colon

NUM_MODULE_RESAMPLES = 100  # fewer than for bertkit's scores, because a call of a module takes milliseconds
MODULE_TYPES = ("metric", "comparison", "measurement")
MULTI_LABEL_CONFIG = "multilabel"  # configuration of the modules f1, precision, recall and accuracy
PIP_COMMAND = re.compile(r"using 'pip install (.+?)'")  # in the ImportError of `evaluate`
LOWER_IS_BETTER = re.compile(
    r"(?:^|_)(?:loss|error|mse|rmse|mae|mape|perplexity|brier|brier_score|nll|ece|aurc|wer|cer)$",
    re.IGNORECASE,
)


def is_lower_better(score_name: str) -> bool:
    """Return whether a score is an error or a loss, according to its name."""
    return LOWER_IS_BETTER.search(score_name) is not None


# ---- values of --metric


@dataclass(frozen=True)
class ModuleSpec:
    """A value of `--metric`: `NAME_OR_PATH[:CONFIG,KEY=VALUE,...]`.

    Attributes:
        source: Name on the Hub, or path.
        config_name: Configuration of the module, or None.
        arguments: Keyword arguments of `compute`.
    """

    source: str
    config_name: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def short_name(self) -> str:
        """Name of the module, without directory, organization and suffix."""
        return Path(self.source).name.removesuffix(".py")

    def find_file(self) -> Path | None:
        """Return the file of a local module, or None. In a directory, it has the name of the directory."""
        path = expand_home(self.source)
        file = path / f"{path.absolute().name}.py" if path.is_dir() else path
        return file.absolute() if file.suffix == ".py" and file.is_file() else None


def parse_module_spec(value: str) -> ModuleSpec:
    """Parse a value of `--metric`.

    Raises:
        UserError: An argument is not valid YAML.
    """
    whole = ModuleSpec(value)
    if whole.find_file():
        return whole
    source, options = split_at_colon(value)
    config_name, arguments = None, {}
    for option in filter(None, options.split(",")):
        key, separator, text = option.partition("=")
        if separator:
            try:
                arguments[key] = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise UserError(f"--metric {value}: cannot parse {text!r} as YAML; quote it") from error
        else:
            config_name = option
    return ModuleSpec(source, config_name, arguments)


def make_absolute(value: str) -> str:
    """Return a value of `--metric` with an absolute path, if it names a local module."""
    spec = parse_module_spec(value)
    file = spec.find_file()
    return value if file is None else f"{file}{value[len(spec.source) :]}"


# ---- loading


@dataclass(frozen=True)
class MetricModule:
    """A module that computes scores of decoded predictions.

    Attributes:
        flag: Flag and value that name the module, for messages.
        name: Name of the module without directory and organization.
        module: The `evaluate.EvaluationModule`.
        features: The features of its inputs.
        arguments: Keyword arguments of `compute`.
        takes_label_names: Whether the module receives label names in place of label ids.
    """

    flag: str
    name: str
    module: Any
    features: Mapping[str, Any]
    arguments: Mapping[str, Any]
    takes_label_names: bool

    def compute(self, decoded: DecodedPredictions) -> dict[str, Any]:
        """Return what the module returns for these predictions.

        Raises:
            UserError: The module raises an exception, or does not return a dictionary.
        """
        if self.takes_label_names:
            decoded = decoded.use_label_names()
        with _report_errors(self.flag, "pass other arguments (NAME:KEY=VALUE) or another module"):
            result = self.module.compute(
                predictions=select_keys(decoded.predictions, self.features["predictions"]),
                references=select_keys(decoded.references, self.features["references"]),
                **self.arguments,
            )
        if not isinstance(result, dict):
            raise UserError(
                f"{self.flag}: returned {shorten_repr(result)}, not a dictionary of numbers; correct the "
                "module"
            )
        return result

    def score(self, decoded: DecodedPredictions) -> Scores:
        """Return those values of `compute` that are numbers; they may be NaN or infinite."""
        return select_numbers(self.compute(decoded))

    def make_scorer(self, decoded: DecodedPredictions) -> Scorer:
        """Return a scorer of rows for intervals. It has no score for samples that the module refuses."""

        def score(rows: np.ndarray) -> Scores:
            try:
                scores = self.score(decoded.select(rows))
            except UserError:  # for example, a sample with a single class
                return {}
            return {name: value for name, value in scores.items() if math.isfinite(value)}

        return Scorer(score, len(decoded.references), num_resamples=NUM_MODULE_RESAMPLES)


@dataclass(frozen=True)
class LoadedModule:
    """The class of a module, before its configuration is chosen.

    Attributes:
        flag: Flag and value that name the module, for messages.
        spec: The parsed value.
        module_class: Subclass of `evaluate.EvaluationModule`.
        code_hash: Hash of the code, which `evaluate` stores in the module.
    """

    flag: str
    spec: ModuleSpec
    module_class: Any
    code_hash: str

    def bind(self, examples: DecodedPredictions) -> MetricModule:
        """Choose the configuration, and label ids or label names, so that the module fits a task.

        Args:
            examples: A few decoded predictions of the task.

        Raises:
            UserError: The module does not accept the values of the task.
        """
        default = self._create(self.spec.config_name)
        module = self._match(default, examples)
        is_multi_label = isinstance(examples.references[0], list) and bool(examples.labels)
        if module is None and is_multi_label and self.spec.config_name is None:
            with suppress(UserError):  # most modules have no such configuration
                module = self._match(self._create(MULTI_LABEL_CONFIG), examples)
        if module is None:
            inputs = " or ".join(map(describe_features, list_features(default)))
            raise UserError(
                f"{self.flag}: takes {inputs}, but this task gives {describe_predictions(examples)}; pass a "
                "module for these types"
            )
        return module

    def _match(self, module: Any, examples: DecodedPredictions) -> MetricModule | None:
        """Return the module with features that accept label ids or, if none do, label names; else None."""
        for takes_label_names in (False, True) if examples.labels else (False,):
            decoded = examples.use_label_names() if takes_label_names else examples
            for features in list_features(module):
                if accepts_all(features, decoded):
                    name, arguments = self.spec.short_name, self.spec.arguments
                    return MetricModule(self.flag, name, module, features, arguments, takes_label_names)
        return None

    def _create(self, config_name: str | None) -> Any:
        """Create the module for a configuration. Its inputs are kept in memory, not in files."""
        with _report_errors(self.flag, "correct the module or its configuration"):
            module = self.module_class(config_name=config_name, keep_in_memory=True, hash=self.code_hash)
            module.download_and_prepare()
        return module


def load_module(value: str) -> LoadedModule:
    """Load the code of a module, from a file, the cache of `evaluate` or the Hub, in this order.

    Args:
        value: Value of `--metric`.

    Raises:
        UserError: The module does not exist or raises an exception, or a package that it needs is missing.
        HubUnreachable: The module is not cached, and the Hub cannot be reached. Raised within seconds.
    """
    flag, spec = f"--metric {value}", parse_module_spec(value)
    file = spec.find_file()
    with _report_errors(flag, "correct the module"):
        imported = _import_file(file) if file else _import_from_hub(flag, spec.source)
        module_class = _find_main_class(imported)
    if module_class is None:
        raise UserError(f"{flag}: defines no subclass of evaluate.Metric; define one in this file")
    return LoadedModule(flag, spec, module_class, imported.hash)


def _import_file(file: Path) -> Any:
    from evaluate.loading import evaluation_module_factory

    return evaluation_module_factory(str(file))


def _find_main_class(imported: Any) -> Any:
    from evaluate.loading import import_main_class

    return import_main_class(imported.module_path)


def _import_from_hub(flag: str, source: str) -> Any:
    """Return the cached code of a module on the Hub, or else download it."""
    from evaluate.loading import evaluation_module_factory

    is_path = source.endswith(".py") or source.startswith((".", "~", "/")) or source.count("/") > 1
    if is_path or Path(source).is_dir():
        is_dir = expand_home(source).is_dir()
        problem = "the directory contains no .py file of its name" if is_dir else "the file does not exist"
        raise UserError(f"{flag}: {problem}; pass the .py file of a module, or its name on the Hub")
    if cached := _find_cached(source):
        return cached
    require_reachable(
        f"{flag}: {source} is neither a local file nor in the cache of evaluate", "pass the path of a module"
    )
    try:
        return evaluation_module_factory(source)
    except FileNotFoundError as error:
        raise UserError(
            f"{flag}: {source} is neither a local file nor a module on the Hub; check the name"
        ) from error


def _find_cached(source: str) -> Any:
    """Return the latest cached code of a module on the Hub, or None."""
    from evaluate.loading import CachedEvaluationModuleFactory

    repos = [source] if "/" in source else [f"evaluate-{kind}/{source}" for kind in MODULE_TYPES]
    for repo in repos:
        try:
            return CachedEvaluationModuleFactory(repo.replace("/", "--")).get_module()
        except FileNotFoundError:
            continue
    return None


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


# ---- scores


def select_numbers(result: Mapping[str, Any]) -> Scores:
    """Return the entries that are single numbers, as floats."""
    return {str(name): float(value) for name, value in result.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, (int, float, np.integer, np.floating)):
        return True
    return isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iuf"


def name_scores(module_name: str, names: Sequence[str], taken: set[str]) -> dict[str, str]:
    """Return the name in `metrics.json` of each score of a module.

    A score keeps its name, unless another score has it. It is then called `MODULE_NAME`, with a number at the
    end if that name is taken, too.

    Args:
        module_name: Name of the module.
        names: Names of its scores.
        taken: Names of other scores. The new names are added.
    """
    new_names = {}
    for name in names:
        prefixed = f"{module_name}_{name}"
        candidates = chain([name, prefixed], (f"{prefixed}_{number}" for number in count(2)))
        new_names[name] = next(candidate for candidate in candidates if candidate not in taken)
        taken.add(new_names[name])
    return new_names


def check_module(module: MetricModule, examples: DecodedPredictions) -> tuple[Scores, list[str]]:
    """Call a module with examples, to find its errors before training.

    Returns:
        The scores, and the names of the values that are not numbers.

    Raises:
        UserError: The module raises an exception, or none of its values is a number.
    """
    result = module.compute(examples)
    scores = select_numbers(result)
    if not scores:
        raise UserError(
            f"{module.flag}: returned {shorten_repr(result)}, without any number; choose another module, or "
            "other arguments"
        )
    return scores, [str(name) for name in result if str(name) not in scores]
