"""What the future-byte head is trained on: the byte some way past the next one, where it belongs to the same text.

At position t the main loss predicts byte t + 1 and the head byte t + 1 + horizon. A position counts where that byte
exists in the window, is scored by the main loss too, and follows in the same document.
"""

import torch
from torch import Tensor
from torch.nn import functional

from dormouse.data.batch import Batch


def counted(batch: Batch, horizon: int) -> Tensor:
    """Positions whose future byte counts, bool ``[B, T]`` on the CPU."""
    length = batch.inputs.shape[1]
    kept = torch.zeros_like(batch.mask)
    if horizon >= length:
        return kept
    kept[:, : length - horizon] = batch.mask[:, horizon:]
    if batch.bounds is not None:
        document = batch.bounds.long().cumsum(1)
        kept[:, : length - horizon] &= document[:, horizon:] == document[:, : length - horizon]
    return kept


def future_loss(logits: Tensor, batch: Batch, horizon: int) -> Tensor:
    """Sum of nats over the counted positions of logits ``[B, T, 256]``; 0 with zero gradient where none counts."""
    kept = counted(batch, horizon)
    targets = batch.targets.roll(-horizon, 1).masked_fill(~kept, -100).to(logits.device, non_blocking=True)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
