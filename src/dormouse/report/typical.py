"""Which bytes are typical of an expert: shares of byte classes, and single bytes with their lift.

Assignments of all passes and slots are pooled, since an expert has the same weights in every pass. The lift of a byte
is its share among an expert's assignments over its share in the text. Bytes are ranked by share x log2 lift, their part
of the divergence between the expert's bytes and the text's, so that a rare byte does not lead on its lift alone.
"""

from dataclasses import dataclass

import numpy as np

_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_VOWELS = b"aeiou"
CLASSES = ("vowels", "consonants", "digits", "space", "punctuation", "newline", "control", "non-ASCII")


@dataclass(frozen=True)
class TypicalByte:
    """A byte that an expert gets more often than the text has it."""

    byte: int
    share: float
    """Part of the expert's assignments."""
    lift: float
    """Over the byte's part of the text."""


@dataclass(frozen=True)
class Profile:
    """What one expert was used for."""

    expert: int
    assignments: int
    class_shares: tuple[float, ...]
    """Part of the assignments in each of `CLASSES`; sums to 1, or all 0 for an unused expert."""
    typical: tuple[TypicalByte, ...]


def classes() -> np.ndarray:
    """int64 [256], index in `CLASSES` of every byte value; each is in one class."""
    table = np.full(256, CLASSES.index("punctuation"))
    table[:32] = table[127] = CLASSES.index("control")
    table[128:] = CLASSES.index("non-ASCII")
    table[list(_LETTERS + _LETTERS.upper())] = CLASSES.index("consonants")
    table[list(_VOWELS + _VOWELS.upper())] = CLASSES.index("vowels")
    table[list(b"0123456789")] = CLASSES.index("digits")
    table[ord(" ")], table[ord("\n")] = CLASSES.index("space"), CLASSES.index("newline")
    return table


def class_shares(data: np.ndarray) -> tuple[float, ...]:
    """Part of the text, uint8 [n], in each of `CLASSES`."""
    return _by_class(np.bincount(data, minlength=256))


def profiles(data: np.ndarray, ids: np.ndarray, n_experts: int, *, top: int = 6) -> list[Profile]:
    """The profile of every expert, from the text uint8 [n] and the selections int [P, n, k]."""
    pooled = np.zeros((n_experts, 256), dtype=np.int64)
    bytes_of = np.broadcast_to(data[None, :, None], ids.shape)
    np.add.at(pooled, (ids.ravel(), bytes_of.ravel()), 1)
    text = np.bincount(data, minlength=256) / len(data)
    return [
        Profile(expert, int(counts.sum()), _by_class(counts), _typical(counts, text, top))
        for expert, counts in enumerate(pooled)
    ]


def _by_class(counts: np.ndarray) -> tuple[float, ...]:
    sums = np.bincount(classes(), weights=counts, minlength=len(CLASSES))
    return tuple((sums / max(counts.sum(), 1)).tolist())


def _typical(counts: np.ndarray, text: np.ndarray, top: int) -> tuple[TypicalByte, ...]:
    """The `top` bytes with a lift above 1 that tell the expert's bytes from the text's best."""
    used = np.flatnonzero(counts)
    shares = counts[used] / max(counts.sum(), 1)
    lifts = shares / text[used]
    order = np.argsort(-shares * np.log2(lifts), kind="stable")[:top]
    found = (TypicalByte(int(used[i]), float(shares[i]), float(lifts[i])) for i in order)
    return tuple(byte for byte in found if byte.lift > 1)
