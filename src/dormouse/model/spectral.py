"""A linear layer in spectral form: ``W = V diag(s) U^T`` with orthonormal U and V.

``y = ((x U) * s) V^T``: two thin products instead of one wide one, ``r (d_in + d_out + 1)`` parameters. U and V are
born orthonormal (QR of a normal matrix) and are kept so by a retraction after the optimiser step; s then holds the
singular values. At initialisation s is the constant that keeps the mean square of its input (Spectral Compact
Training, arXiv 2604.00733, trains in the same form). A dense layer is taken over by its truncated singular value
decomposition, the nearest matrix of that rank (Eckart and Young, 1936).
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from dormouse.model.factor_format import DEFAULT_GROUP, FactorFormat
from dormouse.model.roles import Role, declare

Rank = int | Literal["full"]


def orthonormal(*shape: int) -> Tensor:
    """Stack of matrices ``[..., m, r]`` with orthonormal columns, uniformly distributed; fp32, contiguous.

    LAPACK returns Q column by column. Left so, a factor's layout would differ from that of its saved state.
    """
    Q, R = torch.linalg.qr(torch.randn(*shape))
    return (Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).contiguous()


def possible_rank(rank: Rank, d_in: int, d_out: int) -> int:
    """The rank that is built: ``full`` and everything larger become ``min(d_in, d_out)``."""
    if isinstance(rank, str) and rank != "full":
        raise ValueError(f"rank = {rank!r}: must be a number or 'full'; there is no matrix of that rank")
    if rank != "full" and rank < 1:
        raise ValueError(f"rank = {rank}: must be 1 or more, or 'full'; the layer would have no parameters")
    return min(d_in, d_out) if rank == "full" else min(rank, d_in, d_out)


class Truncated(NamedTuple):
    """Factors of the nearest matrix of a rank, and how near it is."""

    U: Tensor  # [..., d_in, r]
    s: Tensor  # [..., r]
    V: Tensor  # [..., d_out, r]
    error: Tensor  # [...] Frobenius norm of what was cut off: the root of the sum of its squared singular values
    relative_error: Tensor  # [...] the same over the Frobenius norm of the whole; 0 for a zero matrix


@torch.no_grad()
def truncate(weight: Tensor, rank: Rank) -> Truncated:
    """Truncated singular value decomposition, in float64, of dense weights ``[..., d_out, d_in]``."""
    rank = possible_rank(rank, weight.shape[-1], weight.shape[-2])
    V, s, Uh = torch.linalg.svd(weight.double(), full_matrices=False)
    error, norm = (torch.linalg.vector_norm(part, dim=-1) for part in (s[..., rank:], s))
    kept = (Uh[..., :rank, :].mT, s[..., :rank], V[..., :rank])
    U, s, V = (part.to(weight.dtype, memory_format=torch.contiguous_format) for part in kept)
    return Truncated(U.contiguous(), s.contiguous(), V.contiguous(), error, torch.where(norm > 0, error / norm, norm))


class SpectralLinear(nn.Module):
    """Low-rank linear layer with orthonormal factors, for any model."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        rank: Rank,
        *,
        bias: bool = False,
        gain: float = 1.0,
        weight_format: str = "fp32",
        format_group: int = DEFAULT_GROUP,
    ) -> None:
        """Create the layer with random factors from torch's global generator.

        Args:
            d_in: input width.
            d_out: output width.
            rank: rank r; ``full`` and everything larger is ``min(d_in, d_out)``.
            bias: add a learned vector, zero at the start.
            gain: root mean square of the output over that of an isotropic input, at initialisation.
            weight_format: number format in which a forward sees U and V; s stays as it is.
            format_group: numbers of a factor's row that share a scale; 0 = the whole row.

        Raises:
            ValueError: rank below 1, unknown format, negative group.
        """
        super().__init__()
        rank = possible_rank(rank, d_in, d_out)
        self.U = nn.Parameter(orthonormal(d_in, rank))
        self.s = nn.Parameter(torch.full((rank,), gain * (d_out / rank) ** 0.5))
        self.V = nn.Parameter(orthonormal(d_out, rank))
        self.bias = nn.Parameter(torch.zeros(d_out)) if bias else None
        self.weight_format = FactorFormat(weight_format, format_group)
        declare(self, U=Role.FACTOR, s=Role.VECTOR, V=Role.FACTOR, bias=Role.VECTOR)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., d_in]`` to ``[..., d_out]``."""
        y = ((x @ self.weight_format(self.U)) * self.s) @ self.weight_format(self.V).T
        return y if self.bias is None else y + self.bias

    def weight(self) -> Tensor:
        """The dense weight ``[d_out, d_in]`` that the masters stand for."""
        return (self.V * self.s) @ self.U.T

    @classmethod
    def from_dense(
        cls,
        dense: nn.Linear | Tensor,
        rank: Rank,
        *,
        weight_format: str = "fp32",
        format_group: int = DEFAULT_GROUP,
    ) -> tuple["SpectralLinear", Truncated]:
        """The layer nearest to a dense one, and the factors with the error of the truncation.

        Args:
            dense: a linear layer, whose bias is kept, or a weight ``[d_out, d_in]``.
            rank: rank r, or ``full``, which reproduces the dense layer to rounding.
            weight_format: number format of the new layer's factors.
            format_group: numbers of a factor's row that share a scale; 0 = the whole row.
        """
        weight, bias = (dense.weight, dense.bias) if isinstance(dense, nn.Linear) else (dense, None)
        found = truncate(weight.detach(), rank)
        with torch.random.fork_rng(devices=[]):
            layer = cls(
                weight.shape[1],
                weight.shape[0],
                rank,
                bias=bias is not None,
                weight_format=weight_format,
                format_group=format_group,
            )
        layer = layer.to(weight.device, weight.dtype)
        with torch.no_grad():
            layer.U.copy_(found.U)
            layer.s.copy_(found.s)
            layer.V.copy_(found.V)
            if layer.bias is not None and bias is not None:
                layer.bias.copy_(bias)
        return layer, found


def dense(d_in: int, d_out: int, *, gain: float = 1.0, role: Role = Role.MATRIX) -> nn.Linear:
    """Bias-free dense layer with normal weights that keep the mean square of an isotropic input times ``gain``."""
    layer = nn.Linear(d_in, d_out, bias=False)
    nn.init.normal_(layer.weight, std=gain * d_in**-0.5)
    declare(layer, weight=role)
    return layer
