"""Bring stacks of factors back to orthonormal columns, all of them in one call.

``polar`` takes the nearest matrix (Newton-Schulz in Gram space, `polar.py`), ``qr`` the Gram-Schmidt direction (as
Spectral Compact Training does, arXiv 2604.00733), ``cholesky_qr`` the same by triangular solves. Polar and QR agree on
the span alone.

A factor that was orthonormal one optimiser step ago needs little: its Gram matrix, a polynomial of it, one product.
The small ``r x r`` matrices of all factors of one rank are one batch, whatever their long sides; the long sides are
read twice and written once. The same Gram matrices say how far off the factors were. A matrix that was too far off for
the asked number of steps (an error above `GUARD`, not finite) is taken the long way through `polar`; which of the two
a matrix gets depends on that matrix alone. No number is read back from a device: there both ways are computed. On a
CPU, where looking costs nothing, the long way is computed when somebody needs it.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from dormouse.ops.polar import gram_error, orthogonality_error, polar, polynomial
from dormouse.ops.precision import widened, without_autocast

Method = Literal["polar", "qr", "cholesky_qr"]
GUARD = 0.3
"""Largest ``||X^T X - I||_F`` that the asked number of steps is trusted with; beyond it come `EXTRA_STEPS` more."""
EXTRA_STEPS = 3
BLOCK_ROWS = 256
"""Rows of a factor that make one product of its Gram matrix."""


@dataclass(frozen=True)
class RetractionErrors:
    """``||X^T X - I||_F / r`` of every matrix: one ``[n]`` a stack, in the order of the stacks, on their device.

    None where nothing was measured.
    """

    before: tuple[Tensor, ...] | None
    after: tuple[Tensor, ...] | None

    @property
    def largest_before(self) -> Tensor | None:
        """The worst matrix before, a 0-d tensor; NaN if any is."""
        return None if self.before is None else largest(self.before)

    @property
    def largest_after(self) -> Tensor | None:
        """The worst matrix after, a 0-d tensor; NaN if any is."""
        return None if self.after is None else largest(self.after)


def largest(errors: Sequence[Tensor]) -> Tensor:
    """The largest of all numbers in some tensors of one device, 0-d; 0 without any, NaN if any is."""
    flat = [e.flatten() for e in errors if e.numel()]
    return torch.cat(flat).max() if flat else torch.zeros(())


def retract_stack(X: Tensor, *, method: Method = "polar", iters: int = 1) -> Tensor:
    """A copy of ``X [..., m, r]`` in which every matrix has orthonormal columns; see `retract_stacks`."""
    Y = X.detach().clone()
    retract_stacks([Y], method=method, iters=iters)
    return Y


@torch.no_grad()
def retract_stacks(
    stacks: Sequence[Tensor], *, method: Method = "polar", iters: int = 1, measure: bool = False
) -> RetractionErrors:
    """Replace every matrix of every stack ``[..., m, r]`` by one with orthonormal columns, in place.

    Args:
        stacks: of any floating dtype; fp16 and bf16 are widened to fp32 for the work and rounded back. Each matrix is
            taken by itself, never a stack as one tall matrix. Wide matrices get orthonormal rows.
        method: ``polar``, ``qr`` or ``cholesky_qr``.
        iters: Newton-Schulz steps, at least 1; read by ``polar`` only.
        measure: report the errors that are left, at the cost of one more product; `polar` reports those before always.

    What cannot be made orthonormal (zeros, a rank below r) stays finite, and its error is reported. An orthonormal
    factor comes back to rounding (1e-6 in fp32), and does not wander off when that is repeated; what comes back to the
    bit is columns of the identity matrix.
    """
    _check(method, iters)
    tall = [_as_stack(X.detach()) for X in stacks]
    work = [widened(X)[0] for X in tall]  # X itself unless it is narrow
    before = _measured(work) if measure and method != "polar" else None
    if method == "polar":
        before = _retract_polar(work, iters)
    else:
        for X in work:
            X.copy_(_qr(X) if method == "qr" else _cholesky_qr(X))
    for X, result in zip(tall, work, strict=True):
        if result is not X:
            X.copy_(result)
    return RetractionErrors(before, _measured(tall) if measure else None)


def _check(method: str, iters: int) -> None:
    if method not in get_args(Method):
        raise ValueError(f"method = {method!r}: choose one of {', '.join(get_args(Method))}")
    if method == "polar" and iters < 1:
        raise ValueError(f"iters = {iters}: without a Newton-Schulz step nothing is retracted; give at least 1")


def _measured(stacks: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(orthogonality_error(X) for X in stacks)


def _as_stack(X: Tensor) -> Tensor:
    """The memory of ``X [..., m, r]`` as ``[n, m, r]`` with ``m >= r``."""
    X = X.view(math.prod(X.shape[:-2]), *X.shape[-2:])
    return X if X.shape[-2] >= X.shape[-1] else X.mT


def _retract_polar(stacks: list[Tensor], iters: int) -> tuple[Tensor, ...]:
    """In place; returns the errors before."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for i, X in enumerate(stacks):
        groups[X.shape[-1], X.dtype, X.device].append(i)
    errors: dict[int, Tensor] = {}
    for members in groups.values():
        errors |= zip(members, _retract_one_rank([stacks[i] for i in members], iters), strict=True)
    return tuple(errors[i] for i in range(len(stacks)))


