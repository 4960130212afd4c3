"""Codes packed for storage: what a number format really costs in bytes.

The tensor is flattened; only the end of the whole payload is padded. Four-bit codes lie two in a byte, the earlier
one in the low half: E2M1 in its standard encoding, int4 as two's complement. Ternary codes lie five in a byte as
digits of base 3 (3^5 = 243 patterns of 256), 1.6 bits a number; two bits each would be a quarter more, and a table
look-up or a division unpacks both. E4M3 bytes have the standard encoding, int8 is int8, bf16, fp16 and fp32 are
stored as they are. Scales are fp32, row by row.

A packed tensor is a flat dict of plain tensors and a description of names and whole numbers, so that it fits into a
file of tensors with a text header.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dormouse.errors import CheckpointError, UsageError
from dormouse.quant.formats import NumberFormat, number_format
from dormouse.quant.rounding import SMALLEST_SCALE, Encoded, decode, encode, group_shape

LAYOUT = 1
"""Version of the byte layout that this paragraph describes."""
_TRITS = 5
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}


@dataclass(frozen=True)
class Packed:
    """A tensor in a number format, as bytes."""

    payload: Tensor
    """``[bytes or codes]``: uint8, or int8, bf16, fp16, fp32 for the formats of that name."""
    scales: Tensor | None
    """fp32 ``[..., groups]``; None for formats without scales."""
    shape: tuple[int, ...]
    fmt: str
    group: int

    @property
    def nbytes(self) -> int:
        """Bytes of payload and scales."""
        return self.payload.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name: ``payload``, and ``scales`` if there are any."""
        return {"payload": self.payload} if self.scales is None else {"payload": self.payload, "scales": self.scales}

    def description(self) -> dict[str, Any]:
        """What `packed_from` needs besides the tensors; fit for JSON."""
        return {"layout": LAYOUT, "format": self.fmt, "group": self.group, "shape": list(self.shape)}


def packed_from(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> Packed:
    """Inverse of `Packed.tensors` and `Packed.description`.

    Raises:
        CheckpointError: a part is missing, or dtype, size or layout are not what the description says.
    """
    try:
        layout, fmt, group = description["layout"], description["format"], description["group"]
        packed = Packed(tensors["payload"], tensors.get("scales"), tuple(description["shape"]), fmt, group)
        if layout != LAYOUT:
            raise ValueError(f"layout = {layout!r}: this version reads layout {LAYOUT}")
        _check_parts(packed)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"packed tensor is damaged ({error}), its numbers would be wrong; take another copy"
        ) from error
    return packed


def pack(x: Tensor, fmt: str, group: int) -> Packed:
    """A tensor rounded to a format and packed; ``unpack`` gives the values of ``round_to`` in fp32, bit for bit.

    Reads the numbers on the host once, to refuse what has no code.

    Args:
        x: float tensor ``[..., n]``.
        fmt: key of `FORMATS`.
        group: consecutive numbers of the last axis that share a scale; 0 = the whole row.

    Raises:
        UsageError: ``x`` has infinities or NaN.
        ValueError: as in `encode`.
    """
    encoded = encode(x, fmt, group)
    bad = x.numel() - int(x.isfinite().sum())
    if bad:
        raise UsageError(
            f"x has {bad} infinite or NaN numbers among {x.numel()}: {fmt} has no code for them and they would be "
            "stored as ordinary numbers; pack a healthy tensor"
        )
    payload = _to_bytes(encoded.codes.flatten(), number_format(fmt))
    return Packed(payload, encoded.scales, tuple(x.shape), fmt, group)


def unpack(packed: Packed) -> Tensor:
    """The values of a packed tensor: fp32, of its shape."""
    codes = _from_bytes(packed.payload, number_format(packed.fmt), math.prod(packed.shape))
    return decode(Encoded(codes.reshape(packed.shape), packed.scales, packed.fmt, packed.group))


def packed_bytes(shape: Sequence[int], fmt: str, group: int) -> int:
    """Bytes that ``pack`` makes of a tensor of this shape, scales included.

    Raises:
        ValueError: unknown format, no axis, or a negative size or group.
    """
    payload, scales = _sizes(shape, fmt, group)
    return payload * _DTYPES.get(fmt, torch.uint8).itemsize + 4 * scales


