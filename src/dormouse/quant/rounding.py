"""Rounding to a number format: scales of groups, codes, values.

Numbers of the last axis are taken in groups that share a scale; the last group may be shorter. The scale is the
group's largest finite magnitude divided by the format's largest code (ternary: the mean magnitude), rounded to 16
significant bits. No code has more than 7, so code times scale is exact in fp32, the largest code gives back the same
scale, and rounding a second time changes nothing (in ternary the codes stay, their mean does not). A scale is at
least the smallest normal fp32 number: groups of zeros or denormal numbers have codes near zero instead of 0/0, and a
quotient is a division, never a product with a reciprocal that may be infinite. It is at most what keeps the largest
value finite.

Codes are rounded to nearest, ties to even. Finite numbers saturate. Infinities and NaN keep their places and take no
part in their group's scale. All arithmetic is fp32, needs no value on the host, and is the same on every device;
bits are rounded in integers because compilers may drop a cast to a narrow float and back.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dormouse.quant.formats import NumberFormat, number_format

SCALE_BITS = 16
SMALLEST_SCALE = 2.0**-126
_FP32_LARGEST = torch.finfo(torch.float32).max
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Encoded:
    """Codes of a tensor and the scales they are multiplied with."""

    codes: Tensor
    """fp32 ``[..., n]``: numbers of the format's grid; infinities and NaN of the input stand in their places."""
    scales: Tensor | None
    """fp32 ``[..., groups]``; None for formats without scales."""
    fmt: str
    group: int


