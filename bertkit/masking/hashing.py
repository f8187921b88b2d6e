"""Random numbers that are looked up, not drawn one after the other.

What an example gets depends on its key alone (the epoch and its number, say), so it is the same in any
batch, worker or rank, in any order, and after a resume.
"""

import numpy as np

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, odd: consecutive numbers end up far apart


def hashed_bits(seed: int, key: np.ndarray, count: int, stream: int = 0) -> np.ndarray:
    """[len(key), count] uint64, all 64 bits random: a pure function of (seed, stream, key[i], position)."""
    base = _mixed(_mixed(np.array([seed % 2**64], np.uint64)) + np.uint64(stream))
    state = _mixed(key.astype(np.uint64) * np.uint64(GOLDEN_GAMMA) + base)
    return _mixed(state[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA))


def hashed_uniform(seed: int, key: np.ndarray, count: int, stream: int = 0) -> np.ndarray:
    """[len(key), count] uniform float64 in [0, 1), a pure function of (seed, stream, key[i], position).

    Args:
        key: [n] int64 or uint64.
        count: how many for each; more of them begin with the same ones.
        stream: whoever draws for another purpose with the same seed and keys takes another.
    """
    return (hashed_bits(seed, key, count, stream) >> np.uint64(11)) * 2.0**-53


def _mixed(values: np.ndarray) -> np.ndarray:
    """Each number's bits spread over all 64, no two numbers to the same one (splitmix64's last step)."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)  # in place from here on: several times as fast
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
