"""The n-gram memory at one position: the look-up of `Engram` once a byte, its read once a pass.

The rows of one position are a few multiplications of whole numbers. As tensor operations they would cost more
calls than a pass through the block, so they are done on Python's integers, which do not wrap: the hash is
masked to 64 bits where `ops.ngram` lets int64 overflow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dormouse.model.engram import _EPS as QUERY_EPS
from dormouse.model.engram import Engram
from dormouse.ops.ngram import _OFFSET as OFFSET
from dormouse.ops.ngram import FNV_PRIME

_MASK_64 = (1 << 64) - 1
_MASK_31 = (1 << 31) - 1  # of the hash `original`


@dataclass(frozen=True)
class Found:
    """What the tables hold for the last bytes; shared by all passes."""

    key: Tensor  # [B, d], of root mean square one, times d ** -0.5
    value: Tensor  # [B, d]


class MemoryStep:
    """One memory's weights, prepared once, and its two steps."""

    def __init__(self, engram: Engram) -> None:
        """Concatenate the projections; call it without gradients."""
        self.table, self.n_rows = engram.table, engram.n_rows
        self.orders, self.hash_name, self.lam_max = engram.orders, engram.hash_name, engram.lam_max
        self.w_read = torch.cat([engram.value.weight, engram.key.weight])
        self.dense_half = None if engram.dense_half is None else engram.dense_half.weight
        self.scale = engram.value.weight.shape[0] ** -0.5

    def look_up(self, history: Tensor, age: Tensor) -> Found:
        """Read the tables.

        history int64 [B, longest order], last bytes, oldest first; age int64 [B], earlier bytes of the
        document.
        """
        ages = age.tolist()
        rows = [self.rows(last) for last in history.tolist()]
        e = F.embedding(torch.tensor(rows, device=history.device), self.table)
        if min(ages) < max(self.orders) - 1:
            known = [[float(old >= order - 1) for order in self.orders] for old in ages]
            e = e * torch.tensor(known, dtype=e.dtype, device=e.device)[..., None]
        value, key = F.linear(e.flatten(1), self.w_read).chunk(2, -1)
        return Found(key * (key.square().mean(-1, keepdim=True) + QUERY_EPS).rsqrt() * self.scale, value)

    def rows(self, last: Sequence[int]) -> list[int]:
        """Rows of the n-grams that end with the last byte, in the stacked tables, for every order."""
        found = []
        for table, order in enumerate(self.orders):
            key = OFFSET[self.hash_name]
            for byte in last[-order:]:
                key = (key ^ byte) * FNV_PRIME & _MASK_64
            if self.hash_name == "original":
                key &= _MASK_31
            found.append(table * self.n_rows + key % self.n_rows)
        return found

    def __call__(self, found: Found, c: Tensor, power: Tensor, x: Tensor, w_mem: Tensor) -> Tensor:
        """One pass's read [B, d].

        c [B, d] un-normed context with its mean square `power` [B, 1]; x [B, d] normed input; w_mem [B, 1]
        gate.
        """
        agreement = (found.key * c).sum(-1, keepdim=True) * (power + QUERY_EPS).rsqrt()
        gate = (agreement.sign() * agreement.abs().clamp(min=1e-6).sqrt()).sigmoid()
        lam = w_mem.clamp(max=self.lam_max)
        read = (lam * gate) * found.value
        return read if self.dense_half is None else read + (1 - lam) * F.linear(x, self.dense_half)
