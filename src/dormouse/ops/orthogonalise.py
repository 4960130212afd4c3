"""Approximate orthogonalisation of an update, as Muon needs it: Polar Express (arXiv 2505.16932).

Five steps of odd quintic polynomials with step-optimal coefficients send all singular values in ``[1e-3, 1]`` to
within 0.124 of one. The iteration runs on the short side's Gram matrix when the matrix is elongated, directly
otherwise; a stack of matrices of one shape is one batch.
"""

import torch
from torch import Tensor

COEFFICIENTS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
_SAFETY = 1.01


def orthogonalise(G: Tensor) -> Tensor:
    """Replace the singular values of each matrix by values near one.

    Args:
        G: ``[..., m, n]`` fp32.

    Returns:
        ``[..., m, n]``; zero matrices stay zero, and the scale of G does not matter.
    """
    if G.shape[-2] < G.shape[-1]:
        return orthogonalise(G.transpose(-1, -2)).transpose(-1, -2)
    largest = G.abs().amax((-2, -1), keepdim=True)
    X = G / torch.where(largest > 0, largest, torch.ones_like(largest))
    norm = torch.linalg.matrix_norm(X, keepdim=True)
    X = X / torch.where(norm > 0, norm * _SAFETY, torch.ones_like(norm))
    gram = X.transpose(-1, -2) @ X
    eye = torch.eye(gram.shape[-1], dtype=X.dtype, device=X.device)
    total = eye
    for step, (a, b, c) in enumerate(COEFFICIENTS):
        p = a * eye + b * gram + c * (gram @ gram)
        total = p if step == 0 else total @ p
        if step + 1 < len(COEFFICIENTS):
            gram = p @ gram @ p
    return X @ total


def orthogonalise_reference(G: Tensor) -> Tensor:
    """The same polynomial applied to the singular values, in float64."""
    U, s, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    s = s / (torch.linalg.vector_norm(s, dim=-1, keepdim=True).clamp(min=1e-300) * _SAFETY)
    for a, b, c in COEFFICIENTS:
        s = a * s + b * s**3 + c * s**5
    return (U * s.unsqueeze(-2)) @ Vh
