"""Tiny models and data made on the spot, and the command line called in this process."""

import contextlib
import functools
import gc
import itertools
import json
import os
import random
import signal
import sys
import types

# The tests run in a process a core, and models are tiny: threads would only wait for one another.
os.environ["COLUMNS"] = "200"  # rich reads it when a console is created
os.environ.setdefault("OMP_NUM_THREADS", "1")

# PyTorch reads it once in a process, and the first matrix product on a GPU may be that of any test.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")

import hypothesis
import numpy as np
import pytest
from chromium import driver, shown  # noqa: F401
from hub import hub, no_hub  # noqa: F401
from new_process import end_server
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

# Otherwise, each process that a test starts would compile all modules of bertkit.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a shell starts in the background ignores Ctrl-C; the tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A time limit of an example would fail on a busy machine.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
POSITIVE_WORDS = ["good", "great", "lovely", "fine", "nice", "happy", "warm", "bright"]
NEGATIVE_WORDS = ["bad", "awful", "poor", "sad", "cold", "dull", "broken", "angry"]
NEUTRAL_WORDS = [
    "the", "a", "film", "food", "room", "was", "very", "it", "and", "today", "we", "saw", "in", "of", "to",
    "here", "there",
]  # fmt: skip


def pytest_collection_finish():
    """Exempt the libraries from garbage collection, because Trainer collects garbage in each run.

    A process of a parallel run executes many tests, so it imports the slow libraries here.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        import_libraries()
    freeze_libraries()


def import_libraries():
    """Import the slow libraries that most tests need."""
    import datasets  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import transformers.trainer  # noqa: F401


def freeze_libraries():
    """Exempt the objects of all libraries from garbage collection, and make collections rare.

    Python collects all generations often when few objects are not exempt.
    """
    global _frozen_modules
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    _frozen_modules = len(sys.modules)


_frozen_modules = 0


def pytest_runtest_teardown():
    """Exempt also the libraries that a test imported, for example those of `bertkit export`."""
    if len(sys.modules) != _frozen_modules:
        freeze_libraries()


def pytest_sessionfinish():
    end_server()


@pytest.fixture(scope="session", autouse=True)
def _shared_cache(tmp_path_factory):
    """Give fixtures that several tests share a cache, so that no user files are read or written."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("BERTKIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _young_garbage_only():
    """Let Trainer collect only young objects before each run; Python collects the old ones now and then."""
    young = types.SimpleNamespace(collect=lambda: gc.collect(1))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("accelerate.utils.memory.gc", young)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_command_table():
    """Build the table of commands and flags once, not for each call. `--recipe` changes it for one call."""
    from typer import main

    build, tables = main.get_command, {}

    def get_command(app):
        if app not in tables:
            command = build(app)
            tables[app] = command, [(option, option.show_default) for option in list_options(command)]
        command, options = tables[app]
        for option, show_default in options:
            option.show_default = show_default
        return command

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(main, "get_command", get_command)
        yield