def _retract_one_rank(group: list[Tensor], iters: int) -> Sequence[Tensor]:
    """Stacks of one rank: one batch of Gram matrices, one polynomial of them all."""
    sizes = [len(X) for X in group]
    with without_autocast(group[0]):
        grams = torch.cat([_gram(X) for X in group])
        parts = polynomial(grams, iters).split(sizes)
        errors = gram_error(grams)
        healthy = (errors * grams.shape[-1] <= GUARD).split(sizes)  # false for NaN
        room = grams.new_empty(max(X.numel() for X in group))  # for one product at a time: fresh memory costs as much
        for X, P, fit in zip(group, parts, healthy, strict=True):
            near = torch.bmm(X, P, out=room[: X.numel()].view(X.shape))
            X.copy_(near if _surely(fit) else _choose(fit, near, polar(X, iters + EXTRA_STEPS)))
    return errors.split(sizes)


def _gram(X: Tensor) -> Tensor:
    """``X^T X`` of a stack ``[n, m, r]``, summed over blocks of rows: products for all cores, each within cache."""
    n, m, r = X.shape
    blocks = m // BLOCK_ROWS
    if blocks < 2 or m % BLOCK_ROWS or not X.is_contiguous():
        return torch.bmm(X.mT, X)
    rows = X.view(n * blocks, BLOCK_ROWS, r)
    return torch.bmm(rows.mT, rows).view(n, blocks, r, r).sum(1)


def _surely(flags: Tensor) -> bool:
    """Whether all flags are set, as far as one may look without waiting for a device."""
    return flags.device.type == "cpu" and bool(flags.all())


def _choose(flags: Tensor, then: Tensor, otherwise: Tensor) -> Tensor:
    """Matrix by matrix."""
    return torch.where(flags[:, None, None], then, otherwise)


def _qr(X: Tensor) -> Tensor:
    """Householder QR with a positive diagonal of R, so that a step of zero changes nothing but rounding."""
    Q, R = torch.linalg.qr(X)
    diagonal = R.diagonal(dim1=-2, dim2=-1)
    return Q * torch.where(diagonal < 0, -1, 1).to(Q.dtype).unsqueeze(-2)


def _cholesky_qr(X: Tensor) -> Tensor:
    """Q of X = QR by Cholesky, twice; whom the first time leaves too far from orthonormal gets three, shifted first.

    (Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, arXiv 1809.11085.)
    """
    peak = X.abs().amax((-2, -1), keepdim=True) if X.numel() else X.new_ones(len(X), 1, 1)
    X = X / torch.where(peak > 0, peak, torch.ones_like(peak))
    with without_autocast(X):
        once = _solved(X, X.mT @ X)
        gram = once.mT @ once
        fit = gram_error(gram) * gram.shape[-1] <= GUARD
        twice = _solved(once, gram)
        return twice if _surely(fit) else _choose(fit, twice, _shifted_cholesky_qr(X))


def _shifted_cholesky_qr(X: Tensor) -> Tensor:
    """For any finite X: the shift makes the first Gram matrix positive definite, two more times make up for it.

    Orthonormal up to a condition number of about 1e4 in fp32 at 2048 x 64; beyond, an error is left.
    """
    m, r = X.shape[-2:]
    gram = X.mT @ X
    norm = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None]
    shift = 11 * (m * r + r * (r + 1)) * torch.finfo(X.dtype).eps / 2
    gram.diagonal(dim1=-2, dim2=-1).add_(shift * norm)
    X = _solved(X, gram)
    for _ in range(2):
        X = _solved(X, X.mT @ X)
    return X


def _solved(X: Tensor, gram: Tensor) -> Tensor:
    """``X L^-T`` with ``L L^T = gram``; X itself where the Gram matrix is not positive definite."""
    L, failed = torch.linalg.cholesky_ex(gram)
    eye = torch.eye(gram.shape[-1], dtype=X.dtype, device=X.device)
    L = torch.where(failed[..., None, None] > 0, eye, L)
    return torch.linalg.solve_triangular(L.mT, X, upper=True, left=False)


def qr_reference(X: Tensor) -> Tensor:
    """Gram-Schmidt, column by column, twice, in float64: the Q of X = QR with a positive diagonal of R."""
    Q = X.double().clone()
    for j in range(Q.shape[-1]):
        for _ in range(2):
            before = Q[..., :, :j]
            Q[..., :, j] -= (before @ (before.mT @ Q[..., :, j : j + 1])).squeeze(-1)
        Q[..., :, j] /= torch.linalg.vector_norm(Q[..., :, j], dim=-1, keepdim=True)
    return Q
