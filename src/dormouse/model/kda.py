"""Kimi Delta Attention as the sequence mixer of a pass (Kimi Linear, arXiv 2510.26692).

Projections of x give q, k, v (short causal convolution if configured, SiLU; q and k of norm one per head), a write
strength per head, a log decay per key channel ``g = -exp(A_log) softplus(low_rank(x) + bias)``, and an output gate.
The state is ``[H, K, V]``, fp32 at least, zero at the start of every pass and of every document. Decay starts between
about 0.2 and 0.999 a byte, as in the reference implementation: ``A`` uniform in [1, 16], step sizes log-uniform in
[1e-3, 1e-1].

All weights that read x are concatenated once a forward and reused in every pass.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.config.schema import ModelConfig
from dormouse.model.records import MixerState
from dormouse.model.roles import Role, declare
from dormouse.model.spectral import dense
from dormouse.ops import kda
from dormouse.ops.conv import short_conv
from dormouse.ops.norm import l2_norm, rms_norm
from dormouse.ops.precision import widened

_OUTPUT_EPS = 1e-5


@dataclass(frozen=True)
class KdaWeights:
    """Weights shared by all passes of one forward."""

    w_in: Tensor  # [sum of widths, d]: q, k, v, decay, beta, gate
    decay_rate: Tensor  # [H, 1], -exp(A_log)


class KdaMixer(nn.Module):
    """KDA with per-head normalisation, gated output and carried state."""

    mechanism = "kda"

    def __init__(self, config: ModelConfig) -> None:
        """Create the mixer for ``config.n_heads`` heads of ``config.head_dim`` channels."""
        super().__init__()
        d, self.heads, self.head_dim = config.d_model, config.n_heads, config.head_dim
        inner = self.heads * self.head_dim
        self.q, self.k, self.v = (dense(d, inner, role=Role.HEADS) for _ in range(3))
        self.decay_down = dense(d, config.kda_decay_rank)
        self.decay_up = dense(config.kda_decay_rank, inner, gain=0.5)
        self.beta = dense(d, self.heads, role=Role.CONTROL)
        full_gate = config.kda_gate_rank == "full"
        gate_width = inner if full_gate else int(config.kda_gate_rank)
        self.gate = dense(d, gate_width)
        self.gate_up = None if full_gate else dense(gate_width, inner)
        self.out = dense(inner, d)
        self.out_norm = nn.Parameter(torch.ones(self.head_dim))
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        step = torch.empty(inner).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.conv = None
        if config.kda_conv_width > 1:
            taps = torch.zeros(config.kda_conv_width, 3 * inner)
            taps[0] = 1
            self.conv = nn.Parameter(taps)
        declare(self, **dict.fromkeys(("out_norm", "A_log", "dt_bias", "conv"), Role.VECTOR))

    def initial_state(self, batch_size: int) -> MixerState:
        """Zero state for ``batch_size`` sequences: in the parameters' dtype, fp32 at least."""
        (like,) = widened(self.A_log)
        memory = like.new_zeros(batch_size, self.heads, self.head_dim, self.head_dim)
        if self.conv is None:
            return MixerState(memory=memory)
        return MixerState(memory, like.new_zeros(batch_size, *self.conv[1:].shape))

    def prepare(self) -> KdaWeights:
        """Concatenate the projections of x."""
        layers = (self.q, self.k, self.v, self.decay_down, self.beta, self.gate)
        return KdaWeights(torch.cat([layer.weight for layer in layers]), -self.A_log.exp().unsqueeze(-1))

    def forward(
        self, x: Tensor, weights: KdaWeights, state: MixerState, age: Tensor, bounds: Tensor | None
    ) -> tuple[Tensor, MixerState]:
        """Mix along time.

        Args:
            x: normed input ``[B, T, d]``.
            weights: result of `prepare`.
            state: carried state of this pass.
            age: earlier bytes of the same document ``[B, T]``.
            bounds: document starts ``[B, T]`` or None.

        Returns:
            ``[B, T, d]`` and the state after the last byte.
        """
        B, T, _ = x.shape
        H, K = self.heads, self.head_dim
        widths = [3 * H * K, self.decay_down.out_features, H, self.gate.out_features]
        qkv, decay, beta, gate = F.linear(x, weights.w_in).split(widths, -1)
        tail = None
        if self.conv is not None and state.conv_tail is not None:
            reach = None if bounds is None else age
            qkv, tail = short_conv(qkv, self.conv, state.conv_tail, reach)
            if bounds is not None:
                tail = _own_document(tail, age[:, -1])
        qk, v = F.silu(qkv).view(B, T, 3 * H, K).split([2 * H, H], 2)
        q, k = l2_norm(qk).split([H, H], 2)
        g = weights.decay_rate * F.softplus(self.decay_up(decay) + self.dt_bias).view(B, T, H, K)
        if bounds is not None:
            g = g.masked_fill(bounds[..., None, None], float("-inf"))
        o, memory = kda.chunked(q, k, v, g, beta.sigmoid(), state.memory)
        if self.gate_up is not None:
            gate = self.gate_up(gate)
        o = rms_norm(o, self.out_norm, _OUTPUT_EPS).reshape(B, T, H * K)
        return self.out(o * gate.sigmoid()), MixerState(memory, tail)


def _own_document(tail: Tensor, age: Tensor) -> Tensor:
    """Zero earlier documents' inputs in a tail ``[B, width - 1, D]``; ``age`` ``[B]`` is that of the last byte."""
    lag = torch.arange(tail.shape[1] - 1, -1, -1, device=tail.device)
    return tail * (age.unsqueeze(1) >= lag).unsqueeze(-1)
