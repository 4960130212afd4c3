"""One optimiser step: forward and backward over a window of micro-batches, clip, firewall, update, retract.

The loss of a window is the sum of cross-entropies over all its micro-batches divided by the number of scored
bytes of all of them, so a byte weighs the same in whichever micro-batch it stands (a mean of means would
favour short ones). Auxiliary terms are means over positions; each micro-batch's term is weighted by its share
of the window's positions, so splitting a batch leaves their gradient as it was. `ce` and `aux` stay apart in
everything that is logged.

A window without a scored byte has loss 0 and gradient 0, and changes nothing at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from dormouse.data.batch import Batch
from dormouse.model.factor_format import formatted_layers
from dormouse.model.records import LoopOutput
from dormouse.ops.balance import switch_term, z_loss
from dormouse.ops.retraction import RetractionErrors
from dormouse.train.firewall import clip, global_norm, is_finite
from dormouse.train.future import counted, future_loss
from dormouse.train.state import TrainState

if TYPE_CHECKING:
    from dormouse.config.schema import RunConfig

_IGNORED = -100


@dataclass(frozen=True)
class StepSettings:
    """What a step reads of the configuration, and the two places where it calls back."""

    grad_clip: float
    moe_lb_coef: float = 0.0
    moe_z_coef: float = 0.0
    balance_per_pass: bool = False
    deep_supervision: float = 0.0
    aux_fb_weight: float = 0.0
    aux_fb_horizon: int = 2
    retract_every: int = 0
    retract_when: float = 0.0
    factor_lr: float = 0.0
    """Peak learning rate of the spectral factors."""
    retract: Callable[[nn.Module], RetractionErrors] = lambda model: RetractionErrors(None, None)
    """Makes the model's spectral factors orthonormal again and says how far off they were."""
    gradient_hook: Callable[[int, nn.Module], None] | None = None
    """Called with (step, model) between backward and clipping; tests change gradients there."""

    @classmethod
    def from_config(cls, config: "RunConfig", retract: Callable[[nn.Module], RetractionErrors]) -> "StepSettings":
        """The settings of a run."""
        return cls(
            grad_clip=config.train.grad_clip,
            moe_lb_coef=config.model.moe_lb_coef,
            moe_z_coef=config.model.moe_z_coef,
            balance_per_pass=config.model.balance_per_pass,
            deep_supervision=config.model.deep_supervision,
            aux_fb_weight=config.model.aux_fb_weight,
            aux_fb_horizon=config.model.aux_fb_horizon,
            retract_every=config.train.retract_every,
            retract_when=config.train.retract_when,
            factor_lr=config.train.muon_lr if config.train.optimizer == "muon" else config.train.lr,
            retract=retract,
        )


@dataclass(frozen=True)
class StepResult:
    """What one step did; the tensors are detached scalars on the device."""

    nats: Tensor
    """Sum of cross-entropies over the scored bytes."""
    aux: Tensor
    """Auxiliary terms, coefficient included."""
    scored: int
    """Bytes whose prediction counted."""
    grad_norm: Tensor
    """Global norm before clipping, as it is."""
    skipped: bool
    """True when loss or norm was not finite, so that nothing was changed."""

    @property
    def ce(self) -> Tensor:
        """Nats per scored byte; 0 when there is none."""
        return self.nats / max(self.scored, 1)

    @property
    def total(self) -> Tensor:
        """The number that was differentiated."""
        return self.ce + self.aux


def train_step(state: TrainState, batches: Sequence[Batch], *, lr_scale: float, settings: StepSettings) -> StepResult:
    """Train on one window of micro-batches (any number of them, of any sizes) and count it in `state`."""
    step = state.progress.step
    state.optimizer.zero_grad()
    used = state.tally.use()
    nats, aux, scored = forward_backward(state, batches, settings)
    if settings.gradient_hook is not None:
        settings.gradient_hook(step, state.model)
    gradients = _gradients(state.model)
    norm = global_norm(gradients).to(state.device)
    finite = is_finite(nats, aux, norm)
    skipped = not state.firewall.admit(finite)
    if scored and not skipped:
        clip(gradients, norm, settings.grad_clip)
        state.optimizer.step(lr_scale)
        if state.balancer is not None and state.balancer.update():
            state.counters.count("selection_bias")
        _retract_if_due(state, lr_scale * settings.factor_lr, settings)
    if skipped:
        state.tally.put_back(used)
        if state.balancer is not None:
            state.balancer.discard()
    state.tally.add(nats=nats, aux=aux, scored=scored, norm=norm, finite=finite)
    state.progress.step += 1
    state.progress.trained_bytes += scored
    state.progress.empty_steps += scored == 0
    return StepResult(nats, aux, scored, norm, skipped)


