"""The files of a finished run, as `predict` and `report` read them."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bertkit
from malformed.case import HTML, LFS_POINTER

DEEPLY_NESTED = "[" * 100_000


@dataclass(frozen=True)
class Damage:
    """What is done to one file of a run, by those who read it.

    Attributes:
        change: its bytes before -> after; None: the file is gone.
        says: words of the line that refuses the run.
        task: whose run it is.
    """

    file: str
    change: Callable[[bytes], bytes | None]
    message_parts: tuple[str, ...]
    task: str = "classify"


def overwrite_file(file: str, content: str | bytes, *says: str, task: str = "classify") -> Damage:
    """Another content."""
    return Damage(file, lambda _: content.encode() if isinstance(content, str) else content, says, task)


def remove_file(file: str, *says: str) -> Damage:
    """No such file."""
    return Damage(file, lambda _: None, says)


def truncate_file(file: str, *says: str) -> Damage:
    """The first half."""
    return Damage(file, lambda before: before[: len(before) // 2], says)


def truncate_in_key(file: str, *says: str) -> Damage:
    """Truncate a YAML file within a key, because the first half of the file may be valid."""
    return Damage(file, lambda before: before[: before.rindex(b":", 0, len(before) // 2)], says)


def replace_line(file: str, begin: str, other: str, *says: str) -> Damage:
    """Another beginning of a line."""

    def change(before: bytes) -> bytes:
        assert f"\n{begin}".encode() in before
        return before.replace(begin.encode(), other.encode(), 1)

    return Damage(file, change, (file, *says))


def set_key(file: str, key: str, value: object, *says: str, task: str = "classify") -> Damage:
    """Another value at a key."""
    return Damage(file, lambda before: json.dumps({**json.loads(before), key: value}).encode(), says, task)


def edit_records(task: str, change: Callable[[dict], object], *says: str) -> Damage:
    """Change each record except the first; the message names line 2."""

    def changed(before: bytes) -> bytes:
        first, *records = map(json.loads, before.decode().splitlines())
        for record in records:
            change(record)
        return "".join(json.dumps(record) + "\n" for record in [first, *records]).encode()

    return Damage(PREDICTIONS, changed, (f"{PREDICTIONS}:2", "again", *says), task)


def make_json_damages(file: str, *says: str, task: str = "classify") -> dict[str, Damage]:
    """Contents that are not a JSON object, in any file that requires one."""
    contents = {
        "is empty": "", "is cut": '{"a": ', "is a list": "[]", "is a number": "5", "is null": "null",
        "is a page": HTML, "is a pointer": LFS_POINTER, "is nested too deeply": DEEPLY_NESTED, "is UTF-16": "{}".encode("utf-16"),
        "has a zero byte": b'{"a": "\0', "has a number without end": '{"a": ' + "9" * 5000 + "}",
    }  # fmt: skip
    return {
        f"{file} {name}": overwrite_file(file, content, *says, task=task)
        for name, content in contents.items()
    }


class TouchOnUnpickle:
    """A pickle of one leaves a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable, tuple]:
        return Path.touch, (self.path,)


