"""How evenly the experts are used (M1): shares, their entropy, and how many got nothing.

The input is a count of assignments per expert, summed over everything that is to be pooled (positions,
passes, steps, processes) before it comes here: the entropy of pooled counts is not the mean of entropies.
With k experts a byte, a byte counts k times. H is the entropy of the shares over ln E, so 1 is uniform and 0
is one expert for everything; with one expert H is 1. Where nothing was routed there is no utilisation, which
is not the same as zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Utilization:
    """Use of E experts."""

    shares: tuple[float, ...]
    """Part of all assignments that went to each expert; sums to 1."""
    entropy: float
    """Entropy of the shares / ln E, in [0, 1]."""
    dead: int
    """Experts without any assignment."""


def utilization(counts: Tensor | Sequence[int]) -> Utilization | None:
    """Shares, entropy and dead experts of `counts` [E] (whole numbers >= 0), or None when they sum to 0.

    Computed on the device of `counts`; the result is read by the host in one transfer.
    """
    number = torch.as_tensor(counts).detach()
    total = number.sum()
    shares = number.double() / total.clamp(min=1)
    nats = -torch.xlogy(shares, shares).sum()
    *parts, entropy, dead, assigned = torch.cat([shares, torch.stack([nats, (number == 0).sum(), total])]).tolist()
    if assigned == 0:
        return None
    spread = min(max(entropy / math.log(len(parts)), 0.0), 1.0) if len(parts) > 1 else 1.0
    return Utilization(tuple(parts), spread, int(dead))


def add_counts(counts: Tensor, ids: Tensor) -> None:
    """Add the selections `ids` (int64, any shape, 0..E-1) to `counts` (int64 [E]) without a host transfer."""
    chosen = ids.detach().flatten()
    counts.scatter_add_(0, chosen, torch.ones_like(chosen))
