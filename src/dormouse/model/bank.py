"""A bank of spectral experts: every expert's factors stacked, each token sent to the experts chosen for it.

Expert ``e`` is ``down_e(SiLU(up_e(x)))``, both maps spectral, no bias. Factors are stacked over experts, so that
dispatch is a sequence of contiguous products and retraction one batched call. Who chooses is not the bank's affair;
`TsctExperts` puts a router in front of it.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.model.factor_format import DEFAULT_GROUP, FactorFormat
from dormouse.model.roles import Role, declare
from dormouse.model.spectral import Rank, Truncated, orthonormal, possible_rank, truncate
from dormouse.ops.grouped_ffn import fits_grouped, grouped_ffn
from dormouse.ops.spectral_ffn import routed_ffn, routed_ffn_loop

Path = Literal["dispatch", "masked", "loop"]


@dataclass(frozen=True)
class Factors:
    """Effective factors of all experts, singular values folded in: made once a forward, used in every pass."""

    U1: Tensor  # [E, d, r]
    V1: Tensor  # [E, f, r]
    U2: Tensor  # [E, f, r]
    V2: Tensor  # [E, d, r]


class TruncatedBank(NamedTuple):
    """What was cut off every expert's two weights when a bank was made from dense ones."""

    up: Truncated
    down: Truncated


class ExpertBank(nn.Module):
    """Stacked spectral experts on rows ``[N, d]``, for any model."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ffn: int,
        n_experts: int,
        rank: Rank,
        weight_format: str = "fp32",
        format_group: int = DEFAULT_GROUP,
    ) -> None:
        """Create the bank with random factors from torch's global generator; each expert about halves its input.

        Args:
            d_model: input and output width d.
            d_ffn: hidden width f.
            n_experts: E.
            rank: rank r of every factor; ``full`` and everything larger is ``min(d, f)``.
            weight_format: number format in which a forward sees the factors; singular values stay as they are.
            format_group: numbers of a factor's row that share a scale; 0 = the whole row.

        Raises:
            ValueError: rank below 1, unknown format, negative group.
        """
        super().__init__()
        rank = possible_rank(rank, d_model, d_ffn)
        self.n_experts = n_experts
        self.up_U = nn.Parameter(orthonormal(n_experts, d_model, rank))
        self.up_V = nn.Parameter(orthonormal(n_experts, d_ffn, rank))
        self.down_U = nn.Parameter(orthonormal(n_experts, d_ffn, rank))
        self.down_V = nn.Parameter(orthonormal(n_experts, d_model, rank))
        up, down = (d_ffn / rank) ** 0.5, 0.5 * (d_model / rank) ** 0.5
        self.up_s = nn.Parameter(torch.full((n_experts, rank), up))
        self.down_s = nn.Parameter(torch.full((n_experts, rank), down))
        self.weight_format = FactorFormat(weight_format, format_group, parts=n_experts)
        declare(
            self,
            **dict.fromkeys(("up_U", "up_V", "down_U", "down_V"), Role.FACTOR),
            up_s=Role.VECTOR,
            down_s=Role.VECTOR,
        )

    @classmethod
    def from_dense(
        cls, up: Tensor, down: Tensor, rank: Rank, *, weight_format: str = "fp32", format_group: int = DEFAULT_GROUP
    ) -> tuple["ExpertBank", TruncatedBank]:
        """The bank nearest to dense experts ``down_e SiLU(up_e x)``, and the errors of the truncation by expert.

        Args:
            up: weights ``[E, f, d]``.
            down: weights ``[E, d, f]``.
            rank: rank r, or ``full``, which reproduces the dense experts to rounding.
            weight_format: number format of the new bank's factors.
            format_group: numbers of a factor's row that share a scale; 0 = the whole row.
        """
        (n_experts, d_ffn, d_model), found = up.shape, TruncatedBank(truncate(up, rank), truncate(down, rank))
        with torch.random.fork_rng(devices=[]):
            bank = cls(
                d_model=d_model,
                d_ffn=d_ffn,
                n_experts=n_experts,
                rank=rank,
                weight_format=weight_format,
                format_group=format_group,
            )
        bank = bank.to(up.device, up.dtype)
        with torch.no_grad():
            for name, part in (("up", found.up), ("down", found.down)):
                for key in ("U", "s", "V"):
                    getattr(bank, f"{name}_{key}").copy_(getattr(part, key))
        return bank, found

    def prepare(self) -> Factors:
        """Effective factors, the singular values folded into the narrow side of each layer."""
        up, down, seen = self.up_s.unsqueeze(1), self.down_s.unsqueeze(1), self.weight_format
        return Factors(seen(self.up_U) * up, seen(self.up_V), seen(self.down_U), seen(self.down_V) * down)

    def forward(
        self, x: Tensor, ids: Tensor, gates: Tensor, *, path: Path = "dispatch", factors: Factors | None = None
    ) -> Tensor:
        """Weighted sum of the chosen experts' outputs.

        Args:
            x: ``[N, d]``.
            ids: chosen experts ``[N, k]`` int64; E and more for one that adds nothing.
            gates: weights of the chosen experts ``[N, k]``.
            path: ``dispatch`` runs chosen experts only; ``loop`` does so expert by expert, ``masked`` runs all of them.
            factors: result of `prepare`, to share it between calls.

        Returns:
            ``[N, d]``.
        """
        w = factors or self.prepare()
        if path == "masked":
            return self.blend(x, spread_gates(ids, gates, self.n_experts), factors=w)
        run = routed_ffn_loop if path == "loop" else routed_ffn
        if path == "dispatch" and x.is_cuda and fits_grouped(x, w.U1, w.V1):
            run = grouped_ffn
        return run(x, ids, gates, w.U1, w.V1, w.U2, w.V2).to(x.dtype)

    def blend(self, x: Tensor, gates: Tensor, *, factors: Factors | None = None) -> Tensor:
        """Every expert on every token, weighted by ``gates`` ``[N, E]``, summed over experts: ``[N, d]``."""
        w, gates = factors or self.prepare(), gates.to(x.dtype)
        y = torch.zeros_like(x)
        for e in range(gates.shape[1]):
            hidden = F.silu((x @ w.U1[e]) @ w.V1[e].T)
            y = y + gates[:, e, None] * ((hidden @ w.U2[e]) @ w.V2[e].T)
        return y


def spread_gates(ids: Tensor, gates: Tensor, n_experts: int) -> Tensor:
    """Gates of all experts ``[N, E]``, zero where not chosen."""
    spread = gates.new_zeros(len(ids), n_experts + 1).scatter_add(1, ids.clamp(max=n_experts), gates)
    return spread[:, :n_experts]
