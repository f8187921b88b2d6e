"""Counter-based random numbers: each number is a function of a key, not of the numbers sampled before.

The key of an example may be computed from its epoch and index. Its random numbers are then the same in any
batch, worker and rank, in any order, and after a resume.
"""

import numpy as np

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, made odd: its multiples are far apart


def hashed_bits(seed: int, keys: np.ndarray, count: int, stream: int = 0) -> np.ndarray:
    """Return random bits [len(keys), count] uint64. They depend only on seed, stream, key and column."""
    base = _mix(_mix(np.array([seed % 2**64], np.uint64)) + np.uint64(stream))
    state = _mix(keys.astype(np.uint64) * np.uint64(GOLDEN_GAMMA) + base)
    return _mix(state[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA))


def hashed_uniform(seed: int, keys: np.ndarray, count: int, stream: int = 0) -> np.ndarray:
    """Return uniform random numbers in [0, 1), [len(keys), count] float64.

    Each number depends only on seed, stream, key and column.

    Args:
        seed: Seed of the run.
        keys: [n] int64 or uint64.
        count: Number of columns. Another count does not change the numbers of the common columns.
        stream: Number of the random stream. Uses with the same seed and keys need different streams.
    """
    # The upper 53 bits, since a float64 has a precision of 53 bits.
    return (hashed_bits(seed, keys, count, stream) >> np.uint64(11)) * 2.0**-53


def _mix(values: np.ndarray) -> np.ndarray:
    """Apply the finalizer of splitmix64, a bijection in which each input bit affects all output bits."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)  # in place, which is several times as fast
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
