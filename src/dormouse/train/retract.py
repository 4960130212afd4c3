"""Retraction of a whole model: every factor it has, experts, output projection, head, in one call.

The largest error that is left is measured where it is asked for, never assumed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dormouse.model.factor_format import formatted_layers
from dormouse.ops.polar import orthogonality_error
from dormouse.ops.retraction import Method, RetractionErrors, largest, retract_stacks


def retract(model: nn.Module, *, iters: int = 1, method: Method = "polar", measure: bool = False) -> RetractionErrors:
    """Make every factor of every spectral layer and bank in any model orthonormal again, in place.

    For use after the optimiser's step. `iters` is the number of Newton-Schulz steps of ``polar``; one is enough for
    factors that were orthonormal a step ago. The errors stand in the order of `formatted_layers` and of each layer's
    factors, a shared factor once; those that are left are there with `measure`. See `dormouse.ops.retraction`.
    """
    factors = {id(p): p.detach() for layer in formatted_layers(model) for p in layer.factors.values()}
    return retract_stacks(list(factors.values()), method=method, iters=iters, measure=measure)


@torch.no_grad()
def largest_error(factors: Sequence[nn.Parameter]) -> Tensor:
    """Largest ``||X^T X - I||_F / r`` over all factors, a 0-d tensor on their device (0 without factors)."""
    return largest([orthogonality_error(f) for f in factors])
