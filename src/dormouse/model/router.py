"""From router logits to gates: softmax over all experts, the k largest kept.

Kept gates are not renormalised by default (Switch, arXiv 2101.03961): at k = 1 a renormalised gate is the constant
1 and the router would get no gradient from the language-model loss. The softmax runs in fp32 at least,
whatever the activations' format.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dormouse.ops.precision import widened
from dormouse.ops.selection import select_top_k


@dataclass(frozen=True)
class Routing:
    """One routing decision for N tokens."""

    probs: Tensor  # [N, E] fp32 at least, before selection
    ids: Tensor | None  # [N, k] int64; absent for the dense blend
    gates: Tensor  # [N, k], or [N, E] for the dense blend

    def dense_gates(self) -> Tensor:
        """Gates of all experts ``[N, E]``, zero where not selected."""
        if self.ids is None:
            return self.gates
        return torch.zeros_like(self.probs).scatter(-1, self.ids, self.gates)


@dataclass(frozen=True)
class Router:
    """The rule that turns logits into gates.

    Raises:
        ValueError: ``top_k`` outside ``0 .. n_experts``, or ``renormalize`` at ``top_k = 1``.
    """

    n_experts: int
    top_k: int  # 0 blends all experts
    renormalize: bool = False
    gate_scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.top_k <= self.n_experts:
            raise ValueError(
                f"top_k = {self.top_k} with n_experts = {self.n_experts}: must lie between 0 (blend) and n_experts"
            )
        if self.renormalize and self.top_k == 1:
            raise ValueError("renormalize with top_k = 1 makes every gate 1: the router would get no gradient")

    def __call__(self, logits: Tensor) -> Routing:
        """Route logits ``[N, E]``."""
        probs = widened(logits)[0].softmax(-1)
        if self.top_k == 0:
            return Routing(probs, None, probs * self.gate_scale)
        gates, ids = select_top_k(probs, self.top_k)
        if self.renormalize:
            gates = gates / gates.sum(-1, keepdim=True)
        return Routing(probs, ids, gates * self.gate_scale)
