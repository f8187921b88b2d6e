"""Heads: whether that of a checkpoint fits the labels, its output layer, and the layers before that one."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load, save, save_file
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertkit.errors import UserError, format_list
from bertkit.models.linear_text import LinearTextModel
from bertkit.models.loading import HEAD_KEY, POOLING_KEY, WEIGHTS_FILE, ModelSource, load_model, read_weights
from bertkit.models.pooling import compute_mean_vectors, gather_positions, get_pooled_positions, is_causal
from bertkit.settings.declaration import Pooling
from bertkit.settings.run_settings import Head
from bertkit.utils.compat import is_exporting

MIN_ROWS = 30  # with fewer rows, the order of a head's labels cannot be verified
MIN_IMPROVEMENT = 0.3  # a label order is reported as wrong if another order improves accuracy by more

SEQUENCE_HEAD = "ForSequenceClassification"
CHOICE_HEAD = "ForMultipleChoice"
TOKEN_HEAD = "ForTokenClassification"  # noqa: S105
QUESTION_HEAD = "ForQuestionAnswering"
TAGGER_HEAD, VECTOR_HEAD = "Tagger", "VectorClassifier"  # bertkit's own classes


def has_head(config: Any, *kinds: str) -> bool:
    """Return whether a checkpoint was saved with a head of one of these kinds.

    A kind is a suffix of the architecture's name, such as `SEQUENCE_HEAD`.
    """
    return any(name.endswith(kinds) for name in config.architectures or [])


def has_head_type(config: Any, head: Head, pooling: Pooling = "cls") -> bool:
    """Return whether the checkpoint's head has the given type and reads vectors of the given pooling."""
    return getattr(config, HEAD_KEY, "linear") == head and getattr(config, POOLING_KEY, "cls") == pooling


def get_head_dropout(config: Any) -> float:
    """Return the dropout probability of the head; its name in `config.json` depends on the architecture."""
    keys = ("classifier_dropout", "classifier_dropout_prob", "hidden_dropout_prob", "dropout")
    probabilities = (getattr(config, key, None) for key in keys)
    return next((p for p in probabilities if p is not None), 0.0)


def set_labels(config: Any, names: Sequence[str]) -> Any:
    """Set the labels of the model's outputs in the given order, and return the config."""
    config.num_labels = len(names)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: label_id for label_id, name in enumerate(names)}
    return config


def match_labels(config: Any, labels: Sequence[str], model: str, kind: str) -> tuple[bool, list[str]]:
    """Return whether a head must be re-initialized, and the data's labels in the order of the outputs.

    A head with the data's labels is kept, whatever their order and capitalization. A head whose labels are
    LABEL_0, LABEL_1, ... is re-initialized, because these names do not say what the outputs mean. In
    regression, there are no labels.
    """
    if not has_head(config, kind):
        return True, list(labels)
    head_labels = [config.id2label[label_id] for label_id in range(config.num_labels)]
    if not labels and len(head_labels) == 1:
        return False, []
    if all(name == f"LABEL_{label_id}" for label_id, name in enumerate(head_labels)):
        return True, list(labels)
    if sorted(head_labels) == sorted(labels):
        return False, head_labels
    label_by_key = {label.casefold(): label for label in labels}
    head_keys = [label.casefold() for label in head_labels]
    if len(label_by_key) == len(labels) and sorted(head_keys) == sorted(label_by_key):
        return False, [label_by_key[key] for key in head_keys]
    raise UserError(
        f"--model {model}: its head was trained for {format_list(head_labels)}, the data has "
        f"{format_list(labels or ['numbers'])}; rename the labels, or pass --new-head to re-initialize "
        "the head"
    )


