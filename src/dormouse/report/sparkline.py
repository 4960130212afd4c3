"""Surprisal along a text as an SVG path: one column a stretch of bytes, its mean filled and its peak as a line."""

from dataclasses import dataclass

import numpy as np

COLUMNS = 400
HEIGHT = 100.0


@dataclass(frozen=True)
class Sparkline:
    """Paths in a box of `width` x `HEIGHT` units; y grows downwards from `ceiling` bits to 0."""

    width: int
    mean: str
    peak: str
    ceiling: float
    """Bits at the top of the box."""
    level: float
    """y of the mean over the whole text."""
    bytes_a_column: int


def sparkline(bits: np.ndarray, *, columns: int = COLUMNS) -> Sparkline:
    """Path data for `bits`, float [n], n >= 1, all finite."""
    stretch = -(-len(bits) // columns)
    starts = np.arange(0, len(bits), stretch)
    sizes = np.diff(np.append(starts, len(bits)))
    means, peaks = np.add.reduceat(bits, starts) / sizes, np.maximum.reduceat(bits, starts)
    ceiling = max(float(np.ceil(peaks.max())), 1.0)
    return Sparkline(
        width=len(starts),
        mean=f"M0 {HEIGHT:g}{_steps(means, ceiling)}V{HEIGHT:g}Z",
        peak=f"M0 {_y(peaks[0], ceiling)}{_steps(peaks, ceiling)}",
        ceiling=ceiling,
        level=_y(float(bits.mean()), ceiling),
        bytes_a_column=stretch,
    )


def _y(bits: float, ceiling: float) -> float:
    return round(HEIGHT * (1 - bits / ceiling), 1)


def _steps(values: np.ndarray, ceiling: float) -> str:
    """A level line of one unit for each value."""
    return "".join(f"V{_y(value, ceiling):g}h1" for value in values)
