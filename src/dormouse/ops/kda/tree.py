"""Decay-weighted scores inside a chunk, by a binary tree of segment products.

The scores of a chunk are ``A_ij = <k_i D_ij, k_j>`` and ``Q_ij = <q_i D_ij, k_j>`` with ``D_ij`` the product of the
decays of tokens ``j+1 .. i``, channel by channel. Writing ``D`` as a quotient of cumulative products overflows as
soon as the accumulated decay passes ``exp(88)``. Here every block of ``2m`` tokens is cut in the middle: a row in the
second half and a column in the first half meet at the cut, so ``D_ij`` is the product from the cut to the row times
the product from behind the column to the cut. Both are at most one: nothing can overflow for any decay, nothing is
divided, a decay of exactly zero is legal, and a score never depends on a token behind its row.

Going up one level multiplies half of the row factors and half of the column factors by a block's total decay. At
the top the same arrays are the factors that couple the chunk to the state before and after it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """All levels of one chunk; lists run from the leaves (half-block size 1) to the root (size C)."""

    rows: list[Tensor]  # [2, M, C, K]: keys, then queries, times the decay from their block's start
    cols: list[Tensor]  # [M, C, K]: keys times the decay from behind them to their block's end
    totals: list[Tensor]  # [M, C / m, K]: decay of whole blocks of m tokens


def grow(kq: Tensor, a: Tensor) -> Tree:
    """Build the factors of every level.

    Args:
        kq: keys and scaled queries ``[2, M, C, K]``, C a power of two.
        a: decays ``[M, C, K]`` in ``[0, 1]``.
    """
    M, C, K = a.shape
    rows, cols, totals = [kq * a], [kq[0]], [a]
    m = 1
    while m < C:
        total = totals[-1].view(M, C // (2 * m), 2, K)
        row = rows[-1].view(2, M, C // (2 * m), 2, m, K).clone()
        row[:, :, :, 1] *= total[:, :, 0].unsqueeze(-2)
        col = cols[-1].reshape(M, C // (2 * m), 2, m, K).clone()
        col[:, :, 0] *= total[:, :, 1].unsqueeze(-2)
        rows.append(row.view(2, M, C, K))
        cols.append(col.view(M, C, K))
        totals.append(total[:, :, 0] * total[:, :, 1])
        m *= 2
    return Tree(rows, cols, totals)


def scores(tree: Tree, kq: Tensor) -> Tensor:
    """Lower-triangular scores ``[2, M, C, C]``: keys on keys (strict), then queries on keys (with diagonal)."""
    _, M, C, K = kq.shape
    out = kq.new_zeros(2, M, C, C)
    m = 1
    for row, col in zip(tree.rows[:-1], tree.cols[:-1], strict=True):
        blocks = C // (2 * m)
        r = row.view(2, M, blocks, 2, m, K)[:, :, :, 1]
        c = col.reshape(M, blocks, 2, m, K)[:, :, 0]
        part = (r * c).sum(-1, keepdim=True) if m == 1 else r @ c.transpose(-1, -2)
        _quadrants(out, m).copy_(part.permute(0, 1, 3, 4, 2))
        m *= 2
    out[1].diagonal(dim1=-2, dim2=-1).copy_((kq[0] * kq[1]).sum(-1))
    return out


def scores_backward(
    tree: Tree, kq: Tensor, a: Tensor, d_scores: Tensor, d_rows: Tensor, d_cols: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Reverse of `scores` and of the root's row and column factors.

    Args:
        tree, kq, a: as in `grow`.
        d_scores: ``[2, M, C, C]``, lower triangular (strictly for the first).
        d_rows: gradient of the root's row factors ``[2, M, C, K]``; overwritten.
        d_cols: gradient of the root's column factors ``[M, C, K]``; overwritten.

    Returns:
        Gradient of ``kq`` as rows ``[2, M, C, K]``, of the keys as columns ``[M, C, K]`` (both without the diagonal),
        and of the keys and queries through the diagonal ``[2, M, C, K]``.
    """
    _, M, C, K = kq.shape
    m = C // 2
    for row, col, total in zip(tree.rows[-2::-1], tree.cols[-2::-1], tree.totals[-2::-1], strict=True):
        blocks = C // (2 * m)
        t = total.view(M, blocks, 2, K)
        second = d_rows.view(2, M, blocks, 2, m, K)[:, :, :, 1]
        first = d_cols.view(M, blocks, 2, m, K)[:, :, 0]
        second *= t[:, :, 0].unsqueeze(-2)
        first *= t[:, :, 1].unsqueeze(-2)
        r = row.view(2, M, blocks, 2, m, K)[:, :, :, 1]
        c = col.reshape(M, blocks, 2, m, K)[:, :, 0]
        d = _quadrants(d_scores, m).permute(0, 1, 4, 2, 3)
        if m == 1:
            second += d * c
            first += (d * r).sum(0)
        else:
            second += d @ c
            first += (d.transpose(-1, -2) @ r).sum(0)
        m //= 2
    diagonal = d_scores[1].diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    return d_rows.mul_(a), d_cols, diagonal * kq.flip(0)


def _quadrants(scores: Tensor, m: int) -> Tensor:
    """View of the lower-left m x m quadrant of every diagonal block of 2m: ``[2, M, m, m, C / 2m]``."""
    two, M, C, _ = scores.shape
    blocks = C // (2 * m)
    grid = scores.view(two, M, blocks, 2 * m, blocks, 2 * m)
    return grid.diagonal(dim1=2, dim2=4)[:, :, m:, :m]


def scores_reference(kq: Tensor, g: Tensor) -> Tensor:
    """The same scores from all pairwise decays ``exp(G_i - G_j)``: ``[2, M, C, C]``, memory ``C * C * K`` a chunk."""
    G = g.cumsum(-2)
    C = g.shape[-2]
    lower = torch.ones(C, C, dtype=torch.bool, device=g.device).tril()
    gap = (G.unsqueeze(-2) - G.unsqueeze(-3)).masked_fill(~lower.unsqueeze(-1), float("-inf"))
    both = torch.einsum("smik,mijk,mjk->smij", kq, gap.exp(), kq[0])
    return torch.stack([both[0].tril(-1), both[1].tril()])
