"""The Python API: a function for each command, with the settings of the command as keyword arguments."""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from bertkit.commands import configs
from bertkit.errors import UserError
from bertkit.experiments.config import AblationConfig, FeatureBasedConfig, GlueConfig, KlueConfig
from bertkit.settings.declaration import Settings, get_settings
from bertkit.tasks import list_tasks, task_definition
from bertkit.tasks.choice.config import SwagConfig
from bertkit.tasks.ner.config import NerConfig
from bertkit.tasks.pretrain.config import PretrainConfig
from bertkit.tasks.qa.config import QaConfig
from bertkit.tasks.text.config import ClassifyConfig, NliConfig
from bertkit.utils.reporting import Reporter, use_reporter

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import TrainerCallback

    from bertkit.commands.calibrate import CalibrationResult
    from bertkit.commands.check import CheckReport
    from bertkit.commands.embed import EmbedResult
    from bertkit.commands.export import ExportResult
    from bertkit.commands.fetch import FetchResult
    from bertkit.commands.fill_mask import FillMaskResult
    from bertkit.commands.label_issues import LabelIssues
    from bertkit.commands.predict import Predictions
    from bertkit.commands.report import Report
    from bertkit.commands.train_tokenizer import TrainedTokenizer
    from bertkit.run.predictor import Predictor
    from bertkit.run.results import Run

    Callbacks: TypeAlias = Sequence[TrainerCallback | type[TrainerCallback]]


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


def _accept_reporter(function: Callable[..., R_co]) -> Callable[..., R_co]:
    """Return a function that also accepts a `reporter`; without one, only Jupyter shows progress."""

    @functools.wraps(function)
    def call(*args: Any, reporter: Reporter | None = None, **arguments: Any) -> R_co:
        with use_reporter(reporter or _create_notebook_reporter() or Reporter()):
            return function(*args, **arguments)

    signature = inspect.signature(function)
    *parameters, settings = signature.parameters.values()
    parameters.append(inspect.Parameter("reporter", inspect.Parameter.KEYWORD_ONLY, default=None))
    call.__signature__ = signature.replace(parameters=[*parameters, settings])  # type: ignore[attr-defined]
    return call


def _create_notebook_reporter() -> Reporter | None:
    """Return the reporter of the command line, whose progress bars Jupyter shows; None outside of Jupyter."""
    if "IPython" not in sys.modules:
        return None
    if not hasattr(sys.modules["IPython"].get_ipython(), "kernel"):  # IPython in a terminal, or only imported
        return None
    from bertkit.utils.console import ConsoleReporter  # imports rich

    return ConsoleReporter()


class ApiFunction(Protocol[P, R_co]):
    """The signature that type checkers and IDEs see: the settings of a config as keyword arguments."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: Any, reporter: Reporter | None = None, **kwargs: Any) -> R_co: ...


def accepts(config: Callable[P, Settings]) -> Callable[[Callable[..., R_co]], ApiFunction[P, R_co]]:
    """Return a decorator that adds the settings of a config to the signature and to the docstring."""

    def decorate(api_function: Callable[..., R_co]) -> Any:
        function = _accept_reporter(api_function)
        signature = inspect.signature(function)
        *own_parameters, _ = signature.parameters.values()
        fields = inspect.signature(config).parameters
        settings = {
            name: setting
            for name, (_, setting, _) in get_settings(config).items()  # type: ignore[arg-type]
            if setting.has_parameter and name not in signature.parameters
        }
        parameters = [*own_parameters, *(fields[name] for name in settings)]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        lines = "\n".join(f"    {name}: {setting.help}" for name, setting in settings.items())
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nSettings:\n{lines}\n"
        return function

    return decorate


# ---- training


def _train(task: str, settings: dict[str, Any], recipe: str | None, callbacks: "Callbacks") -> "Run":
    from bertkit.run.train import train

    return train(task, settings, recipe, callbacks)


@accepts(ClassifyConfig)
def classify(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Fine-tune a text classifier, like `bertkit classify`.

    `classify(data="imdb", model="minilm")` trains on the IMDB reviews. `data`, `validation` and `test` may
    also be a `datasets.Dataset` or `DatasetDict`, a `pandas.DataFrame`, or a list of dictionaries.

    Args:
        recipe: Name of a shipped recipe, or a file; settings override the recipe.
        callbacks: Instances or classes of `transformers.TrainerCallback`, which the Trainer calls.
        reporter: Receives messages and progress; by default, they are shown in Jupyter only.
        **settings: Settings of the command; see the list below.

    Returns:
        A `Run`. Its `.metrics` are the content of `metrics.json` in `.output_dir`.

    Raises:
        UserError: The caller can fix the problem; the message says how.
    """
    return _train("classify", settings, recipe, callbacks)


