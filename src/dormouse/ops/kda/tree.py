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
class Level:
    """Factors of one level, with half-blocks of m tokens: only the halves that meet at the cuts."""

    rows: Tensor  # [M, C / 2m, 2, m, K]: second halves of keys, then queries, times the decay from the cut
    cols: Tensor  # [M, C / 2m, m, K]: first halves of keys, times the decay up to the cut
    totals: Tensor  # [M, C / 2m, 2, K]: decay of each half-block


@dataclass(frozen=True)
class Tree:
    """All levels of a chunk, leaves first, and the factors of the whole chunk."""

    levels: list[Level]
    rows: Tensor  # [M, 2, C, K]: keys and queries times the decay from the chunk's start
    cols: Tensor  # [M, C, K]: keys times the decay to the chunk's end
    total: Tensor  # [M, K]: decay of the whole chunk


def grow(kq: Tensor, a: Tensor) -> Tree:
    """Build the factors of every level.

    Args:
        kq: keys and scaled queries ``[M, 2, C, K]``, C a power of two.
        a: decays ``[M, C, K]`` in ``[0, 1]``.
    """
    M, C, K = a.shape
    rows, cols, total = kq * a.unsqueeze(1), kq[:, 0].clone(), a
    levels: list[Level] = []
    m = 1
    while m < C:
        halves = total.view(M, C // (2 * m), 2, K)
        second = rows.view(M, 2, C // (2 * m), 2, m, K)[:, :, :, 1]
        first = cols.view(M, C // (2 * m), 2, m, K)[:, :, 0]
        # Copies always: both views are scaled in place below, and of a single matrix they are contiguous already.
        whole = torch.contiguous_format
        levels.append(
            Level(second.transpose(1, 2).clone(memory_format=whole), first.clone(memory_format=whole), halves)
        )
        second *= halves[:, None, :, 0, None]
        first *= halves[:, :, 1, None]
        total = halves[:, :, 0] * halves[:, :, 1]
        m *= 2
    return Tree(levels, rows, cols, total.squeeze(1))


def scores(tree: Tree, kq: Tensor) -> Tensor:
    """Lower-triangular scores ``[M, 2, C, C]``: keys on keys (strict), then queries on keys (with diagonal)."""
    M, _, C, K = kq.shape
    out = kq.new_zeros(M, 2, C, C)
    for level in tree.levels:
        blocks, m = level.cols.shape[1:3]
        r, c = level.rows.view(-1, 2 * m, K), level.cols.view(-1, m, K)
        part = (r * c).sum(-1) if m == 1 else torch.bmm(r, c.transpose(1, 2))
        _quadrants(out, m).copy_(part.view(M, blocks, 2, m, m).permute(0, 2, 3, 4, 1))
    out[:, 1].diagonal(dim1=-2, dim2=-1).copy_((kq[:, 0] * kq[:, 1]).sum(-1))
    return out


def scores_backward(tree: Tree, d_scores: Tensor, d_rows: Tensor, d_cols: Tensor) -> None:
    """Reverse of `scores` (its diagonal apart) and of the chunk's row and column factors, in place.

    Args:
        tree: result of `grow`.
        d_scores: ``[M, 2, C, C]``, lower triangular.
        d_rows: gradient of ``tree.rows`` ``[M, 2, C, K]``; becomes that of the leaves' rows ``kq * a``.
        d_cols: gradient of ``tree.cols`` ``[M, C, K]``; becomes that of the keys as columns.
    """
    M, K = d_rows.shape[0], d_rows.shape[-1]
    for level in reversed(tree.levels):
        blocks, m = level.cols.shape[1:3]
        second = d_rows.view(M, 2, blocks, 2, m, K)[:, :, :, 1]
        first = d_cols.view(M, blocks, 2, m, K)[:, :, 0]
        second *= level.totals[:, None, :, 0, None]
        first *= level.totals[:, :, 1, None]
        r, c = level.rows.view(-1, 2 * m, K), level.cols.view(-1, m, K)
        d = _quadrants(d_scores, m).permute(0, 4, 1, 2, 3).reshape(-1, 2 * m, m)
        to_rows = d * c if m == 1 else torch.bmm(d, c)
        to_cols = (d * r).sum(1, keepdim=True) if m == 1 else torch.bmm(d.transpose(1, 2), r)
        second += to_rows.view(M, blocks, 2, m, K).transpose(1, 2)
        first += to_cols.view(M, blocks, m, K)


def _quadrants(scores: Tensor, m: int) -> Tensor:
    """View of the lower-left m x m quadrant of every diagonal block of 2m: ``[M, 2, m, m, C / 2m]``."""
    M, two, C, _ = scores.shape
    blocks = C // (2 * m)
    grid = scores.view(M, two, blocks, 2 * m, blocks, 2 * m)
    return grid.diagonal(dim1=2, dim2=4)[:, :, m:, :m]


def scores_reference(kq: Tensor, g: Tensor) -> Tensor:
    """The same from all pairwise decays ``exp(G_i - G_j)``, ``g`` the log decays ``[M, C, K]``; memory ``C C K``."""
    G = g.cumsum(-2)
    C = g.shape[-2]
    lower = torch.ones(C, C, dtype=torch.bool, device=g.device).tril()
    gap = (G.unsqueeze(-2) - G.unsqueeze(-3)).masked_fill(~lower.unsqueeze(-1), float("-inf"))
    both = torch.einsum("msik,mijk,mjk->msij", kq, gap.exp(), kq[:, 0])
    return torch.stack([both[:, 0].tril(-1), both[:, 1].tril()], 1)
