"""When a number format is too coarse for a factor: thresholds of the orthogonality latch.

A factor is orthonormal; its rounded form is so only as far as the format allows. How far an orthonormal factor of the
same shape is thrown off by the rounding alone is measured here, and a factor is healthy while its own rounded form is
off by at most a stated multiple of that. A threshold that knows neither format nor width would always fire for E2M1.
Below that lies a floor, what the retraction itself may leave: a large step leaves more than bf16 or fp16 throw off, and
no format can mend that.
"""

from functools import lru_cache

import torch

from dormouse.ops.polar import orthogonality_error
from dormouse.quant.fake import fake_quant

FLOOR = 1e-3
"""Orthogonality error that is healthy in every format, fp32 among them."""
_SAMPLES = 16


@lru_cache(maxsize=256)
def rounding_error(m: int, r: int, fmt: str, group: int) -> float:
    """Largest ``||X^T X - I||_F / r`` of 16 rounded random orthonormal factors ``[m, r]``; a constant of its arguments.

    The largest, because small factors scatter: at rank 4 a single one may read twice the mean.
    """
    generator = torch.Generator().manual_seed(0)
    X = torch.linalg.qr(torch.randn(_SAMPLES, max(m, r), min(m, r), generator=generator))[0]
    X = X if m >= r else X.mT.contiguous()
    return orthogonality_error(fake_quant(X, fmt, group).double()).max().item()


def threshold(m: int, r: int, fmt: str, group: int, ratio: float) -> float:
    """Largest healthy orthogonality error of a factor ``[m, r]`` as a forward sees it.

    Args:
        m: rows.
        r: columns.
        fmt: number format.
        group: numbers of a row that share a scale; 0 = the whole row.
        ratio: multiple of what the rounding alone does to an orthonormal factor of that shape.
    """
    return max(FLOOR, ratio * rounding_error(m, r, fmt, group))
