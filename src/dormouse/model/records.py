"""What the forward pass hands out and what it carries from one piece of text to the next.

Nothing is left behind in modules: logits, the carried state and the routing of every pass are returned. A pass of the
loop is written P, a token B x T.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RoutingRecord:
    """What the router did, stacked over passes; C = experts and null experts."""

    probs: Tensor  # [P, B, T, C] fp32 at least, scores that sum to 1, before selection; carries gradients
    ids: Tensor | None  # [P, B, T, k] int64, selected columns; absent for the dense blend
    gates: Tensor  # [P, B, T, k] weights of the selected experts ([P, B, T, E] for the dense blend)
    logits: Tensor | None = None  # [P, B, T, C] fp32 at least; carries gradients; the model always gives them
    selected: Tensor | None = None  # [P, B, T, k] scores of the selected columns before scale and renormalisation


@dataclass(frozen=True)
class MixerState:
    """Carrier of one pass's sequence mixer; unused parts are absent."""

    memory: Tensor | None = None  # KDA: [B, H, K, V] fp32 at least
    conv_tail: Tensor | None = None  # KDA with a convolution: [B, width - 1, 3 H K]
    keys: Tensor | None = None  # plain attention: [B, H, T, head_dim]
    values: Tensor | None = None  # plain attention: [B, H, T, head_dim]


@dataclass(frozen=True)
class LoopState:
    """Everything that later bytes may read of earlier ones: one mixer state a pass, and the last bytes."""

    passes: tuple[MixerState, ...]
    history: Tensor  # [B, longest n-gram - 1] int64, last bytes, oldest first
    age: Tensor  # [B] int64, bytes of the current document so far
    position: int  # bytes read since the state was made

    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        tensors = [self.history, self.age]
        for mixer in self.passes:
            tensors += [t for t in vars(mixer).values() if isinstance(t, Tensor)]
        return sum(t.numel() * t.element_size() for t in tensors)


@dataclass(frozen=True)
class LoopOutput:
    """Result of a forward pass over ``ids`` ``[B, T]``."""

    logits: Tensor  # [B, T, 256] fp32 at least, the one readout
    state: LoopState
    routing: RoutingRecord | None  # absent when there is a single unrouted expert
    pass_logits: tuple[Tensor, ...] = ()  # deep supervision: every pass through the same norm and head
    future_logits: Tensor | None = None  # [B, T, 256] fp32 at least, of a byte further ahead; in training alone


def document_age(bounds: Tensor | None, age: Tensor, length: int) -> Tensor:
    """Earlier bytes of the same document at every position.

    Args:
        bounds: bool ``[B, T]``, True at the first byte of a document, or None for no start inside the piece.
        age: int64 ``[B]``, bytes of the current document before the piece.
        length: T.

    Returns:
        int64 ``[B, T]``.
    """
    position = torch.arange(length, device=age.device)
    running = age.unsqueeze(1) + position
    if bounds is None:
        return running
    start = torch.where(bounds, position, -1).cummax(dim=1).values
    return torch.where(start >= 0, position - start, running)
