"""Inverse of a stack of unit lower-triangular matrices, by recursive two-by-two blocks.

``[[A, 0], [B, D]]^-1 = [[A^-1, 0], [-D^-1 B A^-1, D^-1]]``: from blocks of one upwards, every level is two batched
products. It keeps 1e-7 where doubling a Neumann series loses everything on nearly equal keys, and row ``i`` of the
result depends on rows up to ``i`` only.
"""

import torch
from torch import Tensor


def unit_lower_inverse(L: Tensor) -> Tensor:
    """``(I + L)^-1`` for strictly lower-triangular ``L``.

    Args:
        L: ``[M, C, C]``, strictly lower triangular, C a power of two.

    Returns:
        ``[M, C, C]``, unit lower triangular.
    """
    M, C, _ = L.shape
    X = torch.zeros_like(L)
    X.diagonal(dim1=-2, dim2=-1).fill_(1)
    m = 1
    while m < C:
        blocks = C // (2 * m)
        grid = X.view(M, blocks, 2 * m, blocks, 2 * m).diagonal(dim1=1, dim2=3)  # [M, 2m, 2m, blocks]
        lower = L.view(M, blocks, 2 * m, blocks, 2 * m).diagonal(dim1=1, dim2=3)[:, m:, :m]
        if m == 1:
            grid[:, m:, :m] = -lower
        else:
            top = grid[:, :m, :m].permute(0, 3, 1, 2)
            bottom = grid[:, m:, m:].permute(0, 3, 1, 2)
            corner = bottom @ lower.permute(0, 3, 1, 2) @ top
            grid[:, m:, :m] = -corner.permute(0, 2, 3, 1)
        m *= 2
    return X
