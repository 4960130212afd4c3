"""The gated delta rule over chunks of tokens, with a hand-written backward.

Inside a chunk, with ``P`` the decay from the chunk's start to a token and ``Z`` from behind a token to the chunk's
end::

    A_ij = <k_i D_ij, k_j>  (i > j)       Q_ij = <q_i D_ij, k_j>  (i >= j)       L = diag(beta) A
    R = beta (v - (k P) S)                N = (I + L)^-1 R                       (N holds the d_t of the recurrence)
    O = (q P) S + Q N                     S' = diag(a_C) S + (k Z)^T N

Only the two lines with ``S`` are sequential; they are three small products a chunk. Everything else is batched over
all chunks of some sequences, few enough to stay in the cache. The gradient of the log decay needs neither an
exponential nor a division: with ``dq, dk_row, dk_col`` the gradients through the decay-weighted scores, ``dG = q dq + k
(dk_row - dk_col)``, plus two terms at the chunk's last token, and ``dg`` is its reverse cumulative sum.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse.ops.kda import tree
from dormouse.ops.kda.inverse import unit_lower_inverse
from dormouse.ops.kda.recurrent import recurrent
from dormouse.ops.precision import backward_without_autocast, widened, without_autocast

CHUNK = 32
GROUP_BYTES = 2**20
"""Largest ``[B, T, H, K]`` tensor of sequences that are worked on together; some thirty of its size live at once."""


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    *,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Same arguments and results as `recurrent`, by matrix products over chunks.

    Computes in fp32 (float64 if the inputs are). Sequences of one or two tokens take the recurrence, which is
    cheaper there; any other length is padded to whole chunks with tokens that leave the state alone.
    """
    batch, length, heads, key_dim = q.shape
    if state is None:
        state = q.new_zeros(batch, heads, key_dim, v.shape[-1])
    q, k, v, g, beta, state = widened(q, k, v, g, beta, state)
    with without_autocast(q):
        if length <= 2:
            return recurrent(q, k, v, g, beta, state)
        o, final = _Chunked.apply(q, k, v, g, beta, state, chunk)
        return o[:, :length], final


def _to_chunks(x: Tensor, chunk: int, pad: int) -> Tensor:
    """``[B, T, H, D]`` to ``[B * H * N, C, D]``, zero-padded at the end."""
    B, T, H, D = x.shape
    out = x.new_zeros(B, H, T + pad, D) if pad else x.new_empty(B, H, T, D)
    out[:, :, :T].copy_(x.transpose(1, 2))
    return out.view(-1, chunk, D)


def _from_chunks(x: Tensor, shape: tuple[int, int, int], length: int) -> Tensor:
    """``[B * H * N, C, D]`` to ``[B, T, H, D]``, without the padding."""
    B, H, padded = shape
    return x.view(B, H, padded, -1)[:, :, :length].transpose(1, 2)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        B, T = q.shape[:2]
        o, final = v.new_empty(B, T + -T % chunk, *v.shape[2:]), torch.empty_like(state)
        ctx.groups, ctx.shape, saved = _groups(q), q.shape, []
        for s in ctx.groups:
            o[s], final[s], kept = _forward(q[s], k[s], v[s], g[s], beta[s], state[s], chunk)
            saved += kept
        ctx.save_for_backward(*saved)
        return o, final

    @staticmethod
    @once_differentiable
    @backward_without_autocast
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        saved = ctx.saved_tensors  # read once: checkpointing computes them anew at the first look
        each = len(saved) // max(len(ctx.groups), 1)
        (dO, d_final), (B, T, H, K) = grad_outputs, ctx.shape
        dq, dk, dv, dg = (dO.new_empty(B, T, H, width) for width in (K, K, dO.shape[-1], K))
        d_beta, d_state = dO.new_empty(B, T, H), torch.empty_like(d_final)
        for n, s in enumerate(ctx.groups):
            found = _backward(saved[n * each : (n + 1) * each], dO[s], d_final[s], T)
            for total, part in zip((dq, dk, dv, dg, d_beta, d_state), found, strict=True):
                total[s] = part
        return dq, dk, dv, dg, d_beta, d_state, None


