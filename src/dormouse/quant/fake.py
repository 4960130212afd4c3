"""Fake quantisation: a forward sees rounded numbers, the gradient goes straight through.

The backward is written out. The derivative of clamp at its bound is a framework's choice, and with a computed scale
the largest number of every group lies exactly there: inheriting it can silence the whole tail.
"""

from typing import Any

import torch
from torch import Tensor

from dormouse.quant.formats import number_format
from dormouse.quant.rounding import round_to, saturates

ACTIVATION_FORMATS = {"none": "fp32", "8": "int8", "4": "int4", "fp4": "fp4"}
"""Number format of each setting of the activations."""


class _StraightThrough(torch.autograd.Function):
    """Rounded values forward; the gradient itself backward, or 0 where a fixed scale saturates."""

    @staticmethod
    def forward(x: Tensor, fmt: str, group: int, scale: float | Tensor | None) -> Tensor:
        return round_to(x, fmt, group, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        x, fmt, group, scale = inputs
        ctx.clips = scale is not None and number_format(fmt).kind != "ternary"
        if ctx.clips:
            ctx.save_for_backward(saturates(x, fmt, group, scale))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, None, None, None]:
        (grad,) = grads
        if ctx.clips:
            (beyond,) = ctx.saved_tensors
            grad = grad.masked_fill(beyond, 0.0)
        return grad, None, None, None


def fake_quant(x: Tensor, fmt: str, group: int = 32, scale: float | Tensor | None = None) -> Tensor:
    """``x`` rounded to a number format, with a straight-through gradient.

    Args:
        x: float tensor ``[..., n]``.
        fmt: key of `FORMATS`.
        group: consecutive numbers of the last axis that share a scale; 0 = the whole row.
        scale: a fixed scale instead of the computed one, as in `encode`. It gets no gradient.

    Returns:
        Shape and dtype of ``x``; for fp32 ``x`` itself. The derivative is 1 everywhere with a computed scale and in
        ternary. With a fixed scale it is 0 for numbers beyond the format's range (`saturates`), 1 for the others.

    Raises:
        ValueError: as in `encode`.
    """
    if number_format(fmt).kind == "identity" and scale is None:
        return x
    return _StraightThrough.apply(x, fmt, group, scale)


def fake_quant_activations(x: Tensor, fmt: str, group: int = 0) -> Tensor:
    """Activations ``[..., d]`` rounded to a setting's number format, with a straight-through gradient.

    Args:
        x: activations.
        fmt: ``none`` (returns ``x`` itself), ``8``, ``4`` or ``fp4``.
        group: channels that share a scale; 0 = one scale for the whole vector of a byte.

    Raises:
        ValueError: unknown setting; as in `encode`.
    """
    return fake_quant(x, ACTIVATION_FORMATS[_known(fmt)], group)


def attention_format(fmt: str) -> str:
    """The setting for the inputs of attention, which never go below 8 bits (BitNet a4.8 keeps attention finer)."""
    return "8" if _known(fmt) in ("4", "fp4") else fmt


def _known(fmt: str) -> str:
    if fmt not in ACTIVATION_FORMATS:
        raise ValueError(
            f"act_quant = {fmt!r}: no such activation format, nothing can be rounded to it; "
            f"use {', '.join(ACTIVATION_FORMATS)}"
        )
    return fmt
