"""The routing as a table of words and numbers, for whoever cannot use a colored text.

The text is cut after every newline and after 32 bytes at most. A row has the position of its first byte, the bytes,
their mean surprisal, and for each pass the experts in order: `3 x4` is expert 3 for four bytes, `1+5` the two experts
of a byte at k = 2.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from dormouse.instruments.byte_trace import ByteTrace
from dormouse.report.cells import visible
from dormouse.report.characters import Character, characters

ROW_BYTES = 32


@dataclass(frozen=True)
class Row:
    """Bytes `start ..` of the text, never a part of a character."""

    start: int
    text: str
    bits: float | None
    """Mean surprisal of the scored bytes; None when there are none."""
    experts: tuple[str, ...]
    """One text a pass."""


def rows(trace: ByteTrace) -> Iterator[Row]:
    """The whole text, in order."""
    held: list[Character] = []
    for shown in characters(trace.data.tobytes()):
        if held and shown.start + shown.length - held[0].start > ROW_BYTES:
            yield _row(trace, held)
            held = []
        held.append(shown)
        if shown.kind == "newline":
            yield _row(trace, held)
            held = []
    if held:
        yield _row(trace, held)


def _row(trace: ByteTrace, held: list[Character]) -> Row:
    start, stop = held[0].start, held[-1].start + held[-1].length
    bits = trace.bits[max(start, 1) : stop]
    return Row(
        start,
        "".join(visible(shown) for shown in held),
        float(bits.mean()) if len(bits) else None,
        tuple(_runs(chosen[start:stop]) for chosen in trace.ids),
    )


def _runs(chosen: np.ndarray) -> str:
    """Experts of consecutive bytes, int [n, k], equal ones counted."""
    names = ("+".join(map(str, experts)) for experts in chosen.tolist())
    counted = ((name, len(list(same))) for name, same in groupby(names))
    return ", ".join(name if number == 1 else f"{name} x{number}" for name, number in counted)
