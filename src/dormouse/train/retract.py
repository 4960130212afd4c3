"""Retraction of a whole model: every factor it has, experts, output projection, head, in one call.

The largest error that is left is measured where it is asked for, never assumed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dormouse.model.factor_format import formatted_layers
from dormouse.ops.polar import orthogonality_error
from dormouse.ops.retraction import Method, retract_stacks


def retract(model: nn.Module, *, iters: int = 1, method: Method = "polar") -> None:
    """Make every factor of every spectral layer and bank in any model orthonormal again, in place.

    For use after the optimiser's step. `iters` is the number of Newton-Schulz steps of ``polar``; one is enough for
    factors that were orthonormal a step ago. See `dormouse.ops.retraction`.
    """
    factors = [p for layer in formatted_layers(model) for p in layer.factors.values()]
    retract_stacks([_stacked(p) for p in factors], method=method, iters=iters)


@torch.no_grad()
def largest_error(factors: Sequence[nn.Parameter]) -> Tensor:
    """Largest ``||X^T X - I||_F / r`` over all factors, a 0-d tensor on their device (0 without factors)."""
    errors = [orthogonality_error(_stacked(f)).max() for f in factors]
    return torch.stack(errors).max() if errors else torch.zeros(())


def _stacked(factor: nn.Parameter) -> Tensor:
    """The factor's own memory as ``[n, m, r]``."""
    return factor.detach().view(-1, *factor.shape[-2:])
