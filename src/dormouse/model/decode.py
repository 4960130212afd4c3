"""One byte at a time: the forward pass of the model for a single position, without what a window needs.

`Dormouse.forward` is written for windows. At one position its cost is not arithmetic but the number of calls,
and part of the arithmetic is repeated for every byte: concatenating the projections, folding the singular
values, sorting tokens by expert. `ByteStep` does the weight-only part once, drops the time axis (all tensors
are `[B, d]`), lets all passes share the half of the controller that reads h0, and writes no gradient records.
It returns the same logits and the same `LoopState` as the model up to rounding, so both can take turns on one
text; the model is the reference.

The snapshot is of the weights at construction: make a new one after changing them. `fits` says whether a
model is made of the parts that are known here; for any other the caller steps with the model itself.
"""

from dataclasses import dataclass
from typing import TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.model.controller import N_GATES
from dormouse.model.dense_experts import DenseExperts
from dormouse.model.engram import _EPS as QUERY_EPS
from dormouse.model.engram import Engram
from dormouse.model.experts import TsctExperts
from dormouse.model.kda import _OUTPUT_EPS as HEAD_EPS
from dormouse.model.kda import KdaMixer
from dormouse.model.lm import Dormouse
from dormouse.model.loop import LoopBlock
from dormouse.model.records import LoopState, MixerState

_UNIT_EPS = 1e-6  # the default of `ops.norm.l2_norm`


def fits(model: nn.Module) -> TypeGuard[Dormouse]:
    """Whether `ByteStep` knows every part of the model: KDA or no mixer, full-precision weights."""
    return (
        type(model) is Dormouse
        and type(model.loop) is LoopBlock
        and type(model.loop.mixer) in (KdaMixer, type(None))
        and type(model.loop.engram) in (Engram, type(None))
        and type(model.loop.experts) in (TsctExperts, DenseExperts)
        and model.loop.controller.eps in (None, model.loop.norm.eps)
        and all(p.dtype in (torch.float32, torch.float64) for p in model.parameters())
    )


@dataclass(frozen=True)
class _Shared:
    """What all passes over one byte share."""

    control_h0: Tensor  # [B, 3 + E], the controller's half that reads h0
    taps: Tensor | None  # [B, width, 3 H K], zero where the convolution would reach into another document
    key: Tensor | None  # [B, d], n-gram key
    value: Tensor | None  # [B, d], n-gram value


class ByteStep:
    """Advances a model by one byte per row; weights are prepared once."""

    @torch.inference_mode()
    def __init__(self, model: Dormouse) -> None:
        """Prepare the weights of a model that `fits`."""
        loop, controller = model.loop, model.loop.controller
        self.embedding, self.read_out = model.embedding.weight, model.read_out
        self.d = self.embedding.shape[1]
        used = controller.weight[: N_GATES + controller.n_experts]
        self.control_c, self.control_h0 = used[:, : self.d].contiguous(), used[:, self.d :].contiguous()
        self.control_normed, self.gate_scale = controller.eps is not None, controller.gate_scale
        self.eps, self.norm, self.rho = loop.norm.eps, loop.norm.weight, loop.rho
        self.expert_norm = None if loop.expert_norm is None else loop.expert_norm.weight
        self.iter_embed = loop.iter_embed.unbind(0)
        self.mixer = None if loop.mixer is None else _KdaStep(cast(KdaMixer, loop.mixer))
        self.engram = loop.engram
        self.dense_half = None if loop.engram is None else loop.engram.dense_half
        self.experts = _ExpertStep(loop.experts)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, state: LoopState) -> tuple[Tensor, LoopState]:
        """Read bytes ids int64 [B]; returns fp32 logits [B, 256] for the next one and the new state."""
        h0 = F.embedding(ids, self.embedding)
        shared = self._share(ids, h0, state)
        h, total, mixers = h0, torch.zeros_like(h0), []
        for i, mixer in enumerate(state.passes):
            h, mixer = self._pass(i, h, shared, mixer)
            total += h
            mixers.append(mixer)
        history = torch.cat([state.history, ids[:, None]], 1)[:, 1:]
        carried = LoopState(tuple(mixers), history, state.age + 1, state.position + 1)
        return self.read_out(total / len(mixers)), carried

    def _share(self, ids: Tensor, h0: Tensor, state: LoopState) -> _Shared:
        key, value = None, None
        if self.engram is not None:
            memory = self.engram.look_up(ids[:, None], state.history, state.age[:, None])
            key, value = memory.key[:, 0], memory.value[:, 0]
        return _Shared(
            control_h0=F.linear(self._control(h0, self._unit(h0, _mean_square(h0))), self.control_h0),
            taps=None if self.mixer is None else self.mixer.taps_within(state.age),
            key=key,
            value=value,
        )

    def _pass(self, i: int, h: Tensor, shared: _Shared, state: MixerState) -> tuple[Tensor, MixerState]:
        """One pass through the block; `LoopBlock._pass` at one position."""
        c = h + self.iter_embed[i]
        power = _mean_square(c)
        unit = self._unit(c, power)
        x = unit * self.norm
        control = F.linear(self._control(c, unit), self.control_c) + shared.control_h0
        w_attn, w_mem, w_ffn = control[:, :N_GATES].sigmoid().split(1, -1)
        y = None
        if self.mixer is not None:
            y, state = self.mixer(x, state, shared.taps)
            y = y * (w_attn * self.gate_scale)
        if self.engram is not None:
            read = self._read_memory(self.engram, c, power, x, w_mem, shared)
            y = read if y is None else y + read
        if self.expert_norm is not None:
            c = c if y is None else torch.addcmul(c, y, self.rho)
            unit, y = self._unit(c, _mean_square(c)), None
            x = unit * self.expert_norm
            control = F.linear(self._control(c, unit), self.control_c) + shared.control_h0
        ffn = self.experts(x, control[:, N_GATES:]) * (w_ffn * self.gate_scale)
        return torch.addcmul(c, ffn if y is None else y + ffn, self.rho), state

    def _unit(self, c: Tensor, power: Tensor) -> Tensor:
        """c [B, d] over its root mean square: RMSNorm before its weight."""
        return c * (power + self.eps).rsqrt()

    def _control(self, c: Tensor, unit: Tensor) -> Tensor:
        """What the controller reads of a context and its norm."""
        return unit if self.control_normed else c

    def _read_memory(
        self, engram: Engram, c: Tensor, power: Tensor, x: Tensor, w_mem: Tensor, shared: _Shared
    ) -> Tensor:
        """`Engram.forward` at one position."""
        assert shared.key is not None
        assert shared.value is not None
        agreement = (shared.key * c).sum(-1, keepdim=True) * (power + QUERY_EPS).rsqrt() * self.d**-0.5
        gate = (agreement.sign() * agreement.abs().clamp(min=1e-6).sqrt()).sigmoid()
        lam = w_mem.clamp(max=engram.lam_max)
        read = (lam * gate) * shared.value
        return read if self.dense_half is None else read + (1 - lam) * self.dense_half(x)


