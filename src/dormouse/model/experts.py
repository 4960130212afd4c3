"""A bank of spectral experts with top-k routing: capacity without compute.

Expert ``e`` is ``down_e(SiLU(up_e(x)))``, both maps spectral, no bias. Only selected experts run (``path="dispatch"``);
``masked`` computes all of them and multiplies by zero, ``loop`` walks over tokens one by one: the references.
``top_k = 0`` is the dense blend of all experts with the same parameters.

Factors are stacked over experts, so that dispatch is a sequence of contiguous products and retraction one batched call.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.model.roles import Role, declare
from dormouse.model.router import Router, Routing
from dormouse.model.spectral import orthonormal
from dormouse.ops.dispatch import plan_dispatch
from dormouse.ops.spectral_ffn import spectral_ffn, spectral_ffn_reference

Path = Literal["dispatch", "masked", "loop"]


@dataclass(frozen=True)
class Factors:
    """Effective factors of all experts, singular values folded in: made once a forward, used in every pass."""

    U1: Tensor  # [E, d, r]
    V1: Tensor  # [E, f, r]
    U2: Tensor  # [E, f, r]
    V2: Tensor  # [E, d, r]


class TsctExperts(nn.Module):
    """Routed spectral experts on ``[N, d]`` rows; the router's logits come from outside."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ffn: int,
        n_experts: int,
        rank: int,
        top_k: int,
        renormalize: bool = False,
        gate_scale: float = 1.0,
    ) -> None:
        """Create the bank.

        Args:
            d_model: input and output width d.
            d_ffn: hidden width f.
            n_experts: E.
            rank: rank r of every factor; cut to ``min(d, f)``.
            top_k: experts a token; 0 blends all of them.
            renormalize: divide the kept gates by their sum (needs ``top_k >= 2``).
            gate_scale: constant on every gate; E keeps the output's scale independent of E.

        Raises:
            ValueError: ``top_k`` outside ``0 .. E``, or ``renormalize`` with ``top_k == 1``.
        """
        super().__init__()
        rank = min(rank, d_model, d_ffn)
        self.router = Router(n_experts, top_k, renormalize, gate_scale)
        self.up_U = nn.Parameter(orthonormal(n_experts, d_model, rank))
        self.up_V = nn.Parameter(orthonormal(n_experts, d_ffn, rank))
        self.down_U = nn.Parameter(orthonormal(n_experts, d_ffn, rank))
        self.down_V = nn.Parameter(orthonormal(n_experts, d_model, rank))
        up, down = (d_ffn / rank) ** 0.5, 0.5 * (d_model / rank) ** 0.5
        self.up_s = nn.Parameter(torch.full((n_experts, rank), up))
        self.down_s = nn.Parameter(torch.full((n_experts, rank), down))
        declare(
            self,
            **dict.fromkeys(("up_U", "up_V", "down_U", "down_V"), Role.FACTOR),
            up_s=Role.VECTOR,
            down_s=Role.VECTOR,
        )

    def prepare(self) -> Factors:
        """Factors with the singular values folded into the narrow side of each layer."""
        up, down = self.up_s.unsqueeze(1), self.down_s.unsqueeze(1)
        return Factors(self.up_U * up, self.up_V, self.down_U, self.down_V * down)

    def forward(
        self, x: Tensor, logits: Tensor, *, path: Path = "dispatch", factors: Factors | None = None
    ) -> tuple[Tensor, Routing]:
        """Route and compute.

        Args:
            x: ``[N, d]``.
            logits: router logits ``[N, E]``.
            path: ``dispatch`` runs selected experts only; ``masked`` and ``loop`` are slow references.
            factors: result of `prepare`, to share it between calls.

        Returns:
            ``[N, d]`` and the routing.
        """
        w = factors or self.prepare()
        routing = self.router(logits)
        if routing.ids is None or path == "masked":
            return _masked(x, routing, w), routing
        if path == "loop":
            return _loop(x, routing, routing.ids, w), routing
        return _dispatch(x, routing, routing.ids, w), routing


def _dispatch(x: Tensor, routing: Routing, ids: Tensor, w: Factors) -> Tensor:
    """Sort tokens by expert, run each expert on its segment, put the rows back and weigh them."""
    plan = plan_dispatch(ids, w.U1.shape[0])
    rows = spectral_ffn(x.index_select(0, plan.tokens), plan.counts, w.U1, w.V1, w.U2, w.V2)
    y = rows.index_select(0, plan.inverse).view(*ids.shape, x.shape[-1])
    return (y * routing.gates.to(y.dtype).unsqueeze(-1)).sum(1)


def _masked(x: Tensor, routing: Routing, w: Factors) -> Tensor:
    """Every expert on every token, then the weighted sum over experts."""
    gates = routing.dense_gates().to(x.dtype)
    y = torch.zeros_like(x)
    for e in range(gates.shape[1]):
        hidden = F.silu((x @ w.U1[e]) @ w.V1[e].T)
        y = y + gates[:, e, None] * ((hidden @ w.U2[e]) @ w.V2[e].T)
    return y


def _loop(x: Tensor, routing: Routing, ids: Tensor, w: Factors) -> Tensor:
    """One token and one slot at a time."""
    y = torch.zeros_like(x)
    for slot in range(ids.shape[1]):
        rows = spectral_ffn_reference(x, ids[:, slot], w.U1, w.V1, w.U2, w.V2)
        y = y + routing.gates[:, slot, None].to(x.dtype) * rows
    return y
