"""RMSNorm as a layer."""

import torch
from torch import Tensor, nn

from dormouse.model.roles import Role, declare
from dormouse.ops.norm import rms_norm


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, weight initialised to ones."""

    def __init__(self, dim: int, eps: float) -> None:
        """Create the layer for ``[..., dim]``."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        declare(self, weight=Role.VECTOR)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[..., dim]``."""
        return rms_norm(x, self.weight, self.eps)
