"""Operations that compute in the precision of their inputs, whatever autocast is set to.

Autocast changes single operations inside a function, and its lists know nothing of hand-written backward passes: a
product would come out in half precision and meet a buffer in full precision. The functions of this package that
write into buffers switch it off for themselves, forward and backward.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def widened(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All tensors in the widest of their dtypes, fp32 at least."""
    dtype = torch.float32
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    return tuple(x.to(dtype) for x in tensors)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """A context in which autocast is off for the device of ``x``."""
    kind = x.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def backward_without_autocast(backward: Callable) -> Callable:
    """Decorator for the ``backward`` of a custom function, which may be called inside somebody's autocast."""

    @wraps(backward)
    def wrapped(ctx: Any, *grad_outputs: Any) -> Any:
        with without_autocast(grad_outputs[0]):
            return backward(ctx, *grad_outputs)

    return wrapped
