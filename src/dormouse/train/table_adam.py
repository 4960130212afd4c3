"""Adam on the rows that a step touched: for tables of which a batch reads a thousandth.

A row's moments decay only when the row is read (lazy Adam, as `torch.optim.SparseAdam`), the second moment is one number a
row, and the gradient must be sparse. Rows that were not read keep their bits.
"""

import torch
from torch import Tensor, nn


class TableAdam:
    """Row-wise lazy Adam without weight decay."""

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
    ) -> None:
        """Create zero moments; ``parameters`` are tables ``[rows, dim]``."""
        self.parameters, self.lr, self.betas, self.eps = parameters, lr, betas, eps
        self.first = {n: torch.zeros_like(p) for n, p in parameters.items()}
        self.second = {n: torch.zeros_like(p) for n, p in parameters.items()}
        self.step_count = 0

    @torch.no_grad()
    def step(self, lr_scale: float) -> None:
        """Update the rows that have a gradient."""
        self.step_count += 1
        b1, b2 = self.betas
        correction = (1 - b2**self.step_count) ** 0.5 / (1 - b1**self.step_count)
        for name, p in self.parameters.items():
            if p.grad is None:
                continue
            grad = p.grad.coalesce()
            rows, values = grad.indices()[0], grad.values()
            m = self.first[name].index_select(0, rows).lerp_(values, 1 - b1)
            v = self.second[name].index_select(0, rows).mul_(b2).addcmul_(values, values, value=1 - b2)
            self.first[name].index_copy_(0, rows, m)
            self.second[name].index_copy_(0, rows, v)
            update = m.mul_(-self.lr * lr_scale * correction).div_(v.sqrt_().add_(self.eps))
            p.index_add_(0, rows, update)

    def state_dict(self) -> dict[str, object]:
        """Moments by parameter name and the step count."""
        return {"first": dict(self.first), "second": dict(self.second), "step_count": self.step_count}

    def load_state_dict(self, state: dict) -> None:
        """Restore moments in place."""
        for name in self.parameters:
            self.first[name].copy_(state["first"][name])
            self.second[name].copy_(state["second"][name])
        self.step_count = int(state["step_count"])
