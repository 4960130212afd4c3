"""What happened since the last log line, summed on the device and read in one transfer.

Sums of nats and bytes (not means of means) so that the logged loss is per byte whatever the micro-batches
were; counts of expert selections by pass, summed over positions and steps, and the probabilities of what was
selected. A skipped step adds its gradient norm and nothing else. The tally is part of the checkpoint: a run
stopped between two log lines goes on to write the same line.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dormouse.errors import CheckpointError
from dormouse.instruments.utilization import Utilization, add_counts, selected_sum, utilization
from dormouse.model.records import RoutingRecord

_NAMES = ("nats", "aux", "steps", "scored", "norm", "largest_norm", "drift")
Use = tuple[Tensor, Tensor]
"""Counts [P, E] and the sum of selected probabilities of a tally at one moment."""

_UNMEASURED = -1.0


@dataclass(frozen=True)
class TallyReading:
    """Host copy of a tally."""

    ce: float | None
    """Nats per scored byte; None when no byte was scored."""
    aux: float
    """Auxiliary terms, mean over the steps that were not skipped (nats per byte)."""
    scored: int
    """Bytes whose prediction counted."""
    grad_norm: float
    """Global gradient norm of the last step before clipping; may be inf or NaN."""
    grad_norm_max: float
    """Largest such norm since the last reading (NaN if one was NaN)."""
    drift: float | None
    """Largest orthogonality error that a retraction met since the last reading; None when none was measured."""
    utilization: Utilization | None
    """Use of the experts, all passes pooled; None when nothing was routed."""
    by_pass: tuple[Utilization | None, ...]
    """The same for each of the P passes; None for a pass that routed nothing."""
    gate: float | None
    """Mean score of the selected experts, before renormalisation and scale; None when nothing was routed."""
    null: float | None = None
    """Share of assignments that null experts got; None when nothing was routed."""


class Tally:
    """Sums over steps; `counts` int64 [P, E + null experts] and `selected` 0-d are filled by `route`."""

    def __init__(self, device: torch.device, *, n_experts: int, n_null: int = 0, n_passes: int = 1) -> None:
        self._n_experts = n_experts
        kind = torch.float32 if device.type == "mps" else torch.float64
        self.sums = torch.zeros(len(_NAMES), dtype=kind, device=device)
        self.sums[-1] = _UNMEASURED
        self.counts = torch.zeros(n_passes, n_experts + n_null, dtype=torch.int64, device=device)
        self.selected = torch.zeros((), dtype=kind, device=device)

    def add(self, *, nats: Tensor, aux: Tensor, scored: int, norm: Tensor, finite: Tensor) -> None:
        """Count one step: summed nats, auxiliary term, scored bytes, gradient norm, whether it was finite."""
        old_nats, old_aux, steps, old_scored, _, largest, drift = self.sums.unbind()
        kind = self.sums.dtype
        good, norm = finite.to(kind), norm.to(kind)
        self.sums = torch.stack(
            [
                old_nats + torch.where(finite, nats, 0).to(kind),
                old_aux + torch.where(finite, aux, 0).to(kind),
                steps + good,
                old_scored + scored * good,
                norm,
                torch.maximum(largest, norm),
                drift,
            ]
        )

    def route(self, record: RoutingRecord | None) -> None:
        """Count the selections of one forward; a blend of all experts selects nothing and leaves no trace."""
        if record is not None and record.ids is not None:
            add_counts(self.counts, record.ids)
            selected = record.selected
            self.selected += selected_sum(record.probs, record.ids) if selected is None else selected.sum()

    def use(self) -> Use:
        """A copy of what `route` has counted, for `put_back` when the step turns out not to have happened."""
        return self.counts.clone(), self.selected.clone()

    def put_back(self, use: Use) -> None:
        """Forget the selections after `use`."""
        self.counts.copy_(use[0])
        self.selected.copy_(use[1])

    def retracted(self, error: Tensor) -> None:
        """Count one retraction: the largest orthogonality error before it, a 0-d tensor."""
        self.sums[-1] = torch.maximum(self.sums[-1], error.to(self.sums))

    def read(self) -> TallyReading:
        """One transfer to the host."""
        kind, number = self.sums.dtype, len(_NAMES)
        both = torch.cat([self.sums, self.selected.view(1), self.counts.flatten().to(kind)]).cpu()
        nats, aux, steps, scored, norm, largest, drift, selected = both[: number + 1].tolist()
        counts = both[number + 1 :].view_as(self.counts)
        assigned = counts.sum().item()
        return TallyReading(
            ce=nats / scored if scored else None,
            aux=aux / steps if steps else 0.0,
            scored=int(scored),
            grad_norm=norm,
            grad_norm_max=largest,
            drift=drift if drift >= 0 else None,
            utilization=utilization(counts[:, : self._n_experts].sum(0)),
            by_pass=tuple(utilization(row[: self._n_experts]) for row in counts),
            gate=selected / assigned if assigned else None,
            null=counts[:, self._n_experts :].sum().item() / assigned if assigned else None,
        )

    def reset(self) -> None:
        """Start over."""
        self.sums = torch.zeros_like(self.sums)
        self.sums[-1] = _UNMEASURED
        self.counts.zero_()
        self.selected.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors. A norm that is not finite is stored as 0: checkpoints hold no such number."""
        sums = torch.nan_to_num(self.sums, nan=0.0, posinf=0.0, neginf=0.0)
        return {"sums": sums, "counts": self.counts, "selected": self.selected}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from saved sums; raises `CheckpointError` when they were counted in another form."""
        found = [list(state[name].shape) if name in state else None for name in ("counts", "selected")]
        if found != [list(self.counts.shape), []]:
            raise CheckpointError(
                f"tally.counts = {found[0]}: experts are counted as {list(self.counts.shape)} (passes x experts) here; "
                "the next log line would have mixed the two. Resume with the version that saved the checkpoint, or "
                "start a new run."
            )
        self.sums = state["sums"].to(self.sums)
        self.counts = state["counts"].to(self.counts)
        self.selected = state["selected"].to(self.selected)
