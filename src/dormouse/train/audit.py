"""Movement audit: every trainable tensor that should have moved did (M4, DM-08).

A part can sit in a network, be saved and counted, and never be trained: a hand-written backward that forgets
it, an optimiser group that misses it, a branch that is switched off. Losses look healthy all the same. The
audit keeps a copy of every trainable tensor and its largest gradient over the run, and afterwards names those
whose gradient was zero throughout or whose values did not change. Stacks of experts are judged expert by
expert; an expert that received no byte has a gradient of exactly zero and is not expected to move. Retraction
alone may change the last bits of a factor, which is why the gradient is looked at too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Movement:
    """One tensor, or one expert's slice of a stack."""

    name: str
    largest_change: float
    """Maximum over entries of |now - before|."""
    largest_gradient: float
    """Maximum over entries and steps of |gradient|."""
    expected: bool
    """False for an expert that received no byte."""

    @property
    def moved(self) -> bool:
        """Whether training reached it."""
        return self.largest_change > 0 and self.largest_gradient > 0


class MovementAudit:
    """Create before the first step, `observe` after every backward, `report` at the end."""

    def __init__(self, model: nn.Module, *, n_experts: int) -> None:
        self._model = model
        self._n_experts = n_experts
        self._routed = torch.zeros(n_experts, dtype=torch.bool)
        self._before = {name: value.detach().clone() for name, value in self._trainable()}
        self._gradients = {name: torch.zeros(self._parts(name, value)) for name, value in self._trainable()}

    def observe(self) -> None:
        """Take note of the gradients that are in the model now."""
        for name, value in self._trainable():
            if value.grad is not None:
                size = self._largest(name, value.grad.to_dense() if value.grad.is_sparse else value.grad)
                self._gradients[name] = torch.maximum(self._gradients[name], size)

    def routed(self, counts: Tensor) -> None:
        """Take note of which experts received bytes; counts [E]."""
        self._routed |= counts.cpu() > 0

    def report(self) -> list[Movement]:
        """One entry a tensor, or one an expert of a stack."""
        return [entry for name, value in self._trainable() for entry in self._entries(name, value)]

    def _entries(self, name: str, value: Tensor) -> list[Movement]:
        change = self._largest(name, value.detach() - self._before[name]).tolist()
        gradient = self._gradients[name].tolist()
        if len(change) == 1:
            return [Movement(name, change[0], gradient[0], expected=True)]
        idle = self._routed.any() & ~self._routed
        return [
            Movement(f"{name}[{expert}]", change[expert], gradient[expert], expected=not bool(idle[expert]))
            for expert in range(len(change))
        ]

    def _largest(self, name: str, value: Tensor) -> Tensor:
        return value.detach().abs().reshape(self._parts(name, value), -1).amax(1).cpu()

    def _parts(self, name: str, value: Tensor) -> int:
        """Into how many experts' slices a tensor falls: E for `[E, ...]` stacks of the experts, else 1."""
        stacked = "expert" in name and value.ndim >= 2 and len(value) == self._n_experts
        return self._n_experts if stacked else 1

    def _trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [
            (name, value) for name, value in self._model.named_parameters() if value.requires_grad and value.numel()
        ]


def inert(movements: Sequence[Movement]) -> list[str]:
    """Names of what should have moved and did not."""
    return [movement.name for movement in movements if movement.expected and not movement.moved]