class _KdaStep:
    """`KdaMixer` at one position: the recurrence, with both reads of the state in one product."""

    def __init__(self, mixer: KdaMixer) -> None:
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
        """x [B, d] to [B, d], with the state after it."""
        B, H, K = len(x), self.heads, self.head_dim
        qkv, decay, beta, gate = F.linear(x, self.w_in).split(self.widths, -1)
        tail = None
        if taps is not None and state.conv_tail is not None:
            window = torch.cat([state.conv_tail, qkv[:, None]], 1)
            qkv, tail = (window * taps).sum(1), window[:, 1:]
        heads = F.silu(qkv).view(B, 3, H, K)
        qk, v = heads[:, :2], heads[:, 2]
        qk = qk * (qk.square().sum(-1, keepdim=True) + _UNIT_EPS).rsqrt()
        g = self.decay_rate * F.softplus(F.linear(decay, self.decay_up) + self.dt_bias).view(B, H, K)
        assert state.memory is not None
        o, memory = _delta_step(qk, v, g.exp(), beta.sigmoid(), state.memory)
        o = o * (_mean_square(o) + HEAD_EPS).rsqrt() * self.out_norm
        gate = gate if self.gate_up is None else F.linear(gate, self.gate_up)
        return F.linear(o.reshape(B, H * K) * gate.sigmoid(), self.out), MixerState(memory, tail)


def _delta_step(qk: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token of the gated delta rule.

    qk [B, 2, H, K] unit queries and keys, v [B, H, V], decay [B, H, K] as a factor, beta [B, H],
    state [B, H, K, V]. Reading after the write is reading before it plus (q . k) times the error.
    Returns [B, H, V] and the new state.
    """
    S = state * decay.unsqueeze(-1)
    reads = qk.transpose(1, 2) @ S
    k = qk[:, 1]
    error = beta.unsqueeze(-1) * (v - reads[:, :, 1])
    overlap = (qk[:, 0] * k).sum(-1, keepdim=True)
    o = torch.addcmul(reads[:, :, 0], overlap, error) * qk.shape[-1] ** -0.5
    return o, S.addcmul_(k.unsqueeze(-1), error.unsqueeze(-2))


class _ExpertStep:
    """The expert bank on few rows: one row runs its experts directly, more go through the bank's dispatch."""

    def __init__(self, bank: TsctExperts | DenseExperts) -> None:
        self.bank, self.factors = bank, bank.prepare()

    def __call__(self, x: Tensor, logits: Tensor) -> Tensor:
        """x [B, d], router logits [B, E]; returns [B, d]."""
        bank, w = self.bank, self.factors
        if len(x) > 1 or bank.router.top_k == 0 or w is None:
            return bank(x, logits, factors=w)[0]
        routing = bank.router(logits)
        assert routing.ids is not None
        y = torch.zeros_like(x)
        for slot, e in enumerate(routing.ids[0].tolist()):
            hidden = F.silu((x @ w.U1[e]) @ w.V1[e].T)
            y += routing.gates[0, slot] * ((hidden @ w.U2[e]) @ w.V2[e].T)
        return y


def _mean_square(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True)
