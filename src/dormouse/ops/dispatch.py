"""Sending tokens to their experts and back.

Tokens are copied once per selected expert and sorted by expert, so that each expert's rows are contiguous.
`DispatchPlan` is the bookkeeping: which token stands in which sorted row, and where each expert's segment ends. A
stable sort keeps the order of tokens inside a segment. Making a plan reads nothing on the host; whoever cuts rows into
segments of `counts` does, once a plan.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DispatchPlan:
    """Permutation between ``[N, k]`` assignments and rows sorted by expert."""

    order: Tensor  # [N * k] int64: assignment (token * k + slot) in each sorted row
    inverse: Tensor  # [N * k] int64: sorted row of each assignment
    counts: Tensor  # [E] int64: rows of each expert, zero allowed
    top_k: int

    @property
    def tokens(self) -> Tensor:
        """Token of each sorted row, ``[N * k]`` int64."""
        return self.order if self.top_k == 1 else self.order // self.top_k


def plan_dispatch(ids: Tensor, n_experts: int) -> DispatchPlan:
    """Plan for selected experts ``ids`` ``[N, k]`` int64."""
    flat = ids.flatten()
    order = torch.argsort(flat, stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    counts = flat.new_zeros(n_experts).scatter_add_(0, flat, torch.ones_like(flat))
    return DispatchPlan(order, inverse, counts, ids.shape[1])
