"""A shuffled order of 0 .. n-1 that is computed one position at a time, without ever holding an array of n
numbers.

The order is a keyed permutation: the numbers are written as pairs (left, right) on an a x b grid that just
covers n, and eight Feistel rounds alternately add to one half a pseudo-random function of the other half.
Every round can be undone, so the grid is permuted; a position that falls on one of the few grid cells beyond
n is sent through again until it lands inside (cycle walking), which keeps the mapping a permutation of 0 ..
n-1. The same key always gives the same order, so the data position of a run is nothing but its step number.

Feistel on a grid: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002). Mixing function: the
finaliser of SplitMix64 (Steele, Lea, Flood 2014).
"""

import hashlib
import math

import numpy as np

_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def permute(positions: np.ndarray, n: int, *, seed: int, epoch: int) -> np.ndarray:
    """Images of `positions` (int64, each in [0, n)) in the order of (seed, epoch); int64, same shape."""
    rows = math.isqrt(n - 1) + 1
    columns = -(-n // rows)
    keys = _round_keys(seed, epoch)
    out = _feistel(positions.astype(np.uint64), rows, columns, keys)
    while (outside := out >= np.uint64(n)).any():
        out[outside] = _feistel(out[outside], rows, columns, keys)
    return out.astype(np.int64)


def _round_keys(seed: int, epoch: int) -> np.ndarray:
    """Eight 64-bit keys; a cryptographic hash keeps neighbouring seeds and epochs unrelated."""
    digest = hashlib.blake2b(f"dormouse order {seed} {epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def _feistel(values: np.ndarray, rows: int, columns: int, keys: np.ndarray) -> np.ndarray:
    left, right = values // np.uint64(columns), values % np.uint64(columns)
    for number in range(0, _ROUNDS, 2):
        left = (left + _mix(right ^ keys[number]) % np.uint64(rows)) % np.uint64(rows)
        right = (right + _mix(left ^ keys[number + 1]) % np.uint64(columns)) % np.uint64(columns)
    return left * np.uint64(columns) + right


def _mix(values: np.ndarray) -> np.ndarray:
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _MIX1
    values = (values ^ (values >> np.uint64(27))) * _MIX2
    return values ^ (values >> np.uint64(31))