def list_options(command):
    """Return the options of a command and of its subcommands."""
    options = [parameter for parameter in command.params if hasattr(parameter, "show_default")]
    return options + [
        option for each in getattr(command, "commands", {}).values() for option in list_options(each)
    ]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Give each test its own cache and no data directory, so that no user files are read or written."""
    monkeypatch.setenv("BERTKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("BERTKIT_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


# What takes most of the time of a tiny run. A test that is about one of them has its mark.
COSTLY = ("charts", "intervals", "linear_probe", "load_check")
_costly = set()


@contextlib.contextmanager
def costly_parts(*parts):
    """Let runs have these parts, and no other of `COSTLY`; for fixtures that several tests share."""
    before = set(_costly)
    _costly.clear()
    _costly.update(parts)
    try:
        yield
    finally:
        _costly.clear()
        _costly.update(before)


_slow_fixtures = set()  # names of modules and fixtures


def slow_fixture(function):
    """Declare a fixture of a module that trains. Tests that use it get the mark `slow`."""
    _slow_fixtures.add((function.__module__, function.__name__))
    return pytest.fixture(scope="module")(function)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items):
    for item in items:
        if any((item.module.__name__, name) in _slow_fixtures for name in item.fixturenames):
            item.add_marker(pytest.mark.slow)


# Models run on the accelerator of the machine, if it has one. Tests about the CPU have the mark `cpu`.
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_visible_gpus = os.environ.get(VISIBLE_GPUS)
_is_cpu_chosen = False


@contextlib.contextmanager
def choose_cpu(is_chosen):
    """Let this process, and those that it starts, choose the CPU, or else the accelerator of the machine."""
    before = _is_cpu_chosen
    _set_cpu_chosen(is_chosen)
    try:
        yield
    finally:
        _set_cpu_chosen(before)


def _set_cpu_chosen(is_chosen):
    global _is_cpu_chosen
    if is_chosen == _is_cpu_chosen:
        return
    import torch

    from bertkit.utils import devices

    if torch.cuda.is_available():  # CUDA and PyTorch read the variable once in a process: now
        torch.cuda.init()
        torch.cuda.device_count()
    if is_chosen:
        os.environ[VISIBLE_GPUS] = ""
    elif _visible_gpus is None:
        del os.environ[VISIBLE_GPUS]
    else:
        os.environ[VISIBLE_GPUS] = _visible_gpus
    devices._find_device.cache_clear()
    _is_cpu_chosen = is_chosen


@pytest.fixture(scope="session", autouse=True)
def _device_of_the_mark():
    """Make bertkit choose the CPU in tests with the mark `cpu`."""
    from bertkit.utils import devices

    choose_device = devices._choose_device

    def choose():
        return devices._find_device("cpu") if _is_cpu_chosen else choose_device()

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(devices, "_choose_device", choose)
        yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Let the runs of a test have the parts and the device that its marks name."""
    with _follow_marks(item):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Let the runs of a shared fixture have the parts and the device that the marks of its module name.

    Otherwise, they would depend on the test that needs the fixture first.
    """
    with _follow_marks(request.node):
        yield


@contextlib.contextmanager
def _follow_marks(node):
    parts = [part for part in COSTLY if node.get_closest_marker(part)]
    with costly_parts(*parts), choose_cpu(node.get_closest_marker("cpu") is not None):
        yield


@pytest.fixture(scope="session", autouse=True)
def _cheap_runs():
    """Leave out the costly parts of runs in tests without their marks."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_runs_cheap(monkeypatch)
        yield


def make_runs_cheap(monkeypatch):
    """Leave charts empty, score no linear probe, and resample rows 50 times, except for tests with the mark.

    A model is checked once in a process, also if the cache of the next test is empty.
    Probes choose their settings without cross-validation, which would fit them 20 times: see `five_folds`.
    Few rows are read four times: see `test_few_rows_are_read_for_at_least_200_steps`.
    """
    from markupsafe import Markup

    import bertkit.stats.significance as significance
    from bertkit import charts
    from bertkit.models import load_check
    from bertkit.reports import page
    from bertkit.run import baselines

    render, score, resample = (
        charts.render_chart,
        baselines.fit_linear_probe_baseline,
        significance.resample_rows,
    )

    def render_chart(title, draw, note="", **options):
        if "charts" in _costly:
            return render(title, draw, note, **options)
        values = {name: value for name, value in options.items() if name in ("names", "table")}
        return charts.Chart(title, Markup("<svg></svg>"), note, **values)

    def fit_linear_probe_baseline(*args):
        return score(*args) if "linear_probe" in _costly else {}

    load_or_compute, results = load_check._load_or_compute, {}

    def compute_once(key, compute):
        text = json.dumps(key)
        if "load_check" in _costly or text not in results:
            results[text] = load_or_compute(key, compute)
        return results[text]

    def resample_rows(scorer, seed):
        return itertools.islice(resample(scorer, seed), None if "intervals" in _costly else 50)

    monkeypatch.setattr(charts, "render_chart", render_chart)
    monkeypatch.setattr(page, "render_chart", render_chart)
    monkeypatch.setattr(baselines, "fit_linear_probe_baseline", fit_linear_probe_baseline)
    monkeypatch.setattr(load_check, "_load_or_compute", compute_once)
    monkeypatch.setattr(significance, "resample_rows", resample_rows)
    monkeypatch.setattr("bertkit.stats.linear_probe.MAX_FOLDS", 1)
    monkeypatch.setattr("bertkit.training.arguments.MIN_STEPS", 1)
    monkeypatch.setattr("bertkit.training.arguments.MIN_EXAMPLES_PER_CLASS", 1)