def group_shape(n: int, group: int) -> tuple[int, int]:
    """How a row of ``n`` numbers is divided: (number of groups, numbers in all but the last of them)."""
    size = max(1, n if group == 0 else min(group, n))
    return -(-n // size), size


def scales(x: Tensor, fmt: str, group: int) -> Tensor | None:
    """The scale of every group.

    Args:
        x: float tensor ``[..., n]``.
        fmt: key of `FORMATS`.
        group: consecutive numbers of the last axis that share a scale; 0 = the whole row.

    Returns:
        fp32 ``[..., groups]`` with 16 significant bits, or None for a format without scales.

    Raises:
        ValueError: unknown format, negative group, ``x`` without an axis or not of a float dtype.
    """
    f = _checked(x, fmt, group)
    if not f.scaled:
        return None
    numbers = _by_group(_fp32(x.detach()), group, absent=math.nan)
    finite = numbers.isfinite()
    magnitude = torch.where(finite, numbers.abs(), 0.0)
    largest = magnitude.amax(-1)
    if f.kind == "ternary":
        raw = _mean(magnitude, largest, finite.sum(-1))
    else:
        # A tensor, because some devices multiply with the reciprocal of a Python number.
        raw = largest / torch.full_like(largest, f.largest)
    return round_significant(raw, SCALE_BITS).clamp(SMALLEST_SCALE, _largest_scale(f))


def encode(x: Tensor, fmt: str, group: int, scale: float | Tensor | None = None) -> Encoded:
    """Codes and scales of a tensor; see the module's paragraph for the rule.

    Args:
        x: float tensor ``[..., n]``; its values are read in fp32, and no gradient flows through.
        fmt: key of `FORMATS`.
        group: consecutive numbers of the last axis that share a scale; 0 = the whole row.
        scale: a fixed scale instead of the computed one: a positive number, or a tensor that broadcasts to ``[...,
            groups]``. It is taken with all its bits; zeros count as the smallest scale, and a tensor's negative or
            non-finite entries make their groups NaN.

    Raises:
        ValueError: as in `scales`; a scale that is not positive and finite, does not broadcast, or has no place in
            the format.
    """
    f = _checked(x, fmt, group)
    numbers = _fp32(x.detach())
    used = scales(numbers, fmt, group) if scale is None else _fixed(scale, numbers, f, group)
    if used is None:
        codes = numbers if f.kind == "identity" else torch.where(numbers.isfinite(), _nearest(numbers, f), numbers)
        return Encoded(codes, None, fmt, group)
    grouped = _by_group(numbers, group)
    codes = torch.where(grouped.isfinite(), _nearest(grouped / used.unsqueeze(-1), f), grouped)
    return Encoded(_rows(codes, x.shape[-1]), used, fmt, group)


def decode(encoded: Encoded) -> Tensor:
    """Values of codes: fp32 ``[..., n]``."""
    if encoded.scales is None:
        return encoded.codes
    values = _by_group(encoded.codes, encoded.group) * encoded.scales.unsqueeze(-1)
    return _rows(values, encoded.codes.shape[-1])


def round_to(x: Tensor, fmt: str, group: int, scale: float | Tensor | None = None) -> Tensor:
    """The values of a format next to those of ``x``: shape and dtype of ``x``, without a gradient.

    For fp32 that is ``x``, whatever its dtype. Arguments and errors as in `encode`.
    """
    f = _checked(x, fmt, group)
    if f.kind == "identity" and scale is None:
        return x.detach()
    return _narrowed(decode(encode(x, fmt, group, scale)), x.dtype)


def saturates(x: Tensor, fmt: str, group: int, scale: float | Tensor) -> Tensor:
    """Which finite numbers a fixed scale does not reach: bool ``[..., n]``.

    A number is beyond the range if, of codes without an end, another one than the largest would be the nearest: half a
    step beyond the largest code still rounds to it. Arguments and errors as in `encode`.
    """
    f = _checked(x, fmt, group)
    numbers = _by_group(_fp32(x.detach()), group)
    quotient = numbers / _fixed(scale, _fp32(x.detach()), f, group).unsqueeze(-1)
    endless = round_significant(quotient, f.mantissa_bits + 1) if f.kind == "minifloat" else quotient.round()
    return _rows(numbers.isfinite() & (endless.abs() > f.largest), x.shape[-1])


def round_significant(x: Tensor, bits: int) -> Tensor:
    """Finite fp32 numbers rounded to ``bits`` significant bits, ties to even; may reach infinity.

    Adds half a unit of the last kept bit to the pattern; a carry out of the significand raises the exponent.
    """
    drop = 24 - bits
    pattern = x.view(torch.int32)
    odd = (pattern >> drop) & 1
    return ((pattern + ((1 << (drop - 1)) - 1) + odd) & -(1 << drop)).view(torch.float32)


def _nearest(x: Tensor, f: NumberFormat) -> Tensor:
    """The code next to each unscaled fp32 number; anything at all for non-finite ones."""
    x = x.clamp(-f.largest, f.largest)
    if f.kind in ("integer", "ternary"):
        codes = x.round()
        return torch.where(codes == 0, 0.0, codes)  # integers have one zero, floats two
    rounded = round_significant(x, f.mantissa_bits + 1)
    if f.min_exponent == -126:
        return rounded  # fp32's own denormals: bits of the pattern are worth the same on both sides of the border
    step = 2.0 ** (f.min_exponent - f.mantissa_bits)
    return torch.where(x.abs() < 2.0**f.min_exponent, (x / step).round() * step, rounded)


def _mean(magnitude: Tensor, largest: Tensor, count: Tensor) -> Tensor:
    """Mean magnitude of the ``count`` finite numbers of each group ``[..., groups, size]``.

    Summed in whole 2^-29ths of the largest number's power of two: exact, so neither the order of the summands nor a
    power of two on all of them changes the mean, and nothing overflows.
    """
    power = (largest.view(torch.int32) & 0x7F800000).view(torch.float32).clamp(min=SMALLEST_SCALE)
    parts = (magnitude / power.unsqueeze(-1) * 2.0**29).round().to(torch.int32)
    total = parts.sum(-1, dtype=torch.int64)
    return total.float() / count.clamp(min=1) * 2.0**-29 * power


def _largest_scale(f: NumberFormat) -> float:
    """The largest scale of 16 bits whose product with the largest code is a finite fp32 number."""
    significand, exponent = math.frexp(_FP32_LARGEST / f.largest)
    return math.ldexp(math.floor(significand * 2**SCALE_BITS), exponent - SCALE_BITS)


def _fixed(scale: float | Tensor, x: Tensor, f: NumberFormat, group: int) -> Tensor:
    """A given scale as fp32 ``[..., groups]``."""
    if not f.scaled:
        raise ValueError(f"scale = {scale!r}: {f.name} has no scale, the number would be ignored; leave it out")
    shape = (*x.shape[:-1], group_shape(x.shape[-1], group)[0])
    if not isinstance(scale, Tensor):
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale = {scale!r}: every number would become 0 or NaN; give a positive finite one")
        return torch.full(shape, scale, device=x.device, dtype=torch.float32).clamp(SMALLEST_SCALE, _largest_scale(f))
    try:
        given = scale.detach().to(x.device, torch.float32).expand(shape)
    except RuntimeError as error:
        raise ValueError(
            f"scale has shape {tuple(scale.shape)}: one scale for each of the groups {shape} of x is needed; "
            "give that shape or one that broadcasts to it"
        ) from error
    proper = (given >= 0) & given.isfinite()
    return torch.where(proper, given.clamp(SMALLEST_SCALE, _largest_scale(f)), math.nan)


def _checked(x: Tensor, fmt: str, group: int) -> NumberFormat:
    """The format, after a look at the arguments that every function has."""
    f = number_format(fmt)
    if group < 0:
        raise ValueError(f"group = {group}: a group has at least one number; use 0 for the whole row")
    if x.dtype not in _FLOATS:
        raise ValueError(f"x has dtype {x.dtype}: only floats are rounded to a number format; convert it first")
    if x.dim() == 0:
        raise ValueError("x has no axis along which groups could lie; give it one with x.reshape(1)")
    return f


def _fp32(x: Tensor) -> Tensor:
    """``x`` in fp32; finite numbers of float64 stay finite."""
    if x.dtype == torch.float64:
        x = torch.where(x.isfinite(), x.clamp(-_FP32_LARGEST, _FP32_LARGEST), x)
    return x.to(torch.float32)


def _narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """fp32 values in the dtype of a result; finite ones stay finite (a bf16 number may lie beyond fp16's last)."""
    if dtype.itemsize < 4:
        largest = torch.finfo(dtype).max
        values = torch.where(values.isfinite(), values.clamp(-largest, largest), values)
    return values.to(dtype)


def _by_group(x: Tensor, group: int, absent: float = 0.0) -> Tensor:
    """``[..., n]`` as ``[..., groups, size]``; what is missing in the last group is ``absent``."""
    groups, size = group_shape(x.shape[-1], group)
    missing = groups * size - x.shape[-1]
    return (F.pad(x, (0, missing), value=absent) if missing else x).unflatten(-1, (groups, size))


def _rows(grouped: Tensor, n: int) -> Tensor:
    """Inverse of `_by_group`."""
    return grouped.flatten(-2)[..., :n]
