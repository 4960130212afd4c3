"""Routed spectral experts on unsorted rows, forward and backward: real dispatch on a CPU.

One expert is ``y = (SiLU((x U1) V1^T) U2) V2^T`` with the singular values folded into ``U1`` and ``V2`` beforehand
(``U1 = U diag(s)``, ``V2 = V diag(s)``): four thin products, nothing of width ``d x f`` is ever built. A token gets the
sum of its experts' outputs, each times its gate.

Time goes into moving memory as much as into products. Each expert's segment of the plan is worked through in pieces of
rows: a piece is gathered into a small buffer, goes through all products there, and is written to its place. Whatever is
f wide lives in a buffer that the next piece uses again; the backward computes it once more from the r-wide rows, which
are all that is kept. Experts without rows cost nothing and get a gradient of exactly zero.

Forward and backward are operators of their own, so that ``torch.compile`` takes them as they are, whatever the loads.
Segment lengths are read on the host: on a CPU that is where they are; on a GPU it is one wait for the device in every
pass (`grouped_ffn.py` needs none).
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from dormouse.ops.dispatch import plan_dispatch
from dormouse.ops.precision import widened, without_autocast

PIECE_BYTES = 6 * 2**20
"""Largest f-wide buffer of a piece. Less costs more calls, more leaves the cache; flat from 2 to 12 MiB."""
_silu = torch.ops.aten.silu.out
_silu_backward = torch.ops.aten.silu_backward.grad_input
Weights = tuple[Tensor, Tensor, Tensor, Tensor]


def routed_ffn(x: Tensor, ids: Tensor, gates: Tensor, U1: Tensor, V1: Tensor, U2: Tensor, V2: Tensor) -> Tensor:
    """The gated sum of every row's experts.

    Args:
        x: rows ``[N, d]``.
        ids: experts of each row ``[N, k]`` int64; E and more for one that computes nothing and adds nothing.
        gates: their weights ``[N, k]``.
        U1, V1: up projection ``[E, d, r]`` and ``[E, f, r]``.
        U2, V2: down projection ``[E, f, r]`` and ``[E, d, r]``.

    Returns:
        ``[N, d]``, in the widest of the arguments' dtypes, fp32 at least.
    """
    x, gates, U1, V1, U2, V2 = widened(x, gates, U1, V1, U2, V2)
    plan = plan_dispatch(ids, len(U1))
    return _forward(x, gates, plan.order, plan.counts, U1, V1, U2, V2)[0]


def routed_ffn_loop(x: Tensor, ids: Tensor, gates: Tensor, U1: Tensor, V1: Tensor, U2: Tensor, V2: Tensor) -> Tensor:
    """The same expert by expert, by automatic differentiation: pick its rows, compute, add them to their place."""
    y = x.new_zeros(x.shape)
    for e in range(len(U1)):
        rows, slots = (ids == e).nonzero(as_tuple=True)
        hidden = F.silu((x.index_select(0, rows) @ U1[e]) @ V1[e].T)
        part = ((hidden @ U2[e]) @ V2[e].T) * gates[rows, slots, None].to(x.dtype)
        y = y.index_add(0, rows, part)
    return y


def routed_ffn_reference(
    x: Tensor, ids: Tensor, gates: Tensor, U1: Tensor, V1: Tensor, U2: Tensor, V2: Tensor
) -> Tensor:
    """The same row by row."""
    rows = []
    for row, experts, weights in zip(x.unbind(0), ids.tolist(), gates.to(x.dtype), strict=True):
        parts = [
            gate * (V2[e] @ (U2[e].T @ F.silu(V1[e] @ (U1[e].T @ row))))
            for e, gate in zip(experts, weights.unbind(), strict=True)
            if e < len(U1)
        ]
        rows.append(torch.stack(parts).sum(0) if parts else row * 0)
    return torch.stack(rows) if rows else x * 1


@torch.library.custom_op("dormouse::routed_ffn", mutates_args=())
def _forward(
    x: Tensor, gates: Tensor, order: Tensor, counts: Tensor, U1: Tensor, V1: Tensor, U2: Tensor, V2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and for the backward the rows of width r: ``x U1`` and ``SiLU(h) U2`` in sorted order."""
    with without_autocast(x):
        (d, r), f, R, k = U1.shape[1:], V1.shape[1], len(order), gates.shape[1]
        segments = counts.tolist()
        y = _rows(x, R, everything=sum(segments) == R)
        t1, t2, tokens, gate = x.new_empty(R, r), x.new_empty(R, r), order // k, gates.flatten()[order, None]
        longest = _longest(segments, f, x)
        room, wide, thin = (x.new_empty(longest, width) for width in (d, f, r))
        for e, s, _ in _pieces(segments, f, x):
            n = s.stop - s.start
            rows, h, q = room[:n], wide[:n], thin[:n]
            torch.index_select(x, 0, tokens[s], out=rows)
            torch.mm(rows, U1[e], out=t1[s])
            torch.mm(t1[s], V1[e].T, out=h)
            torch.mm(_silu(h, out=h), U2[e], out=t2[s])
            torch.mul(t2[s], gate[s], out=q)
            y.index_copy_(0, order[s], torch.mm(q, V2[e].T, out=rows))
        return _sum_slots(y, k), t1, t2


