"""The control of the spectral bank: the same routing over dense two-matrix experts with bias.

Used when ``use_tsct`` is off or ``experts`` is not among ``tsct_parts``. Tokens are sorted by expert as in the spectral
bank, so the two differ in the form of the weights alone. The segment lengths are read on the host: on a GPU that is one
wait for the device in every pass.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.model.bank import Path
from dormouse.model.roles import Role, declare
from dormouse.model.router import Router, Routing
from dormouse.ops.dispatch import plan_dispatch


class DenseExperts(nn.Module):
    """Routed dense experts on ``[N, d]`` rows; arguments as in `TsctExperts`, without a rank."""

    mechanism = "dense_experts"

    def __init__(
        self,
        *,
        d_model: int,
        d_ffn: int,
        n_experts: int,
        top_k: int,
        renormalize: bool = False,
        gate_scale: float = 1.0,
    ) -> None:
        """Create the bank; see `TsctExperts` for arguments and errors."""
        super().__init__()
        self.router = Router(n_experts, top_k, renormalize, gate_scale)
        up = torch.randn(n_experts, d_ffn, d_model) * d_model**-0.5
        down = torch.randn(n_experts, d_model, d_ffn) * 0.5 * d_ffn**-0.5
        self.up = nn.Parameter(up)
        self.up_bias = nn.Parameter(torch.zeros(n_experts, d_ffn))
        self.down = nn.Parameter(down)
        self.down_bias = nn.Parameter(torch.zeros(n_experts, d_model))
        declare(self, up=Role.MATRIX, up_bias=Role.VECTOR, down=Role.MATRIX, down_bias=Role.VECTOR)

    def prepare(self) -> None:
        """Nothing is folded; present so that both banks are used alike."""

    def forward(
        self, x: Tensor, logits: Tensor, *, path: Path = "dispatch", factors: None = None
    ) -> tuple[Tensor, Routing]:
        """Route and compute ``[N, d]``; ``masked`` and ``loop`` both compute every expert on every token."""
        routing = self.router(logits)
        if routing.ids is None or path != "dispatch":
            gates = routing.dense_gates().to(x.dtype)
            parts = [gates[:, e, None] * self._expert(e, x) for e in range(len(self.up))]
            return torch.stack(parts).sum(0), routing
        plan = plan_dispatch(routing.ids, len(self.up))
        segments = x.index_select(0, plan.tokens).split(plan.counts.tolist())
        rows = torch.cat([self._expert(e, segment) for e, segment in enumerate(segments)])
        y = rows.index_select(0, plan.inverse).view(*routing.ids.shape, x.shape[-1])
        return (y * routing.gates.to(y.dtype).unsqueeze(-1)).sum(1), routing

    def _expert(self, e: int, x: Tensor) -> Tensor:
        hidden = F.silu(F.linear(x, self.up[e], self.up_bias[e]))
        return F.linear(hidden, self.down[e], self.down_bias[e])
