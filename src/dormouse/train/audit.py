"""Movement audit: every trainable tensor that should have moved did (M4, DM-08).

A part can sit in a network, be saved and counted, and never be trained: a hand-written backward that forgets
it, an optimiser group that misses it, a branch that is switched off. Losses look healthy all the same. The
audit keeps a copy of every trainable tensor and its largest gradient over the run, and afterwards names those
whose gradient was zero throughout or whose values did not change. Stacks of experts are judged expert by
expert; an expert that received no byte has a gradient of exactly zero and is not expected to move. The
controller is judged row by row: branch gates, one router column an expert, and padding, which is never read;
the gate of a branch that is off and the column of an expert without bytes are not expected to move either.
Retraction alone may change the last bits of a factor, which is why the gradient is looked at too.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dormouse.config.schema import ModelConfig

GATES = ("w_attn", "w_mem", "w_ffn")
"""The controller's first rows, in their order."""
_CONTROLLER = "controller.weight"


def unread_gates(config: ModelConfig) -> set[str]:
    """Branch gates that nothing reads because their branch is off."""
    off = {"w_attn": not (config.use_kda or config.use_plain_attn), "w_mem": not config.use_engram}
    return {gate for gate, unread in off.items() if unread}


@dataclass(frozen=True)
class Movement:
    """One tensor, one expert's slice of a stack, or one row of the controller."""

    name: str
    largest_change: float
    """Maximum over entries of |now - before|."""
    largest_gradient: float
    """Maximum over entries and steps of |gradient|."""
    expected: bool
    """False for what nothing can reach: an expert without bytes, padding, the gate of a branch that is off."""

    @property
    def moved(self) -> bool:
        """Whether training reached it."""
        return self.largest_change > 0 and self.largest_gradient > 0


class MovementAudit:
    """Create before the first step, `observe` after every backward, `report` at the end."""

    def __init__(self, model: nn.Module, *, n_experts: int, n_null: int = 0, unread: Collection[str] = ()) -> None:
        """Watch `model`; `unread` names rows of the controller that nothing reads, such as `w_mem`."""
        self._model, self._unread = model, frozenset(unread)
        self._n_experts, self._n_null = n_experts, n_null
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
        """One entry a tensor, one an expert of a stack, one a row of the controller."""
        return [entry for name, value in self._trainable() for entry in self._entries(name, value)]

    def _entries(self, name: str, value: Tensor) -> list[Movement]:
        change = self._largest(name, value.detach() - self._before[name]).tolist()
        gradient = self._gradients[name].tolist()
        if len(change) == 1:
            return [Movement(name, change[0], gradient[0], expected=True)]
        busy = (self._routed | ~self._routed.any()).tolist()
        parts = [(str(expert), reached) for expert, reached in enumerate(busy)]
        if name.endswith(_CONTROLLER):
            parts = self._rows(len(change), busy)
        return [
            Movement(f"{name}[{part}]", change[i], gradient[i], expected=reached)
            for i, (part, reached) in enumerate(parts)
        ]

    def _rows(self, number: int, busy: Sequence[bool]) -> list[tuple[str, bool]]:
        """Name of every row of the controller, and whether anything reaches it; a lone expert's logit has no effect."""
        gates = [(gate, gate not in self._unread) for gate in GATES]
        columns = [(f"router {expert}", reached and len(busy) > 1) for expert, reached in enumerate(busy)]
        columns += [(f"null {column}", False) for column in range(self._n_null)]  # their sigmoid may reach nothing
        low_rank = number < len(gates) + len(columns)  # then the router has matrices of its own
        known = gates if low_rank else gates + columns
        return known + [(f"padding {row}", False) for row in range(len(known), number)]

    def _largest(self, name: str, value: Tensor) -> Tensor:
        return value.detach().abs().reshape(self._parts(name, value), -1).amax(1).cpu()

    def _parts(self, name: str, value: Tensor) -> int:
        """How many parts are judged apart: E in `[E, ...]` stacks of the experts, rows of the controller, else 1."""
        if name.endswith(_CONTROLLER):
            return len(value)
        stacked = "expert" in name and ".shared." not in name and value.ndim >= 2 and len(value) == self._n_experts
        return self._n_experts if stacked else 1

    def _trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [
            (name, value) for name, value in self._model.named_parameters() if value.requires_grad and value.numel()
        ]


def inert(movements: Sequence[Movement]) -> list[str]:
    """Names of what should have moved and did not."""
    return [movement.name for movement in movements if movement.expected and not movement.moved]
