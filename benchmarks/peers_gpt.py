"""The byte GPT among the peers, with or without a memory of hashed n-grams.

    h = E[byte]  (+ n-gram rows of the last bytes)
    for every layer:  h += out(attention(rms(h)));  h += down(relu(up(rms(h)))^2)
    logits = head(rms(h))

Attention is causal with heads of 64, RoPE and normalised queries and keys. The embedding starts at N(0, 1), the
head and both residual outputs at zero, other matrices at N(0, 0.6 / sqrt(width)). RoPE does not extend past the
trained length, so a longer text is read through a band: every position attends to the last `context` bytes, and
no distance occurs that training has not seen. That is a sliding window for the price of one forward pass, and
scores better than cutting the text into pieces of the trained length.

Rows of n-grams are either as wide as the model and added, or narrow and sent through a projection. They come from
the hash that dormouse uses; the position of an n-gram that reaches before the text reads zeros.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse.ops.ngram import ngram_rows

VOCAB = 256
_EPS = 1e-6
_ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class PeerOutput:
    """What evaluation and training read of a peer; the same names as dormouse's own record."""

    logits: Tensor  # [B, T, 256] fp32
    state: object = None  # carried by recurrent peers
    routing: None = None


@dataclass(frozen=True)
class GptShape:
    """Sizes of a GPT; `orders` empty means no n-grams."""

    width: int = 128
    layers: int = 5
    heads: int = 2
    context: int = 256
    orders: tuple[int, ...] = ()
    rows: int = 32_768  # of each order
    row_width: int = 128
    row_std: float = 0.02


class Gpt(nn.Module):
    """Pre-norm decoder over bytes."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(VOCAB, shape.width)
        self.memory = NgramMemory(shape) if shape.orders else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, _EPS)
        self.head = nn.Linear(shape.width, VOCAB, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids: Tensor, bounds: Tensor | None = None, state: None = None) -> PeerOutput:
        """Bytes int64 [B, T] to logits [B, T, 256]; `bounds` and `state` are there for the shared interface."""
        h = self.embedding(ids)
        if self.memory is not None:
            h = h + self.memory(ids)
        rotation = rotary(ids.shape[1], self.shape.width // self.shape.heads)
        band = banded(ids.shape[1], self.shape.context)
        for block in self.blocks:
            h = block(h, rotation, band)
        return PeerOutput(self.head(self.norm(h)))

    def block_matrices(self) -> list[tuple[str, nn.Parameter, int]]:
        """(name, weight, number of matrices stacked in its rows) of everything that Muon trains."""
        found = [(n, p, 3 if "qkv" in n else 1) for n, p in self.blocks.named_parameters() if p.ndim == 2]
        if self.memory is not None and self.memory.projection is not None:
            found.append(("memory.projection", self.memory.projection.weight, 1))
        return found

    def tables(self) -> dict[str, nn.Parameter]:
        """N-gram tables by name; empty without n-grams."""
        return {} if self.memory is None else {"memory.table": self.memory.table}


class Block(nn.Module):
    """One layer: attention, then a squared-ReLU feed-forward of four times the width."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        d, self.heads = shape.width, shape.heads
        self.norm_attention = nn.RMSNorm(d, _EPS)
        self.qkv = matrix(d, 3 * d)
        self.out = matrix(d, d, zero=True)
        self.norm_mlp = nn.RMSNorm(d, _EPS)
        self.up = matrix(d, 4 * d)
        self.down = matrix(4 * d, d, zero=True)

    def forward(self, h: Tensor, rotation: tuple[Tensor, Tensor], band: Tensor | None) -> Tensor:
        """[B, T, d] to [B, T, d]."""
        h = h + self.out(self.attention(self.norm_attention(h), rotation, band))
        return h + self.down(F.relu(self.up(self.norm_mlp(h))).square())

    def attention(self, x: Tensor, rotation: tuple[Tensor, Tensor], band: Tensor | None) -> Tensor:
        """Causal attention of all heads, before the output projection."""
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        q, k = rotate(unit(q), rotation), rotate(unit(k), rotation)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=band, is_causal=band is None)
        return y.transpose(1, 2).flatten(-2)


class NgramMemory(nn.Module):
    """Additive embedding of the hashed n-grams that end at each position."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.orders, self.rows = list(shape.orders), shape.rows
        n = len(self.orders)
        self.table = nn.Parameter(torch.randn(n * shape.rows, shape.row_width) * shape.row_std)
        self.projection = None
        if shape.row_width != shape.width:
            self.projection = nn.Linear(n * shape.row_width, shape.width, bias=False)
            nn.init.normal_(self.projection.weight, std=(n * shape.row_width) ** -0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Bytes [B, T] to [B, T, width]; the table's gradient is sparse."""
        batch, length = ids.shape
        history = ids.new_zeros(batch, max(self.orders) - 1)
        age = torch.arange(length).expand(batch, length)
        rows, valid = ngram_rows(ids, history, age, orders=self.orders, n_rows=self.rows)
        places = rows + torch.arange(len(self.orders)) * self.rows
        read = F.embedding(places, self.table, sparse=True) * valid.unsqueeze(-1)
        return read.sum(-2) if self.projection is None else self.projection(read.flatten(-2))


def matrix(d_in: int, d_out: int, *, zero: bool = False) -> nn.Linear:
    """A bias-free product that starts at N(0, 0.6 / sqrt(d_in)), or at zero."""
    layer = nn.Linear(d_in, d_out, bias=False)
    nn.init.normal_(layer.weight, std=0.0 if zero else 0.6 * d_in**-0.5)
    return layer


def unit(x: Tensor) -> Tensor:
    """Root-mean-square norm over the last dimension, without gain."""
    return F.rms_norm(x, x.shape[-1:], eps=_EPS)


def rotary(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, head_dim / 2]."""
    rates = _ROTARY_BASE ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(length).unsqueeze(1) * rates
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (first half, second half) of [B, H, T, head_dim] by their position's angles."""
    cos, sin = rotation
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def banded(length: int, context: int) -> Tensor | None:
    """Bool [T, T], True where a position may look: the last `context` bytes; None when plain causality is that."""
    if length <= context:
        return None
    ones = torch.ones(length, length, dtype=torch.bool)
    return ones.tril() & ones.triu(1 - context)
