"""Bring stacks of factors back to orthonormal columns, all of them in one call.

``polar`` takes the nearest matrix (Newton-Schulz in Gram space, `polar.py`), ``qr`` the Gram-Schmidt direction (as
Spectral Compact Training does, arXiv 2604.00733), ``cholesky_qr`` the same by triangular solves. Polar and QR agree on
the span alone.

A factor that was orthonormal one optimiser step ago needs little: its Gram matrix, a polynomial of it, one product.
The small ``r x r`` matrices of all factors of one rank are one batch, whatever their long sides; the long sides are
read twice and written once. Whoever is not that healthy (outside the basin, an error above `GUARD`, not finite) goes
the long way round through `polar`. On a CPU that is asked of the numbers themselves; on other devices, where asking
would wait, everybody takes the long way.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from dormouse.ops.polar import BASIN, polar, polynomial

Method = Literal["polar", "qr", "cholesky_qr"]
GUARD = 0.3
"""Largest ``||X^T X - I||_F`` that the asked number of steps is trusted with; beyond it come `EXTRA_STEPS` more."""
EXTRA_STEPS = 3


@torch.no_grad()
def retract_stacks(stacks: Sequence[Tensor], *, method: Method = "polar", iters: int = 1) -> None:
    """Replace every matrix of every stack ``[n, m, r]``, ``m >= r``, by one with orthonormal columns, in place.

    Args:
        stacks: fp32 or float64; each matrix is taken by itself, never a stack as one tall matrix.
        method: ``polar``, ``qr`` or ``cholesky_qr``.
        iters: Newton-Schulz steps; read by ``polar`` only.

    What cannot be made orthonormal (zeros, a rank below r) stays finite, and its error is for `orthogonality_error` to
    report.
    """
    if method != "polar":
        for X in stacks:
            X.copy_((_qr if method == "qr" else _cholesky_qr)(X))
        return
    for group in _by_rank(stacks).values():
        _retract_polar(group, iters)


def _by_rank(stacks: Sequence[Tensor]) -> dict[tuple, list[Tensor]]:
    groups: dict[tuple, list[Tensor]] = defaultdict(list)
    for X in stacks:
        if X.numel():
            groups[X.shape[-1], X.dtype, X.device].append(X)
    return groups


def _retract_polar(group: list[Tensor], iters: int) -> None:
    """Stacks of one rank: one batch of Gram matrices, one polynomial of them all."""
    if group[0].device.type != "cpu":
        for X in group:
            X.copy_(polar(X, iters + EXTRA_STEPS))
        return
    grams = torch.cat([torch.bmm(X.mT, X) for X in group])
    parts = polynomial(grams, iters).split([len(X) for X in group])
    healthy = _is_healthy(grams).split([len(X) for X in group])
    for X, P, fit in zip(group, parts, healthy, strict=True):
        X.copy_(torch.bmm(X, P) if bool(fit.all()) else polar(X, iters + EXTRA_STEPS))


def _is_healthy(grams: Tensor) -> Tensor:
    """Whether each Gram matrix ``[n, r, r]`` lies in the basin and near the identity; false for NaN."""
    bound = grams.abs().sum(-1).amax(-1)
    error = torch.linalg.matrix_norm(grams - torch.eye(grams.shape[-1], dtype=grams.dtype))
    return (error <= GUARD) & (bound < BASIN**2)


def _qr(X: Tensor) -> Tensor:
    """Householder QR with a positive diagonal of R, so that a step of zero changes nothing but rounding."""
    Q, R = torch.linalg.qr(X)
    diagonal = R.diagonal(dim1=-2, dim2=-1)
    return Q * torch.where(diagonal < 0, -1, 1).to(Q.dtype).unsqueeze(-2)


def _cholesky_qr(X: Tensor) -> Tensor:
    """Q of X = QR by Cholesky, three times: shifted first, which any X survives, then twice for accuracy.

    (Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, arXiv 1809.11085.) A matrix whose Gram is not positive definite
    stays as it is.
    """
    m, r = X.shape[-2:]
    largest = X.abs().amax((-2, -1), keepdim=True)
    X = X / torch.where(largest > 0, largest, torch.ones_like(largest))
    unit = torch.finfo(X.dtype).eps / 2
    eye = torch.eye(r, dtype=X.dtype, device=X.device)
    for shifted in (True, False, False):
        gram = X.mT @ X
        if shifted:
            norm = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
            gram = gram + 11 * (m * r + r * (r + 1)) * unit * norm * eye
        L, failed = torch.linalg.cholesky_ex(gram)
        L = torch.where(failed[..., None, None] > 0, eye, L)
        X = torch.linalg.solve_triangular(L.mT, X, upper=True, left=False)
    return X


def qr_reference(X: Tensor) -> Tensor:
    """Gram-Schmidt, column by column, twice, in float64: the Q of X = QR with a positive diagonal of R."""
    Q = X.double().clone()
    for j in range(Q.shape[-1]):
        for _ in range(2):
            before = Q[..., :, :j]
            Q[..., :, j] -= (before @ (before.mT @ Q[..., :, j : j + 1])).squeeze(-1)
        Q[..., :, j] /= torch.linalg.vector_norm(Q[..., :, j], dim=-1, keepdim=True)
    return Q
