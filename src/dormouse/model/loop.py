"""The loop block: one set of weights, several passes over the same bytes.

Pass i reads ``c = h + e_i``. Attention mixes along time from a zero state of its own, memory reads the n-grams that
were looked up once, the experts work byte by byte, and ``h <- c + rho * (gated sum)`` with a learned scalar rho (1
at the start). In the *parallel* layout all branches read one normed input. In the *sequential* layout they follow each
other, memory, attention, experts, and each reads what those before it have added: already in the first pass attention
mixes n-grams instead of single bytes, and the router sees more than the current one.

With an activation format, attention and experts read rounded copies of their normed inputs (BitNet a4.8, arXiv
2411.04965), attention never below 8 bits; router, memory and residual stream read the numbers as they are.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dormouse.config.schema import ModelConfig
from dormouse.model.activation_format import ActivationFormat
from dormouse.model.attention import PlainAttention
from dormouse.model.bank import ExpertBank, Path
from dormouse.model.controller import Controller
from dormouse.model.dense_bank import DenseBank
from dormouse.model.engram import Engram, Memory
from dormouse.model.experts import RoutedExperts
from dormouse.model.kda import KdaMixer
from dormouse.model.norm import RMSNorm
from dormouse.model.records import LoopState, MixerState, document_age
from dormouse.model.roles import Role, declare
from dormouse.model.router import Router, Routing
from dormouse.quant import attention_format

Gates = tuple[Tensor, Tensor, Tensor]  # of attention, memory and experts, each [B, T, 1]


@dataclass(frozen=True)
class LoopResult:
    """Hidden states after every pass, the carried state and the routing of every pass."""

    hidden: list[Tensor]  # P tensors [B, T, d]
    state: LoopState
    routing: list[Routing | None]


@dataclass(frozen=True)
class _Context:
    """What all passes of one forward share."""

    h0: Tensor
    h0_controller: Tensor
    age: Tensor
    bounds: Tensor | None
    memory: Memory | None
    mixer_weights: object
    factors: object
    path: Path


class LoopBlock(nn.Module):
    """The weight-shared block and the loop over passes."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the parts that ``config`` switches on."""
        super().__init__()
        d, self.max_iter = config.d_model, config.max_iter
        self.n_passes = config.max_iter  # that run; a curriculum may start with fewer
        self.keeps_routing = True  # False lets a low-rank router of very many columns stream where there is no gradient
        self.norm = RMSNorm(d, config.norm_eps)
        self.expert_norm = RMSNorm(d, config.norm_eps) if config.layout == "sequential" else None
        self.iter_embed = nn.Parameter(torch.zeros(config.max_iter, d))
        self.rho = nn.Parameter(torch.ones(()))
        declare(self, iter_embed=Role.VECTOR, rho=Role.VECTOR)
        self.controller = Controller(config)
        self.act_quant = config.act_quant
        self.mixer_input = ActivationFormat(attention_format(config.act_quant), config.act_group)
        self.expert_input = ActivationFormat(config.act_quant, config.act_group)
        self.mixer = _mixer(config)
        self.engram = Engram(config) if config.use_engram else None
        self.experts = _experts(config)

    def initial_state(self, batch_size: int) -> LoopState:
        """The state before the first byte of a text."""
        device = self.rho.device
        reach = self.engram.reach if self.engram else 0
        mixer = MixerState() if self.mixer is None else self.mixer.initial_state(batch_size)
        return LoopState(
            passes=(mixer,) * self.max_iter,
            history=torch.zeros(batch_size, reach, dtype=torch.int64, device=device),
            age=torch.zeros(batch_size, dtype=torch.int64, device=device),
            position=0,
        )

    def forward(
        self, h0: Tensor, ids: Tensor, bounds: Tensor | None, state: LoopState, *, path: Path = "dispatch"
    ) -> LoopResult:
        """Run all passes over embedded bytes ``h0`` ``[B, T, d]``."""
        age = document_age(bounds, state.age, ids.shape[1])
        context = _Context(
            h0=h0,
            h0_controller=self.controller.normed(h0),
            age=age,
            bounds=bounds,
            memory=None if self.engram is None else self.engram.look_up(ids, state.history, age),
            mixer_weights=None if self.mixer is None else self.mixer.prepare(),
            factors=self.experts.prepare(),
            path=path,
        )
        h, hidden, routing, mixers = h0, [], [], []
        for i in range(self.n_passes):
            h, mixer, routed = self._pass(i, h, context, state.passes[i])
            hidden.append(h)
            mixers.append(mixer)
            routing.append(routed)
        history = torch.cat([state.history, ids], 1)[:, ids.shape[1] :]
        mixers += state.passes[self.n_passes :]
        carried = LoopState(tuple(mixers), history, age[:, -1] + 1, state.position + ids.shape[1])
        return LoopResult(hidden, carried, routing)

    def _pass(self, i: int, h: Tensor, ctx: _Context, state: MixerState) -> tuple[Tensor, MixerState, Routing | None]:
        c = h + self.iter_embed[i]
        control = self.controller.normed(c)
        gates = self.controller.gates(control, ctx.h0_controller)
        if self.expert_norm is None:
            return self._side_by_side(i, c, control, gates, ctx, state)
        return self._in_turn(i, c, self.expert_norm, gates, ctx, state)

    def _side_by_side(
        self, i: int, c: Tensor, control: Tensor, gates: Gates, ctx: _Context, state: MixerState
    ) -> tuple[Tensor, MixerState, Routing | None]:
        """Parallel layout: all branches read one normed input and are added together."""
        x = self.norm(c)
        y, state = self._mix(x, gates[0], ctx, state)
        if self.engram is not None and ctx.memory is not None:
            read = self.engram(ctx.memory, c, x, gates[1])
            y = read if y is None else y + read
        ffn, routing = self._route(i, x, control, ctx)
        ffn = gates[2] * ffn
        return c + self.rho * (ffn if y is None else y + ffn), state, routing

    def _in_turn(
        self, i: int, c: Tensor, expert_norm: RMSNorm, gates: Gates, ctx: _Context, state: MixerState
    ) -> tuple[Tensor, MixerState, Routing | None]:
        """Sequential layout: memory, attention, experts; each reads the context with those before it added."""
        if self.engram is not None and ctx.memory is not None:
            x = c if self.engram.dense_half is None else self.norm(c)  # only the dense half reads it
            c = c + self.rho * self.engram(ctx.memory, c, x, gates[1])
        y, state = self._mix(self.norm(c), gates[0], ctx, state)
        if y is not None:
            c = c + self.rho * y
        ffn, routing = self._route(i, expert_norm(c), self.controller.normed(c), ctx)
        return c + self.rho * (gates[2] * ffn), state, routing

    def _route(self, i: int, x: Tensor, control: Tensor, ctx: _Context) -> tuple[Tensor, Routing | None]:
        rows = self.expert_input(x).flatten(0, 1)
        how: Any = {"path": ctx.path, "factors": ctx.factors}
        if not self.keeps_routing and self.controller.streams and not torch.is_grad_enabled():
            hidden, up, bias = self.controller.low_rank(control, ctx.h0_controller, pass_index=i)
            ids, gates = self.experts.router.streamed(hidden.flatten(0, 1), up, bias, pass_index=i)
            return self.experts.compute(rows, ids, gates, **how).view_as(x), None
        logits = self.controller.router_logits(control, ctx.h0_controller, pass_index=i)
        flat, routing = self.experts(rows, logits.flatten(0, 1), pass_index=i, **how)
        return flat.view_as(x), routing

    def _mix(self, x: Tensor, w_attn: Tensor, ctx: _Context, state: MixerState) -> tuple[Tensor | None, MixerState]:
        if self.mixer is None:
            return None, state
        y, state = self.mixer(self.mixer_input(x), ctx.mixer_weights, state, ctx.age, ctx.bounds)
        return w_attn * y, state


