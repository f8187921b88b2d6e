"""BERT from one command: pre-train, fine-tune, score and look. Importing it loads nothing heavy."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from bertkit.errors import RunInterrupted, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from bertkit.checks.engine import CheckReport
    from bertkit.infer.embed import EmbedResult
    from bertkit.infer.export import ExportResult
    from bertkit.infer.fill_mask import FillMaskResult
    from bertkit.infer.predict import Predictions
    from bertkit.infer.predictor import Predictor
    from bertkit.pipeline.run import Run
    from bertkit.pipeline.train_tokenizer import TrainedTokenizer
    from bertkit.reports.report import Report
    from bertkit.utils.reporting import Reporter

try:
    __version__ = version("bertkit")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0"

__all__ = [
    "RunInterrupted",
    "UserError",
    "ablation",
    "check",
    "classify",
    "embed",
    "evaluate",
    "export",
    "feature_based",
    "fill_mask",
    "glue",
    "load",
    "ner",
    "nli",
    "predict",
    "pretrain_mlm_nsp",
    "qa",
    "report",
    "swag",
    "train_tokenizer",
]


def classify(*, recipe: str | None = None, reporter: "Reporter | None" = None, **settings: Any) -> "Run":
    """Fine-tune a classifier: what `bertkit classify` does, with the same settings by the same names.

    `classify(data="imdb", model="minilm")` returns a `Run` with `.metrics` (the content of
    `metrics.json`) and `.output_dir`.

    Raises:
        UserError: anything the caller can mend, in one line.
    """
    from bertkit.pipeline.run import train

    return train("classify", settings, recipe, reporter)


def ner(*, recipe: str | None = None, reporter: "Reporter | None" = None, **settings: Any) -> "Run":
    """Fine-tune on named entities: what `bertkit ner` does. As `classify` otherwise."""
    from bertkit.pipeline.run import train

    return train("ner", settings, recipe, reporter)


def nli(*, recipe: str | None = None, reporter: "Reporter | None" = None, **settings: Any) -> "Run":
    """Fine-tune on premise and hypothesis: what `bertkit nli` does. As `classify` otherwise."""
    from bertkit.pipeline.run import train

    return train("nli", settings, recipe, reporter)


def pretrain_mlm_nsp(
    *, recipe: str | None = None, reporter: "Reporter | None" = None, **settings: Any
) -> "Run":
    """Pre-train on plain text: what `bertkit pretrain-mlm-nsp` does. As `classify` otherwise."""
    from bertkit.pipeline.run import train

    return train("pretrain-mlm-nsp", settings, recipe, reporter)


def swag(*, recipe: str | None = None, reporter: "Reporter | None" = None, **settings: Any) -> "Run":
    """Fine-tune on multiple choice: what `bertkit swag` does. As `classify` otherwise."""
    from bertkit.pipeline.run import train

    return train("swag", settings, recipe, reporter)


def qa(*, recipe: str | None = None, reporter: "Reporter | None" = None, **settings: Any) -> "Run":
    """Fine-tune on questions: what `bertkit qa` does. As `classify` otherwise."""
    from bertkit.pipeline.run import train

    return train("qa", settings, recipe, reporter)


def glue(*, recipe: str | None = None, reporter: "Reporter | None" = None, **settings: Any) -> "Run":
    """The GLUE tasks one after the other: what `bertkit glue` does, with the same settings."""
    from bertkit.suites.glue import run_glue

    return run_glue(settings, recipe, reporter)


def feature_based(*, recipe: str | None = None, reporter: "Reporter | None" = None, **settings: Any) -> "Run":
    """Entities from a frozen encoder, row by row: what `bertkit feature-based` does."""
    from bertkit.suites.feature_based import run_feature_based

    return run_feature_based(settings, recipe, reporter)


def ablation(*, recipe: str | None = None, reporter: "Reporter | None" = None, **settings: Any) -> "Run":
    """What matters in pre-training, row by row: what `bertkit ablation` does, with the same settings."""
    from bertkit.suites.ablation import run_ablation

    return run_ablation(settings, recipe, reporter)


def train_tokenizer(*, reporter: "Reporter | None" = None, **settings: Any) -> "TrainedTokenizer":
    """Train a WordPiece vocabulary on plain text: what `bertkit train-tokenizer` does.

    `train_tokenizer(data="texts")` returns a `Vocabulary` with `.output_dir` and `.figures`.
    """
    from bertkit.pipeline.train_tokenizer import train_tokenizer as train

    return train(settings, reporter)


def check(task: str, *, reporter: "Reporter | None" = None, **settings: Any) -> "CheckReport":
    """Look at data before training: what `bertkit check TASK` does, with the task's settings.

    `check("classify", data="reviews.csv")` returns a `Checked` with `.splits` (counts) and `.findings`.

    Raises:
        UserError: there is no data to look at.
    """
    from bertkit.checks.engine import check as look

    return look(task, settings, reporter)


def embed(*, reporter: "Reporter | None" = None, **settings: Any) -> "EmbedResult":
    """Vectors of texts, or of one word in them: what `bertkit embed` does, with the same settings.

    `embed(model="minilm", text=["..."])` returns `.vectors`, float32 [n, d]; with `output` they are in a file
    too, with `query` the nearest rows are in `.results`, with `word` what is known of it in `.word`.
    """
    from bertkit.infer.embed import embed as embed_texts

    return embed_texts(settings, reporter)


def fill_mask(*, reporter: "Reporter | None" = None, **settings: Any) -> "FillMaskResult":
    """The most probable words for each [MASK]: what `bertkit fill-mask` does.

    `fill_mask(model="bert-base-uncased", text=["It was [MASK]."])` returns `.texts`, each with its `masks`.
    """
    from bertkit.infer.fill_mask import fill_mask as fill

    return fill(settings, reporter)


def export(run: "str | Path", *, reporter: "Reporter | None" = None, **settings: Any) -> "ExportResult":
    """A finished run as an ONNX model: what `bertkit export` does.

    `export(RUN, quantize="int8")` returns an `Exported` with `.figures` and an `.output_dir` for `load`.
    """
    from bertkit.infer.export import export as export_run

    return export_run({"run": str(run), **settings}, reporter)


def report(*, reporter: "Reporter | None" = None, **settings: Any) -> "Report":
    """Write the page of a finished run anew, or compare several: what `bertkit report` does.

    `report(runs=["runs/a", "runs/b"], output="a-b.html")` returns a `Report` with `.path` and `.figures`.
    """
    from bertkit.reports.report import report as write

    return write(settings, reporter)


def load(run: "str | Path") -> "Predictor":
    """A finished run as a predictor: `load(RUN).predict([{"text": "..."}])` yields readable records.

    What `export` made of a run is loaded in the same way, and onnxruntime computes.

    Raises:
        UserError: not a finished run.
    """
    from bertkit.infer.predictor import load_predictor as load_run

    return load_run(run)


def predict(run: "str | Path", *, reporter: "Reporter | None" = None, **settings: Any) -> "Predictions":
    """Predictions of a finished run, made while they are read: what `bertkit predict` does.

    `for record in predict(RUN, data="new.csv")` takes a file of any size; see `load` for rows at hand.

    Raises:
        UserError: no finished run, or a row that cannot be predicted.
    """
    from bertkit.infer.configs import PREDICT_OUTPUT_SETTINGS
    from bertkit.infer.predict import predict as predict_run

    for name in PREDICT_OUTPUT_SETTINGS:
        if name in settings:
            raise UserError(f"predict(): {name}: is the command's; write the records where you want them")
    return predict_run({"run": str(run), **settings}, reporter)


def evaluate(run: "str | Path", *, reporter: "Reporter | None" = None, **settings: Any) -> "Run":
    """Scores of a finished run on other data: what `bertkit evaluate` does. As `classify` otherwise."""
    from bertkit.infer.evaluate import evaluate as evaluate_run

    return evaluate_run({"run": str(run), **settings}, reporter)