def verify_label_order(
    gold: np.ndarray, predicted: np.ndarray, labels: Sequence[str], model: str, what: str = "rows"
) -> None:
    """Check that a head would not be far more accurate with its labels in another order.

    If it would, the labels in the checkpoint's config are in the wrong order, or the label ids of a file map
    to wrong names. `gold` and `predicted` are label ids `[n]`.
    """
    from scipy.optimize import linear_sum_assignment

    num_labels, n = len(labels), len(gold)
    confusion = np.bincount(predicted * num_labels + gold, minlength=num_labels**2)
    confusion = confusion.reshape(num_labels, num_labels)
    outputs, best_match = linear_sum_assignment(-confusion)
    accuracy, best_accuracy = np.trace(confusion) / n, confusion[outputs, best_match].sum() / n
    max_margin = 1.96 * (0.25 / n) ** 0.5  # upper bound of the half-width of accuracy's 95 % interval
    majority_accuracy = np.bincount(gold).max() / n
    is_much_better = (
        best_accuracy - accuracy > MIN_IMPROVEMENT and best_accuracy > majority_accuracy + max_margin
    )
    if n < MIN_ROWS or not is_much_better:
        return
    predicted_ids = np.flatnonzero(confusion.sum(1)).tolist()  # labels that were predicted at least once
    matches = confusion[predicted_ids, best_match[predicted_ids]]
    if (matches <= confusion[predicted_ids].sum(1) / 2).any():  # it confuses labels; several orders fit
        order = "in another order, which these rows do not determine"
    else:
        order = "if " + ", ".join(f"{labels[one]} means {labels[best_match[one]]}" for one in predicted_ids)
    raise UserError(
        f"--model {model}: its head's labels are in the wrong order: of {n} validation {what}, "
        f"{accuracy:.0%} are correct by its id2label, {best_accuracy:.0%} {order}; "
        "correct id2label in its config.json (or the label numbers in the data), or pass --new-head to "
        "re-initialize the head"
    )


# ---- the output layer, and the calibration that is folded into it


def find_output_layer(model: Any) -> tuple[str, nn.Linear]:
    """Return the name and the module of the output layer: the last linear layer outside of the encoder."""
    encoder_prefix = model.base_model_prefix + "."
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith(encoder_prefix)
    ]
    if not layers:
        raise UserError(
            f"{model.config.model_type}: its head has no linear output layer; use another architecture"
        )
    return layers[-1]


