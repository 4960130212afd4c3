"""How much of the held-out text also stands in the training text, and how to take it out there.

The rule: a held-out byte is leaked when it lies inside a run of `width` bytes (64 by default, about one line)
that occurs, byte for byte and at any offset, in the training stream. All runs of both streams are compared,
not only aligned ones, so a shifted copy does not hide. A polynomial hash modulo 2^64 of every run is computed
by doubling (runs of 1, 2, 4, ... bytes) in pieces of 1 MiB, a bitmap of the held-out hashes lets nearly all
training runs pass with one look-up, and the few that remain are looked up in the sorted hashes and then
compared byte by byte, so there are no false hits. Removal takes the leaked runs out of the training stream,
never out of the held-out one.
"""

from dataclasses import dataclass

import numpy as np

_PIECE = 1 << 20
_BASE = 0x9E3779B97F4A7C15
_BITMAP_BITS = 24


@dataclass(frozen=True)
class Overlap:
    """Result of comparing a training stream with a held-out stream."""

    width: int
    """Length of the compared runs in bytes."""
    held_out_bytes: int
    """How many held-out bytes lie in a run that occurs in the training stream."""
    held_out_share: float
    """The same as a share of all held-out bytes, in [0, 1]."""
    train_ranges: np.ndarray
    """int64 [R, 2]: disjoint, ascending [start, stop) ranges of training bytes inside shared runs."""

    @property
    def train_bytes(self) -> int:
        """Number of training bytes inside shared runs."""
        return int((self.train_ranges[:, 1] - self.train_ranges[:, 0]).sum())


def find_overlap(train: np.ndarray, held_out: np.ndarray, *, width: int = 64) -> Overlap:
    """Compare two uint8 streams by all their runs of `width` bytes (a power of two)."""
    hashes = _run_hashes(held_out, width)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    bitmap = np.zeros(1 << _BITMAP_BITS, dtype=bool)
    bitmap[_slot(hashes)] = True
    leaked = np.zeros(len(hashes), dtype=bool)
    hits = [np.empty(0, dtype=np.int64)]
    for start in range(0, max(0, len(train) - width + 1), _PIECE):
        piece = np.asarray(train[start : start + _PIECE + width - 1])
        hits.append(start + _match_piece(piece, held_out, ordered, order, bitmap, leaked, width))
    covered = _cover(np.flatnonzero(leaked), width)
    held = int((covered[:, 1] - covered[:, 0]).sum())
    return Overlap(width, held, held / max(1, len(held_out)), _cover(np.concatenate(hits), width))


def remove_overlap(train: np.ndarray, overlap: Overlap) -> np.ndarray:
    """A copy of the uint8 stream `train` without its shared runs (read-only)."""
    edges = [0, *overlap.train_ranges.ravel().tolist(), len(train)]
    kept = [train[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    out = np.concatenate(kept)
    out.flags.writeable = False
    return out


def _match_piece(
    piece: np.ndarray,
    held_out: np.ndarray,
    ordered: np.ndarray,
    order: np.ndarray,
    bitmap: np.ndarray,
    leaked: np.ndarray,
    width: int,
) -> np.ndarray:
    """Offsets in `piece` of runs that occur in the held-out stream; marks these runs in `leaked`."""
    hashes = _run_hashes(piece, width)
    offsets = np.flatnonzero(bitmap[_slot(hashes)])
    first = np.searchsorted(ordered, hashes[offsets], side="left")
    last = np.searchsorted(ordered, hashes[offsets], side="right")
    offsets, first, last = (array[last > first] for array in (offsets, first, last))
    lanes = np.arange(width)
    same = np.empty(0, dtype=bool)
    if len(offsets):
        same = (piece[offsets[:, None] + lanes] == held_out[order[first][:, None] + lanes]).all(axis=1)
    for low, high in set(zip(first[same].tolist(), last[same].tolist(), strict=True)):
        leaked[order[low:high]] = True
    return offsets[same]


def _run_hashes(data: np.ndarray, width: int) -> np.ndarray:
    """uint64 [n - width + 1]: hash of every run; run(2w) = run(w) * base^w + next run(w), modulo 2^64."""
    if len(data) < width:
        return np.empty(0, dtype=np.uint64)
    hashes = np.asarray(data).astype(np.uint64) + np.uint64(1)
    length, factor = 1, _BASE
    while length < width:
        hashes = hashes[:-length] * np.uint64(factor) + hashes[length:]
        length, factor = 2 * length, factor * factor % (1 << 64)
    return hashes


def _slot(hashes: np.ndarray) -> np.ndarray:
    return hashes >> np.uint64(64 - _BITMAP_BITS)


def _cover(starts: np.ndarray, width: int) -> np.ndarray:
    """Union of the ranges [s, s + width) for ascending starts: int64 [R, 2]."""
    if not len(starts):
        return np.empty((0, 2), dtype=np.int64)
    gaps = np.flatnonzero(np.diff(starts) > width)
    firsts = starts[np.concatenate([[0], gaps + 1])]
    lasts = starts[np.concatenate([gaps, [len(starts) - 1]])]
    return np.stack([firsts, lasts + width], axis=1).astype(np.int64)
