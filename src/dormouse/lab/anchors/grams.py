"""Which byte strings of 1 to 8 bytes occur in a text, and how often, as sorted integer codes.

An n-gram is the big-endian integer of its bytes; eight bytes fill a uint64. Big-endian codes sort like the
strings themselves, so one sort of all 8-grams also puts their first n bytes in order: each shorter order is a
shift of the sorted codes, plus the few n-grams that start too near the end of the text to be part of an
8-gram. The continuation table of order n counts for every n-gram how many different bytes precede it; it
follows from the distinct (n+1)-grams by dropping their first byte.
"""

from dataclasses import dataclass

import numpy as np

MAX_ORDER = 8


@dataclass(frozen=True)
class GramTable:
    """Distinct n-grams of one order with a count each."""

    order: int
    """n: length in bytes."""
    codes: np.ndarray
    """uint64 [G], strictly ascending."""
    counts: np.ndarray
    """int64 [G], all positive."""


def encode(data: np.ndarray, order: int) -> np.ndarray:
    """uint64 [n - order + 1]: code of the `order` bytes at every offset of the uint8 stream `data`."""
    size = max(0, len(data) - order + 1)
    codes = np.zeros(size, dtype=np.uint64)
    for offset in range(order):
        codes <<= np.uint64(8)
        codes |= data[offset : offset + size]
    return codes


def count_tables(data: np.ndarray, max_order: int) -> list[GramTable]:
    """Occurrence counts of every order 1 .. max_order (at most 8) in the uint8 stream `data`."""
    longest = np.sort(encode(data, max_order))
    tables = []
    for order in range(1, max_order + 1):
        codes = longest >> np.uint64(8 * (max_order - order))
        rest = np.sort(encode(data[max(0, len(data) - max_order + 1) :], order))
        tables.append(_collapse(order, np.insert(codes, np.searchsorted(codes, rest), rest)))
    return tables


def continuation_table(longer: GramTable) -> GramTable:
    """Order n from order n + 1: how many different bytes precede each n-gram."""
    order = longer.order - 1
    return _collapse(order, np.sort(longer.codes & np.uint64((1 << 8 * order) - 1)))


def _collapse(order: int, ascending: np.ndarray) -> GramTable:
    """Distinct values of an ascending array and how often each occurs."""
    first = np.ones(len(ascending), dtype=bool)
    first[1:] = ascending[1:] != ascending[:-1]
    places = np.flatnonzero(first)
    return GramTable(order, ascending[places], np.diff(places, append=len(ascending)))
