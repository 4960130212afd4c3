"""What happened since the last log line, summed on the device and read in one transfer.

Sums of nats and bytes (not means of means) so that the logged loss is per byte whatever the micro-batches
were; counts of expert selections pooled over positions, passes and steps. A skipped step adds its gradient
norm and nothing else. The tally is part of the checkpoint: a run stopped between two log lines goes on to
write the same line.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dormouse.instruments.utilization import Utilization, utilization

_NAMES = ("nats", "aux", "steps", "scored", "norm", "largest_norm", "drift")

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
    """Use of the experts; None when nothing was routed."""


class Tally:
    """Sums over steps; `counts` int64 [E] is filled by the step itself."""

    def __init__(self, device: torch.device, *, n_experts: int) -> None:
        kind = torch.float32 if device.type == "mps" else torch.float64
        self.sums = torch.zeros(len(_NAMES), dtype=kind, device=device)
        self.sums[-1] = _UNMEASURED
        self.counts = torch.zeros(n_experts, dtype=torch.int64, device=device)

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

    def retracted(self, error: Tensor) -> None:
        """Count one retraction: the largest orthogonality error before it, a 0-d tensor."""
        self.sums[-1] = torch.maximum(self.sums[-1], error.to(self.sums))

    def read(self) -> TallyReading:
        """One transfer to the host."""
        both = torch.cat([self.sums, self.counts.to(self.sums.dtype)]).cpu()
        nats, aux, steps, scored, norm, largest, drift = both[: len(_NAMES)].tolist()
        return TallyReading(
            ce=nats / scored if scored else None,
            aux=aux / steps if steps else 0.0,
            scored=int(scored),
            grad_norm=norm,
            grad_norm_max=largest,
            drift=drift if drift >= 0 else None,
            utilization=utilization(both[len(_NAMES) :]),
        )

    def reset(self) -> None:
        """Start over."""
        self.sums = torch.zeros_like(self.sums)
        self.sums[-1] = _UNMEASURED
        self.counts.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        """Both tensors. A norm that is not finite is stored as 0: checkpoints hold no such number."""
        return {"sums": torch.nan_to_num(self.sums, nan=0.0, posinf=0.0, neginf=0.0), "counts": self.counts}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from saved sums."""
        self.sums = state["sums"].to(self.sums)
        self.counts = state["counts"].to(self.counts)
