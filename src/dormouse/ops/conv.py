"""Short causal depthwise convolution over time, with a carried tail and document boundaries.

``y_t = sum_j w_j x_{t-j}`` for ``j = 0 .. width-1``, channel by channel. Inputs from before the sequence come from
``tail`` (the last ``width - 1`` inputs of what was processed before); inputs from another document count as zero.
Shifts and multiplications with a written-out backward: slices of a padded tensor make autograd fill a full-size
zero tensor for every tap.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse.ops.precision import backward_without_autocast, widened


def short_conv(x: Tensor, weight: Tensor, tail: Tensor, age: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Causal depthwise convolution.

    Args:
        x: inputs ``[B, T, D]``.
        weight: taps ``[width, D]``; ``weight[0]`` multiplies the current token.
        tail: inputs before ``x`` ``[B, width - 1, D]``, oldest first; zeros at the start of a text.
        age: ``[B, T]`` int64, number of earlier tokens of the same document that may be read; unlimited if absent.

    Returns:
        Outputs ``[B, T, D]`` and the tail to carry on with ``[B, width - 1, D]``, both in the widest of the arguments'
        dtypes, fp32 at least.
    """
    x, weight, tail = widened(x, weight, tail)
    width = weight.shape[0]
    padded = torch.cat([tail, x], dim=1)
    reach = None
    if age is not None:
        taps = torch.arange(1, width, device=x.device)
        reach = (age.unsqueeze(-1) >= taps).to(x.dtype)
    return _ShortConv.apply(padded, weight, reach), padded[:, padded.shape[1] - width + 1 :]


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, weight: Tensor, reach: Tensor | None) -> Tensor:
        lag = weight.shape[0] - 1
        length = padded.shape[1] - lag
        y = padded[:, lag:] * weight[0]
        for j in range(1, lag + 1):
            earlier = padded[:, lag - j : lag - j + length]
            y.addcmul_(earlier if reach is None else earlier * reach[..., j - 1, None], weight[j])
        ctx.save_for_backward(padded, weight, reach)
        return y

    @staticmethod
    @once_differentiable
    @backward_without_autocast
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        (dy,) = grad_outputs
        padded, weight, reach = ctx.saved_tensors
        lag = weight.shape[0] - 1
        length = padded.shape[1] - lag
        dx = torch.zeros_like(padded)
        dw = torch.empty_like(weight)
        for j in range(lag + 1):
            window = slice(lag - j, lag - j + length)
            d = dy if reach is None or j == 0 else dy * reach[..., j - 1, None]
            dx[:, window].addcmul_(d, weight[j])
            dw[j] = (d * padded[:, window]).flatten(0, 1).sum(0)
        return dx, dw, None


def short_conv_reference(x: Tensor, weight: Tensor, tail: Tensor, age: Tensor | None = None) -> Tensor:
    """The definition, one tap at a time on whole tensors, for autograd."""
    width = weight.shape[0]
    padded = torch.cat([tail, x], dim=1)
    y = torch.zeros_like(x)
    for j in range(width):
        earlier = padded[:, width - 1 - j : padded.shape[1] - j]
        allowed = torch.ones_like(x) if age is None else (age >= j).unsqueeze(-1).to(x.dtype)
        y = y + earlier * allowed * weight[j]
    return y
