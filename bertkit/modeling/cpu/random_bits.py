"""Fast random numbers for dropout on a CPU.

Random numbers take most of dropout's time: PyTorch draws them one after the other with a Mersenne Twister.
NumPy's SFC64 takes half the time for a 64-bit number, and each 64-bit number decides on four values.
"""

import math

import numpy as np
import torch

RANDOM_LEVELS = 2**16  # number of values that 16 random bits can have


class KeepMasks:
    """A reproducible sequence of dropout masks.

    Two instances with the same arguments draw the same masks. A backward pass can therefore repeat the masks
    of the forward pass, instead of keeping them in memory.

    Args:
        dropout: Probability of dropping a value, below 1. It is rounded to a multiple of 1 / RANDOM_LEVELS.
        seed: Seed of the masks; see `draw_seed`.

    Attributes:
        keep_prob: Probability of keeping a value, after rounding. Values that are kept are divided by it.
    """

    def __init__(self, dropout: float, seed: int) -> None:
        dropped_levels = min(round(dropout * RANDOM_LEVELS), RANDOM_LEVELS - 1)  # keep_prob is not 0
        self.keep_prob = 1 - dropped_levels / RANDOM_LEVELS
        self.threshold = dropped_levels - RANDOM_LEVELS // 2  # for random numbers of the type int16
        self.bit_generator = np.random.SFC64(seed)

    def draw(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Draw the next mask: a tensor of this shape and type, 0 for dropped values and 1 for kept values."""
        n = shape.numel()
        random_int64 = torch.from_numpy(self.bit_generator.random_raw(math.ceil(n / 4)).view(np.int64))
        random_int16 = random_int64.view(torch.int16)[:n].view(shape)
        return torch.ge(random_int16, self.threshold, out=torch.empty(shape, dtype=dtype))

    def drop_(self, values: torch.Tensor) -> torch.Tensor:
        """Set the dropped values of a contiguous tensor to 0, in place, with the next mask."""
        return drop_(values, self.draw(values.shape, mask_dtype(values)))


def draw_seed() -> int:
    """Draw a seed from PyTorch's default generator."""
    return int(torch.empty((), dtype=torch.int64).random_())


def mask_dtype(values: torch.Tensor) -> torch.dtype:
    """Return the type of the mask for `drop`: integers for 16-bit values, else the type of the values."""
    return torch.int16 if values.element_size() == 2 else values.dtype


def drop(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Multiply a contiguous tensor by a mask of 0 and 1.

    PyTorch multiplies 16-bit integers three times as fast as bf16 numbers, and 0 has the same bits in both.
    """
    return torch.mul(values.view(mask.dtype), mask).view(values.dtype)


def drop_(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Multiply a contiguous tensor by a mask of 0 and 1 in place, and return it; see `drop`."""
    values.view(mask.dtype).mul_(mask)
    return values
