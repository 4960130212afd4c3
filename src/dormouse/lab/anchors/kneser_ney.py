"""Interpolated modified Kneser-Ney n-grams over bytes, fitted on one text and fixed while they score another.

With c the count of an n-gram, the probability of byte w after context h of n - 1 bytes is

    p_n(w | h) = max(c(hw) - D(c(hw)), 0) / sum_v c(hv)  +  gamma(h) * p_(n-1)(w | h without its first byte)

where D has three values, for counts 1, 2 and 3 or more, estimated per order from the counts of counts, and
gamma(h) is exactly the mass that the discounts took away, so the 256 probabilities of a context sum to 1. The
highest order counts occurrences, every lower one counts how many different bytes precede an n-gram; below
order 1 lies the uniform distribution. A context never seen passes the lower order on unchanged. Near the
start of a text, where fewer than n - 1 bytes are there to look at, the order that fits is used.

Source: Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling" (TR-10-98, 1998),
section 3. Memory: about 45 bytes per byte of English text at order 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dormouse.lab.anchors.grams import MAX_ORDER, GramTable, continuation_table, count_tables, encode

_FALLBACK = (0.5, 1.0, 1.5)
"""Discounts where the counts of counts give none (as KenLM does); any 0 <= D(c) <= c keeps the sum at 1."""


class KneserNey:
    """Tables of one training text (uint8 stream) for all orders up to `max_order` (1 to 8)."""

    def __init__(self, train: np.ndarray, *, max_order: int = MAX_ORDER) -> None:
        if not 1 <= max_order <= MAX_ORDER or len(train) < max_order:
            raise ValueError(f"max_order={max_order} needs 1..{MAX_ORDER} and as many bytes of text ({len(train)})")
        counted = count_tables(train, max_order)
        self._top = [_Level(table) for table in counted]
        self._lower = [_Level(continuation_table(table)) for table in counted[1:]]

    def bits(self, data: np.ndarray, orders: Sequence[int]) -> dict[int, np.ndarray]:
        """For each order: float64 [n - 1], bits (-log2 p) of data[1], data[2], ... given what precedes."""
        codes = encode(np.concatenate([np.zeros(MAX_ORDER - 2, dtype=np.uint8), data]), MAX_ORDER)
        context = np.minimum(np.arange(1, len(data)), MAX_ORDER - 1)
        return {order: -np.log2(p) for order, p in self._probabilities(codes, context, orders).items()}

    def distribution(self, context: bytes, order: int) -> np.ndarray:
        """float64 [256]: probability of every byte after the last order - 1 bytes of `context`."""
        known = context[-(MAX_ORDER - 1) :]
        codes = np.uint64(int.from_bytes(known, "big") << 8) + np.arange(256, dtype=np.uint64)
        return self._probabilities(codes, np.full(256, len(known)), [order])[order]

    def _probabilities(self, codes: np.ndarray, context: np.ndarray, orders: Sequence[int]) -> dict[int, np.ndarray]:
        """`codes` hold the byte in question last; `context` says how many bytes before it are real."""
        out = {}
        lower = np.full(len(codes), 1 / 256)
        top = lower
        for order in range(1, max(orders) + 1):
            reach = context >= order - 1
            top = np.where(reach, self._top[order - 1].mix(codes, lower), top)
            if order in orders:
                out[order] = top
            if order < max(orders):
                lower = self._lower[order - 1].mix(codes, lower)
        return out


@dataclass(frozen=True)
class _Discounts:
    one: float
    two: float
    more: float

    def of(self, counts: np.ndarray) -> np.ndarray:
        """float64: D(c) for each positive count."""
        return np.array([0.0, self.one, self.two, self.more])[np.minimum(counts, 3)]


def estimate_discounts(counts: np.ndarray) -> tuple[float, float, float]:
    """D(1), D(2), D(3+) from the counts of counts n1 .. n4 (Chen and Goodman, equation 26)."""
    n1, n2, n3, n4 = (int((counts == c).sum()) for c in (1, 2, 3, 4))
    if min(n1, n2, n3) == 0:
        return _FALLBACK
    y = n1 / (n1 + 2 * n2)
    raw = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    one, two, more = (min(max(value, 0.0), c) for c, value in enumerate(raw, start=1))
    return one, two, more


class _Level:
    """One order: what a context gives to its n-grams directly, and what it leaves to the lower order."""

    def __init__(self, table: GramTable) -> None:
        self._mask = np.uint64((1 << 8 * table.order) - 1)
        self._codes = table.codes
        contexts = table.codes >> np.uint64(8)
        first = np.flatnonzero(np.diff(contexts, prepend=np.uint64(1 << 63)))
        totals = np.add.reduceat(table.counts, first)
        discount = _Discounts(*estimate_discounts(table.counts)).of(table.counts)
        sizes = np.diff(first, append=len(contexts))
        self._contexts = contexts[first]
        self._direct = (table.counts - discount) / np.repeat(totals, sizes)
        self._left = np.add.reduceat(discount, first) / totals

    def mix(self, codes: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """float64 [Q]: probability of each code's last byte, given the lower order's probability."""
        grams = codes & self._mask
        order = np.argsort(grams)  # ascending look-ups walk the table once instead of jumping about in it
        grams = grams[order]
        direct = _look_up(self._codes, self._direct, grams, missing=0.0)
        left = _look_up(self._contexts, self._left, grams >> np.uint64(8), missing=1.0)
        out = np.empty_like(lower)
        out[order] = direct + left * lower[order]
        return out


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray, *, missing: float) -> np.ndarray:
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], missing)
