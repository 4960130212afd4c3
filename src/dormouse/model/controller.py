"""The controller: a bias-free linear map from ``[c ; h0]`` to the branch gates and the router's logits.

Columns 0, 1, 2 are the gates of attention, memory and experts (sigmoid); the next C columns are router logits, one an
expert, null experts last; the rest is padding to a multiple of four and is never read. It computes in fp32: rounding
to half precision collapses near ties between experts. In the sequential layout the router columns read the context
after memory and attention.

Router columns may be a product of two thin matrices (``router_rank``), which pays from about as many experts as the
rank. Passes share the columns; ``router_per_pass`` adds to each pass a bias, or columns, of its own. They start at
zero, so that at birth such a model is the one without them, to the bit.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.config.schema import ModelConfig
from dormouse.model.roles import Role, declare
from dormouse.ops.norm import rms_norm
from dormouse.ops.precision import widened, without_autocast

N_GATES = 3
STREAM_FROM = 1024
"""Columns from which a low-rank router need not hold all its logits at once."""


class Controller(nn.Module):
    """Branch gates and router logits."""

    pass_bias: nn.Parameter | None
    pass_columns: nn.Parameter | None
    router_down: nn.Parameter | None
    router_up: nn.Parameter | None

    def __init__(self, config: ModelConfig) -> None:
        """Create the ``[P, 2d]`` weight, ``P = 4 ceil((3 + C) / 4)``, or ``[4, 2d]`` beside a low-rank router."""
        super().__init__()
        self.n_columns, rank = config.n_experts + config.n_null_experts, config.router_rank
        self.gate_scale = config.branch_gate_scale
        self.eps = config.norm_eps if config.controller_norm else None
        wide, shared = 2 * config.d_model, 0 if rank else self.n_columns
        self.weight = nn.Parameter(_uniform(-(-(N_GATES + shared) // 4) * 4, wide))
        self.router_down = nn.Parameter(_uniform(rank, wide)) if rank else None
        self.router_up = nn.Parameter(torch.randn(self.n_columns, rank) * rank**-0.5) if rank else None
        own = config.router_per_pass
        bias, columns = torch.zeros(config.max_iter, self.n_columns), (config.max_iter, self.n_columns, wide)
        self.pass_bias = nn.Parameter(bias) if own == "bias" else None
        self.pass_columns = nn.Parameter(torch.zeros(columns)) if own == "columns" else None
        control = ("weight", "router_down", "router_up", "pass_columns")
        declare(self, **dict.fromkeys(control, Role.CONTROL), pass_bias=Role.VECTOR)

    def normed(self, c: Tensor) -> Tensor:
        """One half of the input, RMS-normalised if configured."""
        return c if self.eps is None else rms_norm(c, None, self.eps)

    def gates(self, c: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gates of attention, memory and experts, each ``[..., 1]``; the memory's is a plain sigmoid (a share)."""
        w_attn, w_mem, w_ffn = _linear(self.weight[:N_GATES], c, h0).sigmoid().split(1, -1)
        return w_attn * self.gate_scale, w_mem, w_ffn * self.gate_scale

    def router_logits(self, c: Tensor, h0: Tensor, *, pass_index: int = 0) -> Tensor:
        """Router logits ``[..., C]`` of one pass."""
        if self.router_down is None or self.router_up is None:
            logits = _linear(self.weight[N_GATES : N_GATES + self.n_columns], c, h0)
        else:
            hidden, up = widened(_linear(self.router_down, c, h0), self.router_up)
            with without_autocast(hidden):
                logits = F.linear(hidden, up)
        if self.pass_bias is not None:
            logits = logits + self.pass_bias[pass_index]
        if self.pass_columns is not None:
            logits = logits + _linear(self.pass_columns[pass_index], c, h0)
        return logits

    @property
    def streams(self) -> bool:
        """Whether the logits are many and a product of two thin matrices (and a bias)."""
        return self.router_down is not None and self.pass_columns is None and self.n_columns >= STREAM_FROM

    def low_rank(self, c: Tensor, h0: Tensor, *, pass_index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """``hidden [..., r]``, ``up [C, r]`` and bias ``[C]`` of one pass: the logits are ``hidden @ up^T + bias``."""
        assert self.router_down is not None
        assert self.router_up is not None
        bias = None if self.pass_bias is None else self.pass_bias[pass_index]
        return _linear(self.router_down, c, h0), self.router_up, bias

    def folded(self, pass_index: int) -> tuple[Tensor, Tensor]:
        """Everything of one pass as one linear map: weight ``[3 + C, 2d]`` and bias ``[3 + C]``."""
        columns = self.weight[N_GATES : N_GATES + self.n_columns]
        if self.router_down is not None and self.router_up is not None:
            columns = self.router_up @ self.router_down
        if self.pass_columns is not None:
            columns = columns + self.pass_columns[pass_index]
        bias = self.weight.new_zeros(N_GATES + self.n_columns)
        if self.pass_bias is not None:
            bias[N_GATES:] = self.pass_bias[pass_index]
        return torch.cat([self.weight[:N_GATES], columns]), bias


def _uniform(rows: int, columns: int) -> Tensor:
    return torch.empty(rows, columns).uniform_(-1, 1) * columns**-0.5


def _linear(weight: Tensor, c: Tensor, h0: Tensor) -> Tensor:
    """``weight [n, 2d]`` on ``[c ; h0]`` without building it, in fp32 at least."""
    d = c.shape[-1]
    c, h0, weight = widened(c, h0, weight)
    with without_autocast(c):
        return F.linear(c, weight[:, :d]) + F.linear(h0, weight[:, d:])
