"""Engram: a memory of hashed byte n-grams with a gated read (arXiv 2601.07372, in the original's byte form).

Rows of the last 2, 3, 4 (or other orders) bytes are looked up once a forward: the hash does not depend on the
hidden state. Each pass opens the memory by a gate from the agreement of its query with the row's key,
``sigmoid(sign(s) sqrt(|s|))``, ``s = <RMSNorm(key), RMSNorm(query)> / sqrt(d)``. The read is mixed with a dense
half under a hard cap: ``lam * read + (1 - lam) * W x`` with ``lam = min(w_mem, engram_lam_max)``.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.config.schema import ModelConfig
from dormouse.model.roles import Role, declare
from dormouse.model.spectral import dense
from dormouse.ops.ngram import ngram_rows
from dormouse.ops.norm import rms_norm

_EPS = 1e-5
_ROW_STD = 0.02  # an n-gram that was never seen reads as nearly nothing


@dataclass(frozen=True)
class Memory:
    """What one forward reads from the tables, shared by all passes."""

    value: Tensor  # [B, T, d]
    key: Tensor  # [B, T, d], RMS-normalised


class Engram(nn.Module):
    """Hashed n-gram tables with their projections, and the per-pass read."""

    mechanism = "engram"

    def __init__(self, config: ModelConfig) -> None:
        """Create tables of ``engram_rows`` rows (rounded up to a power of two) for each order."""
        super().__init__()
        d, self.orders, self.hash_name = config.d_model, list(config.engram_orders), config.engram_hash
        self.n_rows, self.lam_max = 1 << (config.engram_rows - 1).bit_length(), config.engram_lam_max
        width = len(self.orders) * config.engram_dim
        table = torch.randn(len(self.orders) * self.n_rows, config.engram_dim) * _ROW_STD
        self.table = nn.Parameter(table)
        declare(self, table=Role.TABLE)
        self.key = dense(width, d)
        self.value = dense(width, d)
        self.dense_half = dense(d, d) if config.engram_dense_half else None

    @property
    def reach(self) -> int:
        """Bytes of history that a lookup may read."""
        return max(self.orders) - 1

    def look_up(self, ids: Tensor, history: Tensor, age: Tensor) -> Memory:
        """Read the tables for bytes ``[B, T]``; see `ngram_rows` for history and age."""
        rows, valid = ngram_rows(ids, history, age, orders=self.orders, n_rows=self.n_rows, hash_name=self.hash_name)
        offset = torch.arange(len(self.orders), device=ids.device) * self.n_rows
        e = F.embedding(rows + offset, self.table, sparse=True) * valid.unsqueeze(-1)
        e = e.flatten(-2)
        return Memory(self.value(e), rms_norm(self.key(e), None, _EPS))

    def forward(self, memory: Memory, query: Tensor, x: Tensor, w_mem: Tensor) -> Tensor:
        """One pass's read.

        Args:
            memory: result of `look_up`.
            query: un-normed context of the pass ``[B, T, d]``.
            x: normed input of the pass ``[B, T, d]``, read by the dense half.
            w_mem: memory gate of the controller ``[B, T, 1]``.

        Returns:
            ``[B, T, d]``.
        """
        agreement = (memory.key * rms_norm(query, None, _EPS)).sum(-1, keepdim=True) * query.shape[-1] ** -0.5
        gate = (agreement.sign() * agreement.abs().clamp(min=1e-6).sqrt()).sigmoid()
        lam = w_mem.clamp(max=self.lam_max)
        read = (lam * gate) * memory.value
        return read if self.dense_half is None else read + (1 - lam) * self.dense_half(x)
