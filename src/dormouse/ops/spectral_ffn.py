"""The spectral expert on rows that are already sorted by expert, forward and backward.

One expert is ``y = (SiLU((x U1) V1^T) U2) V2^T`` with the singular values folded into ``U1`` and ``V2`` beforehand
(``U1 = U diag(s)``, ``V2 = V diag(s)``): four thin products, nothing of width ``d x f`` is ever built. Experts
without rows cost nothing and get a gradient of exactly zero. The f-wide intermediate is saved once, before its
SiLU.

The loop runs over contiguous segments whose lengths are read on the host. On a CPU that is where they are; on a GPU
reading them is one wait for the device in every pass, and without numbers (meta device) there is nothing to read. A
grouped product that takes the lengths on the device would need no wait; there is none here.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse.ops.precision import backward_without_autocast, widened, without_autocast


def spectral_ffn(x: Tensor, counts: Tensor, U1: Tensor, V1: Tensor, U2: Tensor, V2: Tensor) -> Tensor:
    """Apply each expert to its segment of rows.

    Args:
        x: rows ``[R, d]`` sorted by expert.
        counts: rows of each expert ``[E]`` int64, summing to R.
        U1, V1: up projection ``[E, d, r]`` and ``[E, f, r]``.
        U2, V2: down projection ``[E, f, r]`` and ``[E, d, r]``.

    Returns:
        ``[R, d]``, in the widest of the arguments' dtypes, fp32 at least.
    """
    x, U1, V1, U2, V2 = widened(x, U1, V1, U2, V2)
    with without_autocast(x):
        return _SpectralFfn.apply(x, counts.tolist(), U1, V1, U2, V2)


def spectral_ffn_reference(x: Tensor, expert: Tensor, U1: Tensor, V1: Tensor, U2: Tensor, V2: Tensor) -> Tensor:
    """The same for rows in any order with their expert ``[R]``, one row at a time."""
    rows = []
    for row, e in zip(x.unbind(0), expert.tolist(), strict=True):
        rows.append(V2[e] @ (U2[e].T @ F.silu(V1[e] @ (U1[e].T @ row))))
    return torch.stack(rows) if rows else x * 1


def _segments(counts: list[int]) -> list[tuple[int, slice]]:
    """Experts that have rows, with their slice."""
    out, start = [], 0
    for e, n in enumerate(counts):
        if n:
            out.append((e, slice(start, start + n)))
        start += n
    return out


class _SpectralFfn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: list[int], U1: Tensor, V1: Tensor, U2: Tensor, V2: Tensor) -> Tensor:
        (R, d), (f, r) = x.shape, V1.shape[1:]
        y, t1, t2 = x.new_empty(R, d), x.new_empty(R, r), x.new_empty(R, r)
        h = x.new_empty(R, f)
        for e, s in _segments(counts):
            torch.mm(x[s], U1[e], out=t1[s])
            torch.mm(t1[s], V1[e].T, out=h[s])
            torch.mm(F.silu(h[s]), U2[e], out=t2[s])
            torch.mm(t2[s], V2[e].T, out=y[s])
        ctx.save_for_backward(x, t1, h, t2, U1, V1, U2, V2)
        ctx.counts = counts
        return y

    @staticmethod
    @once_differentiable
    @backward_without_autocast
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        (dy,) = grad_outputs
        x, t1, h, t2, U1, V1, U2, V2 = ctx.saved_tensors
        dx = torch.empty_like(x)
        dU1, dV1, dU2, dV2 = (torch.zeros_like(w) for w in (U1, V1, U2, V2))
        for e, s in _segments(ctx.counts):
            torch.mm(dy[s].T, t2[s], out=dV2[e])
            dt2 = dy[s] @ V2[e]
            act = F.silu(h[s])
            torch.mm(act.T, dt2, out=dU2[e])
            dh = torch.ops.aten.silu_backward(torch.mm(dt2, U2[e].T, out=act), h[s])
            torch.mm(dh.T, t1[s], out=dV1[e])
            dt1 = dh @ V1[e]
            torch.mm(x[s].T, dt1, out=dU1[e])
            torch.mm(dt1, U1[e].T, out=dx[s])
        return dx, None, dU1, dV1, dU2, dV2
