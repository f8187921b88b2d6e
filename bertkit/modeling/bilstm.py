"""What stands between an encoder's vectors and a head."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


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

        Packed sequences begin at the front, so pieces behind padding move there and back. Always in fp32:
        not every CPU has an LSTM in bf16.
        """
        mask = attention_mask.bool()
        front = (~mask).byte().argsort(dim=1, stable=True)  # real pieces first, in their order
        with torch.autocast(vectors.device.type, enabled=False):
            packed = pack_padded_sequence(
                moved(vectors.float(), front), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
            )
            found = self.lstm(packed)[0]
        found, _ = pad_packed_sequence(found, batch_first=True, total_length=mask.shape[1])
        return moved(found, front.argsort(dim=1))


def moved(vectors: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """[sequences, length, size] with the piece at `places` [sequences, length] in each place."""
    return vectors.gather(1, places.unsqueeze(-1).expand_as(vectors))
