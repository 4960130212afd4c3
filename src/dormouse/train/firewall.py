"""The firewall: a step whose loss or gradient norm is not finite does not happen.

The norm is the global one over all parameters, so one NaN or infinity anywhere shows in it, and so does a
norm that overflows although every entry is finite. Such a step leaves parameters, moments, step counters and
tables with the bits they had; it is counted, and after `max_skips` in a row the run ends. Clipping alone
would not do: it multiplies NaN into every tensor, and turns a norm of infinity into a silent step of zero
that still decays the weights.

The decision is one host read a step. It costs nothing on the CPU; on a GPU the row-wise table update has to
wait for the device in every step anyway, so a decision that stays there would save nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dormouse.errors import TrainingHalted


def global_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Euclidean norm over all entries of all gradients, fp32 scalar; 0 for none. Sparse ones: coalesced."""
    norms = [torch.linalg.vector_norm(_values(gradient)) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def is_finite(*values: Tensor) -> Tensor:
    """Bool scalar on the device of the values (all on one device)."""
    return torch.isfinite(torch.stack(values)).all()


def clip(gradients: Iterable[Tensor], norm: Tensor, limit: float) -> None:
    """Scale all gradients in place so that their global norm is at most `limit`."""
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        _values(gradient).mul_(factor)


@dataclass
class Firewall:
    """Counts of skipped steps; part of the checkpoint."""

    max_skips: int
    """Skips in a row that end the run."""
    skipped: int = 0
    """Skips in the whole run."""
    in_a_row: int = 0

    def admit(self, finite: Tensor) -> bool:
        """Whether a step may change the model; counts it if not."""
        if finite.item():
            self.in_a_row = 0
            return True
        self.skipped += 1
        self.in_a_row += 1
        return False

    def check(self, step: int) -> None:
        """Raise `TrainingHalted` once `max_skips` steps in a row were skipped."""
        if self.in_a_row >= self.max_skips:
            raise TrainingHalted(
                f"{self.in_a_row} non-finite steps in a row up to step {step} ({self.skipped} in all, max_skips = "
                f"{self.max_skips}): training stopped itself. No checkpoint holds a non-finite number; the skipped "
                "steps and their norms are in metrics.jsonl. Start a new run with a smaller --lr."
            )

    def state_dict(self) -> dict[str, int]:
        """Both counts."""
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from saved counts."""
        self.skipped, self.in_a_row = state["skipped"], state["in_a_row"]


def _values(gradient: Tensor) -> Tensor:
    """The stored entries of a gradient, each row once (`values()` refuses an uncoalesced one)."""
    return gradient.values() if gradient.is_sparse else gradient
