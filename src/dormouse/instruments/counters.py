"""Execution counters (M4): how often every mechanism really ran, forward and backward, and on how many rows.

A mechanism is a module with an attribute `mechanism` (its name, or None while it does nothing); the model knows no more
than that. Counters hang on such modules from outside: a forward hook adds one to the mechanism's forwards and passes
its output through an identity whose backward adds one to its backwards. A name and two numbers on the device: nothing
is read on the host before somebody asks. What is no module (a loss term, a retraction) is handed in by `watch` or
`count`.

Only training counts. A forward without gradient (evaluation, generation, the latch) is none, and what activation
checkpointing computes again inside a backward is not counted a second time. The reentrant form of checkpointing runs
its first forward without gradient, so its forwards are missed: they read 0, and an audit says so. Under `torch.compile`
hooks and identity are part of the graph, provided the counters were attached before it was compiled.

Experts are told apart by the path they took (`experts.dispatch`, `.masked`, `.loop`, `.blend`), and the rows each
expert computed are counted too: with dispatch the assignments of the routing, with the masks and the blend every row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dormouse.errors import CheckpointError
from dormouse.instruments.utilization import add_counts
from dormouse.model.router import Routing

PATHS = ("dispatch", "masked", "loop", "blend")
_ONLY_CHOSEN = ("experts.dispatch", "experts.loop", "dense_experts.dispatch")


@dataclass(frozen=True)
class Ran:
    """Host copy of the counters."""

    forwards: dict[str, int]
    backwards: dict[str, int]
    """Backwards that reached the mechanism's output; stays 0 for what has none (retraction, latch)."""
    expert_rows: tuple[int, ...]
    """Rows each expert computed in training forwards, all passes and slots; empty without experts."""


class Counters:
    """Owned by the training state; `attach` once, `read` when the numbers are wanted."""

    def __init__(self) -> None:
        self._forwards: dict[str, Tensor] = {}
        self._backwards: dict[str, Tensor] = {}
        self._rows = torch.zeros(0, dtype=torch.int64)

    def attach(self, model: nn.Module, device: torch.device) -> list[RemovableHandle]:
        """Count the mechanisms of `model`; the handles take the hooks off again."""
        handles = []
        for module in model.modules():
            if not hasattr(module, "mechanism"):
                continue
            router: Any = getattr(module, "router", None)
            if router is not None and len(self._rows) < router.n_experts:
                self._rows = torch.zeros(router.n_experts, dtype=torch.int64, device=device)
            for name in _names(module):
                self._make(name, device)
            handles.append(module.register_forward_hook(self._hook, with_kwargs=True))
        return handles

    def watch(self, name: str, term: Tensor) -> Tensor:
        """Count `term`, a tensor that some mechanism added to the graph, and its backward; returns it for use.

        A constant (a mechanism that is off, or has lost its gradient) is not counted.
        """
        if not term.requires_grad:
            return term
        self._make(name, term.device)
        self._forwards[name].add_(1)
        return _Backward.apply(term, self._backwards[name])

    def count(self, name: str) -> None:
        """Count one run of something that has no backward."""
        self._make(name, torch.device("cpu"))
        self._forwards[name].add_(1)

    def read(self) -> Ran:
        """Names in alphabetical order; one transfer a device."""
        names, ran = self._stacked()
        forwards, backwards = ran.tolist() if names else ([], [])
        rows = tuple(self._rows.tolist())
        return Ran(dict(zip(names, forwards, strict=True)), dict(zip(names, backwards, strict=True)), rows)

    def state_dict(self) -> dict:
        """Names, counts [2, n] and rows [E]."""
        names, ran = self._stacked()
        return {"names": names, "ran": ran, "rows": self._rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from `state_dict()`; raises `CheckpointError` when the number of experts is another one."""
        if len(state["rows"]) != len(self._rows):
            raise CheckpointError(
                f"counters.rows has {len(state['rows'])} experts, the model has {len(self._rows)}: the rows of other "
                "experts would have been added to. Use the configuration in run.json."
            )
        self._rows.copy_(state["rows"])
        for name, forwards, backwards in zip(state["names"], *state["ran"], strict=True):
            self._make(name, forwards.device)
            self._forwards[name].copy_(forwards)
            self._backwards[name].copy_(backwards)

    def _hook(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        """Count one forward; returns the output with the identity behind it."""
        name: Any = module.mechanism
        if name is None or not torch.is_grad_enabled():
            return None
        first = output[0] if isinstance(output, tuple) else output
        routing = next((part for part in _parts(output) if isinstance(part, Routing)), None)
        if routing is not None:
            name = f"{name}.{'blend' if routing.ids is None else kwargs.get('path', 'dispatch')}"
        if not _computed_again():
            self._forwards[name].add_(1)
            if routing is not None:
                _add_rows(self._rows, routing, name)
        if not first.requires_grad:
            return None
        counted = _Backward.apply(first, self._backwards[name])
        return (counted, *output[1:]) if isinstance(output, tuple) else counted

    def _make(self, name: str, device: torch.device) -> None:
        if name not in self._forwards:
            self._forwards[name] = torch.zeros((), dtype=torch.int64, device=device)
            self._backwards[name] = torch.zeros((), dtype=torch.int64, device=device)

    def _stacked(self) -> tuple[list[str], Tensor]:
        """Names and counts [2, n] on the CPU."""
        names = sorted(self._forwards)
        both = [self._gathered(kind, names) for kind in (self._forwards, self._backwards)]
        return names, torch.stack(both)

    def _gathered(self, kind: dict[str, Tensor], names: list[str]) -> Tensor:
        """Counts [n] on the CPU: one transfer for those of the model's device, none for those of the host."""
        there = [name for name in names if kind[name].device.type != "cpu"]
        values = dict(zip(there, torch.stack([kind[name] for name in there]).cpu(), strict=True)) if there else {}
        flat = [values.get(name, kind[name]) for name in names]
        return torch.stack(flat) if flat else torch.zeros(0, dtype=torch.int64)


class _Backward(torch.autograd.Function):
    """The identity; its backward adds one to a counter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counter: Tensor) -> Tensor:
        ctx.counter = counter
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        ctx.counter.add_(1)
        return grads[0], None


def _names(module: nn.Module) -> list[str]:
    """Every name under which a module may be counted."""
    own = module.mechanism
    if own is None:
        return []
    return [f"{own}.{path}" for path in PATHS] if getattr(module, "router", None) is not None else [str(own)]


def _parts(output: object) -> Iterator[object]:
    yield from output if isinstance(output, tuple) else (output,)


def _computed_again() -> bool:
    """Whether this forward is a checkpoint's second one, inside a backward; a compiled graph decides that itself."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _add_rows(rows: Tensor, routing: Routing, name: str) -> None:
    """Rows each expert computed: its assignments where only chosen experts run, else all."""
    if routing.ids is not None and name in _ONLY_CHOSEN:
        add_counts(rows, routing.ids)
    else:
        rows.add_(len(routing.probs))
