"""Which row goes to which expert, in the order in which experts work through them.

Every selected expert of a token is one *assignment*, number ``token * k + slot``. Sorted by expert, each expert's
assignments are contiguous: its *segment*. A stable sort keeps the order of tokens inside a segment. Ids of E and more
are null experts: they stand last and belong to no segment. Making a plan reads nothing on the host; whoever walks
over segments reads `counts`, once a plan.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DispatchPlan:
    """Permutation of ``N * k`` assignments."""

    order: Tensor  # [N * k] int64: assignment in each sorted place
    counts: Tensor  # [E] int64: assignments of each expert, zero allowed
    top_k: int

    @property
    def tokens(self) -> Tensor:
        """Token of each sorted place, ``[N * k]`` int64."""
        return self.order if self.top_k == 1 else self.order // self.top_k

    @property
    def inverse(self) -> Tensor:
        """Sorted place of each assignment, ``[N * k]`` int64."""
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(len(self.order), device=self.order.device)
        return inverse


def plan_dispatch(ids: Tensor, n_experts: int) -> DispatchPlan:
    """Plan for selected experts ``ids`` ``[N, k]`` int64."""
    flat = ids.flatten()
    order = torch.argsort(flat, stable=True)
    counts = flat.new_zeros(n_experts + 1)
    counts = counts.scatter_add_(0, flat.clamp(max=n_experts), torch.ones_like(flat))
    return DispatchPlan(order, counts[:n_experts], ids.shape[1])
