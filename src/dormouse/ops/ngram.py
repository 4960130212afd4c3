"""Rows of hashed n-gram tables.

The key of position ``t`` and order ``n`` is FNV-1a (64 bit, offset basis 14695981039346656037, prime 1099511628211)
of the last ``n`` bytes, oldest first; the row is the key modulo the number of rows, unsigned. ``original`` keeps
the arithmetic of the system this one re-implements: an offset basis with one digit missing and only the low 31 bits
of the key.

A position with fewer than ``n`` bytes of its own document has no n-gram: its row is reported as invalid and the
caller reads zeros. Integers wrap modulo 2^64 on every device, and only the low bits are needed for tables of a
power of two.
"""

import torch
from torch import Tensor

FNV_PRIME = 1099511628211
_OFFSET = {"fnv1a64": 14695981039346656037, "original": 1469598103934665603}


def _signed(x: int) -> int:
    """The int64 with the same 64 bits."""
    return x - (1 << 64) if x >= 1 << 63 else x


def ngram_keys(padded: Tensor, order: int, *, hash_name: str = "fnv1a64") -> Tensor:
    """64-bit keys of all windows of ``order`` bytes.

    Args:
        padded: bytes as int64 ``[B, order - 1 + T]``.
        order: n.
        hash_name: ``fnv1a64`` or ``original``.

    Returns:
        int64 ``[B, T]`` holding the unsigned 64-bit hash bit for bit.
    """
    length = padded.shape[1] - order + 1
    key = torch.full_like(padded[:, :length], _signed(_OFFSET[hash_name]))
    for j in range(order):
        key = (key ^ padded[:, j : j + length]) * FNV_PRIME
    return key


def ngram_rows(
    ids: Tensor, history: Tensor, age: Tensor, *, orders: list[int], n_rows: int, hash_name: str = "fnv1a64"
) -> tuple[Tensor, Tensor]:
    """Table rows of every position and order.

    Args:
        ids: bytes ``[B, T]`` int64.
        history: the bytes before ``ids`` ``[B, max(orders) - 1]``, oldest first; their values matter only where ``age``
            says that they belong to the current document.
        age: ``[B, T]`` int64, number of earlier bytes of the same document (0 at its first byte).
        orders: n of each table.
        n_rows: rows of each table.
        hash_name: see `ngram_keys`.

    Returns:
        Rows ``[B, T, len(orders)]`` int64 in ``0 .. n_rows - 1`` and their validity, bool of the same shape.
    """
    padded = torch.cat([history, ids], dim=1)
    rows, valid = [], []
    for order in orders:
        key = ngram_keys(padded[:, history.shape[1] - order + 1 :], order, hash_name=hash_name)
        if hash_name == "original":
            key = key & 0x7FFFFFFF
        rows.append(unsigned_remainder(key, n_rows))
        valid.append(age >= order - 1)
    return torch.stack(rows, -1), torch.stack(valid, -1)


def unsigned_remainder(key: Tensor, n_rows: int) -> Tensor:
    """``key mod n_rows`` with the int64 ``key`` read as an unsigned 64-bit number."""
    if n_rows & (n_rows - 1) == 0:
        return key & (n_rows - 1)
    half = (key >> 1) & 0x7FFFFFFFFFFFFFFF  # key // 2 as an unsigned number
    return ((half % n_rows) * 2 + (key & 1)) % n_rows
