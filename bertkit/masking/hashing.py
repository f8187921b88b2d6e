"""Counter-based random numbers: looked up by key instead of sampled in sequence.

The numbers of an example depend on its key alone (for instance its epoch and number). So they are the
same in any batch, worker or rank, in any order, and after a resume.
"""

import numpy as np

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, odd: spreads consecutive numbers far apart


def hashed_bits(seed: int, keys: np.ndarray, count: int, stream: int = 0) -> np.ndarray:
    """Return [len(keys), count] uint64 random bits: a pure function of (seed, stream, key, column)."""
    base = _mix(_mix(np.array([seed % 2**64], np.uint64)) + np.uint64(stream))
    state = _mix(keys.astype(np.uint64) * np.uint64(GOLDEN_GAMMA) + base)
    return _mix(state[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA))


def hashed_uniform(seed: int, keys: np.ndarray, count: int, stream: int = 0) -> np.ndarray:
    """Return [len(keys), count] float64, uniform in [0, 1): a function of (seed, stream, key, column).

    Args:
        seed: Seed of the run.
        keys: [n] int64 or uint64.
        count: Numbers per key; a larger count begins with the same numbers.
        stream: Independent stream for each purpose with the same seed and keys.
    """
    return (hashed_bits(seed, keys, count, stream) >> np.uint64(11)) * 2.0**-53


def _mix(values: np.ndarray) -> np.ndarray:
    """Apply the finalizer of splitmix64, a bijection in which each bit affects all 64."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)  # in place from here on: several times as fast
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
