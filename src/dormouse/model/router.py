"""From router logits to gates: scores of all experts, the k largest kept.

A score is the softmax over all experts, or the sigmoid of the expert's own logit. Kept gates are not renormalised by
default (Switch, arXiv 2101.03961): at k = 1 a renormalised gate is the constant 1 and the router would get no gradient
from the language-model loss. Scores are computed in fp32 at least, whatever the activations' format.

Two things may change who is selected and never what a gate weighs: a *selection bias* that a balancing rule keeps
(loss-free balancing, arXiv 2408.15664; it is a buffer, so that checkpoints and evaluation have it), and noise while
training. The last columns may be *null experts*: they compete like the others and compute nothing.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dormouse.ops.precision import widened
from dormouse.ops.selection import select_top_k
from dormouse.ops.streamed_top_k import streamed_top_k

Score = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class Routing:
    """One routing decision for N tokens; C = E + null experts."""

    logits: Tensor  # [N, C] fp32 at least
    probs: Tensor  # [N, C] fp32 at least, scores that sum to 1, before selection
    ids: Tensor | None  # [N, k] int64, E and more for a null expert; absent for the dense blend
    gates: Tensor  # [N, k], or [N, E] for the dense blend
    selected: Tensor | None = None  # [N, k] scores of the selected columns, detached

    def dense_gates(self) -> Tensor:
        """Gates of all columns ``[N, C]``, zero where not selected."""
        if self.ids is None:
            return self.gates
        return torch.zeros_like(self.probs).scatter(-1, self.ids, self.gates)


class Router(nn.Module):
    """The rule that turns logits into gates. It has no weights; the logits come from outside."""

    selection_bias: Tensor | None

    def __init__(
        self,
        n_experts: int,
        top_k: int,
        renormalize: bool = False,
        gate_scale: float = 1.0,
        *,
        score: Score = "softmax",
        n_null: int = 0,
        noise: float = 0.0,
        bias_sets: int = 0,
    ) -> None:
        """Create the rule.

        Args:
            n_experts: E, experts that compute.
            top_k: experts a token; 0 blends all of them by the softmax.
            renormalize: divide the kept gates by their sum.
            gate_scale: constant on every gate.
            score: ``softmax`` over all columns, or ``sigmoid`` of each by itself.
            n_null: columns after the experts' that compute nothing.
            noise: standard deviation of normal noise on the logits that select, while training.
            bias_sets: selection biases: none, one for all passes, or one a pass. They start at zero.

        Raises:
            ValueError: ``top_k`` outside ``0 .. n_experts``, ``renormalize`` at ``top_k = 1``, or with ``top_k = 0``
                anything that has a meaning for selected experts alone.
        """
        super().__init__()
        if not 0 <= top_k <= n_experts:
            raise ValueError(f"top_k = {top_k} with n_experts = {n_experts}: must lie between 0 (blend) and n_experts")
        if renormalize and top_k == 1:
            raise ValueError("renormalize with top_k = 1 makes every gate 1: the router would get no gradient")
        if top_k == 0 and (score != "softmax" or n_null or noise or bias_sets):
            raise ValueError("top_k = 0 blends all experts by softmax: no sigmoid, null experts, noise or bias there")
        self.n_experts, self.top_k, self.renormalize, self.gate_scale = n_experts, top_k, renormalize, gate_scale
        self.score, self.n_null, self.noise = score, n_null, noise
        bias = torch.zeros(bias_sets, n_experts + n_null) if bias_sets else None
        self.register_buffer("selection_bias", bias)

    def forward(self, logits: Tensor, *, pass_index: int = 0) -> Routing:
        """Route logits ``[N, E + n_null]``; ``pass_index`` picks the selection bias."""
        logits = widened(logits)[0]
        scores = self.scores(logits)
        probs = scores if self.score == "softmax" else scores / scores.sum(-1, keepdim=True)
        if self.top_k == 0:
            return Routing(logits, probs, None, probs * self.gate_scale)
        kept, ids = select_top_k(scores, self.top_k, prefer=self._preference(logits, scores, pass_index))
        return Routing(logits, probs, ids, self._gates(kept), kept.detach())

    def streamed(
        self, hidden: Tensor, up: Tensor, bias: Tensor | None, *, pass_index: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Ids and gates ``[N, k]`` for logits ``hidden @ up^T + bias`` that are never held all at once; no gradient."""
        chosen = None if self.selection_bias is None else self._bias_of(self.selection_bias, pass_index)
        hidden, up = widened(hidden, up)
        kept, ids = streamed_top_k(hidden, up, self.top_k, bias=bias, score=self.score, selection_bias=chosen)
        return ids, self._gates(kept)

    def _gates(self, kept: Tensor) -> Tensor:
        """Scores of selected columns as weights."""
        return (kept / kept.sum(-1, keepdim=True) if self.renormalize else kept) * self.gate_scale

    @staticmethod
    def _bias_of(bias: Tensor, pass_index: int) -> Tensor:
        """The one of all passes, or the pass's own, ``[C]``."""
        return bias[min(pass_index, len(bias) - 1)]

    def scores(self, logits: Tensor) -> Tensor:
        """What gates are made of, ``[..., E + n_null]``."""
        return logits.softmax(-1) if self.score == "softmax" else logits.sigmoid()

    def _preference(self, logits: Tensor, scores: Tensor, pass_index: int) -> Tensor | None:
        """What the selection goes by where that is not the scores themselves."""
        noisy = self.noise > 0 and self.training
        if not noisy and self.selection_bias is None:
            return None
        with torch.no_grad():
            wanted = self.scores(logits + self.noise * torch.randn_like(logits)) if noisy else scores.detach()
            if self.selection_bias is None:
                return wanted
            return wanted + self._bias_of(self.selection_bias, pass_index)
