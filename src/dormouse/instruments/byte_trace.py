"""What a routed model did with each byte of a text, as plain arrays without torch.

Two things are said about a byte at position t. Its surprisal comes from what the model had read before it, positions
0 .. t-1. Its experts are those that worked while the byte itself was read, to predict the one after it. Byte 0 has no
context: as in `dormouse eval` it is read and not scored, so n bytes have n - 1 surprisals, and BPB is their mean.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ByteTrace:
    """Per byte of a text of n bytes: surprisal, and the routing of P passes that choose k of C columns.

    The columns are E experts and, after them, null experts, which compute nothing.
    """

    data: np.ndarray
    """uint8 [n], the text."""
    bits: np.ndarray
    """float64 [n], -log2 p of each byte given all before it; NaN at byte 0, which is not scored."""
    ids: np.ndarray
    """int64 [P, n, k], selected columns, largest gate first, the lower number first among equals."""
    gates: np.ndarray
    """float32 [P, n, k], weight of each selected column, scaling constant included."""
    confidence: np.ndarray
    """float32 [P, n], the router's probability of the first of `ids`, before any bias, selection and scaling."""
    entropy: np.ndarray
    """float32 [P, n], of the router's distribution over all columns in bits, in 0 .. log2 C."""
    n_experts: int
    n_null: int = 0

    @property
    def n_passes(self) -> int:
        """P, passes that ran."""
        return self.ids.shape[0]

    @property
    def top_k(self) -> int:
        """k, experts a byte and pass."""
        return self.ids.shape[2]

    @property
    def n_columns(self) -> int:
        """C, experts and null experts."""
        return self.n_experts + self.n_null

    @property
    def scored_bytes(self) -> int:
        """Bytes with a surprisal: all but the first."""
        return len(self.data) - 1

    @property
    def bpb(self) -> float:
        """Mean surprisal of the scored bytes."""
        return float(self.bits[1:].sum() / self.scored_bytes)

    @property
    def max_entropy(self) -> float:
        """log2 C, in bits."""
        return math.log2(self.n_columns)

    def counts(self) -> np.ndarray:
        """int64 [P, C], how often each column was selected in each pass, over all k slots."""
        return np.stack([np.bincount(chosen.ravel(), minlength=self.n_columns) for chosen in self.ids])
