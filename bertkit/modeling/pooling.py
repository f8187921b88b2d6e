"""Modules between an encoder and its head: a weighted sum of layers, a BiLSTM, and pooling.

The heads of transformers' models read the vector at position 0, [CLS]. In question answering, position 0
means "no answer". In a causal model, [CLS] attends only to itself. Its vector is therefore replaced by the
vector of the last token, which attends to all tokens. With mean pooling, the mean over all tokens replaces
the vectors at all positions, because the heads of some architectures do not read position 0.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertkit.common_settings import Pooling
from bertkit.config import Head
from bertkit.errors import UserError
from bertkit.modeling.heads import get_head_dropout
from bertkit.modeling.loading import HEAD_KEY, POOLING_KEY, ModelSource, load_model, read_weights
from bertkit.utils.compat import is_exporting

BILSTM = "bilstm"  # name of the submodule in a model, and prefix of the names of its weights
ONNX_LSTM_OPSET = 14  # the opset that defines ONNX's LSTM


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
    """A two-layer bidirectional LSTM over the real tokens (Devlin et al. 2018, 5.3).

    Args:
        input_size: Size of the input vectors.
        hidden_size: Size of the output of each direction.
        dropout: Dropout probability between the two layers.
    """

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
        run_lstm = _run_lstm_onnx if is_exporting() else _run_lstm
        outputs = run_lstm(self.lstm, gather_positions(vectors.float(), to_front), mask.sum(1))
        return gather_positions(outputs, to_back)


def _run_lstm(lstm: nn.LSTM, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Run the LSTM over packed sequences, in fp32 because some CPUs have no LSTM in bf16."""
    with torch.autocast(vectors.device.type, enabled=False):
        packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs = lstm(packed)[0]
    return pad_packed_sequence(outputs, batch_first=True, total_length=vectors.shape[1])[0]


def _run_lstm_onnx(lstm: nn.LSTM, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Run the LSTM as ONNX operators. They take the lengths; packed sequences cannot be exported."""
    states = vectors.transpose(0, 1)
    seq_len, batch, _ = states.shape
    for layer in range(lstm.num_layers):
        input_weights, recurrent_weights, input_biases, recurrent_biases = (
            torch.stack([_onnx_gates(getattr(lstm, f"{name}_l{layer}{side}")) for side in ("", "_reverse")])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        biases = torch.cat([input_biases, recurrent_biases], 1)
        outputs = torch.onnx.ops.symbolic(
            "LSTM", (states, input_weights, recurrent_weights, biases, lengths.int()),
            {"hidden_size": lstm.hidden_size, "direction": "bidirectional"},
            dtype=states.dtype, shape=(seq_len, 2, batch, lstm.hidden_size), version=ONNX_LSTM_OPSET,
        )  # fmt: skip
        states = outputs.transpose(1, 2).flatten(2)
    return states.transpose(0, 1)


def _onnx_gates(weight: torch.Tensor) -> torch.Tensor:
    """Reorder gates from PyTorch (input, forget, cell, output) to ONNX (input, output, forget, cell)."""
    input_gate, forget, cell, output = weight.chunk(4)
    return torch.cat([input_gate, output, forget, cell])


def gather_positions(vectors: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Select vectors of each sequence.

    Args:
        vectors: `[batch, seq_len, size]`.
        positions: `[batch, seq_len]` position of the vector to select for each position.
    """
    return vectors.gather(1, positions.unsqueeze(-1).expand_as(vectors))


def is_causal(config: Any) -> bool:
    """Return whether the model attends from left to right only."""
    return bool(getattr(config, "is_decoder", False))


def load_with_pooling(
    auto_class: Any, source: ModelSource, config: Any, new_head: bool, head: Head, pooling: Pooling = "cls"
) -> Any:
    """Load a transformers model, and add a BiLSTM and pooling if it needs them.

    Args:
        auto_class: Auto class of transformers for the task.
        source: The model whose weights are loaded.
        config: The model's config.
        new_head: Whether to re-initialize the head, including the BiLSTM.
        head: Type of the head; "bilstm" adds a BiLSTM between encoder and output layer.
        pooling: What the head reads: "mean" for the mean over all tokens except padding, or "cls" for [CLS],
            or the last token of a causal model.

    Raises:
        UserError: The weights cannot be read or do not fit, or a BiLSTM is added to a model whose hidden size
            is odd.
    """
    model = load_model(auto_class, source, config, new_head)
    if head == "bilstm":
        model.config.update({HEAD_KEY: head})
        model.add_module(BILSTM, _build_bilstm(model.config))
        if not new_head:
            _load_bilstm(model, source)
    if pooling != "cls":
        model.config.update({POOLING_KEY: pooling})
    if is_causal(model.config):
        model.config.use_cache = False  # the key/value cache only serves generation
    return add_pooling(model)


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
            output.pooler_output = _run_pooler(encoder, output.last_hidden_state)
        return output

    if model_is_causal or bilstm is not None or uses_mean:
        model.base_model.register_forward_hook(pool, with_kwargs=True)
    return model


def compute_mean_vectors(states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Return the mean over all tokens except padding in fp32, `[batch, hidden_size]`.

    Args:
        states: `[batch, seq_len, hidden_size]`. Models with block-sparse attention return more positions.
        attention_mask: `[batch, seq_len]`, 0 at padding.
    """
    weights = attention_mask.unsqueeze(-1).float()
    return (states[:, : weights.shape[1]].float() * weights).sum(1) / weights.sum(1)


def get_pooled_positions(mask: torch.Tensor, model_is_causal: bool) -> torch.Tensor:
    """Return the position of the vector that the head reads at each position `[batch, seq_len]`.

    In a causal model, the vectors of the first and the last real token are swapped; both are special tokens.
    Position 0 always gets the vector that represents the text, even if position 0 is padding.
    """
    batch_size, seq_len = mask.shape  # len() would be a constant in an exported graph
    rows = torch.arange(batch_size, device=mask.device)
    positions = torch.arange(seq_len, device=mask.device).repeat(batch_size, 1)
    first, last = mask.argmax(1), seq_len - 1 - mask.flip(1).argmax(1)
    if model_is_causal:
        positions[rows, first], positions[rows, last] = last, first
    positions[:, 0] = last if model_is_causal else first
    return positions


def _run_pooler(encoder: Any, states: torch.Tensor) -> torch.Tensor:
    """Apply the encoder's pooler to position 0. In some architectures, the pooler is a linear layer only."""
    pooler = encoder.pooler
    return pooler(states[:, 0]).tanh() if isinstance(pooler, nn.Linear) else pooler(states)


def _build_bilstm(config: Any) -> BiLstm:
    """Build a BiLSTM whose output has the model's hidden size, which the output layer expects."""
    hidden_size = config.hidden_size
    if hidden_size % 2:
        raise UserError(
            f"--head bilstm: the model's hidden size is {hidden_size}, but must be even; use --head linear"
        )
    return BiLstm(hidden_size, hidden_size // 2, get_head_dropout(config))


def _load_bilstm(model: Any, source: ModelSource) -> None:
    prefix = BILSTM + "."
    weights = read_weights(source.folder, lambda name: name.startswith(prefix))
    try:
        model.get_submodule(BILSTM).load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(
            f"--model {source.name}: its BiLSTM does not fit ({reason}); pass --new-head"
        ) from error
