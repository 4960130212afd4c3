"""One batch of byte sequences, as training and scoring read it.

`targets[b, t]` is the byte that follows `inputs[b, t]` in the file. `mask` is False where a target is padding
and must not be counted; `bounds` marks inputs that are the first byte of a document. `window_ids` says which
windows of the file the rows are, so that a log can prove that nothing was read twice.
"""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Batch:
    """B sequences of T bytes on the CPU."""

    inputs: torch.Tensor
    """int64 [B, T], values 0..255."""
    targets: torch.Tensor
    """int64 [B, T], values 0..255."""
    mask: torch.Tensor
    """bool [B, T], True where the target counts."""
    bounds: torch.Tensor | None
    """bool [B, T], True at the first byte of a document; None when no separator is set."""
    window_ids: torch.Tensor
    """int64 [B], number of the window in the file."""


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """A torch tensor of the same dtype over a private, contiguous copy of `array`."""
    return torch.from_numpy(np.array(array, order="C", copy=True))
