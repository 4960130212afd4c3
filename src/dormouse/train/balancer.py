"""Keeps the selection bias of a model's router: one change an optimiser step, from everything that the step routed.

The statistics of all micro-batches are pooled before anything is decided: a bias that followed each micro-batch would
change four times as fast with four of them. With `balance_per_pass` every pass of the loop has its own statistics and
its own bias. A step that was skipped changes nothing. The bias is a buffer of the router and thus part of every
checkpoint; between two steps the balancer itself holds nothing.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dormouse.model.records import RoutingRecord
from dormouse.model.router import Router
from dormouse.ops.balance import loss_free_bias, quantile_bias

if TYPE_CHECKING:
    from dormouse.config.model_schema import ModelConfig

DEFAULT_RATES = {"loss_free": 1e-3, "quantile": 0.5}


class Balancer:
    """`observe` after every forward, then `update` or `discard` once a step."""

    def __init__(self, router: Router, *, rule: str, rate: float | None = None) -> None:
        """`rule` is loss_free or quantile; without a `rate` the rule's own in `DEFAULT_RATES` is taken."""
        self.router, self.rule, self.rate = router, rule, DEFAULT_RATES[rule] if rate is None else rate
        self._seen: list[Tensor] = []  # a micro-batch each: counts [S, C] or scores [S, T, C], S bias sets

    @classmethod
    def from_model(cls, model: nn.Module, config: "ModelConfig") -> "Balancer | None":
        """The balancer that a configuration asks for."""
        if config.selection_bias == "none":
            return None
        routers = [module for module in model.modules() if isinstance(module, Router)]
        (router,) = routers
        return cls(router, rule=config.selection_bias, rate=config.selection_bias_rate)

    @torch.no_grad()
    def observe(self, record: RoutingRecord | None) -> None:
        """Take note of one micro-batch."""
        if record is None or record.ids is None or record.logits is None:
            return
        bias = self._bias()
        passes = len(record.probs)
        if self.rule == "quantile":
            scores = self.router.scores(record.logits.detach()).view(passes, -1, bias.shape[-1])
            self._seen.append(scores if len(bias) > 1 else scores.flatten(0, 1)[None])
        else:
            ids = record.ids.view(passes, -1)
            counts = bias.new_zeros(passes, bias.shape[-1]).scatter_add_(1, ids, torch.ones_like(ids, dtype=bias.dtype))
            self._seen.append(counts if len(bias) > 1 else counts.sum(0, keepdim=True))

    @torch.no_grad()
    def update(self) -> bool:
        """Move the bias once by all that was observed since the last time; whether there was anything."""
        if not self._seen:
            return False
        bias = self._bias()
        if self.rule == "quantile":
            pooled = torch.cat(self._seen, 1)
            moved = [
                quantile_bias(b, scores, self.router.top_k, rate=self.rate)
                for b, scores in zip(bias, pooled, strict=False)
            ]
        else:
            pooled = torch.stack(self._seen).sum(0)
            moved = [loss_free_bias(b, counts, rate=self.rate) for b, counts in zip(bias, pooled, strict=False)]
        bias[: len(moved)] = torch.stack(moved)  # fewer than all while a curriculum runs fewer passes
        self.discard()
        return True

    def discard(self) -> None:
        """Forget what was observed."""
        self._seen = []

    def _bias(self) -> Tensor:
        bias = self.router.selection_bias
        if bias is None:
            raise ValueError("the router has no selection bias: create it with bias_sets = 1, or one a pass")
        return bias
