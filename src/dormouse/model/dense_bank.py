"""The control of the spectral bank: dense two-matrix experts with bias, stacked.

Used when ``use_tsct`` is off or ``experts`` is not among ``tsct_parts``. Tokens are sorted by expert as in the spectral
bank, so the two differ in the form of the weights alone. The segment lengths are read on the host: on a GPU that is one
wait for the device in every pass.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.model.bank import Path, spread_gates
from dormouse.model.roles import Role, declare
from dormouse.ops.dispatch import plan_dispatch


class DenseBank(nn.Module):
    """Stacked dense experts ``down_e SiLU(up_e x + b_e) + c_e`` on rows ``[N, d]``; used like an `ExpertBank`."""

    def __init__(self, *, d_model: int, d_ffn: int, n_experts: int) -> None:
        """Create the bank with random weights from torch's global generator; each expert about halves its input."""
        super().__init__()
        self.n_experts = n_experts
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
        self, x: Tensor, ids: Tensor, gates: Tensor, *, path: Path = "dispatch", factors: None = None
    ) -> Tensor:
        """Weighted sum of the chosen experts' outputs ``[N, d]``; every other path than ``dispatch`` computes all."""
        if path != "dispatch":
            return self.blend(x, spread_gates(ids, gates, self.n_experts))
        plan = plan_dispatch(ids, self.n_experts)
        counts = plan.counts.tolist()
        rest = len(plan.order) - sum(counts)  # of null experts
        *segments, idle = x.index_select(0, plan.tokens).split([*counts, rest])
        rows = torch.cat([*(self._expert(e, segment) for e, segment in enumerate(segments)), idle * 0])
        y = rows.index_select(0, plan.inverse).view(*ids.shape, x.shape[-1])
        return (y * gates.to(y.dtype).unsqueeze(-1)).sum(1)

    def blend(self, x: Tensor, gates: Tensor, *, factors: None = None) -> Tensor:
        """Every expert on every token, weighted by ``gates`` ``[N, E]``, summed over experts: ``[N, d]``."""
        gates = gates.to(x.dtype)
        parts = [gates[:, e, None] * self._expert(e, x) for e in range(self.n_experts)]
        return torch.stack(parts).sum(0)

    def _expert(self, e: int, x: Tensor) -> Tensor:
        hidden = F.silu(F.linear(x, self.up[e], self.up_bias[e]))
        return F.linear(hidden, self.down[e], self.down_bias[e])
