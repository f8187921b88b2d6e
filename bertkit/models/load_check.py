"""The check of a loaded model: properties that its files do not state, and that would spoil results silently.

* The outputs for a text must not depend on the padding of its batch.
* A step must be possible in the number format of training.
* The tokenizer must make the tokens of `tokenizer.json`, with which the model was pre-trained.

A result is cached by the content that it depends on. The check neither changes the model nor random states.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

from bertkit.data.features import Features
from bertkit.data.tokens import SequenceTemplate
from bertkit.errors import UserError, format_count
from bertkit.models.layers import find_encoder_layers
from bertkit.models.loading import NO_LENGTH_LIMIT, ModelSource
from bertkit.utils.cache import get_or_create
from bertkit.utils.reporting import report_warning
from bertkit.utils.text import replace_surrogates

CACHE_VERSION = 2
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
RESULT_FILE, TOKENIZER_FILE = "result.json", "tokenizer.json"
NUM_TEXTS, MAX_TEXT_CHARS = 100, 500  # of the training texts that are tokenized twice
SHORT_LENGTH, LONG_LENGTH = 4, 12  # numbers of tokens of two texts, without special tokens
# Largest difference of hidden states relative to their maximum that counts as rounding. Most architectures
# have 1e-6 on a CPU; on accelerators, products may be rounded to TF32.
CPU_TOLERANCE, ACCELERATOR_TOLERANCE = 1e-4, 1e-2
# Numbers of last layers that run. Layers are alike, so two are enough, and take less time. Some encoders do
# not run without their other layers, and run with all of them (None).
NUMS_OF_LAYERS = (2, None)
# Errors of PyTorch and transformers for operations that are not possible.
STEP_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)


def warn_about_padding(model: Any, tokenizer: Any, max_length: int) -> None:
    """Warn if the vectors of a text depend on the padding of its batch, given a model with one encoder."""
    if depends_on_padding(model, tokenizer, max_length):
        report_warning(
            f"{model.config.model_type}: its outputs for a text depend on the padding of the batch; predict "
            "with --batch-size 1"
        )


def depends_on_padding(model: Any, tokenizer: Any, max_length: int) -> bool:
    """Return whether the hidden states of a text differ in a batch by more than rounding.

    An encoder that cannot run does not depend on padding.
    """

    def compute() -> bool:
        inputs = _make_inputs(model, tokenizer, max_length)
        for num_layers in NUMS_OF_LAYERS:
            with _keep_state(model, num_layers), torch.no_grad(), suppress(*STEP_ERRORS):
                model.eval()
                alone, batched = (model.base_model(**one).last_hidden_state.float() for one in inputs)
                length = inputs[0]["input_ids"].shape[1]
                # Encoders that shorten sequences have other positions in a batch, except the first one.
                count = length if alone.shape[1] >= length else 1
                difference = (alone[:, :count] - batched[:1, :count]).abs().max()
                tolerance = CPU_TOLERANCE if alone.device.type == "cpu" else ACCELERATOR_TOLERANCE
                return bool(difference / alone[:, :count].abs().max() > tolerance)
        return False

    depends: bool = _load_or_compute(["padding", *_describe_model(model), max_length], compute)
    return depends


def require_readable_lengths(model: Any, features: Features) -> None:
    """Check that the encoder can read the shortest text; Funnel shortens texts, and cannot shorten some."""
    input_ids, _ = features.get_sequence(int(features.sequence_lengths.argmin()))
    if error := _find_length_error(model, input_ids):
        raise UserError(
            f"{model.config.model_type}: cannot read a text of {format_count(len(input_ids), 'token')} "
            f"({error}), because it needs longer sequences; remove short texts, or use another model"
        )


@contextmanager
def report_length_errors(model: Any, features: Features) -> Iterator[None]:
    """Raise a `UserError` if a pass fails because a text is too short; see `require_readable_lengths`."""
    try:
        yield
    except RuntimeError:
        if hasattr(model, "config"):  # unless it is an exported model
            require_readable_lengths(model, features)
        raise


def _find_length_error(model: Any, input_ids: np.ndarray) -> str | None:
    """Return the error of a text `[length]` that is too short for the encoder; None if it can be read."""
    if len(input_ids) > LONG_LENGTH:
        return None

    def run(input_ids: np.ndarray) -> str | None:
        ids = torch.from_numpy(input_ids.astype(np.int64)).unsqueeze(0).to(_get_device(model))
        with _keep_state(model, None), torch.no_grad():
            model.eval()
            try:
                model.base_model(input_ids=ids, attention_mask=torch.ones_like(ids))
            except STEP_ERRORS as error:
                return _summarize(error)
        return None

    def compute() -> str | None:
        error = run(input_ids)
        return error if error and run(np.resize(input_ids, 2 * LONG_LENGTH)) is None else None

    error: str | None = _load_or_compute(["length", *_describe_model(model), len(input_ids)], compute)
    return error


def find_precision_error(model: Any, tokenizer: Any, max_length: int, precision: str) -> str | None:
    """Return the error of a step in "bf16" or "fp16"; None if it is possible, or fails in "fp32" as well."""
    if precision == "fp32":
        return None

    def compute() -> str | None:
        inputs = _make_inputs(model, tokenizer, max_length)
        for num_layers in NUMS_OF_LAYERS:
            error = _try_step(model, inputs, DTYPES[precision], num_layers)
            if error is None or _try_step(model, inputs, torch.float32, num_layers) is None:
                return error
        return None

    error: str | None = _load_or_compute(["step", *_describe_model(model), max_length, precision], compute)
    return error


def warn_about_tokenizer(source: ModelSource, tokenizer: Any, texts: Sequence[str]) -> None:
    """Warn if texts become other tokens than with the `tokenizer.json` of the model.

    transformers builds tokenizers of many types from the vocabulary and some flags, and ignores other parts
    of `tokenizer.json`. The tokenizer may have more tokens.
    """
    path = source.folder / TOKENIZER_FILE
    if not path.is_file():
        return
    texts = [replace_surrogates(text[:MAX_TEXT_CHARS]) for text in texts]
    key = ["tokenizer", _hash(path.read_bytes()), tokenizer.backend_tokenizer.to_str(), texts]
    difference = _load_or_compute(key, lambda: _find_other_tokens(path, tokenizer, texts))
    if difference is not None:
        used, expected = (" ".join(tokens) for tokens in difference)
        special_tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        content = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens}
        if tokenizer.model_max_length < NO_LENGTH_LIMIT:
            content["model_max_length"] = tokenizer.model_max_length
        fix = json.dumps(content, ensure_ascii=False)
        report_warning(
            f"{source.name}: transformers ignores parts of its tokenizer.json, so that {expected!r} becomes "
            f"{used!r}; replace the content of its tokenizer_config.json by {fix}"
        )


# ---- computations


def _load_or_compute(key: Sequence[Any], compute: Callable[[], Any]) -> Any:
    """Return the result for a key from the cache, or compute it; results are values of JSON."""
    results: list[Any] = []

    def write(folder: Path) -> None:
        results.append(compute())
        (folder / RESULT_FILE).write_text(json.dumps(results[0]), "utf-8")

    versions = [CACHE_VERSION, torch.__version__, transformers.__version__, tokenizers.__version__]
    folder = get_or_create("load-check", _hash(json.dumps([versions, key]).encode()), write)
    if results:
        return results[0]
    return json.loads((folder / RESULT_FILE).read_text("utf-8")) if folder else compute()


def _summarize(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _hash(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _describe_model(model: Any) -> list[Any]:
    """Return what results depend on: architecture, weights, the layers that replace its own, and the device.

    A few numbers of each weight identify the weights. Those of the pooler are random if the file lacks them.
    """
    layers = sorted({type(module).__qualname__ for module in model.modules()})
    named = model.base_model.named_parameters()
    samples = [weight.detach().flatten()[:2].float() for name, weight in named if "pooler" not in name]
    weights = _hash(torch.cat(samples).cpu().numpy().tobytes())
    return [model.config.to_json_string(), layers, weights, str(_get_device(model))]


def _get_device(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


def _make_inputs(model: Any, tokenizer: Any, max_length: int) -> list[dict[str, torch.Tensor]]:
    """Return the inputs of a short text alone, and of a short and a long text in a batch."""
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=False)
    vocabulary = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    sequences = []
    for length in (SHORT_LENGTH, LONG_LENGTH):
        num_tokens = max(1, min(length, max_length - template.num_special_tokens))
        indices = np.linspace(0, len(vocabulary) - 1, num_tokens).astype(int)
        sequences.append(torch.from_numpy(template.fill([np.array(vocabulary)[indices]])[0]))
    device = _get_device(model)
    batch = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=tokenizer.pad_token_id)
    mask = torch.nn.utils.rnn.pad_sequence(list(map(torch.ones_like, sequences)), batch_first=True)
    alone = {"input_ids": sequences[0].unsqueeze(0), "attention_mask": mask[:1, : len(sequences[0])]}
    batched = {"input_ids": batch, "attention_mask": mask}
    return [{name: tensor.to(device) for name, tensor in one.items()} for one in (alone, batched)]


def _try_step(
    model: Any, inputs: list[dict[str, torch.Tensor]], dtype: torch.dtype, num_layers: int | None
) -> str | None:
    """Run a forward and a backward pass of the encoder; return the first line of the error, or None."""
    with _keep_state(model, num_layers):
        model.train()
        try:
            with torch.autocast(_get_device(model).type, dtype, enabled=dtype != torch.float32):
                states = model.base_model(**inputs[1]).last_hidden_state
            if states.requires_grad:  # unless all layers are frozen
                states.float().mean().backward()
        except STEP_ERRORS as error:
            return _summarize(error)
    return None


@contextmanager
def _keep_state(model: Any, num_layers: int | None) -> Iterator[None]:
    """Run the last layers without compilation, and restore the model and the random states."""
    device = _get_device(model)
    device_random = None if device.type == "cpu" else torch.get_device_module(device)
    device_state = device_random.get_rng_state() if device_random else None
    is_training, python_state, numpy_state = model.training, random.getstate(), np.random.get_state()
    buffers = [  # I-BERT replaces its statistics in training
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.compiler.set_stance("force_eager"),
            _use_last_layers(model.base_model, num_layers),
        ):
            yield
    finally:
        model.train(is_training)
        for parameter in model.parameters():
            parameter.grad = None
        for module, name, buffer, content in buffers:
            setattr(module, name, buffer.copy_(content))
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if device_random:
            device_random.set_rng_state(device_state)


@contextmanager
def _use_last_layers(encoder: Any, count: int | None) -> Iterator[None]:
    """Remove all but the last layers of an encoder within the block, if it has more separate layers."""
    found = find_encoder_layers(encoder)
    if count is None or found is None or found[1] <= count:
        yield
        return
    (layers_name, num_layers), config = found, encoder.config
    parent_name, _, name = layers_name.rpartition(".")
    parent, layers = encoder.get_submodule(parent_name), encoder.get_submodule(layers_name)
    setattr(parent, name, layers[-count:])
    config.num_hidden_layers = count
    try:
        yield
    finally:
        setattr(parent, name, layers)
        config.num_hidden_layers = num_layers


def _find_other_tokens(
    path: Path, tokenizer: Any, texts: Sequence[str]
) -> tuple[list[str], list[str]] | None:
    """Return the first tokens that differ, as used and as in `tokenizer.json`; None if all are the same."""
    used, reference = tokenizer.backend_tokenizer, tokenizers.Tokenizer.from_file(str(path))
    reference.no_truncation()
    reference.no_padding()
    reference.add_tokens(list(used.get_added_tokens_decoder().values()))  # those that a task has added
    encodings = (backend.encode_batch(list(texts), add_special_tokens=False) for backend in (used, reference))
    for own, expected in zip(*encodings, strict=True):
        pairs = enumerate(zip_longest(own.tokens, expected.tokens))
        first = next((index for index, (token, other) in pairs if token != other), None)
        if first is not None:
            return own.tokens[first : first + 4], expected.tokens[first : first + 4]
    return None