@accepts(NerConfig)
def ner(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Fine-tune a named entity tagger, like `bertkit ner`; see `classify`."""
    return _train("ner", settings, recipe, callbacks)


@accepts(NliConfig)
def nli(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Fine-tune a classifier of text pairs, like `bertkit nli`; see `classify`."""
    return _train("nli", settings, recipe, callbacks)


@accepts(QaConfig)
def qa(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Fine-tune a model for extractive question answering, like `bertkit qa`; see `classify`."""
    return _train("qa", settings, recipe, callbacks)


@accepts(SwagConfig)
def swag(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Fine-tune a multiple-choice model, like `bertkit swag`; see `classify`."""
    return _train("swag", settings, recipe, callbacks)


@accepts(PretrainConfig)
def pretrain_mlm_nsp(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Pre-train a model on plain text, like `bertkit pretrain-mlm-nsp`; see `classify`.

    Of an object with rows, which may also be an `IterableDataset`, each row is a document.
    """
    return _train("pretrain-mlm-nsp", settings, recipe, callbacks)


@accepts(configs.TokenizerConfig)
def train_tokenizer(**settings: Any) -> "TrainedTokenizer":
    """Train a WordPiece tokenizer on plain text, like `bertkit train-tokenizer`.

    `train_tokenizer(data="texts")` returns a `TrainedTokenizer` with `.output_dir` and `.statistics`.
    """
    from bertkit.commands.train_tokenizer import train_tokenizer as train

    return train(settings)


@functools.cache
def make_plugin_function(name: str) -> Any:
    """Return the function of the task of a plugin, such as `bertkit.rate`, or raise `AttributeError`."""
    task = name.replace("_", "-")
    if task not in list_tasks():
        raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
    definition = task_definition(task)

    def train_plugin(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
        return _train(task, settings, recipe, callbacks)

    train_plugin.__name__ = name
    train_plugin.__doc__ = f"{definition.help}\n\nLike `bertkit {task}`; see `classify`."
    return accepts(definition.config)(train_plugin)


# ---- experiments


def _run_experiment(
    command: str, settings: dict[str, Any], recipe: str | None, callbacks: "Callbacks"
) -> "Run":
    from bertkit.experiments.experiment import run_experiment

    return run_experiment(command, settings, recipe, callbacks)


@accepts(GlueConfig)
def glue(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Fine-tune on the GLUE tasks, like `bertkit glue`."""
    return _run_experiment("glue", settings, recipe, callbacks)


@accepts(KlueConfig)
def klue(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Fine-tune on the KLUE tasks, like `bertkit klue`."""
    return _run_experiment("klue", settings, recipe, callbacks)


@accepts(FeatureBasedConfig)
def feature_based(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Train entity taggers on different layers of a frozen encoder, like `bertkit feature-based`."""
    return _run_experiment("feature-based", settings, recipe, callbacks)


@accepts(AblationConfig)
def ablation(*, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Pre-train variants of a model and fine-tune each variant, like `bertkit ablation`."""
    return _run_experiment("ablation", settings, recipe, callbacks)


@_accept_reporter
def study(task: str, *, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Train a task over folds, seeds and hyperparameter trials, like `bertkit study TASK`.

    `study("classify", data="reviews.csv", folds=5)` returns a `Run`. Its `.metrics` are the content of
    `study.json` in `.output_dir`.

    Args:
        task: Name of the task, such as "classify".
        recipe: Recipe of the task; settings override the recipe.
        callbacks: See `classify`. An instance is called in all runs; each run creates its own of a class.
        reporter: Receives messages and progress; by default, they are shown in Jupyter only.
        **settings: Settings of the task, and `folds`, `seeds`, `trials`, `search`,
            `time_limit` and `jobs`.

    Raises:
        UserError: The caller can fix the problem; the message says how.
    """
    return _run_experiment(f"study {task}", settings, recipe, callbacks)


@_accept_reporter
def ladder(task: str, *, recipe: str | None = None, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Train models of several kinds on the same folds, like `bertkit ladder TASK`.

    `ladder("classify", data="reviews.csv")` returns a `Run`. Its `.metrics` are the content of `ladder.json`
    in `.output_dir`, with the keys "candidates" and "recommended".

    Args:
        task: Name of the task, such as "classify".
        recipe: Recipe of the task; settings override the recipe.
        callbacks: See `study`.
        reporter: Receives messages and progress; by default, they are shown in Jupyter only.
        **settings: Settings of the task, and `models`, `folds`, `margin`, `time_limit`, `keep` and `jobs`.

    Raises:
        UserError: The caller can fix the problem; the message says how.
    """
    return _run_experiment(f"ladder {task}", settings, recipe, callbacks)


# ---- before training


@_accept_reporter
def check(task: str, **settings: Any) -> "CheckReport":
    """Check data before training, like `bertkit check TASK`.

    `check("classify", data="reviews.csv")` returns a `CheckReport` with `.splits` and `.findings`.

    Args:
        task: Name of the task, such as "classify".
        reporter: Receives messages and progress; by default, they are shown in Jupyter only.
        **settings: Settings of the task that concern the data and the model.

    Raises:
        UserError: There is no data to check.
    """
    from bertkit.commands.check import check as check_data

    return check_data(task, settings)


@accepts(configs.FetchConfig)
def fetch(**settings: Any) -> "FetchResult":
    """Fetch models and datasets of the Hub to a directory, like `bertkit fetch`.

    `fetch(model="bert-base-uncased", data="sst2", to="DIR")` returns a `FetchResult` with `.records`. With
    BERTKIT_OFFLINE_DIR set to a copy of the directory, all functions find the same names without a network.
    """
    from bertkit.commands.fetch import fetch as fetch_names

    return fetch_names(settings)


# ---- after training


@accepts(configs.LabelIssuesConfig)
def label_issues(study: "str | Path", **settings: Any) -> "LabelIssues":
    """Find training rows of a study whose labels are probably wrong, like `bertkit label-issues`.

    `label_issues(STUDY)` returns a `LabelIssues` with `.records`, the content of `label_issues.jsonl`. It
    also writes this file, and the page to review the labels.
    """
    from bertkit.commands.label_issues import find_label_issues

    return find_label_issues({"study": str(study), **settings})


def load(run: "str | Path", device: str = "auto") -> "Predictor":
    """Load a finished run or an exported model for prediction.

    `device` is cpu, cuda, cuda:N, mps or auto.

    `load(RUN).predict([{"text": "..."}])` yields one record per row. An exported model runs in onnxruntime.

    Raises:
        UserError: `run` is neither a finished run nor an exported model, or does not predict rows.
    """
    from bertkit.run.predictor import load_predictor
    from bertkit.settings.declaration import describe_unknown_device

    if problem := describe_unknown_device(device):
        raise UserError(f"load(): device: {problem}")
    return load_predictor(run, device=device)


@accepts(configs.PredictConfig)
def predict(run: "str | Path", **settings: Any) -> "Predictions":
    """Predict with a finished run, like `bertkit predict`.

    `for record in predict(RUN, data="new.csv")` reads a file of any size in chunks. `data` may also be a
    `Dataset`, an `IterableDataset`, a `DataFrame` or a list of dictionaries. `predict(...).to_dataset()` and
    `predict(...).to_pandas()` return all records as one table.

    Raises:
        UserError: `run` is not a finished run, or a row cannot be predicted.
    """
    from bertkit.commands.predict import predict as predict_with_run

    for name, field in get_settings(configs.PredictConfig).items():
        if name in settings and not field.metadata.has_parameter:
            raise UserError(
                f"predict(): {name}: only the command accepts this setting; write the records in your code"
            )
    return predict_with_run({"run": str(run), **settings})


@accepts(configs.EvaluateConfig)
def evaluate(run: "str | Path", **settings: Any) -> "Run":
    """Score a finished run on labeled data, like `bertkit evaluate`; see `classify` for the result.

    If the run was trained on an object such as a `Dataset`, pass the object again as `data` to score the
    evaluation splits of the run.
    """
    from bertkit.commands.evaluate import evaluate as evaluate_run

    return evaluate_run({"run": str(run), **settings})


@accepts(configs.CalibrateConfig)
def calibrate(run: "str | Path", **settings: Any) -> "CalibrationResult":
    """Calibrate the probabilities of a finished run, like `bertkit calibrate`.

    `calibrate(RUN)` replaces the weights of the run. It returns a `CalibrationResult` with `.temperature` and
    `.calibration`, the content of `calibration.json`. If the run was trained on an object such as a
    `Dataset`, pass the object again as `data` to fit on the validation rows of the run.
    """
    from bertkit.commands.calibrate import calibrate as calibrate_run

    return calibrate_run({"run": str(run), **settings})


@accepts(configs.DistillConfig)
def distill(run: "str | Path", *, callbacks: "Callbacks" = (), **settings: Any) -> "Run":
    """Train a smaller model on the predictions of a finished run, like `bertkit distill`.

    `distill(RUN, num_layers=3)` returns a `Run`, which can be used like any other run.
    """
    from bertkit.commands.distill import resolve_student_settings

    task, student_settings = resolve_student_settings({"run": str(run), **settings})
    return _train(task, student_settings, None, callbacks)


@accepts(configs.ExportConfig)
def export(run: "str | Path", **settings: Any) -> "ExportResult":
    """Export a finished run as an ONNX model, like `bertkit export`.

    `export(RUN, quantize="int8")` returns an `ExportResult` with `.measurements` and `.output_dir`.
    """
    from bertkit.commands.export import export as export_run

    return export_run({"run": str(run), **settings})


@accepts(configs.ReportConfig)
def report(**settings: Any) -> "Report":
    """Write the page of a finished run again, or compare several runs, like `bertkit report`.

    `report(runs=["runs/a", "runs/b"], output="a-b.html")` returns a `Report` with `.path` and `.summary`.
    """
    from bertkit.commands.report import report as write_report

    return write_report(settings)


@accepts(configs.EmbedConfig)
def embed(**settings: Any) -> "EmbedResult":
    """Embed texts, or one word in its contexts, like `bertkit embed`.

    `embed(model="minilm", text=["..."])` returns an `EmbedResult` with fp32 `.vectors`
    `[rows, dimensions]`. With `output`, the vectors are also written to a file. With `query`, `.results` has
    the nearest rows. With `word`, `.word_comparison` has the occurrences of the word and their similarities.
    """
    from bertkit.commands.embed import embed as embed_texts

    return embed_texts(settings)


@accepts(configs.FillMaskConfig)
def fill_mask(**settings: Any) -> "FillMaskResult":
    """Predict the most probable words for each [MASK], like `bertkit fill-mask`.

    `fill_mask(model="bert-base-uncased", text=["It was [MASK]."])` returns a `FillMaskResult`,
    whose `.texts` have the words.
    """
    from bertkit.commands.fill_mask import fill_mask as fill_texts

    return fill_texts(settings)
