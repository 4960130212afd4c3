"""Retraction of a whole model: every factor it has, experts, output projection, head, in one call.

The largest error that is left is measured where it is asked for, never assumed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dormouse.ops.polar import orthogonality_error
from dormouse.ops.retraction import Method, retract_stacks


def retract(factors: Sequence[nn.Parameter], *, iters: int = 1, method: Method = "polar") -> None:
    """Replace each factor ``[..., m, r]`` by one with orthonormal columns, in place; see `retract_stacks`."""
    retract_stacks([_stacked(factor) for factor in factors], method=method, iters=iters)


@torch.no_grad()
def largest_error(factors: Sequence[nn.Parameter]) -> Tensor:
    """Largest ``||X^T X - I||_F / r`` over all factors, a 0-d tensor on their device (0 without factors)."""
    errors = [orthogonality_error(_stacked(f)).max() for f in factors]
    return torch.stack(errors).max() if errors else torch.zeros(())


def _stacked(factor: nn.Parameter) -> Tensor:
    """The factor's own memory as ``[n, m, r]``."""
    return factor.detach().view(-1, *factor.shape[-2:])