def _retract_if_due(state: TrainState, factor_rate: float, settings: StepSettings) -> None:
    """Retract by the number of steps, or by the learning rate that the factors have moved at since the last time."""
    progress = state.progress
    progress.steps_since_retraction += 1
    progress.rate_since_retraction += factor_rate
    if settings.retract_when:
        due = progress.rate_since_retraction >= settings.retract_when
    else:
        due = 0 < settings.retract_every <= progress.steps_since_retraction
    if due:
        factors = [factor for layer in formatted_layers(state.model) for factor in layer.factors.values()]
        versions = [factor._version for factor in factors]  # of its memory: rises with every write in place
        before = settings.retract(state.model).largest_before
        if before is not None:
            state.tally.retracted(before)
        if versions != [factor._version for factor in factors]:
            state.counters.count("retraction")
        progress.steps_since_retraction, progress.rate_since_retraction = 0, 0.0


def forward_backward(state: TrainState, batches: Sequence[Batch], settings: StepSettings) -> tuple[Tensor, Tensor, int]:
    """Leave the window's gradient in the model; returns (sum of nats, auxiliary term, scored bytes)."""
    scored = sum(int(batch.mask.sum()) for batch in batches)
    positions = sum(batch.inputs.numel() for batch in batches)
    nats = torch.zeros((), device=state.device)
    aux = torch.zeros((), device=state.device)
    if scored == 0:
        return nats, aux, 0
    ahead = _future_bytes(batches, settings)
    for batch in batches:
        out = _forward(state, batch)
        part = _cross_entropy(out.logits, batch, state.device)
        share = batch.inputs.numel() / positions
        balance = state.counters.watch("balance", _balance(out, settings, state.device))
        balance = balance + state.counters.watch("router_z", _router_z(out, settings, state.device))
        deep = state.counters.watch("deep_supervision", _deep(out, batch, settings, state.device))
        future = state.counters.watch("future_byte", _future(out, batch, settings, state.device))
        extra = balance * share + deep / scored + future / ahead
        (part / scored + extra).backward()
        nats, aux = nats + part.detach(), aux + extra.detach()
        state.tally.route(out.routing)
        if state.balancer is not None:
            state.balancer.observe(out.routing)
    return nats, aux, scored


def _forward(state: TrainState, batch: Batch) -> LoopOutput:
    bounds = None if batch.bounds is None else batch.bounds.to(state.device, non_blocking=True)
    return state.model(batch.inputs.to(state.device, non_blocking=True), bounds=bounds)


def _cross_entropy(logits: Tensor, batch: Batch, device: torch.device) -> Tensor:
    """Sum of nats over the scored bytes of one micro-batch; 0 with zero gradient when there is none."""
    targets = batch.targets.masked_fill(~batch.mask, _IGNORED).to(device, non_blocking=True)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=_IGNORED, reduction="sum")


def _balance(out: LoopOutput, settings: StepSettings, device: torch.device) -> Tensor:
    """Weighted balance term, a mean over all positions: context that is not scored loads the experts too."""
    routing = out.routing
    if settings.moe_lb_coef <= 0 or routing is None or routing.ids is None:
        return torch.zeros((), device=device)
    if not settings.balance_per_pass:
        return settings.moe_lb_coef * switch_term(routing.probs, routing.ids)
    terms = [switch_term(probs, ids) for probs, ids in zip(routing.probs, routing.ids, strict=True)]
    return settings.moe_lb_coef * torch.stack(terms).mean()


def _router_z(out: LoopOutput, settings: StepSettings, device: torch.device) -> Tensor:
    """Weighted z-loss of the router's logits, a mean over all positions."""
    if settings.moe_z_coef <= 0 or out.routing is None or out.routing.logits is None:
        return torch.zeros((), device=device)
    return settings.moe_z_coef * z_loss(out.routing.logits)


def _deep(out: LoopOutput, batch: Batch, settings: StepSettings, device: torch.device) -> Tensor:
    """Weighted mean over the passes of their summed cross-entropies, every pass through the one readout."""
    if settings.deep_supervision <= 0 or not out.pass_logits:
        return torch.zeros((), device=device)
    passes = [_cross_entropy(logits, batch, device) for logits in out.pass_logits]
    return settings.deep_supervision * torch.stack(passes).mean()


def _future_bytes(batches: Sequence[Batch], settings: StepSettings) -> int:
    """Positions of the window at which the future-byte head is trained, 1 at least."""
    if settings.aux_fb_weight <= 0:
        return 1
    return max(sum(int(counted(batch, settings.aux_fb_horizon).sum()) for batch in batches), 1)


def _future(out: LoopOutput, batch: Batch, settings: StepSettings, device: torch.device) -> Tensor:
    """Weighted sum of the future-byte head's cross-entropies."""
    if settings.aux_fb_weight <= 0 or out.future_logits is None:
        return torch.zeros((), device=device)
    return settings.aux_fb_weight * future_loss(out.future_logits, batch, settings.aux_fb_horizon)


def _gradients(model: nn.Module) -> list[Tensor]:
    """All gradients there are; sparse ones are coalesced in place."""
    found = []
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse and not gradient.is_coalesced():
            gradient = parameter.grad = gradient.coalesce()
        found.append(gradient)
    return found
