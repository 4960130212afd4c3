"""Plain causal softmax attention with rotary positions: the control of KDA.

q, k, v and output are dense with bias; RoPE (base 10,000, half-split) acts on the whole head; scores are scaled by
``head_dim ** -0.5``. A byte attends to the bytes of its own document only, carried ones included. The carried state
is the rotated keys and the values of everything read so far, so it grows with the text, unlike KDA's.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.config.schema import ModelConfig
from dormouse.model.records import MixerState
from dormouse.model.roles import Role, declare

_ROPE_BASE = 10_000.0


class PlainAttention(nn.Module):
    """Multi-head causal attention."""

    mechanism = "plain_attention"

    def __init__(self, config: ModelConfig) -> None:
        """Create the mixer for ``config.n_heads`` heads of ``config.head_dim`` channels."""
        super().__init__()
        d, self.heads, self.head_dim = config.d_model, config.n_heads, config.head_dim
        inner = self.heads * self.head_dim
        self.q, self.k, self.v = (_biased(d, inner, Role.HEADS) for _ in range(3))
        self.out = _biased(inner, d, Role.MATRIX)

    def initial_state(self, batch_size: int) -> MixerState:
        """An empty cache for ``batch_size`` sequences."""
        empty = self.q.weight.new_zeros(batch_size, self.heads, 0, self.head_dim)
        return MixerState(keys=empty, values=empty)

    def prepare(self) -> None:
        """Nothing is shared between passes; present so that both mixers are used alike."""

    def forward(
        self, x: Tensor, weights: None, state: MixerState, age: Tensor, bounds: Tensor | None
    ) -> tuple[Tensor, MixerState]:
        """Mix along time; arguments and results as in `KdaMixer.forward`."""
        B, T, _ = x.shape
        assert state.keys is not None
        assert state.values is not None
        past = state.keys.shape[2]
        q, k, v = (p(x).view(B, T, self.heads, self.head_dim).transpose(1, 2) for p in (self.q, self.k, self.v))
        position = torch.arange(past, past + T, device=x.device)
        keys = torch.cat([state.keys, rotate(k, position)], 2)
        values = torch.cat([state.values, v], 2)
        if past == 0 and bounds is None:
            o = F.scaled_dot_product_attention(rotate(q, position), keys, values, is_causal=True)
        else:
            gap = position.unsqueeze(1) - torch.arange(past + T, device=x.device)
            allowed = (gap >= 0) & (gap <= age.unsqueeze(-1))
            o = F.scaled_dot_product_attention(rotate(q, position), keys, values, allowed.unsqueeze(1))
        return self.out(o.transpose(1, 2).reshape(B, T, -1)), MixerState(keys=keys, values=values)


def rotate(x: Tensor, position: Tensor) -> Tensor:
    """Rotary embedding (arXiv 2104.09864) of ``[..., T, D]`` at integer positions ``[T]``; fp32 at least."""
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    frequency = _ROPE_BASE ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    angle = position.unsqueeze(-1) * frequency
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _biased(d_in: int, d_out: int, role: Role) -> nn.Linear:
    layer = nn.Linear(d_in, d_out)
    nn.init.normal_(layer.weight, std=d_in**-0.5)
    nn.init.zeros_(layer.bias)
    declare(layer, weight=role, bias=Role.VECTOR)
    return layer