def append_outputs(model: Any, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Append rows to the output layer: weight [n, hidden_size] and bias [n] of further outputs."""
    _, layer = find_output_layer(model)
    own_bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
    parts = (layer.weight, weight), (own_bias, bias)
    with torch.no_grad():
        joined = [torch.cat([own, more.to(own)]) for own, more in parts]
    layer.weight, layer.bias = (nn.Parameter(values, requires_grad=False) for values in joined)
    layer.out_features = len(layer.weight)


@contextmanager
def append_layer_inputs(model: Any) -> Iterator[int]:
    """Let the last outputs of a model be the inputs of its output layer; yields their number."""
    _, layer = find_output_layer(model)
    weight, bias, size = layer.weight, layer.bias, layer.in_features
    try:
        append_outputs(model, torch.eye(size), torch.zeros(size))
        yield size
    finally:
        layer.weight, layer.bias, layer.out_features = weight, bias, len(weight)


def set_output_bias(model: Any, value: float) -> None:
    _, output_layer = find_output_layer(model)
    if output_layer.bias is not None:
        nn.init.constant_(output_layer.bias, value)


# In the metadata of the file of weights, so that the weights and these values are always replaced together.
TEMPERATURE_KEY = "bertkit_temperature"
TRAINED_LAYER_KEY = "bertkit_trained_output_layer"  # its parameters: a file of safetensors in base64


def read_temperature(run: Path) -> float | None:
    """Return the temperature that the output layer of a run was divided by; 1 for weights as trained.

    It is None if the output layer differs from the trained one by more than a factor.
    """
    metadata = _read_metadata(run)
    return None if TRAINED_LAYER_KEY in metadata else float(metadata.get(TEMPERATURE_KEY, 1.0))


def _read_metadata(run: Path) -> dict[str, str]:
    path = run / WEIGHTS_FILE
    if not path.exists():
        raise UserError(
            f"{run}: has no {WEIGHTS_FILE}; pass the output directory of a training command with this file"
        )
    with safe_open(path, "pt") as file:
        return file.metadata() or {}


def restore_output_layer(model: Any, run: Path) -> dict[str, torch.Tensor]:
    """Give the model of a run the output layer as it was trained; return its parameters by name."""
    if isinstance(model, LinearTextModel):
        divisor = read_temperature(run) or 1.0
        parameters = {name: torch.from_numpy(part) * divisor for name, part in model.output_layer.items()}
        set_parameters(model, parameters)
        return parameters
    name, layer = find_output_layer(model)
    temperature = read_temperature(run)
    if temperature is None:
        parameters = load(base64.b64decode(_read_metadata(run)[TRAINED_LAYER_KEY]))
    else:
        parameters = {
            key: (parameter.detach().cpu().double() * temperature).to(parameter.dtype)
            for key, parameter in layer.named_parameters(name)
        }
    set_parameters(model, parameters)
    return parameters


def set_parameters(model: Any, parameters: Mapping[str, torch.Tensor]) -> None:
    if isinstance(model, LinearTextModel):
        model.set_output_layer({name: values.numpy() for name, values in parameters.items()})
        return
    with torch.no_grad():
        for name, value in parameters.items():
            model.get_parameter(name).copy_(value)


def write_output_layer(
    run: Path,
    staging: Path,
    parameters: Mapping[str, torch.Tensor],
    trained: Mapping[str, torch.Tensor],
    temperature: float | None,
) -> None:
    """Write the weights of a run into another directory, with other parameters of the output layer.

    Args:
        trained: The parameters as they were trained.
        temperature: What the trained parameters are divided by; None if there is more than this difference.
    """
    with safe_open(run / WEIGHTS_FILE, "pt") as file:
        metadata = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    if missing := [name for name in parameters if name not in tensors]:
        raise UserError(f"{run / WEIGHTS_FILE}: lacks {format_list(missing)}; train the run again")
    for key in (TEMPERATURE_KEY, TRAINED_LAYER_KEY):
        metadata.pop(key, None)
    if temperature is None:
        metadata[TRAINED_LAYER_KEY] = base64.b64encode(save(dict(trained))).decode()
    else:
        metadata[TEMPERATURE_KEY] = repr(temperature)
    for name, value in parameters.items():
        tensors[name] = value.to(tensors[name].dtype)
    save_file(tensors, staging / WEIGHTS_FILE, metadata)


# ---- layers of heads


BILSTM = "bilstm"  # name of the submodule in a model, and prefix of the names of its weights


class ScalarMix(nn.Module):
    """A learned weighted sum of layers: softmax-normalized weights times a scale (Peters et al. 2018, eq. 1).

    A new `ScalarMix` computes the mean of the layers.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Sum the vectors of the layers: `[..., layers, hidden_size]` to `[..., hidden_size]`."""
        return self.scale * (self.weights.softmax(0).unsqueeze(-1) * vectors).sum(-2)


class BiLstm(nn.Module):
    """A two-layer bidirectional LSTM over the real tokens (Devlin et al. 2018, 5.3)."""

    def __init__(self, input_size: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            input_size, hidden_size, num_layers=2, batch_first=True, bidirectional=True, dropout=dropout
        )

    def forward(self, vectors: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Turn `[batch, seq_len, input_size]` into `[batch, seq_len, 2 * hidden_size]`; padding gets zeros.

        PyTorch's packed sequences must start at position 0. Left padding is therefore rotated to the end of
        each sequence, and back after the LSTM.
        """
        mask = attention_mask.long()
        seq_len, first = mask.shape[1], mask.argmax(1, keepdim=True)  # first: position of the first token
        positions = torch.arange(seq_len, device=vectors.device)
        # Rotations by `first`, without the modulo operator.
        to_front = torch.where(positions + first < seq_len, positions + first, positions + first - seq_len)
        to_back = torch.where(positions < first, positions - first + seq_len, positions - first)
        rotated, lengths = gather_positions(vectors.float(), to_front), mask.sum(1)
        if is_exporting():
            return gather_positions(self._run_onnx(rotated, lengths), to_back)
        with torch.autocast(vectors.device.type, enabled=False):  # some CPUs have no LSTM in bf16
            packed = pack_padded_sequence(rotated, lengths.cpu(), batch_first=True, enforce_sorted=False)
            packed_outputs = self.lstm(packed)[0]
        outputs, _ = pad_packed_sequence(packed_outputs, batch_first=True, total_length=seq_len)
        return gather_positions(outputs, to_back)

    def _run_onnx(self, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Run the LSTM as ONNX operators. They take the lengths; packed sequences cannot be exported."""

        def reorder(weight: torch.Tensor) -> torch.Tensor:
            input_gate, forget, cell, output = weight.chunk(4)  # the order of PyTorch
            return torch.cat([input_gate, output, forget, cell])  # that of ONNX

        states = vectors.transpose(0, 1)
        seq_len, batch, _ = states.shape
        for layer in range(self.lstm.num_layers):
            input_weights, recurrent_weights, input_biases, recurrent_biases = (
                torch.stack([
                    reorder(getattr(self.lstm, f"{name}_l{layer}{side}")) for side in ("", "_reverse")
                ])
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )  # fmt: skip
            biases = torch.cat([input_biases, recurrent_biases], 1)
            outputs = torch.onnx.ops.symbolic(
                "LSTM", (states, input_weights, recurrent_weights, biases, lengths.int()),
                {"hidden_size": self.lstm.hidden_size, "direction": "bidirectional"},
                dtype=states.dtype, shape=(seq_len, 2, batch, self.lstm.hidden_size),
                version=14,  # the opset that defines ONNX's LSTM
            )  # fmt: skip
            states = outputs.transpose(1, 2).flatten(2)
        return states.transpose(0, 1)


def load_with_pooling(
    auto_class: Any, source: ModelSource, config: Any, new_head: bool, head: Head, pooling: Pooling = "cls"
) -> Any:
    """Load a transformers model, and add a BiLSTM before its output layer and pooling if it needs them.

    The pooling is what the head reads: "mean" for the mean over all tokens except padding, or "cls" for [CLS]
    or the last token of a causal model.
    """
    model = load_model(auto_class, source, config, new_head)
    if head == "bilstm":
        size = model.config.hidden_size
        if size % 2:
            raise UserError(
                f"--head bilstm: the model's hidden size is {size}, but must be even; use --head linear"
            )
        model.config.update({HEAD_KEY: head})
        # its output has the model's hidden size, which the output layer expects
        model.add_module(BILSTM, BiLstm(size, size // 2, get_head_dropout(model.config)))
        if not new_head:
            prefix = BILSTM + "."
            weights = read_weights(source.folder, lambda name: name.startswith(prefix))
            weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
            try:
                model.get_submodule(BILSTM).load_state_dict(weights)
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[-1].strip()
                raise UserError(
                    f"{source.label}: its BiLSTM does not fit ({reason}); {source.head_fix}"
                ) from error
    if pooling != "cls":
        model.config.update({POOLING_KEY: pooling})
    if is_causal(model.config):
        model.config.use_cache = False  # the key/value cache only serves generation
    return add_pooling(model)


def run_pooler(encoder: Any, states: torch.Tensor) -> torch.Tensor:
    """Apply the encoder's pooler to position 0. In some architectures, the pooler is a linear layer only."""
    pooler = encoder.pooler
    return pooler(states[:, 0]).tanh() if isinstance(pooler, nn.Linear) else pooler(states)


def add_pooling(model: Any) -> Any:
    """Add a hook to a model that is causal, has a BiLSTM or uses mean pooling, and return the model."""
    bilstm, model_is_causal = getattr(model, BILSTM, None), is_causal(model.config)
    uses_mean = getattr(model.config, POOLING_KEY, "cls") == "mean"

    def pool(encoder: Any, _: Any, kwargs: dict[str, Any], output: Any) -> Any:
        states, mask = output.last_hidden_state, kwargs.get("attention_mask")
        if mask is None:
            mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        if bilstm is not None:
            states = bilstm(states, mask)
        if uses_mean:
            vectors = compute_mean_vectors(states, mask).to(states.dtype)
            output.last_hidden_state = vectors.unsqueeze(1).expand_as(states)
        else:
            positions = get_pooled_positions(mask, model_is_causal)
            output.last_hidden_state = gather_positions(states, positions)
        if output.get("pooler_output") is not None:
            output.pooler_output = run_pooler(encoder, output.last_hidden_state)
        return output

    if model_is_causal or bilstm is not None or uses_mean:
        model.base_model.register_forward_hook(pool, with_kwargs=True)
    return model
