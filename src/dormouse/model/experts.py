"""Routed spectral experts: a router in front of an expert bank. Capacity without compute.

Only selected experts run (``path="dispatch"``); ``masked`` computes all of them and multiplies by zero, ``loop`` walks
over tokens one by one: the references. ``top_k = 0`` is the dense blend of all experts with the same parameters.
"""

from torch import Tensor, nn

from dormouse.model.bank import ExpertBank, Factors, Path
from dormouse.model.factor_format import DEFAULT_GROUP
from dormouse.model.router import Router, Routing
from dormouse.model.spectral import Rank


class TsctExperts(nn.Module):
    """Routed spectral experts on ``[N, d]`` rows; the router's logits come from outside."""

    mechanism = "experts"

    def __init__(
        self,
        *,
        d_model: int,
        d_ffn: int,
        n_experts: int,
        rank: Rank,
        top_k: int,
        renormalize: bool = False,
        gate_scale: float = 1.0,
        weight_format: str = "fp32",
        format_group: int = DEFAULT_GROUP,
    ) -> None:
        """Create router and bank.

        Args:
            d_model: input and output width d.
            d_ffn: hidden width f.
            n_experts: E.
            rank: rank r of every factor; ``full`` and everything larger is ``min(d, f)``.
            top_k: experts a token; 0 blends all of them.
            renormalize: divide the kept gates by their sum (needs ``top_k >= 2``).
            gate_scale: constant on every gate; E keeps the output's scale independent of E.
            weight_format: number format in which a forward sees the factors.
            format_group: numbers of a factor's row that share a scale; 0 = the whole row.

        Raises:
            ValueError: ``top_k`` outside ``0 .. E``, ``renormalize`` with ``top_k == 1``, rank below 1, unknown format.
        """
        super().__init__()
        self.router = Router(n_experts, top_k, renormalize, gate_scale)
        self.bank = ExpertBank(
            d_model=d_model,
            d_ffn=d_ffn,
            n_experts=n_experts,
            rank=rank,
            weight_format=weight_format,
            format_group=format_group,
        )

    def prepare(self) -> Factors:
        """The bank's effective factors, to share them between calls."""
        return self.bank.prepare()

    def forward(
        self, x: Tensor, logits: Tensor, *, path: Path = "dispatch", factors: Factors | None = None
    ) -> tuple[Tensor, Routing]:
        """Route and compute.

        Args:
            x: ``[N, d]``.
            logits: router logits ``[N, E]``.
            path: ``dispatch`` runs selected experts only; ``masked`` and ``loop`` are slow references.
            factors: result of `prepare`, to share it between calls.

        Returns:
            ``[N, d]`` and the routing.
        """
        routing = self.router(logits)
        if routing.ids is None:
            return self.bank.blend(x, routing.gates, factors=factors), routing
        return self.bank(x, routing.ids, routing.gates, path=path, factors=factors), routing
