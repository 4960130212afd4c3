"""The controller: one bias-free linear map from ``[c ; h0]`` to the branch gates and the router's logits.

Columns 0, 1, 2 are the gates of attention, memory and experts (sigmoid); the next E columns are router logits; the
rest is padding to a multiple of four and is never read. It computes in fp32: rounding to half precision collapses
near ties between experts. In the sequential layout the router columns read the context after memory and attention.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.config.schema import ModelConfig
from dormouse.model.roles import Role, declare
from dormouse.ops.norm import rms_norm
from dormouse.ops.precision import widened, without_autocast

N_GATES = 3


class Controller(nn.Module):
    """Branch gates and router logits."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the ``[P, 2d]`` weight, ``P = 4 ceil((3 + E) / 4)``."""
        super().__init__()
        columns = -(-(N_GATES + config.n_experts) // 4) * 4
        weight = torch.empty(columns, 2 * config.d_model).uniform_(-1, 1) * (2 * config.d_model) ** -0.5
        self.weight = nn.Parameter(weight)
        declare(self, weight=Role.CONTROL)
        self.n_experts, self.gate_scale = config.n_experts, config.branch_gate_scale
        self.eps = config.norm_eps if config.controller_norm else None

    def normed(self, c: Tensor) -> Tensor:
        """One half of the input, RMS-normalised if configured."""
        return c if self.eps is None else rms_norm(c, None, self.eps)

    def gates(self, c: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gates of attention, memory and experts, each ``[..., 1]``; the memory's is a plain sigmoid (a share)."""
        w_attn, w_mem, w_ffn = self._linear(c, h0, 0, N_GATES).sigmoid().split(1, -1)
        return w_attn * self.gate_scale, w_mem, w_ffn * self.gate_scale

    def router_logits(self, c: Tensor, h0: Tensor) -> Tensor:
        """Router logits ``[..., E]``."""
        return self._linear(c, h0, N_GATES, N_GATES + self.n_experts)

    def _linear(self, c: Tensor, h0: Tensor, first: int, last: int) -> Tensor:
        weight, d = self.weight[first:last], c.shape[-1]
        c, h0, weight = widened(c, h0, weight)
        with without_autocast(c):
            return F.linear(c, weight[:, :d]) + F.linear(h0, weight[:, d:])