def _sizes(shape: Sequence[int], fmt: str, group: int) -> tuple[int, int]:
    """Elements of the payload and of the scales."""
    f = number_format(fmt)
    if not shape or min(shape) < 0 or group < 0:
        raise ValueError(f"shape = {tuple(shape)}, group = {group}: one axis at least and no negative sizes are needed")
    n = math.prod(shape)
    per_byte = {"ternary": _TRITS, "int4": 2, "fp4": 2}.get(fmt, 1)
    groups = math.prod(shape[:-1]) * group_shape(shape[-1], group)[0]
    return -(-n // per_byte), groups if f.scaled else 0


def _check_parts(packed: Packed) -> None:
    """ValueError unless dtypes, shapes and patterns of the parts are such as `pack` makes."""
    f = number_format(packed.fmt)
    count, _ = _sizes(packed.shape, packed.fmt, packed.group)
    dtype = _DTYPES.get(packed.fmt, torch.uint8)
    groups = (*packed.shape[:-1], group_shape(packed.shape[-1], packed.group)[0])
    if packed.payload.shape != (count,) or packed.payload.dtype != dtype:
        found = f"{packed.payload.dtype} {tuple(packed.payload.shape)}"
        raise ValueError(f"payload is {found} instead of {dtype} ({count},)")
    if (packed.scales is not None) != f.scaled:
        raise ValueError(f"scales are {'missing' if f.scaled else 'there'}, in {packed.fmt}")
    if packed.scales is not None:
        if packed.scales.shape != groups or packed.scales.dtype != torch.float32:
            found = f"{packed.scales.dtype} {tuple(packed.scales.shape)}"
            raise ValueError(f"scales are {found} instead of {torch.float32} {groups}")
        if not bool(((packed.scales >= SMALLEST_SCALE) & packed.scales.isfinite()).all()):
            raise ValueError("scales are not all positive and finite")
    codes = _from_bytes(packed.payload, f, math.prod(packed.shape))
    # 243 and more are no five digits of base 3.
    trits = f.kind != "ternary" or bool((packed.payload < 3**_TRITS).all())
    if not (trits and bool((codes.abs() <= f.largest).all())):
        raise ValueError(f"payload has patterns that are no codes of {packed.fmt}")


def _to_bytes(codes: Tensor, f: NumberFormat) -> Tensor:
    """Finite codes ``[n]`` in fp32 as a payload."""
    if f.name in _DTYPES:
        return codes.to(_DTYPES[f.name], copy=True)
    if f.kind == "minifloat":
        patterns = _float_bits(codes, f)
    else:
        patterns = codes.to(torch.int32) + 1 if f.kind == "ternary" else codes.to(torch.int32) & 0xF
    if f.kind == "ternary":
        return _join(patterns, 3, _TRITS, absent=1)
    return _join(patterns, 16, 2, absent=0) if f.bits == 4 else patterns.to(torch.uint8)


def _from_bytes(payload: Tensor, f: NumberFormat, n: int) -> Tensor:
    """Inverse of `_to_bytes`."""
    if f.name in _DTYPES:
        return payload.to(torch.float32, copy=True)
    if f.kind == "ternary":
        return (_split(payload, 3, _TRITS)[:n] - 1).float()
    patterns = _split(payload, 16, 2)[:n] if f.bits == 4 else payload.to(torch.int32)
    if f.kind == "minifloat":
        return _bits_float(patterns, f)
    return (((patterns + 8) & 0xF) - 8).float()


def _join(digits: Tensor, base: int, count: int, absent: int) -> Tensor:
    """``count`` digits a byte, the earliest one the least significant."""
    missing = -digits.shape[0] % count
    digits = torch.nn.functional.pad(digits, (0, missing), value=absent).view(-1, count)
    joined = digits[:, count - 1]
    for i in reversed(range(count - 1)):
        joined = joined * base + digits[:, i]
    return joined.to(torch.uint8)


def _split(payload: Tensor, base: int, count: int) -> Tensor:
    """Inverse of `_join`, with the digits that fill the last byte."""
    rest = payload.to(torch.int32)
    return torch.stack([(rest // base**i) % base for i in range(count)], -1).flatten()


def _float_bits(codes: Tensor, f: NumberFormat) -> Tensor:
    """Codes of a small float as patterns: sign, exponent, mantissa."""
    pattern = codes.view(torch.int32)
    magnitude = pattern & 0x7FFFFFFF
    normal = (magnitude >> (23 - f.mantissa_bits)) - _exponent_offset(f)
    denormal = (codes.abs() * 2.0 ** (f.mantissa_bits - f.min_exponent)).to(torch.int32)
    sign = (pattern < 0).to(torch.int32) << (f.bits - 1)
    return sign | torch.where(codes.abs() < 2.0**f.min_exponent, denormal, normal)


def _bits_float(patterns: Tensor, f: NumberFormat) -> Tensor:
    """Inverse of `_float_bits`."""
    magnitude = patterns & ((1 << (f.bits - 1)) - 1)
    normal = ((magnitude + _exponent_offset(f)) << (23 - f.mantissa_bits)).view(torch.float32)
    denormal = magnitude * 2.0 ** (f.min_exponent - f.mantissa_bits)
    value = torch.where(magnitude < (1 << f.mantissa_bits), denormal, normal)
    return torch.where(patterns >> (f.bits - 1) == 1, -value, value)


def _exponent_offset(f: NumberFormat) -> int:
    """Difference of the exponent fields of fp32 and of ``f``, at the place where ``f`` has its own."""
    return (126 + f.min_exponent) << f.mantissa_bits
