"""The files of a finished run of `classify`, as `predict` and `report` read them."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bertkit
from malformed.case import HTML, POINTER

DEEP = "[" * 100_000


@dataclass(frozen=True)
class Damage:
    """What is done to one file of a run, by those who read it.

    Attributes:
        change: its bytes before -> after; None: the file is gone.
        says: words of the line that refuses the run.
    """

    file: str
    change: Callable[[bytes], bytes | None]
    says: tuple[str, ...]


def put(file: str, content: str | bytes, *says: str) -> Damage:
    """Another content."""
    return Damage(file, lambda _: content.encode() if isinstance(content, str) else content, says)


def gone(file: str, *says: str) -> Damage:
    """No such file."""
    return Damage(file, lambda _: None, says)


def cut(file: str, *says: str) -> Damage:
    """The first half."""
    return Damage(file, lambda before: before[: len(before) // 2], says)


def with_line(file: str, begin: str, other: str, *says: str) -> Damage:
    """Another beginning of a line."""

    def change(before: bytes) -> bytes:
        assert f"\n{begin}".encode() in before
        return before.replace(begin.encode(), other.encode(), 1)

    return Damage(file, change, (file, *says))


def with_key(file: str, key: str, value: object, *says: str) -> Damage:
    """Another value at a key."""
    return Damage(file, lambda before: json.dumps({**json.loads(before), key: value}).encode(), says)


def no_json(file: str, *says: str) -> dict[str, Damage]:
    """What is no JSON object in any file that should be one."""
    contents = {
        "is empty": "", "is cut": '{"a": ', "is a list": "[]", "is a number": "5", "is null": "null",
        "is a page": HTML, "is a pointer": POINTER, "is nested too deeply": DEEP, "is UTF-16": "{}".encode("utf-16"),
        "has a zero byte": b'{"a": "\0', "has a number without end": '{"a": ' + "9" * 5000 + "}",
    }  # fmt: skip
    return {f"{file} {name}": put(file, content, *says) for name, content in contents.items()}


class Touch:
    """A pickle of one leaves a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable, tuple]:
        return Path.touch, (self.path,)


CONFIG, WEIGHTS, PIECES, RUN, METRICS = (
    "config.json", "model.safetensors", "tokenizer.json", "run.yaml", "metrics.json",
)  # fmt: skip
PREDICT: dict[str, Damage] = {
    **no_json(CONFIG, CONFIG),
    **no_json(PIECES, "tokenizer"),
    **no_json(METRICS, METRICS),
    **{
        f"{CONFIG}: {key} is {str(value)[:20]!r}": with_key(CONFIG, key, value, "run:")
        for key, value in {
            "hidden_size": "wide", "num_attention_heads": 7, "vocab_size": 3,
            "intermediate_size": None, "hidden_act": "none", "id2label": [1, 2], "max_position_embeddings": "x",
            "model_type": "none",
        }.items()
    },
    f"{CONFIG}: auto_map": with_key(CONFIG, "auto_map", {"AutoConfig": "code.Config"}, "auto_map", "never runs"),
    f"{CONFIG} is gone": gone(CONFIG, "no config.json"),
    f"{WEIGHTS} is gone": gone(WEIGHTS, "no weights"),
    f"{WEIGHTS} is cut": cut(WEIGHTS, "weights cannot be loaded"),
    f"{WEIGHTS} is empty": put(WEIGHTS, b"", "weights cannot be loaded"),
    f"{WEIGHTS} has a header without end": put(WEIGHTS, b"\xff" * 64, "weights cannot be loaded"),
    f"{WEIGHTS} has no JSON for a header": put(WEIGHTS, (8).to_bytes(8, "little") + b"{" * 8, "weights"),
    f"{WEIGHTS} is a pickle": put(WEIGHTS, pickle.dumps([1]), "weights cannot be loaded"),
    f"{WEIGHTS} is a pointer": put(WEIGHTS, POINTER, "weights cannot be loaded"),
    f"{PIECES} is gone": gone(PIECES, "tokenizer"),
    f"{PIECES} has a model of no kind": with_key(PIECES, "model", {"type": "None"}, "tokenizer"),
    f"{PIECES} has no words": with_key(PIECES, "model", {"type": "WordPiece", "vocab": {}}, "tokenizer"),
    "tokenizer_config.json is a list": put("tokenizer_config.json", "[]", "tokenizer"),
    "tokenizer_config.json is cut": cut("tokenizer_config.json", "tokenizer"),
    f"{RUN} is gone": gone(RUN, RUN),
    f"{RUN} is empty": put(RUN, "", RUN),
    f"{RUN} is cut": cut(RUN, RUN),
    f"{RUN} is a list": put(RUN, "- a\n", RUN, "'task' and 'settings'"),
    f"{RUN} has a setting of another kind": put(RUN, "settings: {epochs: many}\n", RUN, "epochs"),
    f"{RUN} has a setting that nobody knows": put(RUN, "settings: {epoch: 3}\n", RUN, "did you mean"),
    f"{RUN} is another task's": put(RUN, "task: ner\nsettings: {}\n", RUN, "recipe for ner"),
    f"{METRICS} is gone": gone(METRICS, "not a finished run"),
    f"{METRICS} is cut": cut(METRICS, METRICS, "broken JSON"),
    f"{METRICS} has a task that is a list": with_key(METRICS, "task", ["classify"], METRICS),
    f"{METRICS} has a task that is none": with_key(METRICS, "task", "../x", "run"),
}  # fmt: skip
LINES = {
    f"{file} {name}": put(file, content, file)
    for file in ("predictions.jsonl", "training_log.jsonl")
    for name, content in {
        "is cut": '{"id": 0, "te', "is a list a line": "[1]\n", "is null": "null\n", "is a page": HTML,
        "is nested too deeply": DEEP, "is UTF-16": "{}".encode("utf-16"), "has a number without end": "9" * 5000,
    }.items()
}  # fmt: skip
REPORT: dict[str, Damage] = {
    **no_json(METRICS, METRICS),
    **LINES,
    **{
        f"{METRICS}: {key} is {value!r}": with_key(METRICS, key, value, METRICS, key)
        for key in ("data", "validation", "training", "baselines", "intervals")
        for value in (None, 5, [1], "x")
    },
    f"{METRICS} says a task and no more": put(METRICS, '{"task": "classify"}', METRICS),
    f"{RUN} is gone": gone(RUN, RUN),
    f"{RUN} is cut": cut(RUN, RUN),
    f"{RUN} does not say what it was made with": with_line(RUN, "  packages:", "  pakages:", "packages"),
    f"{RUN} says a number of what it was made with": with_line(RUN, "  python:", "  python: 5 #", "python"),
    f"{RUN} has no settings": put(RUN, "task: classify\n", RUN, "settings"),
}  # fmt: skip


def predict(folder: Path) -> None:
    """One text."""
    list(bertkit.load(folder).predict([{"text": "good"}]))


def report(folder: Path) -> None:
    """The page."""
    bertkit.report(runs=[folder])


FOLDERS: dict[str, tuple[Callable[[Path], None], dict[str, Damage]]] = {
    "predict": (predict, PREDICT),
    "report": (report, REPORT),
}
