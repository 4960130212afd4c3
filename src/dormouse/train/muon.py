"""Muon for stacks of matrices: momentum, then an orthogonalised update (K. Jordan et al., 2024).

Matrices of the same shape are orthogonalised in one batched call, whatever parameter they come from: a dense weight
is one matrix, a per-head weight is one matrix a head, a stack of factors one a factor. Weight decay is decoupled.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dormouse.ops.orthogonalise import orthogonalise


@dataclass(frozen=True)
class MuonParameter:
    """One parameter with the way it is cut into matrices."""

    name: str
    parameter: nn.Parameter
    blocks: int = 1  # cuts of the first dimension (heads)
    weight_decay: float = 0.0
    shape_scale: bool = True  # multiply the rate by sqrt(max(1, rows / columns))

    def matrices(self, x: Tensor) -> Tensor:
        """View as ``[count, rows, columns]``."""
        rows, columns = x.shape[-2:]
        return x.reshape(-1, rows // self.blocks, columns)


class Muon:
    """Orthogonalised momentum with Nesterov look-ahead."""

    def __init__(self, parameters: list[MuonParameter], *, lr: float, momentum: float = 0.95) -> None:
        """Create zero momentum for every parameter."""
        self.parameters, self.lr, self.momentum = parameters, lr, momentum
        self.buffers = {p.name: torch.zeros_like(p.parameter) for p in parameters}

    @torch.no_grad()
    def step(self, lr_scale: float) -> None:
        """Apply one update; a parameter without a gradient, or a matrix of a stack whose own is zero, is not moved."""
        groups: dict[tuple[int, ...], list[tuple[MuonParameter, Tensor, Tensor]]] = defaultdict(list)
        for p in self.parameters:
            grad = p.parameter.grad
            if grad is None:
                continue
            buffer = self.buffers[p.name]
            buffer.lerp_(grad, 1 - self.momentum)
            matrices = p.matrices(grad.lerp(buffer, self.momentum))
            live = (p.matrices(grad) != 0).any((-2, -1), keepdim=True).to(grad.dtype)
            groups[tuple(matrices.shape[1:])].append((p, matrices, live))
        for (rows, columns), members in groups.items():
            updates = orthogonalise(torch.cat([m for _, m, _ in members]))
            # Scale does not matter to the direction, so an idle expert's fading momentum would move it at full rate.
            updates = updates * torch.cat([live for _, _, live in members])
            scale = max(1.0, rows / columns) ** 0.5
            for (p, _, _), update in zip(members, updates.split([len(m) for _, m, _ in members]), strict=True):
                self.move(p, update.reshape(p.parameter.shape), self.lr * lr_scale, scale if p.shape_scale else 1.0)

    def move(self, p: MuonParameter, direction: Tensor, lr: float, scale: float) -> None:
        """Decay one parameter and move it against an orthogonalised direction of its shape."""
        if p.weight_decay:
            p.parameter.mul_(1 - lr * p.weight_decay)
        p.parameter.add_(direction, alpha=-lr * scale)

    def state_dict(self) -> dict[str, Tensor]:
        """Momentum by parameter name."""
        return dict(self.buffers)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore momentum in place."""
        for name, buffer in self.buffers.items():
            buffer.copy_(state[name])