def _mixer(config: ModelConfig) -> KdaMixer | PlainAttention | None:
    if config.use_plain_attn:
        return PlainAttention(config)
    return KdaMixer(config) if config.use_kda else None


def _experts(config: ModelConfig) -> RoutedExperts:
    shape = {"d_model": config.d_model, "d_ffn": config.d_ffn}

    def bank(n_experts: int) -> ExpertBank | DenseBank:
        if not (config.use_tsct and "experts" in config.tsct_parts):
            return DenseBank(n_experts=n_experts, **shape)
        formats = {"weight_format": config.quant, "format_group": config.quant_group}
        return ExpertBank(n_experts=n_experts, rank=config.rank, **shape, **formats)

    shared = config.n_shared_experts
    return RoutedExperts(_router(config), bank(config.n_experts), bank(shared) if shared else None)


def _router(config: ModelConfig) -> Router:
    balanced = config.selection_bias != "none"
    return Router(
        config.n_experts,
        config.moe_topk,
        config.moe_renormalize,
        _gate_scale(config),
        score=config.router_score,
        n_null=config.n_null_experts,
        noise=config.router_noise,
        bias_sets=(config.max_iter if config.balance_per_pass else 1) if balanced else 0,
    )


def _gate_scale(config: ModelConfig) -> float:
    """The factor on every gate: ``unit`` is one over a gate at equal logits of zero."""
    if config.moe_gate_scale == "unit" and config.router_score == "sigmoid":
        return 2.0
    if config.moe_gate_scale == "unit":
        return float(config.n_experts + config.n_null_experts)
    return float(config.n_experts) if config.moe_gate_scale == "n_experts" else 1.0
