"""Kimi Delta Attention at one position: what `KdaMixer` does for one more byte per row.

The gated delta rule reads its state twice, for the error before the write and for the output after it. The
second read follows from the first: reading after the write is reading before it plus (q . k) times the error.
So query and key read together in one product, and the state is touched three times instead of five.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dormouse.model.kda import _OUTPUT_EPS as HEAD_EPS
from dormouse.model.kda import KdaMixer
from dormouse.model.records import MixerState

UNIT_EPS = 1e-6  # the default of `ops.norm.l2_norm`


class KdaStep:
    """One mixer's weights, prepared once, and its step."""

    def __init__(self, mixer: KdaMixer) -> None:
        """Concatenate the projections; call it without gradients."""
        weights = mixer.prepare()
        self.w_in, self.decay_rate = weights.w_in, weights.decay_rate
        self.decay_up, self.dt_bias = mixer.decay_up.weight, mixer.dt_bias
        self.gate_up = None if mixer.gate_up is None else mixer.gate_up.weight
        self.out, self.out_norm = mixer.out.weight, mixer.out_norm
        self.heads, self.head_dim = H, K = mixer.heads, mixer.head_dim
        self.widths = [3 * H * K, mixer.decay_down.out_features, H, mixer.gate.out_features]
        self.taps = None if mixer.conv is None else mixer.conv.flip(0)  # oldest first

    def taps_within(self, age: Tensor) -> Tensor | None:
        """Taps [B, width, 3 H K] that read nothing before the document; age int64 [B]."""
        if self.taps is None:
            return None
        lag = torch.arange(len(self.taps) - 1, -1, -1, device=age.device)
        return self.taps * (age[:, None] >= lag).to(self.taps.dtype)[..., None]

    def __call__(self, x: Tensor, state: MixerState, taps: Tensor | None) -> tuple[Tensor, MixerState]:
        """Mix normed input x [B, d] into [B, d]; `taps` is the result of `taps_within`.

        Also returns the state after this byte; the one that came in is left as it was.
        """
        B, H, K = len(x), self.heads, self.head_dim
        qkv, decay, beta, gate = F.linear(x, self.w_in).split(self.widths, -1)
        tail = None
        if taps is not None and state.conv_tail is not None:
            window = torch.cat([state.conv_tail, qkv[:, None]], 1)
            qkv, tail = (window * taps).sum(1), window[:, 1:]
        heads = F.silu(qkv).view(B, 3, H, K)
        qk, v = heads[:, :2], heads[:, 2]
        qk = qk * (qk.square().sum(-1, keepdim=True) + UNIT_EPS).rsqrt()
        g = self.decay_rate * F.softplus(F.linear(decay, self.decay_up) + self.dt_bias).view(B, H, K)
        assert state.memory is not None
        o, memory = _delta_step(qk, v, g.exp(), beta.sigmoid(), state.memory)
        o = o * (o.square().mean(-1, keepdim=True) + HEAD_EPS).rsqrt() * self.out_norm
        gate = gate if self.gate_up is None else F.linear(gate, self.gate_up)
        return F.linear(o.reshape(B, H * K) * gate.sigmoid(), self.out), MixerState(memory, tail)


def _delta_step(qk: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token of the gated delta rule.

    qk [B, 2, H, K] unit queries and keys, v [B, H, V], decay [B, H, K] as a factor, beta [B, H],
    state [B, H, K, V]. Returns [B, H, V] and the new state.
    """
    S = state * decay.unsqueeze(-1)
    reads = qk.transpose(1, 2) @ S
    k = qk[:, 1]
    error = beta.unsqueeze(-1) * (v - reads[:, :, 1])
    overlap = (qk[:, 0] * k).sum(-1, keepdim=True)
    o = torch.addcmul(reads[:, :, 0], overlap, error) * qk.shape[-1] ** -0.5
    return o, S.addcmul_(k.unsqueeze(-1), error.unsqueeze(-2))
