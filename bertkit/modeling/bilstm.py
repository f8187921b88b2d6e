"""What stands between an encoder's vectors and a head."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

ONNX_LSTM_OPSET = 14  # the opset that defines it


class ScalarMix(nn.Module):
    """A learned weighted sum of layers: softmax-normalized weights times a scale (Peters et al. 2018, eq. 1).

    It starts as the plain mean.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """[..., layers, hidden] to [..., hidden]."""
        return self.scale * (self.weights.softmax(0).unsqueeze(-1) * vectors).sum(-2)


class BiLstm(nn.Module):
    """Two bidirectional layers over the real pieces alone, `hidden` a direction (Devlin et al. 2018, 5.3)."""

    def __init__(self, inputs: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            inputs, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=dropout
        )

    def forward(self, vectors: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[sequences, length, inputs] to [sequences, length, 2 * hidden], zeros where the mask is 0.

        Packed sequences begin at the front, so pieces behind padding move there and back.
        """
        mask = attention_mask.long()
        length, first = mask.shape[1], mask.argmax(1, keepdim=True)
        places = torch.arange(length, device=vectors.device)
        front = torch.where(places + first < length, places + first, places + first - length)
        back = torch.where(places < first, places - first + length, places - first)
        run = _in_onnx if torch.compiler.is_exporting() else _packed
        return gather_positions(run(self.lstm, gather_positions(vectors.float(), front), mask.sum(1)), back)


def _packed(lstm: nn.LSTM, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Always in fp32: not every CPU has an LSTM in bf16."""
    with torch.autocast(vectors.device.type, enabled=False):
        packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
        found = lstm(packed)[0]
    return pad_packed_sequence(found, batch_first=True, total_length=vectors.shape[1])[0]


def _in_onnx(lstm: nn.LSTM, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The same as ONNX has it, where it is exported: packed sequences are not, but its LSTM knows lengths."""
    states = vectors.transpose(0, 1)
    length, count, _ = states.shape
    for layer in range(lstm.num_layers):
        weights, recurrent, of_inputs, of_states = (
            torch.stack([_gates(getattr(lstm, f"{name}_l{layer}{side}")) for side in ("", "_reverse")])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        found = torch.onnx.ops.symbolic(
            "LSTM", (states, weights, recurrent, torch.cat([of_inputs, of_states], 1), lengths.int()),
            {"hidden_size": lstm.hidden_size, "direction": "bidirectional"},
            dtype=states.dtype, shape=(length, 2, count, lstm.hidden_size), version=ONNX_LSTM_OPSET,
        )  # fmt: skip
        states = found.transpose(1, 2).flatten(2)
    return states.transpose(0, 1)


def _gates(weight: torch.Tensor) -> torch.Tensor:
    """From PyTorch's order (input, forget, cell, output) to that of ONNX (input, output, forget, cell)."""
    first, forget, cell, output = weight.chunk(4)
    return torch.cat([first, output, forget, cell])


def gather_positions(vectors: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """[sequences, length, size] with the piece at `places` [sequences, length] in each place."""
    return vectors.gather(1, places.unsqueeze(-1).expand_as(vectors))