@pytest.fixture
def five_folds(monkeypatch):
    """Choose the settings of linear probes by cross-validation."""
    monkeypatch.setattr("bertkit.stats.linear_probe.MAX_FOLDS", 5)


@pytest.fixture(scope="session")
def onnx_exporter():
    """Skip with versions of torch that do not export all models; make tiny exports fast.

    The tables of operators are built once. The cache of traced shapes would take longer than to compute them.
    """
    import torch
    from torch._export import utils
    from torch.onnx._internal.exporter import _registration

    from bertkit.commands.export import TESTED_TORCH

    if torch.__version__ < TESTED_TORCH:
        pytest.skip(f"export needs torch {TESTED_TORCH}")
    with pytest.MonkeyPatch.context() as monkeypatch:
        build = functools.cache(_registration.ONNXRegistry.from_torchlib)
        monkeypatch.setattr(_registration.ONNXRegistry, "from_torchlib", staticmethod(build))
        list_operators = functools.cache(utils._materialize_cpp_cia_ops)
        monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", list_operators)
        with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
            yield


@pytest.fixture
def stop_at(monkeypatch):
    """Return a function that arranges for SIGTERM after this many optimizer steps, over all runs."""
    return functools.partial(send_sigterm_after, monkeypatch)


def send_sigterm_after(monkeypatch, step):
    """Arrange for SIGTERM after this many optimizer steps, over all runs."""
    from bertkit.training.callbacks import ReporterCallback

    original, steps = ReporterCallback.on_step_end, []

    def interrupt(self, args, state, control, **kwargs):
        original(self, args, state, control, **kwargs)
        steps.append(state.global_step)
        if len(steps) == step:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ReporterCallback, "on_step_end", interrupt)


@pytest.fixture
def cli(capsys):
    """Return a function that calls `bertkit ARGS` and returns exit status, standard output and error."""
    from bertkit.cli.app import main

    def call(*args):
        argv, os.environ["COLUMNS"] = sys.argv, "200"
        sys.argv = ["bertkit", *map(str, args)]
        capsys.readouterr()
        try:
            with pytest.raises(SystemExit) as stop:
                main()
        finally:
            sys.argv = argv
        printed = capsys.readouterr()
        return stop.value.code, printed.out, printed.err

    return call


def make_tokenizer(roberta=False):
    """A WordPiece tokenizer over the toy words and all letters, with BERT's template or RoBERTa's."""
    from transformers import PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'"
    tokens = [
        *SPECIAL_TOKENS,
        *POSITIVE_WORDS,
        *NEGATIVE_WORDS,
        *NEUTRAL_WORDS,
        *letters,
        *("##" + letter for letter in letters),
    ]
    vocab = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pair = "[CLS] $A [SEP] [SEP] $B [SEP]" if roberta else "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    special = [("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip


def save_tiny_model(folder, config=None, roberta=False, **settings):
    """A random tiny BERT (or the model of `config`) with its tokenizer, saved as a checkpoint."""
    import torch
    from transformers import AutoModel, BertConfig

    tokenizer = make_tokenizer(roberta)
    tiny = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 128,
    }  # fmt: skip
    torch.manual_seed(0)
    AutoModel.from_config(config or BertConfig(**tiny | settings)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The folder of a tiny random BERT."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_without_dropout(tmp_path_factory):
    """The same without dropout, for equivalences."""
    folder = tmp_path_factory.mktemp("models") / "tiny_without_dropout"
    return save_tiny_model(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def make_toy_rows(count, seed=0, longest=12):
    """Separable rows: a text with a good word or a bad one, of unlike lengths; no text twice."""
    rng = random.Random(seed)
    rows, seen = [], set()
    while len(rows) < count:
        label = ("negative", "positive")[len(rows) % 2]
        words = rng.choices(NEUTRAL_WORDS, k=rng.randint(2, longest))
        words.insert(
            rng.randrange(len(words)), rng.choice(POSITIVE_WORDS if label == "positive" else NEGATIVE_WORDS)
        )
        text = " ".join(words)
        if text not in seen:
            rows.append({"text": text, "label": label})
            seen.add(text)
    return rows


def make_neutral_texts(count, seed=0):
    """Texts that say nothing good or bad; none twice."""
    rng, texts = random.Random(seed), {}
    while len(texts) < count:
        texts[" ".join(rng.choices(NEUTRAL_WORDS, k=rng.randint(2, 12)))] = True
    return list(texts)


def make_nli_rows(count, seed=0):
    """Separable premises and hypotheses: the hypothesis tells the label, as artefacts do."""
    rng, words = (
        random.Random(seed),
        {"entailment": POSITIVE_WORDS, "neutral": NEUTRAL_WORDS[:6], "contradiction": NEGATIVE_WORDS},
    )
    rows = []
    for premise in make_neutral_texts(count, seed):
        label = list(words)[len(rows) % 3]
        rows.append({"premise": premise, "hypothesis": f"it was {rng.choice(words[label])}", "label": label})
    return rows


def make_swag_rows(count, seed=0, endings=(2, 3, 4, 5)):
    """Separable rows with unlike numbers of endings: the right one has a good word, the others a bad one."""
    rng, rows = random.Random(seed), []
    for context in make_neutral_texts(count, seed):
        size = rng.choice(endings)
        label = rng.randrange(size)
        words = rng.sample(NEGATIVE_WORDS, size)
        words[label] = rng.choice(POSITIVE_WORDS)
        some = [" ".join([*rng.choices(NEUTRAL_WORDS, k=rng.randint(1, 5)), word]) for word in words]
        rows.append({"context": context, "endings": some, "label": label})
    return rows


def make_ner_rows(count, seed=0, longest=12):
    """Separable sentences: good words are entities of one type, bad ones of another; no sentence twice."""
    rng, rows = random.Random(seed), {}
    while len(rows) < count:
        tokens = rng.choices(NEUTRAL_WORDS, k=rng.randint(2, longest))
        tags = ["O"] * len(tokens)
        for words, kind in ((POSITIVE_WORDS, "NICE"), (NEGATIVE_WORDS, "MEAN")):
            at, size = rng.choice([place for place, tag in enumerate(tags) if tag == "O"]), rng.randint(1, 3)
            tokens[at:at] = rng.choices(words, k=size)
            tags[at:at] = [f"B-{kind}", *[f"I-{kind}"] * (size - 1)]
        rows[tuple(tokens)] = {"tokens": tokens, "tags": tags}
    return list(rows.values())


def make_qa_rows(count, seed=0, longest=20, unanswerable=0):
    """Separable questions: the good word of the paragraph is the answer; some have only a bad word."""
    rng, rows = random.Random(seed), []
    for number, plain in enumerate(make_neutral_texts(count, seed)):
        words = (plain.split() * 3)[: rng.randint(2, longest)]
        none = number < unanswerable
        at = rng.randrange(len(words) + 1)
        words.insert(at, rng.choice(NEGATIVE_WORDS if none else POSITIVE_WORDS))
        answer = {"text": words[at], "answer_start": len(" ".join([*words[:at], ""]))}
        rows.append({
            "id": f"q{number}", "question": "was it good", "context": " ".join(words),
            "answers": [] if none else [answer],
        })  # fmt: skip
    return rows


def make_features(lengths_by_example):
    """Return features of examples whose sequences have these lengths; the token ids are 0."""
    from bertkit.data.features import TextFeatures, TokenRanges
    from bertkit.data.tokens import SequenceTemplate
    from bertkit.utils.arrays import Ragged, compute_offsets

    offsets = compute_offsets([length for example in lengths_by_example for length in example])
    tokens = Ragged(np.zeros(offsets[-1], np.int32), offsets.astype(np.int64))
    ranges = TokenRanges((0,), tokens.offsets[:-1, None], tokens.offsets[1:, None])
    counts = np.array([len(example) for example in lengths_by_example])
    return TextFeatures(
        template=SequenceTemplate((~0,), (0,)),
        columns=[tokens],
        ranges=ranges,
        sequence_offsets=compute_offsets(counts),
        labels=None,
    )


def make_document_rows(count, seed=0, longest=9):
    """Texts of one to nine sentences, all glad or all sad, where a word tells the one after it."""
    rng = random.Random(seed)
    after = dict(zip(POSITIVE_WORDS + NEGATIVE_WORDS, NEUTRAL_WORDS, strict=False))

    def sentence(side):
        words = rng.choices(side, k=rng.randint(1, 3))
        return " ".join(f"{word} {after[word]}" for word in words).capitalize() + "."

    sides = [rng.choice((POSITIVE_WORDS, NEGATIVE_WORDS)) for _ in range(count)]
    return [{"text": " ".join(sentence(side) for _ in range(rng.randint(1, longest)))} for side in sides]


@pytest.fixture
def text(tmp_path):
    """A file with 120 documents for pre-training."""
    return write_rows(tmp_path / "text.jsonl", make_document_rows(120))


@pytest.fixture
def short_text(tmp_path):
    """A third of the documents of `text`, for tests that compare runs."""
    return write_rows(tmp_path / "text.jsonl", make_document_rows(40))


ROW_MAKERS = {
    "classify": make_toy_rows,
    "ner": make_ner_rows,
    "nli": make_nli_rows,
    "qa": make_qa_rows,
    "swag": make_swag_rows,
}


def write_rows(path, rows):
    """JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="session")
def runs(tmp_path_factory, tiny):
    """A run of each task, trained a little; nobody writes into them."""
    import bertkit

    folder = tmp_path_factory.mktemp("runs")
    for task, rows in ROW_MAKERS.items():
        more = {"unanswerable": 5} if task == "qa" else {}
        settings = {"squad": "v2"} if task == "qa" else {}
        data = write_rows(folder / f"{task}.jsonl", rows(60, **more))
        train = getattr(bertkit, task)
        with costly_parts("linear_probe"):
            train(data=data, model=tiny, output_dir=folder / task, epochs=2, max_length=32, **settings)
    text, task = write_rows(folder / "text.jsonl", make_document_rows(60)), "pretrain-mlm-nsp"
    bertkit.pretrain_mlm_nsp(data=text, model=tiny, output_dir=folder / task, max_steps=2, max_length=64)
    return folder


def assert_refused(cli, tmp_path, args, words, command="classify"):
    """The call is refused in one line holding `words`, and leaves every file as it was."""
    before = sorted(tmp_path.rglob("*"))
    status, out, err = cli(command, *args)
    lines = [line for line in err.splitlines() if line.startswith("bertkit:")]
    assert status == 2, err
    assert (len(lines), err.splitlines()[-1], out) == (1, lines[-1], "")
    assert [word for word in words if word not in lines[0]] == [], lines[0]
    made = {path for path in set(tmp_path.rglob("*")) - set(before) if "cache" not in path.parts}
    assert made == set()
    return lines[0]


@pytest.fixture
def toy(tmp_path):
    """A file of 80 separable rows."""
    return write_rows(tmp_path / "toy.jsonl", make_toy_rows(80))


@pytest.fixture
def damaged(tmp_path):
    """A file whose rows cannot be read. An error about something else shows that they were not read first."""
    path = tmp_path / "damaged.jsonl"
    path.write_text("{")
    return path


def read_predictions(folder, name="predictions.jsonl"):
    """The records of a predictions file."""
    lines = (folder / name).read_text("utf-8").split("\n")  # not splitlines(): a text may hold U+2028
    return [json.loads(line) for line in lines if line]
