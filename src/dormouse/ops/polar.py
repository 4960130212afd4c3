"""Polar retraction: the nearest matrix with orthonormal columns, by a Newton-Schulz iteration.

One step maps every singular value by ``p(s) = 1.875 s - 1.25 s^3 + 0.375 s^5``, whose fixed point 1 attracts
everything in ``(0, sqrt(7/3))``; near 1 the error of ``X^T X`` goes from ``e`` to ``5/8 e^3``. Factors that were
orthonormal one optimiser step ago need one step. All iterations run on the small ``r x r`` Gram matrix in fp32 (or
float64): two products touch the long side, whatever the number of steps.
"""

import torch
from torch import Tensor

from dormouse.ops.precision import widened, without_autocast

COEFFICIENTS = (1.875, -1.25, 0.375)
BASIN = (7 / 3) ** 0.5


def polar(X: Tensor, iters: int) -> Tensor:
    """Orthonormalise the columns of a stack of tall matrices.

    Args:
        X: ``[..., m, r]`` with ``m >= r`` (wide matrices are orthonormalised by rows). Narrow dtypes are computed in
            fp32: a Gram matrix overflows fp16 at entries of 9.3 in a column of 768.
        iters: Newton-Schulz steps. Matrices whose spectral norm may exceed the basin are scaled down first by an upper
            bound of it; those inside are left alone, so that a retraction of healthy factors is scale-exact.

    Returns:
        ``[..., m, r]`` in the dtype of X. Zero matrices stay zero. The error that is left is for `orthogonality_error`
        to report.
    """
    if X.shape[-2] < X.shape[-1]:
        return polar(X.transpose(-1, -2), iters).transpose(-1, -2)
    with without_autocast(X):
        return _polar(widened(X)[0], iters).to(X.dtype)


def _polar(X: Tensor, iters: int) -> Tensor:
    """Of tall matrices in fp32 or float64."""
    largest = X.abs().amax((-2, -1), keepdim=True)
    unit = X / torch.where(largest > 0, largest, torch.ones_like(largest))
    gram = unit.transpose(-1, -2) @ unit
    fourth = torch.linalg.matrix_power(gram, 4)
    # Of the spectral norm, within r^(1/16).
    bound = fourth.abs().sum(-1, keepdim=True).amax(-2, keepdim=True).pow(1 / 8)
    norm = bound * largest
    # Inside the basin the iteration converges as it is: dividing would throw healthy singular values away from 1.
    scale = torch.where((norm > 0.75) & (norm < BASIN * 0.98), 1 / largest.clamp(min=1e-37), bound)
    scale = torch.where(largest > 0, scale, torch.ones_like(scale))
    return (unit / scale) @ polynomial(gram / scale.square(), iters)


def polynomial(gram: Tensor, iters: int) -> Tensor:
    """The matrix ``[..., r, r]`` that ``iters >= 1`` steps multiply X with, from its Gram matrix ``X^T X``."""
    if iters > 1:
        return _repeated(gram, iters)
    a, b, c = COEFFICIENTS
    p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c) if gram.ndim == 3 else b * gram + c * (gram @ gram)
    p.diagonal(dim1=-2, dim2=-1).add_(a)
    return p


def _repeated(gram: Tensor, iters: int) -> Tensor:
    """`polynomial` in powers of the distance from the identity.

    With ``X^T X = I + E`` a step multiplies X with ``I - E/2 + 3/8 E^2``, after which ``E`` is
    ``E^3 (5/8 - 15/64 E + 9/64 E^2)``. Nothing of order one cancels, so that the error that is left is that of the Gram
    matrix. What one step leaves hides that rounding. Entries of E that no longer change anything become zero: their
    powers would be denormal numbers, with which a CPU multiplies a hundred times slower.
    """
    E = gram.clone()
    E.diagonal(dim1=-2, dim2=-1).sub_(1)
    total, nothing = torch.zeros_like(E), torch.finfo(E.dtype).eps ** 2  # total without its identity
    for step in range(iters):
        E = torch.nn.functional.hardshrink(E, nothing)
        square = E @ E
        D = 0.375 * square - 0.5 * E
        total = D if step == 0 else total + D + total @ D
        if step + 1 < iters:
            rest = 9 / 64 * square - 15 / 64 * E
            rest.diagonal(dim1=-2, dim2=-1).add_(5 / 8)
            E = (square @ E) @ rest
    total.diagonal(dim1=-2, dim2=-1).add_(1)
    return total


def polar_direct(X: Tensor, iters: int) -> Tensor:
    """The same iteration on X itself, ``X <- X (1.875 I - 1.25 X^T X + 0.375 (X^T X)^2)``: the slow form.

    Args:
        X: ``[..., m, r]`` with ``m >= r`` and singular values in the basin; nothing is scaled.
        iters: Newton-Schulz steps.
    """
    a, b, c = COEFFICIENTS
    for _ in range(iters):
        gram = X.transpose(-1, -2) @ X
        X = a * X + X @ (b * gram + c * (gram @ gram))
    return X


def polar_reference(X: Tensor) -> Tensor:
    """Polar factor by singular value decomposition."""
    U, _, Vh = torch.linalg.svd(X, full_matrices=False)
    return U @ Vh


def orthogonality_error(X: Tensor) -> Tensor:
    """``||X^T X - I||_F / r`` of each matrix of a stack ``[..., m, r]`` with ``m >= r``: shape ``[...]``.

    Wide matrices are measured by rows, narrow dtypes in fp32. An orthonormal fp32 factor reads about 3e-8, the
    rounding of its Gram matrix.
    """
    if X.shape[-2] < X.shape[-1]:
        X = X.transpose(-1, -2)
    with without_autocast(X):
        (X,) = widened(X)
        return gram_error(X.transpose(-1, -2) @ X)


def gram_error(gram: Tensor) -> Tensor:
    """`orthogonality_error` of the matrices with these Gram matrices ``[..., r, r]``: shape ``[...]``."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.matrix_norm(gram - eye) / gram.shape[-1]
