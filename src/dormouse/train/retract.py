"""Bring all spectral factors of a model back to orthonormal columns, batched by shape.

Every factor of the model is included: experts, output projection, head. The largest error that is left is returned,
never assumed.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn

from dormouse.ops.polar import orthogonality_error, polar


@torch.no_grad()
def retract(factors: list[nn.Parameter], *, iters: int) -> None:
    """Replace each factor ``[..., m, r]`` by its polar factor, in place."""
    for group in _by_shape(factors).values():
        stacked = polar(torch.cat([_matrices(f) for f in group]), iters)
        counts = [len(_matrices(f)) for f in group]
        for factor, new in zip(group, stacked.split(counts), strict=True):
            factor.copy_(new.view_as(factor))


@torch.no_grad()
def largest_error(factors: list[nn.Parameter]) -> Tensor:
    """Largest ``||X^T X - I||_F / r`` over all factors, a 0-d tensor on their device (0 without factors)."""
    errors = [orthogonality_error(_matrices(f)).max() for f in factors]
    return torch.stack(errors).max() if errors else torch.zeros(())


def retract_model(model: nn.Module, *, iters: int) -> float:
    """Retract all factors of a `Dormouse` and return the largest error that is left."""
    factors = [p for _, p in model.spectral_factors()]  # pyrefly: ignore
    retract(factors, iters=iters)
    return float(largest_error(factors))


def _matrices(factor: Tensor) -> Tensor:
    return factor.detach().reshape(-1, *factor.shape[-2:])


def _by_shape(factors: list[nn.Parameter]) -> dict[tuple[int, ...], list[nn.Parameter]]:
    groups: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
    for factor in factors:
        groups[tuple(factor.shape[-2:])].append(factor)
    return groups
