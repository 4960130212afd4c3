"""RMS and L2 normalisation with closed-form gradients.

The stock composition on a CPU makes several passes over memory in both directions. Both functions here keep one number
a row for the backward. RMSNorm: arXiv 1910.07467.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse.ops.precision import backward_without_autocast, widened


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension; ``weight`` is ``[D]``, absent where it is 1."""
    weight = x.new_ones(x.shape[-1]) if weight is None else weight
    return _RmsNorm.apply(*widened(x, weight), eps)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """``x / sqrt(sum(x^2) + eps)`` over the last dimension; a zero vector stays zero."""
    return _L2Norm.apply(*widened(x), eps)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula of `rms_norm`, for autograd."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def l2_norm_reference(x: Tensor, eps: float = 1e-6) -> Tensor:
    """The formula of `l2_norm`, for autograd."""
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


def _inverse_root(x: Tensor, scale: float, eps: float) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().mul_(scale).add_(eps).rsqrt_()


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        root = _inverse_root(x, 1 / x.shape[-1], eps)
        unit = x * root
        ctx.save_for_backward(unit, weight, root)
        return unit * weight

    @staticmethod
    @once_differentiable
    @backward_without_autocast
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        (dy,) = grad_outputs
        unit, weight, root = ctx.saved_tensors
        product = dy * unit
        d_weight = product.flatten(0, -2).sum(0)
        along = (product @ weight).unsqueeze(-1) / unit.shape[-1]
        dx = (dy * weight).addcmul_(unit, along, value=-1).mul_(root)
        return dx, d_weight, None


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        root = _inverse_root(x, 1.0, eps)
        unit = x * root
        ctx.save_for_backward(unit, root)
        return unit

    @staticmethod
    @once_differentiable
    @backward_without_autocast
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        (dy,) = grad_outputs
        unit, root = ctx.saved_tensors
        along = (dy * unit).sum(-1, keepdim=True)
        return torch.addcmul(dy, unit, along, value=-1).mul_(root), None
