"""Row-wise Adagrad for tables of which a batch reads a thousandth.

Each row keeps one number, the sum over steps of its gradient's mean square; its step is the gradient over the root
of that sum. A row that was read once moves by the full rate, a row that was read n times by about ``1 / sqrt(n)``
of it: what a count would do. (Adagrad: Duchi et al., 2011; row-wise as in embedding tables of recommender systems.)
The gradient must be sparse; rows that were not read keep their bits.
"""

import torch
from torch import Tensor, nn

_EPS = 1e-10


class TableAdagrad:
    """Adagrad with one accumulator a row, without momentum and decay."""

    def __init__(self, parameters: dict[str, nn.Parameter], *, lr: float) -> None:
        """Create zero accumulators; ``parameters`` are tables ``[rows, dim]``."""
        self.parameters, self.lr = parameters, lr
        self.accumulators = {n: p.new_zeros(p.shape[0], 1, requires_grad=False) for n, p in parameters.items()}

    @torch.no_grad()
    def step(self, lr_scale: float) -> None:
        """Update the rows that have a gradient."""
        for name, p in self.parameters.items():
            if p.grad is None:
                continue
            grad = p.grad.coalesce()
            rows, values = grad.indices()[0], grad.values()
            total = self.accumulators[name].index_select(0, rows)
            total += values.square().mean(1, keepdim=True)
            self.accumulators[name].index_copy_(0, rows, total)
            p.index_add_(0, rows, values / (total.sqrt() + _EPS), alpha=-self.lr * lr_scale)

    def state_dict(self) -> dict[str, Tensor]:
        """Accumulators by parameter name."""
        return dict(self.accumulators)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the accumulators in place."""
        for name, accumulator in self.accumulators.items():
            accumulator.copy_(state[name])