CONFIG, WEIGHTS, TOKENIZER, RUN_YAML, METRICS, PREDICTIONS, LOG, NBEST, SAMPLES = (
    "config.json", "model.safetensors", "tokenizer.json", "run.yaml", "metrics.json", "predictions.jsonl",
    "training_log.jsonl", "nbest_predictions.json", "masked_samples.jsonl",
)  # fmt: skip
PRETRAIN = "pretrain-mlm-nsp"
SAMPLE = {"id": 0, "masked": "[CLS] [MASK]", "positions": [1], "tokens": ["a"], "mlm_loss": 0.5}
PREDICT_DAMAGES: dict[str, Damage] = {
    **make_json_damages(CONFIG, CONFIG),
    **make_json_damages(TOKENIZER, "tokenizer"),
    **make_json_damages(METRICS, METRICS),
    **{
        f"{CONFIG}: {key} is {str(value)[:20]!r}": set_key(CONFIG, key, value, "run:")
        for key, value in {
            "hidden_size": "wide", "num_attention_heads": 7, "vocab_size": 3,
            "intermediate_size": None, "hidden_act": "none", "id2label": [1, 2], "max_position_embeddings": "x",
            "model_type": "none",
        }.items()
    },
    f"{CONFIG} is gone": remove_file(CONFIG, "no config.json"),
    f"{WEIGHTS} is gone": remove_file(WEIGHTS, "no weights"),
    f"{WEIGHTS} is cut": truncate_file(WEIGHTS, "weights cannot be loaded"),
    f"{WEIGHTS} is empty": overwrite_file(WEIGHTS, b"", "weights cannot be loaded"),
    f"{WEIGHTS} has a header without end": overwrite_file(WEIGHTS, b"\xff" * 64, "weights cannot be loaded"),
    f"{WEIGHTS} has no JSON for a header": overwrite_file(WEIGHTS, (8).to_bytes(8, "little") + b"{" * 8, "weights"),
    f"{WEIGHTS} is a pickle": overwrite_file(WEIGHTS, pickle.dumps([1]), "weights cannot be loaded"),
    f"{WEIGHTS} is a pointer": overwrite_file(WEIGHTS, LFS_POINTER, "weights cannot be loaded"),
    f"{TOKENIZER} is gone": remove_file(TOKENIZER, "tokenizer"),
    f"{TOKENIZER} has a model of no kind": set_key(TOKENIZER, "model", {"type": "None"}, "tokenizer"),
    f"{TOKENIZER} has no words": set_key(TOKENIZER, "model", {"type": "WordPiece", "vocab": {}}, "tokenizer"),
    "tokenizer_config.json is a list": overwrite_file("tokenizer_config.json", "[]", "tokenizer"),
    "tokenizer_config.json is cut": truncate_file("tokenizer_config.json", "tokenizer"),
    f"{RUN_YAML} is gone": remove_file(RUN_YAML, RUN_YAML),
    f"{RUN_YAML} is empty": overwrite_file(RUN_YAML, "", RUN_YAML),
    f"{RUN_YAML} is cut": truncate_in_key(RUN_YAML, RUN_YAML),
    f"{RUN_YAML} is a list": overwrite_file(RUN_YAML, "- a\n", RUN_YAML, "'task' and 'settings'"),
    f"{RUN_YAML} has a setting of another kind": overwrite_file(RUN_YAML, "settings: {epochs: many}\n", RUN_YAML, "epochs"),
    f"{RUN_YAML} has a setting that nobody knows": overwrite_file(RUN_YAML, "settings: {epoch: 3}\n", RUN_YAML, "did you mean"),
    f"{RUN_YAML} is another task's": overwrite_file(RUN_YAML, "task: ner\nsettings: {}\n", RUN_YAML, "recipe for ner"),
    f"{METRICS} is gone": remove_file(METRICS, "not a finished run"),
    f"{METRICS} is cut": truncate_file(METRICS, METRICS, "cannot parse it as JSON"),
    f"{METRICS} has a task that is a list": set_key(METRICS, "task", ["classify"], METRICS),
    f"{METRICS} has an unknown task": set_key(METRICS, "task", "../x", "run"),
}  # fmt: skip
JSONL_DAMAGES = {
    f"{file} {name}": overwrite_file(file, content, file)
    for file in (PREDICTIONS, LOG)
    for name, content in {
        "is cut": '{"id": 0, "te', "is a list a line": "[1]\n", "is null": "null\n", "is a page": HTML,
        "is nested too deeply": DEEPLY_NESTED, "is UTF-16": "{}".encode("utf-16"), "has a number without end": "9" * 5000,
    }.items()
}  # fmt: skip
RECORD_DAMAGES = {
    f"{PREDICTIONS} of {damage.task}: {name}": damage
    for name, damage in {
        "no id": edit_records("classify", lambda r: r.pop("id"), "`id`"),
        "no gold label": edit_records("classify", lambda r: r.pop("gold"), "`gold`"),
        "gold is a number": edit_records("classify", lambda r: r.update(gold=1), "`str`", "gold"),
        "gold is an unknown label": edit_records("classify", lambda r: r.update(gold="x"), "'x' has no probability"),
        "predicted is an unknown label": edit_records("nli", lambda r: r.update(predicted="x"), "'x' has no probability"),
        "a probability is a word": edit_records("classify", lambda r: r["probabilities"].update(positive="x"), "`float`"),
        "a probability is not a number": edit_records("classify", lambda r: r["probabilities"].update(positive=float("nan")), "`float`"),
        "a probability of an unknown label": edit_records("classify", lambda r: r["probabilities"].update(x=0), "different labels"),
        "a tag is a number": edit_records("ner", lambda r: r["gold"].append(5), "gold[", "`str`"),
        "a tag too many": edit_records("ner", lambda r: r["gold"].append("O"), "gold", "tags for"),
        "an empty tag": edit_records("ner", lambda r: r["gold"].__setitem__(0, ""), "gold", "'' is not a tag"),
        "a predicted tag too many": edit_records("ner", lambda r: r["predicted"].append("O"), "predicted", "tags for"),
        "another text": edit_records("ner", lambda r: r.update(text=r["text"] + " and"), "tokens"),
        "an entity outside of the text": edit_records("ner", lambda r: r.update(entities=[{"start": 0, "end": 999, "label": "X", "score": 1.0}]), "entities"),
        "an entity before the text": edit_records("ner", lambda r: r.update(entities=[{"start": -1, "end": 1, "label": "X", "score": 1.0}]), "start"),
        "entities one over the other": edit_records("ner", lambda r: r.update(entities=[{"start": 0, "end": 2, "label": "X", "score": 1.0}] * 2), "entities"),
        "an answer that stands elsewhere": edit_records("qa", lambda r: r.update(answer="the end", start=0, end=3), "0 to 3"),
        "an answer that stands nowhere": edit_records("qa", lambda r: r.update(answer="the end", start=None, end=None), "the answer"),
        "gold is a text": edit_records("qa", lambda r: r.update(gold="the end"), "gold"),
        "an ending that is not there": edit_records("swag", lambda r: r.update(gold=5), "gold: 5 is outside"),
        "an ending before the first": edit_records("swag", lambda r: r.update(predicted=-1), "predicted"),
        "a probability is null": edit_records("swag", lambda r: r["probabilities"].append(None), "probabilities["),
    }.items()
}  # fmt: skip
REPORT_DAMAGES: dict[str, Damage] = {
    **make_json_damages(METRICS, METRICS),
    **JSONL_DAMAGES,
    **RECORD_DAMAGES,
    **make_json_damages(NBEST, NBEST, task="qa"),
    **{f"{CONFIG} of {task} {name}": damage for task in ("ner", "qa") for name, damage in make_json_damages(CONFIG, CONFIG, task=task).items()},
    f"{CONFIG}: a threshold is a word": set_key(CONFIG, "null_odds_threshold", "x", CONFIG, "null_odds_threshold", task="qa"),
    f"{CONFIG}: tags of an unknown scheme": set_key(CONFIG, "tag_scheme", {"name": "x", "separator": "-"}, CONFIG, "tag_scheme", task="ner"),
    f"{NBEST}: an answer has no text": set_key(NBEST, "x", [{"probability": 0.5}], NBEST, "`text`", task="qa"),
    f"{SAMPLES}: a position outside": overwrite_file(SAMPLES, json.dumps(SAMPLE | {"positions": [2]}), f"{SAMPLES}:1", "position 2", task=PRETRAIN),
    f"{SAMPLES}: too many tokens": overwrite_file(SAMPLES, json.dumps(SAMPLE | {"tokens": ["a", "b"]}), f"{SAMPLES}:1", "2 tokens", task=PRETRAIN),
    f"{SAMPLES}: a loss of null": overwrite_file(SAMPLES, json.dumps(SAMPLE | {"mlm_loss": None}), f"{SAMPLES}:1", "mlm_loss", task=PRETRAIN),
    f"{LOG}: a line without its step": overwrite_file(LOG, '{"step": 1}\n{"loss": 0.5}\n', f"{LOG}:2", "`step`"),
    f"{LOG}: a step is a word": overwrite_file(LOG, '{"step": "one"}\n', f"{LOG}:1", "step"),
    f"{METRICS}: a score is a word": set_key(METRICS, "validation", {"accuracy": "x"}, METRICS, "validation"),
    f"{METRICS}: a split without its size": set_key(METRICS, "test", {"accuracy": 1.0}, METRICS, "data.test"),
    f"{METRICS}: an interval of three": set_key(METRICS, "intervals", {"accuracy": [1, 2, 3]}, METRICS, "intervals"),
    f"{RUN_YAML} has a setting of another kind": overwrite_file(RUN_YAML, "settings: {epochs: many}\n", RUN_YAML, "epochs"),
    f"{RUN_YAML}: a version is a date": replace_line(RUN_YAML, "    bertkit:", "    bertkit: 2026-01-01 #", "packages"),
    **{
        f"{METRICS}: {key} is {value!r}": set_key(METRICS, key, value, METRICS, key)
        for key in ("data", "validation", "training", "baselines", "intervals")
        for value in (None, 5, [1], "x")
    },
    f"{METRICS} says a task and no more": overwrite_file(METRICS, '{"task": "classify"}', METRICS),
    f"{RUN_YAML} is gone": remove_file(RUN_YAML, RUN_YAML),
    f"{RUN_YAML} is cut": truncate_in_key(RUN_YAML, RUN_YAML),
    f"{RUN_YAML} does not say what it was made with": replace_line(RUN_YAML, "  packages:", "  pakages:", "packages"),
    f"{RUN_YAML} says a number of what it was made with": replace_line(RUN_YAML, "  python:", "  python: 5 #", "python"),
    f"{RUN_YAML} has no settings": overwrite_file(RUN_YAML, "task: classify\n", RUN_YAML, "settings"),
}  # fmt: skip


def read_for_predict(folder: Path) -> None:
    """One text."""
    list(bertkit.load(folder).predict([{"text": "good"}]))


def read_for_report(folder: Path) -> None:
    """The page."""
    bertkit.report(runs=[folder])


RUN_DAMAGES: dict[str, tuple[Callable[[Path], None], dict[str, Damage]]] = {
    "predict": (read_for_predict, PREDICT_DAMAGES),
    "report": (read_for_report, REPORT_DAMAGES),
}
