"""How evenly the experts are used (M1): shares, their entropy, how many got nothing, and how sure the router was.

The input is a count of assignments per expert, summed over everything that is to be pooled (positions,
passes, steps, processes) before it comes here: the entropy of pooled counts is not the mean of entropies.
With k experts a byte, a byte counts k times. H is the entropy of the shares over ln E, so 1 is uniform and 0
is one expert for everything; with one expert H is 1. Where nothing was routed there is no utilisation, which
is not the same as zero. `dead` is judged over what was pooled: in a run, everything since the last log line.

Shares alone can look even while the experts that were pushed up get gates near zero, so the mean *selected*
probability is kept beside them: of every counted assignment, what the router gave the expert before selection,
before any renormalisation and before the constant on gates.
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


def add_counts(counts: Tensor, ids: Tensor, mask: Tensor | None = None) -> None:
    """Add the selections `ids` (int64, 0..E-1) to `counts` (int64) without a host transfer.

    `counts` [E] pools `ids` of any shape; `counts` [P, E] takes `ids` [p, ..., k] of p <= P passes, each into its own
    row. `mask` (bool, the shape of `ids` without k) says which positions count; padding does not. Ids beyond the last
    of `counts` (null experts) count nowhere.
    """
    chosen, n_experts = ids.detach(), counts.shape[-1]
    kept = (chosen < n_experts).to(chosen.dtype)
    if mask is not None:
        kept = kept * mask.unsqueeze(-1)
    chosen = chosen.clamp(max=n_experts - 1)
    if counts.ndim == 1:
        counts.scatter_add_(0, chosen.flatten(), kept.flatten())
    else:
        counts[: len(chosen)].scatter_add_(1, chosen.flatten(1), kept.flatten(1))


def selected_sum(probs: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sum over counted assignments of the probability that the selected expert had before selection, 0-d, detached.

    `probs` [..., E], `ids` [..., k], `mask` [...]. Over the number of assignments it is the mean selected gate: 1/E for
    a router that knows nothing, 1 for one that is sure (at k = 1).
    """
    chosen = probs.detach().gather(-1, ids.detach())
    return chosen.sum() if mask is None else chosen.masked_fill(~mask.unsqueeze(-1), 0.0).sum()
