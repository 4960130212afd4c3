"""The text of a page as cells: one element a byte, whose classes say how it was routed.

A view is one pass and one of its k slots. The classes of a byte are short, because a page has one element for every
byte: `A3` is expert 3 in the first view and `A` marks where a stretch of one expert begins; `a7` is a confidence of 0.7
to 0.8 in the first pass and `a` where such a stretch begins; `_5` is a surprisal of 5 bits, rounded. The style sheet
gives these classes their colors (`styles.py`); an element says nothing about color itself.
"""

import string
from dataclasses import dataclass

import numpy as np

from dormouse.instruments.byte_trace import ByteTrace
from dormouse.report.characters import Character, characters
from dormouse.report.palette import LIGHT

TOP_SURPRISAL = len(LIGHT.surprisal) - 1
PASS_LETTERS = "abcdefghijk"
"""Of names of passes; no such name is that of another custom property in the style sheet."""
_TENTHS = len(LIGHT.confidence)


@dataclass(frozen=True)
class Cell:
    """One character: what is shown, and the classes of each of its bytes."""

    text: str
    kind: str
    classes: tuple[str, ...]


def code(number: int, letters: str = string.ascii_uppercase) -> str:
    """Name of a view (or of a pass, with `PASS_LETTERS`): A .. Z, AA, AB and so on."""
    head, last = divmod(number, len(letters))
    return (code(head - 1, letters) if head else "") + letters[last]


def tenths(confidence: np.ndarray) -> np.ndarray:
    """int64, 0 for 0 to 0.1 and so on to 9 for 0.9 to 1."""
    return np.clip((confidence * _TENTHS).astype(np.int64), 0, _TENTHS - 1)


def cells(trace: ByteTrace) -> list[Cell]:
    """Every character of the text, in order."""
    names = _class_names(trace)
    return [
        Cell(shown.text, shown.kind, tuple(names[shown.start : shown.start + shown.length]))
        for shown in characters(trace.data.tobytes())
    ]


def visible(shown: Character) -> str:
    """What stands for a character inside one line of text."""
    return {"newline": "\u21b5", "tab": "\u2192"}.get(shown.kind, shown.text)


def _class_names(trace: ByteTrace) -> list[str]:
    """The classes of every byte, joined by spaces."""
    passes, n, slots = trace.ids.shape
    columns = [["_"] + [f"_{bits}" for bits in np.clip(np.rint(trace.bits[1:]), 0, TOP_SURPRISAL).astype(int)]]
    for i in range(passes):
        columns += [_stretches(code(i * slots + slot), trace.ids[i, :, slot]) for slot in range(slots)]
        columns.append(_stretches(code(i, PASS_LETTERS), tenths(trace.confidence[i])))
    return [" ".join(column[t] for column in columns) for t in range(n)]


def _stretches(name: str, values: np.ndarray) -> list[str]:
    """`A3` at every byte with value 3, and `A` as well at the first one of a stretch."""
    begins = np.append(True, values[1:] != values[:-1])
    return [f"{name} {name}{value}" if first else f"{name}{value}" for value, first in zip(values, begins, strict=True)]
