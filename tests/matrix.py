"""What works with which type of encoder: each task and command on tiny models, for `docs/models.md`.

    PYTHONPATH=benchmarks python tests/matrix.py roberta gte         # two types; all without arguments
    PYTHONPATH=benchmarks python tests/matrix.py --write             # replace the table of the page

An operation works, or bertkit refuses it with a line. Anything else ends the script with status 1.
"""

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    make_document_rows,
    make_ner_rows,
    make_nli_rows,
    make_qa_rows,
    make_runs_cheap,
    make_swag_rows,
    make_toy_rows,
    read_predictions,
    send_sigterm_after,
    write_rows,
)
from model_types import (
    CHINESE_PLACES,
    CHINESE_WORDS,
    KOREAN_PEOPLE,
    KOREAN_WORDS,
    MODEL_TYPES,
    list_known_types,
    make_character_rows,
    save_model_of,
)
from safetensors.torch import load_file

import bertkit
from bertkit.errors import UserError
from bertkit.utils.reporting import Reporter
from docs_page import replace_section

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
COUNT = 24  # rows of each task
PADDING_WARNING = "its outputs for a text depend on the padding"


class WarningList(Reporter):
    """Keeps the warnings."""

    def __init__(self):
        self.warnings = []

    def warn(self, message):
        self.warnings.append(message)


@dataclass(frozen=True)
class Case:
    """A model of a type, the folder of its runs, and a reporter that keeps their warnings."""

    model: Path
    folder: Path
    reporter: WarningList = field(default_factory=WarningList)

    def train(self, task, rows, name, **settings):
        """Train for three steps, unless the settings say otherwise; return the run."""
        data = write_rows(self.folder / f"{name}.jsonl", rows)
        given = {"max_steps": 3, "batch_size": 8, "learning_rate": 3e-3, "max_length": 48, "bf16": False}
        given |= {"data": str(data), "model": str(self.model), "output_dir": str(self.folder / name)}
        return getattr(bertkit, task)(reporter=self.reporter, **given | settings)

    def get_run(self):
        """The run of `classify`, which is trained once."""
        folder = self.folder / "classify"
        return (
            folder
            if (folder / "metrics.json").exists()
            else self.train("classify", ROWS, "classify").output_dir
        )


ROWS = make_toy_rows(COUNT)
PAIRS = [
    {"text": row["premise"], "text_pair": row["hypothesis"], "label": row["label"]}
    for row in make_nli_rows(COUNT)
]


def classify(case):
    """The logits of the saved model equal those of transformers for each text alone."""
    run = case.get_run()
    assert_as_in_transformers(run, [(row["text"],) for row in read_predictions(run)])


def pairs(case):
    run = case.train("classify", PAIRS, "pairs").output_dir
    assert_as_in_transformers(run, [(row["text"], row["text_pair"]) for row in read_predictions(run)])


def assert_as_in_transformers(run, texts):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(run).eval()
    tokenizer = AutoTokenizer.from_pretrained(run)
    for given, record in zip(texts, read_predictions(run), strict=True):
        with torch.no_grad():
            found = model(**tokenizer(*given, return_tensors="pt")).logits[0].softmax(-1)
        names = [model.config.id2label[number] for number in range(len(found))]
        expected = [record["probabilities"][name] for name in names]
        np.testing.assert_allclose(found, expected, atol=2e-5)


