"""Where a user's own text is cut into training and held-out text when no held-out file is named.

The last twentieth is held out, and never less than one evaluation sequence. The cut moves to the nearest
start of a file of a folder as long as the held-out part stays between half and twice that size; else to the
nearest start of a document within 64 KiB, if a separator is set; else down to a multiple of 4,096 bytes when
the text is long enough for that to matter little; else it stays where it is. Bytes are never reordered, so
the training text is a prefix.
"""

import numpy as np

from dormouse.data.bounds import document_starts
from dormouse.data.files import Source
from dormouse.errors import DataError

SHARE = 20
"""One part in this many is held out."""

_BLOCK = 4_096
_REACH = 1 << 16


def split_source(source: Source, *, train_min: int, held_out_min: int, separator: bytes | None) -> tuple[int, str]:
    """Offset of the first held-out byte, and in words what kind of place it is.

    `train_min` and `held_out_min` are the least bytes of each side; raises `DataError` when they do not fit.
    """
    size = len(source.data)
    if size < train_min + held_out_min:
        raise DataError(
            f"data={source.path} holds {size:,} bytes and no eval file is named: "
            f"training needs {train_min:,} bytes and the held-out part {held_out_min:,}, together "
            f"{train_min + held_out_min:,}; name more text, eval=PATH, or a smaller seq_len and eval_seq_len"
        )
    tail = max(size // SHARE, held_out_min)
    target = size - tail
    low, high = max(train_min, size - 2 * tail), size - max(tail // 2, held_out_min)
    for kind, places in (
        ("at a file's start", np.array(source.starts, dtype=np.int64)),
        ("at a document's start", _documents_near(source.data, target, separator)),
        (
            "at a multiple of 4,096 bytes",
            np.array([target // _BLOCK * _BLOCK] if size >= 40 * _BLOCK else []),
        ),
    ):
        inside = places[(places >= low) & (places <= high)]
        if len(inside):
            return int(inside[np.argmin(np.abs(inside - target))]), kind
    return target, "at no special place"


def _documents_near(data: np.ndarray, target: int, separator: bytes | None) -> np.ndarray:
    if separator is None:
        return np.empty(0, dtype=np.int64)
    start, stop = max(0, target - _REACH), min(len(data), target + _REACH)
    return start + np.flatnonzero(document_starts(data, start, stop, separator=separator))