def _groups(q: Tensor) -> list[slice]:
    """Sequences that are worked on together: as many as keep their tensors within `GROUP_BYTES`, one at least."""
    one = q[:1].numel() * q.element_size()
    number = max(GROUP_BYTES // max(one, 1), 1)
    return [slice(start, start + number) for start in range(0, len(q), number)]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs ``[B, T + padding, H, V]``, final state, and what the backward needs."""
    B, T, H, K = q.shape
    pad = -T % chunk
    n_chunks, V = (T + pad) // chunk, v.shape[-1]
    kq = torch.stack([_to_chunks(k, chunk, pad), _to_chunks(q, chunk, pad).mul_(K**-0.5)], 1)
    v, a = _to_chunks(v, chunk, pad), _to_chunks(g, chunk, pad).exp_()
    b = _to_chunks(beta.unsqueeze(-1), chunk, pad)
    grown = tree.grow(kq, a)
    AQ = tree.scores(grown, kq)
    inverse = unit_lower_inverse(AQ[:, 0] * b)
    UW = inverse @ (torch.cat([v, grown.rows[:, 0]], -1) * b)
    S, N, final = _scan(UW, grown, state.reshape(B * H, K, V), n_chunks)
    o = torch.baddbmm(AQ[:, 1] @ N, grown.rows[:, 1], S)
    out = _from_chunks(o, (B, H, T + pad), T + pad)
    return out, final.view(B, H, K, V), [kq, v, a, b, AQ, inverse, UW[..., V:], S, N]


def _backward(
    saved: tuple[Tensor, ...], dO: Tensor, d_final: Tensor, length: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, g, beta and the first state."""
    kq, v, a, b, AQ, inverse, W, S, N = saved
    (B, H), (C, K), V = d_final.shape[:2], a.shape[1:], v.shape[-1]
    n_chunks, T = len(a) // (B * H), length
    dO = _to_chunks(dO, C, 0)
    grown = tree.grow(kq, a)
    kP, qP = grown.rows.unbind(1)
    dN_local, dS_local = AQ[:, 1].transpose(1, 2) @ dO, qP.transpose(1, 2) @ dO
    dN, dS, d_state = _scan_backward(dN_local, dS_local, W, grown, d_final.reshape(-1, K, V), n_chunks)
    dR = inverse.transpose(1, 2) @ dN
    dv = dR * b
    d_rows = torch.cat([-dv, dO], 1).bmm(S.transpose(1, 2)).view_as(kq)
    d_cols = N @ dS.transpose(1, 2)
    d_last = (grown.cols * d_cols).sum(1) + grown.total * (S * dS).sum(-1)
    both = torch.cat([dR, dO], 1).bmm(N.transpose(1, 2)).view_as(AQ)
    both[:, 0].tril_(-1)
    both[:, 1].tril_()
    dL = both[:, 0].neg_()
    db = (dR * (v - kP @ S)).sum(-1) + (dL * AQ[:, 0]).sum(-1)
    dL.mul_(b)
    tree.scores_backward(grown, both, d_rows, d_cols)
    d_rows.mul_(a.unsqueeze(1))
    dG = (kq * d_rows).sum(1).sub_(kq[:, 0] * d_cols)
    dG[:, -1] += d_last
    dg = dG.flip(1).cumsum(1).flip(1)
    diagonal = both[:, 1].diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    dk = d_cols.add_(d_rows[:, 0]).addcmul_(diagonal, kq[:, 1])
    dq = d_rows[:, 1].addcmul(diagonal, kq[:, 0]).mul_(K**-0.5)
    sizes = (B, H, n_chunks * C)
    dq, dk, dv, dg = (_from_chunks(x, sizes, T) for x in (dq, dk, dv, dg))
    return dq, dk, dv, dg, _from_chunks(db.unsqueeze(-1), sizes, T).squeeze(-1), d_state.view(B, H, K, V)


def _scan(UW: Tensor, grown: tree.Tree, state: Tensor, n_chunks: int) -> tuple[Tensor, Tensor, Tensor]:
    """The sequential part: states before each chunk ``[M, K, V]``, errors ``[M, C, V]``, final state ``[G, K, V]``."""
    (G, K, V), C = state.shape, UW.shape[1]
    U, W = UW.view(G, n_chunks, C, -1).split([V, K], -1)
    S_all, N_all = UW.new_empty(n_chunks, G, K, V), UW.new_empty(n_chunks, G, C, V)
    kZ_T = grown.cols.view(G, n_chunks, C, K).transpose(2, 3)
    decay = grown.total.view(G, n_chunks, K, 1)
    S = state
    for n in range(n_chunks):
        S_all[n] = S
        torch.baddbmm(U[:, n], W[:, n], S, alpha=-1, out=N_all[n])
        S = torch.baddbmm(decay[:, n] * S, kZ_T[:, n], N_all[n])
    return S_all.transpose(0, 1).reshape(-1, K, V), N_all.transpose(0, 1).reshape(-1, C, V), S


def _scan_backward(
    dN: Tensor, dS_local: Tensor, W: Tensor, grown: tree.Tree, d_state: Tensor, n_chunks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Reverse of `_scan`: complete ``dN`` ``[M, C, V]``, gradients of the state after each chunk and of the first."""
    (G, K, V), C = d_state.shape, W.shape[1]
    dN, dS_local = dN.view(G, n_chunks, C, V), dS_local.view(G, n_chunks, K, V)
    W_T = W.view(G, n_chunks, C, K).transpose(2, 3)
    kZ = grown.cols.view(G, n_chunks, C, K)
    decay = grown.total.view(G, n_chunks, K, 1)
    dS_all, dN_all = dN.new_empty(n_chunks, G, K, V), dN.new_empty(n_chunks, G, C, V)
    for n in range(n_chunks - 1, -1, -1):
        dS_all[n] = d_state
        torch.baddbmm(dN[:, n], kZ[:, n], d_state, out=dN_all[n])
        d_state = torch.baddbmm(torch.addcmul(dS_local[:, n], decay[:, n], d_state), W_T[:, n], dN_all[n], alpha=-1)
    return dN_all.transpose(0, 1).reshape(-1, C, V), dS_all.transpose(0, 1).reshape(-1, K, V), d_state