def loss(case):
    """The training loss with learning rate 0 equals the mean cross-entropy of each text alone."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    validation = str(write_rows(case.folder / "other.jsonl", make_toy_rows(4, seed=1)))
    run = case.train(
        "classify", ROWS, "loss", learning_rate=0.0, max_steps=None, epochs=1, validation=validation
    )
    model = AutoModelForSequenceClassification.from_pretrained(run.output_dir).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.output_dir)
    losses = []
    for row in ROWS:
        batch = tokenizer(row["text"], return_tensors="pt")
        with torch.no_grad():
            labels = torch.tensor([model.config.label2id[row["label"]]])
            losses.append(float(model(**batch, labels=labels).loss))
    assert run.metrics["training"]["loss"] == pytest.approx(np.mean(losses), abs=1e-5)


def nli(case):
    case.train("nli", make_nli_rows(COUNT), "nli")


def ner(case):
    case.train("ner", make_ner_rows(COUNT), "ner")


def characters(case):
    """Words that are characters, with the spaces as words, as in KLUE."""
    case.train("ner", make_character_rows(COUNT, KOREAN_PEOPLE, KOREAN_WORDS, " "), "characters")


def chinese(case):
    """Words that are characters, without spaces."""
    case.train("ner", make_character_rows(COUNT, CHINESE_PLACES, CHINESE_WORDS, ""), "chinese")


def qa(case):
    case.train("qa", make_qa_rows(COUNT, unanswerable=5), "qa", squad="v2")


def swag(case):
    case.train("swag", make_swag_rows(COUNT), "swag")


def mlm(case):
    case.train("pretrain_mlm_nsp", make_document_rows(COUNT), "mlm", objective="mlm")


def fill_mask(case):
    folder = case.folder / "mlm"
    if not (folder / "metrics.json").exists():
        mlm(case)
    assert bertkit.fill_mask(model=str(folder), text=["it was [MASK] today"])


def predict(case):
    """Predictions of a batch equal those of each row alone and those of training."""
    run = case.get_run()
    trained = read_predictions(run)
    loaded = bertkit.load(run)
    rows = [{"text": row["text"]} for row in trained]
    together = list(loaded.predict(rows))
    alone = [next(iter(loaded.predict([row]))) for row in rows]
    for records in (together, alone):
        for found, expected in zip(records, trained, strict=True):
            for label, value in expected["probabilities"].items():
                assert found["probabilities"][label] == pytest.approx(value, abs=2e-5)


def embed(case):
    """The vectors of a batch equal those of each text alone."""
    texts = [row["text"] for row in ROWS[:5]]
    rows = [{"text": text} for text in texts]
    together = bertkit.embed(reporter=case.reporter, model=str(case.model), data=rows).vectors
    for text, vector in zip(texts, together, strict=True):
        alone = bertkit.embed(model=str(case.model), data=[{"text": text}]).vectors[0]
        np.testing.assert_allclose(alone, vector, atol=2e-5)


def resume(case):
    """An interrupted and resumed run has the weights of an uninterrupted one."""
    options = {"max_steps": 6, "save_steps": 2}
    whole = case.train("classify", ROWS, "whole", **options).output_dir
    with pytest.MonkeyPatch.context() as monkeypatch:
        send_sigterm_after(monkeypatch, 3)
        with pytest.raises(UserError, match="interrupted at step 3"):
            case.train("classify", ROWS, "interrupted", **options)
    interrupted = case.folder / "interrupted"
    assert not (interrupted / "metrics.json").exists()
    bertkit.classify(resume=True, output_dir=str(interrupted))
    one, two = (load_file(folder / "model.safetensors") for folder in (whole, interrupted))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def evaluate(case):
    """`bertkit evaluate` gives the scores of training again."""
    run = case.get_run()
    scores = json.loads((run / "metrics.json").read_text())["validation"]
    again = bertkit.evaluate(run, output_dir=str(case.folder / "evaluated")).metrics["validation"]
    assert again == pytest.approx(scores, abs=1e-6)


def lora(case):
    run = case.train("classify", ROWS, "lora", lora=2).output_dir
    assert_as_in_transformers(run, [(row["text"],) for row in read_predictions(run)])


def distill(case):
    bertkit.distill(case.get_run(), num_layers=1, max_steps=2, output_dir=str(case.folder / "student"))


def export(case):
    made = bertkit.export(case.get_run(), output_dir=str(case.folder / "onnx"))
    assert made.measurements["greatest_difference"]["onnx"] < 1e-4


OPERATIONS: dict[str, Callable[[Case], object]] = {
    "classify": classify,
    "pairs": pairs,
    "loss": loss,
    "nli": nli,
    "ner": ner,
    "ner (characters and spaces)": characters,
    "ner (Chinese)": chinese,
    "qa": qa,
    "swag": swag,
    "mlm": mlm,
    "fill-mask": fill_mask,
    "predict": predict,
    "evaluate": evaluate,
    "embed": embed,
    "resume": resume,
    "lora": lora,
    "distill": distill,
    "export": export,
}


def try_operation(case, name):
    """Return "works", the line that refuses or warns, or the last line of a traceback after "FAILS: "."""
    try:
        OPERATIONS[name](case)
    except UserError as error:
        return str(error).replace(str(case.folder), "FOLDER")
    except Exception as error:  # noqa: BLE001 each failure is a result
        warnings = [warning for warning in case.reporter.warnings if PADDING_WARNING in warning]
        if isinstance(error, AssertionError) and warnings:
            return warnings[0]
        return f"FAILS: {' '.join(''.join(traceback.format_exception_only(error)).split())[:300]}"
    return "works"


def run_type(model_type, names, folder):
    """Return the result of each operation with a type."""
    case = Case(save_model_of(model_type, folder / model_type), folder)
    return {name: try_operation(case, name) for name in names}


def format_row(model_type, results):
    """The row of a type in the table."""
    refused = {}
    for name, result in results.items():
        if result != "works":
            refused.setdefault(result, []).append(name)
    cells = []
    for line, names in refused.items():
        cells.append(f"{'everything' if len(names) == len(OPERATIONS) else ', '.join(names)}: *{line}*")
    cell = "; ".join(cells)
    return f"| {model_type} | {MODEL_TYPES[model_type][0]} | {cell or 'works'} |"


def main():
    """Run the operations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", help="types of config.json (default: all)")
    parser.add_argument("--only", help="operations, separated by commas")
    parser.add_argument("--write", action="store_true", help="write the table of all types to docs/models.md")
    args = parser.parse_args()
    if args.write and (args.types or args.only):
        parser.error("--write needs all types and operations")
    names = args.only.split(",") if args.only else list(OPERATIONS)
    if unknown := {*args.types} - {*list_known_types()} | {*names} - {*OPERATIONS}:
        parser.error(f"{', '.join(sorted(unknown))}: neither a type nor an operation")
    rows = []
    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("BERTKIT_CACHE_DIR", f"{temporary}/cache")
        make_runs_cheap(monkeypatch)
        for model_type in args.types or list_known_types():
            results = run_type(model_type, names, Path(temporary) / "runs" / model_type)
            rows.append(format_row(model_type, results))
            print(rows[-1], flush=True)
    if args.write:
        table = ["| `model_type` | tokenizer | tasks and commands |", "|---|---|---|", *rows]
        replace_section("models", "\n".join(table), PAGE)
    sys.exit(int(any("FAILS" in row for row in rows)))


if __name__ == "__main__":
    main()
