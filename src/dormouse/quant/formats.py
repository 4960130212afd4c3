"""The number formats of weights and activations, as figures.

A *scaled* format holds small codes; a group of numbers shares one scale, and a value is code times scale. bf16 and
fp16 cover the range of a factor by themselves and have no scale; fp32 means that nothing is rounded at all.

Sources: E4M3 in its finite variant and E2M1 as in OCP MX v1.0 (no infinity, E2M1 no NaN either); ternary by mean
magnitude from BitNet b1.58 (arXiv 2402.17764); four-bit inputs from BitNet a4.8 (arXiv 2411.04965).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["identity", "cast", "minifloat", "integer", "ternary"]


@dataclass(frozen=True)
class NumberFormat:
    """What a number format can hold."""

    name: str
    bits: int
    """Width of a stored code; ternary needs ``log2 3 = 1.58`` bits and is packed at 1.6 (`dormouse.quant.packing`)."""
    kind: Kind
    """``identity``: fp32; ``cast``: a float of its own range; the others have a scale for each group."""
    largest: float
    """Largest magnitude of a code. Integers are symmetric: -8 and -128 do not occur."""
    mantissa_bits: int = 0
    """Stored bits of the significand of a float; 0 for integers and ternary."""
    min_exponent: int = 0
    """Exponent of the smallest normal number of a float; below it the step stays constant."""

    @property
    def scaled(self) -> bool:
        """Whether groups of numbers share a scale."""
        return self.kind in ("minifloat", "integer", "ternary")


_ALL = (
    NumberFormat("fp32", 32, "identity", (2 - 2**-23) * 2.0**127, 23, -126),
    NumberFormat("bf16", 16, "cast", (2 - 2**-7) * 2.0**127, 7, -126),
    NumberFormat("fp16", 16, "cast", 65504.0, 10, -14),
    NumberFormat("fp8", 8, "minifloat", 448.0, 3, -6),
    NumberFormat("fp4", 4, "minifloat", 6.0, 1, 0),
    NumberFormat("int8", 8, "integer", 127.0),
    NumberFormat("int4", 4, "integer", 7.0),
    NumberFormat("ternary", 2, "ternary", 1.0),
)

FORMATS: Mapping[str, NumberFormat] = MappingProxyType({f.name: f for f in _ALL})
"""Every format by name, from the widest to the narrowest. fp8 is E4M3, fp4 is E2M1."""


def number_format(name: str) -> NumberFormat:
    """The format called ``name``.

    Raises:
        ValueError: there is no such format.
    """
    if name not in FORMATS:
        raise ValueError(
            f"fmt = {name!r}: no such number format, nothing can be rounded to it; use {', '.join(FORMATS)}"
        )
    return FORMATS[name]
