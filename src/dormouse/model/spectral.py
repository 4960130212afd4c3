"""A linear layer in spectral form: ``W = U diag(s) V^T`` with orthonormal U and V.

``y = ((x U) * s) V^T``: two thin products instead of one wide one, ``r (d_in + d_out + 1)`` parameters. U and V are
born orthonormal (QR of a normal matrix) and are kept so by a retraction after the optimiser step; s then holds the
singular values. At initialisation s is the constant that keeps the mean square of its input (Spectral Compact
Training, arXiv 2604.00733, trains in the same form).
"""

import torch
from torch import Tensor, nn

from dormouse.model.roles import Role, declare


def orthonormal(*shape: int) -> Tensor:
    """Stack of matrices ``[..., m, r]`` with orthonormal columns, uniformly distributed; fp32, contiguous.

    LAPACK returns Q column by column. Left so, a factor's layout would differ from that of its saved state.
    """
    Q, R = torch.linalg.qr(torch.randn(*shape))
    return (Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).contiguous()


class SpectralLinear(nn.Module):
    """Bias-free low-rank linear layer with orthonormal factors."""

    def __init__(self, d_in: int, d_out: int, rank: int, *, gain: float = 1.0) -> None:
        """Create the layer.

        Args:
            d_in: input width.
            d_out: output width.
            rank: rank r; cut to ``min(d_in, d_out)``.
            gain: root mean square of the output over that of an isotropic input, at initialisation.
        """
        super().__init__()
        rank = min(rank, d_in, d_out)
        self.U = nn.Parameter(orthonormal(d_in, rank))
        self.s = nn.Parameter(torch.full((rank,), gain * (d_out / rank) ** 0.5))
        self.V = nn.Parameter(orthonormal(d_out, rank))
        declare(self, U=Role.FACTOR, s=Role.VECTOR, V=Role.FACTOR)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., d_in]`` to ``[..., d_out]``."""
        return ((x @ self.U) * self.s) @ self.V.T


def projection(d_in: int, d_out: int, rank: int | None, *, gain: float = 1.0) -> nn.Module:
    """A spectral layer of the given rank, or a dense one without bias if the rank is None."""
    if rank is not None:
        return SpectralLinear(d_in, d_out, rank, gain=gain)
    return dense(d_in, d_out, gain=gain)


def dense(d_in: int, d_out: int, *, gain: float = 1.0, role: Role = Role.MATRIX) -> nn.Linear:
    """Bias-free dense layer with normal weights that keep the mean square of an isotropic input times ``gain``."""
    layer = nn.Linear(d_in, d_out, bias=False)
    nn.init.normal_(layer.weight, std=gain * d_in**-0.5)
    declare(layer, weight=role)
    return layer
