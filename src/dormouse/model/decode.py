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

from dormouse.model.controller import N_GATES, Controller
from dormouse.model.decode_kda import KdaStep
from dormouse.model.decode_memory import Found, MemoryStep
from dormouse.model.engram import Engram
from dormouse.model.experts import RoutedExperts
from dormouse.model.kda import KdaMixer
from dormouse.model.lm import Dormouse
from dormouse.model.loop import LoopBlock
from dormouse.model.records import LoopState, MixerState


def fits(model: nn.Module) -> TypeGuard[Dormouse]:
    """Whether `ByteStep` knows every part of the model: KDA or no mixer, masters and activations in full precision."""
    return (
        type(model) is Dormouse
        and type(model.loop) is LoopBlock
        and type(model.loop.mixer) in (KdaMixer, type(None))
        and type(model.loop.engram) in (Engram, type(None))
        and type(model.loop.experts) is RoutedExperts
        and model.loop.act_quant == "none"
        and model.loop.controller.eps in (None, model.loop.norm.eps)
        and all(p.dtype in (torch.float32, torch.float64) for p in model.parameters())
    )


@dataclass(frozen=True)
class _Shared:
    """What all passes over one byte share."""

    control_h0: list[Tensor]  # [B, 3 + C] a pass, the controller's half that reads h0, and its bias
    taps: Tensor | None  # [B, width, 3 H K], zero where the convolution would reach into another document
    found: Found | None  # n-gram memory


class ByteStep:
    """Advances a model by one byte per row; weights are prepared once."""

    @torch.inference_mode()
    def __init__(self, model: Dormouse) -> None:
        """Prepare the weights of a model that `fits`."""
        loop, controller = model.loop, model.loop.controller
        self.embedding, self.read_out = model.embedding.weight, model.read_out
        self.d = self.embedding.shape[1]
        self.control = _by_pass(controller, loop.n_passes, self.d)
        self.control_normed, self.gate_scale = controller.eps is not None, controller.gate_scale
        self.eps, self.norm, self.rho = loop.norm.eps, loop.norm.weight, loop.rho
        self.expert_norm = None if loop.expert_norm is None else loop.expert_norm.weight
        self.iter_embed = loop.iter_embed.unbind(0)[: loop.n_passes]
        self.mixer = None if loop.mixer is None else KdaStep(cast(KdaMixer, loop.mixer))
        self.memory = None if loop.engram is None else MemoryStep(loop.engram)
        self.experts = _ExpertStep(loop.experts)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, state: LoopState) -> tuple[Tensor, LoopState]:
        """Read bytes ids int64 [B]; returns fp32 logits [B, 256] for the next one and the new state."""
        h0 = F.embedding(ids, self.embedding)
        window = torch.cat([state.history, ids[:, None]], 1)
        shared = self._share(h0, window, state.age)
        h, total, mixers = h0, torch.zeros_like(h0), []
        for i in range(len(self.iter_embed)):
            h, mixer = self._pass(i, h, shared, state.passes[i])
            total += h
            mixers.append(mixer)
        carried = LoopState((*mixers, *state.passes[len(mixers) :]), window[:, 1:], state.age + 1, state.position + 1)
        return self.read_out(total / len(mixers)), carried

    def _share(self, h0: Tensor, window: Tensor, age: Tensor) -> _Shared:
        unit = self._unit(h0, _mean_square(h0))
        return _Shared(
            control_h0=self._control_h0(self._control(h0, unit)),
            taps=None if self.mixer is None else self.mixer.taps_within(age),
            found=None if self.memory is None else self.memory.look_up(window, age),
        )

    def _pass(self, i: int, h: Tensor, shared: _Shared, state: MixerState) -> tuple[Tensor, MixerState]:
        """One pass through the block; `LoopBlock._pass` at one position."""
        c = h + self.iter_embed[i]
        power = _mean_square(c)
        unit = self._unit(c, power)
        control = F.linear(self._control(c, unit), self.control[i][0]) + shared.control_h0[i]
        w_attn, w_mem, w_ffn = control[:, :N_GATES].sigmoid().split(1, -1)
        w_attn, w_ffn = w_attn * self.gate_scale, w_ffn * self.gate_scale
        y = None
        if self.memory is not None and shared.found is not None:
            y = self.memory(shared.found, c, power, unit * self.norm, w_mem)
            c, unit, y = self._next(c, unit, y)
        if self.mixer is not None:
            mixed, state = self.mixer(unit * self.norm, state, shared.taps)
            c, unit, mixed = self._next(c, unit, mixed * w_attn)
            y = mixed if y is None or mixed is None else y + mixed
        if self.expert_norm is not None:
            control = F.linear(self._control(c, unit), self.control[i][0]) + shared.control_h0[i]
        x = unit * (self.norm if self.expert_norm is None else self.expert_norm)
        ffn = self.experts(x, control[:, N_GATES:], i) * w_ffn
        return torch.addcmul(c, ffn if y is None else y + ffn, self.rho), state

    def _next(self, c: Tensor, unit: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the next branch reads: in the sequential layout the context with y added, and nothing is left to add."""
        if self.expert_norm is None:
            return c, unit, y
        c = torch.addcmul(c, y, self.rho)
        return c, self._unit(c, _mean_square(c)), None

    def _control_h0(self, h0: Tensor) -> list[Tensor]:
        """The controller on its half that all passes share; computed once where they share the weights too."""
        if self.control[0] is self.control[-1]:
            _, weight, bias = self.control[0]
            return [F.linear(h0, weight, bias)] * len(self.control)
        return [F.linear(h0, weight, bias) for _, weight, bias in self.control]

    def _unit(self, c: Tensor, power: Tensor) -> Tensor:
        """c [B, d] over its root mean square: RMSNorm before its weight."""
        return c * (power + self.eps).rsqrt()

    def _control(self, c: Tensor, unit: Tensor) -> Tensor:
        """What the controller reads of a context and its norm."""
        return unit if self.control_normed else c


class _ExpertStep:
    """The experts on few rows: one row runs its experts directly, more go through dispatch."""

    def __init__(self, experts: RoutedExperts) -> None:
        self.experts, self.factors = experts, experts.prepare()

    def __call__(self, x: Tensor, logits: Tensor, pass_index: int) -> Tensor:
        """x [B, d], router logits [B, C]; returns [B, d]."""
        experts, w = self.experts, self.factors.routed
        if len(x) > 1 or experts.router.top_k == 0 or experts.shared is not None or w is None:
            return experts(x, logits, factors=self.factors, pass_index=pass_index)[0]
        routing = experts.router(logits, pass_index=pass_index)
        assert routing.ids is not None
        y = torch.zeros_like(x)
        for slot, e in enumerate(routing.ids[0].tolist()):
            if e >= experts.router.n_experts:  # a null expert
                continue
            hidden = F.silu((x @ w.U1[e]) @ w.V1[e].T)
            y += routing.gates[0, slot] * ((hidden @ w.U2[e]) @ w.V2[e].T)
        return y


def _by_pass(controller: Controller, n_passes: int, d: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The controller's halves for c and h0 [3 + C, d] and its bias, by pass; one object where all passes are alike."""
    alike = controller.pass_bias is None and controller.pass_columns is None
    folded = [controller.folded(i) for i in range(1 if alike else n_passes)]
    halves = [(weight[:, :d].contiguous(), weight[:, d:].contiguous(), bias) for weight, bias in folded]
    return halves * n_passes if alike else halves


def _mean_square(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True)
