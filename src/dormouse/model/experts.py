"""Routed experts: a router in front of a bank. Capacity without compute.

Only selected experts run (``path="dispatch"``); ``loop`` does the same expert by expert, ``masked`` computes all of
them and multiplies by zero: the references. ``top_k = 0`` is the dense blend of all experts with the same parameters.
Beside the selected ones *shared experts* of the same shape may always run, with a gate of 1.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dormouse.model.bank import ExpertBank, Factors, Path
from dormouse.model.dense_bank import DenseBank
from dormouse.model.factor_format import DEFAULT_GROUP
from dormouse.model.router import Router, Routing
from dormouse.model.spectral import Rank

Bank = ExpertBank | DenseBank


class Prepared(NamedTuple):
    """What both banks made of their weights, to be used in every pass; None where there is nothing to make."""

    routed: Factors | None
    shared: Factors | None = None


class RoutedExperts(nn.Module):
    """Routed experts on ``[N, d]`` rows; the router's logits come from outside."""

    def __init__(self, router: Router, bank: Bank, shared: Bank | None = None) -> None:
        """Put them together; ``shared`` is a bank whose experts all run for every row."""
        super().__init__()
        self.router, self.bank, self.shared = router, bank, shared
        self.mechanism = "dense_experts" if isinstance(bank, DenseBank) else "experts"
        if shared is not None:
            shared.mechanism = "shared_experts"  # pyrefly: ignore[bad-argument-type]

    def prepare(self) -> Prepared:
        """The banks' effective factors, to share them between calls."""
        return Prepared(self.bank.prepare(), None if self.shared is None else self.shared.prepare())

    def forward(
        self,
        x: Tensor,
        logits: Tensor,
        *,
        path: Path = "dispatch",
        factors: Prepared | None = None,
        pass_index: int = 0,
    ) -> tuple[Tensor, Routing]:
        """Route and compute.

        Args:
            x: ``[N, d]``.
            logits: router logits ``[N, E]``, those of null experts last.
            path: ``dispatch`` runs selected experts only; ``loop`` and ``masked`` are slower references.
            factors: result of `prepare`, to share it between calls.
            pass_index: which pass of a loop this is; read by a router with a selection bias a pass.

        Returns:
            ``[N, d]`` and the routing.
        """
        routing = self.router(logits, pass_index=pass_index)
        return self.compute(x, routing.ids, routing.gates, path=path, factors=factors), routing

    def compute(
        self,
        x: Tensor,
        ids: Tensor | None,
        gates: Tensor,
        *,
        path: Path = "dispatch",
        factors: Prepared | None = None,
    ) -> Tensor:
        """What the experts ``ids [N, k]`` (None: all of them), weighed by ``gates``, make of ``x``: ``[N, d]``."""
        w: Any = factors or self.prepare()
        if ids is None:
            y = self.bank.blend(x, gates, factors=w.routed)
        else:
            y = self.bank(x, ids, gates, path=path, factors=w.routed)
        if self.shared is None:
            return y
        every = torch.arange(self.shared.n_experts, device=x.device).expand(len(x), -1)
        return y + self.shared(x, every, torch.ones_like(every, dtype=x.dtype), path=path, factors=w.shared)


class TsctExperts(RoutedExperts):
    """Routed spectral experts, made in one call."""

    mechanism = "experts"

    def __init__(
        self,
        *,
        d_model: int,
        d_ffn: int,
        n_experts: int,
        rank: Rank,
        top_k: int,
        n_shared: int = 0,
        renormalize: bool = False,
        gate_scale: float = 1.0,
        weight_format: str = "fp32",
        format_group: int = DEFAULT_GROUP,
        **router_options: Any,
    ) -> None:
        """Create router and banks.

        Args:
            d_model: input and output width d.
            d_ffn: hidden width f.
            n_experts: E.
            rank: rank r of every factor; ``full`` and everything larger is ``min(d, f)``.
            top_k: experts a token; 0 blends all of them.
            n_shared: experts that always run.
            renormalize: divide the kept gates by their sum (needs ``top_k >= 2``).
            gate_scale: constant on every gate; E keeps the output's scale independent of E.
            weight_format: number format in which a forward sees the factors.
            format_group: numbers of a factor's row that share a scale; 0 = the whole row.
            router_options: further arguments of `Router`.

        Raises:
            ValueError: ``top_k`` outside ``0 .. E``, ``renormalize`` with ``top_k == 1``, rank below 1, unknown format.
        """
        shape: dict[str, Any] = {"d_model": d_model, "d_ffn": d_ffn, "rank": rank}
        formats: dict[str, Any] = {"weight_format": weight_format, "format_group": format_group}
        super().__init__(
            Router(n_experts, top_k, renormalize, gate_scale, **router_options),
            ExpertBank(n_experts=n_experts, **shape, **formats),
            ExpertBank(n_experts=n_shared, **shape, **formats) if n_shared else None,
        )
