"""Routed spectral experts by grouped products: for accelerators, where nobody may wait for the lengths of segments.

Rows are sorted once and all experts' products of one kind are one call of ``grouped_mm``, which takes the ends of the
segments as a tensor. It computes in the dtype of ``x`` (fp32, bf16, fp16); the bytes of every row must be a multiple
of 16, which `fits_grouped` says. Rows of null experts lie behind the last segment: a grouped product leaves them as the
memory was, so that they are cut off where rows come in and where they go out.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dormouse.ops.dispatch import plan_dispatch
from dormouse.ops.precision import without_autocast

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fits_grouped(x: Tensor, U1: Tensor, V1: Tensor) -> bool:
    """Whether grouped products take these rows ``[N, d]`` and factors ``[E, d, r]``, ``[E, f, r]``."""
    widths = (x.shape[-1], U1.shape[-1], V1.shape[-2])
    return x.dtype in _DTYPES and hasattr(F, "grouped_mm") and all(w * x.element_size() % 16 == 0 for w in widths)


def grouped_ffn(x: Tensor, ids: Tensor, gates: Tensor, U1: Tensor, V1: Tensor, U2: Tensor, V2: Tensor) -> Tensor:
    """The gated sum of every row's experts ``[N, d]`` in the dtype of ``x``; arguments as in `routed_ffn`."""
    plan = plan_dispatch(ids, len(U1))
    ends = plan.counts.cumsum(0).to(torch.int32)
    used = (torch.arange(len(plan.order), device=x.device) < ends[-1])[:, None]
    U1, V1, U2, V2 = (w.to(x.dtype) for w in (U1, V1, U2, V2))
    with without_autocast(x):
        rows = torch.where(used, x.index_select(0, plan.tokens), 0)
        hidden = F.silu(F.grouped_mm(F.grouped_mm(rows, U1, offs=ends), V1.mT, offs=ends))
        y = F.grouped_mm(F.grouped_mm(hidden, U2, offs=ends), V2.mT, offs=ends)
        y = torch.where(used, y, 0).index_select(0, plan.inverse).view(*ids.shape, x.shape[-1])
        return (y * gates.unsqueeze(-1)).sum(1).to(x.dtype)