@torch.library.custom_op("dormouse::routed_ffn_backward", mutates_args=())
def _backward(
    dy: Tensor, x: Tensor, gates: Tensor, order: Tensor, counts: Tensor, t1: Tensor, t2: Tensor,
    U1: Tensor, V1: Tensor, U2: Tensor, V2: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, gates and the four weights."""
    with without_autocast(x):
        (d, r), f, R, k = U1.shape[1:], V1.shape[1], len(order), gates.shape[1]
        segments = counts.tolist()
        dx, dgates = (_rows(z, R, everything=sum(segments) == R) for z in (x, gates.new_empty(R, 1)))
        tokens, gate = order // k, gates.flatten()[order, None]
        dU1, dV1, dU2, dV2 = (_zero_where_idle(w, segments) for w in (U1, V1, U2, V2))
        longest = _longest(segments, f, x)
        room, wide, act_room, thin, thin_too = (x.new_empty(longest, width) for width in (d, f, f, r, r))
        for e, s, first in _pieces(segments, f, x):
            n, more = s.stop - s.start, not first
            rows, h, act, q, p = room[:n], wide[:n], act_room[:n], thin[:n], thin_too[:n]
            torch.index_select(dy, 0, tokens[s], out=rows)
            torch.mm(rows, V2[e], out=q)
            dgates.index_copy_(0, order[s], torch.mul(q, t2[s], out=p).sum(-1, keepdim=True))
            _add(dV2[e], rows.T, torch.mul(t2[s], gate[s], out=p), more)
            q.mul_(gate[s])
            torch.mm(t1[s], V1[e].T, out=h)
            _add(dU2[e], _silu(h, out=act).T, q, more)
            dh = _silu_backward(torch.mm(q, U2[e].T, out=act), h, grad_input=act)
            _add(dV1[e], dh.T, t1[s], more)
            torch.mm(dh, V1[e], out=p)
            torch.index_select(x, 0, tokens[s], out=rows)
            _add(dU1[e], rows.T, p, more)
            dx.index_copy_(0, order[s], torch.mm(p, U1[e].T, out=rows))
        return _sum_slots(dx, k), dgates.view_as(gates), dU1, dV1, dU2, dV2


def _pieces(segments: list[int], f: int, x: Tensor) -> Iterator[tuple[int, slice, bool]]:
    """Expert, sorted places, whether they are its first: every segment in pieces of about one size."""
    limit, start = _piece_rows(f, x), 0
    for e, rows in enumerate(segments):
        number = -(-rows // limit)
        for i in range(number):
            yield e, slice(start + rows * i // number, start + rows * (i + 1) // number), i == 0
        start += rows


def _longest(segments: list[int], f: int, x: Tensor) -> int:
    """Rows of the longest piece."""
    return max((s.stop - s.start for _, s, _ in _pieces(segments, f, x)), default=0)


def _piece_rows(f: int, x: Tensor) -> int:
    return max(PIECE_BYTES // (f * x.element_size()), 32)


def _rows(x: Tensor, rows: int, *, everything: bool) -> Tensor:
    """Room for one row an assignment; zero where not all of them will be written."""
    return x.new_empty(rows, x.shape[1]) if everything else x.new_zeros(rows, x.shape[1])


def _zero_where_idle(weight: Tensor, segments: list[int]) -> Tensor:
    """Room for a gradient, zero for experts without rows."""
    gradient = torch.empty_like(weight, memory_format=torch.contiguous_format)
    for e, rows in enumerate(segments):
        if rows == 0:
            gradient[e].zero_()
    return gradient


def _add(total: Tensor, a: Tensor, b: Tensor, more: bool) -> None:
    """``a b``, added to what an earlier piece has left."""
    torch.addmm(total, a, b, beta=int(more), out=total)


def _sum_slots(rows: Tensor, k: int) -> Tensor:
    """Rows of all assignments to rows of tokens."""
    return rows if k == 1 else rows.view(-1, k, rows.shape[1]).sum(1)


@_forward.register_fake
def _(x: Tensor, gates: Tensor, order: Tensor, counts: Tensor, U1: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    thin = x.new_empty(order.shape[0], U1.shape[2])
    return x.new_empty(x.shape), thin, torch.empty_like(thin)


@_backward.register_fake
def _(dy: Tensor, x: Tensor, gates: Tensor, order: Tensor, counts: Tensor, t1: Tensor, t2: Tensor,
      *weights: Tensor) -> tuple[Tensor, ...]:  # fmt: skip
    return x.new_empty(x.shape), torch.empty_like(gates), *(torch.empty_like(w) for w in weights)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:4], *output[1:], *inputs[4:])


def _differentiate(ctx: Any, dy: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 8
    dx, dgates, *weights = _backward(dy, *ctx.saved_tensors)
    return dx, dgates, None, None, *weights


_forward.register_autograd(_differentiate, setup_context=_keep)


@register_flop_formula(torch.ops.dormouse.routed_ffn)
def _forward_flops(x: torch.Size, gates: torch.Size, order: torch.Size, counts: torch.Size, U1: torch.Size,
                   V1: torch.Size, *rest: object, **more: object) -> int:  # fmt: skip
    """4 r (d + f) an assignment, for torch's own counter; null experts count as if they computed."""
    return 4 * order[0] * U1[2] * (U1[1] + V1[1])


@register_flop_formula(torch.ops.dormouse.routed_ffn_backward)
def _backward_flops(dy: torch.Size, x: torch.Size, gates: torch.Size, order: torch.Size, counts: torch.Size,
                    t1: torch.Size, t2: torch.Size, U1: torch.Size, V1: torch.Size, *rest: object,
                    **more: object) -> int:  # fmt: skip
    """Twice the forward, and the f-wide rows once more."""
    return order[0] * U1[2] * (8 * (U1[1] + V1[1]) + 2 * V1[1])
