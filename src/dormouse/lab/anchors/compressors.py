"""What general compressors need for the scored bytes, in bits per byte, in both honest ways.

*Alone* is the compressed size of the scored bytes by themselves. *Primed* is the size of training text and
scored bytes together minus the size of the training text, which is what they cost a compressor that has read
what a model was trained on. The byte before the scored ones counts as training text, because a model sees it
too. All compressors adapt while they code and look back as far as they can (gzip 32 kB, bzip2 900 kB, xz 64
MiB, zstd 128 MiB), so they are not static models; a table that quotes them beside a network has to say so.

Settings: gzip, bzip2, xz at level 9 (xz "extreme"); zstd at 19 and at 22 ("ultra") with a window of 128 MiB.
"""

import bz2
import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import zstandard


@dataclass(frozen=True)
class Compressed:
    """Bits per scored byte."""

    window_alone: float
    tail_alone: float
    window: float
    """Primed with the training text."""
    tail: float
    """Primed with the training text."""


def _zstd(raw: bytes, *, level: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(level, window_log=27)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(raw)


COMPRESSORS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip -9": ("gzip", partial(gzip.compress, compresslevel=9, mtime=0)),
    "bzip2 -9": ("bzip2", partial(bz2.compress, compresslevel=9)),
    "xz -9e": ("xz", partial(lzma.compress, preset=9 | lzma.PRESET_EXTREME)),
    "zstd -19": ("zstd", partial(_zstd, level=19)),
    "zstd --ultra -22": ("zstd", partial(_zstd, level=22)),
}
"""Row name to (kind, function from bytes to compressed bytes)."""


def compress_anchor(
    compress: Callable[[bytes], bytes], train: np.ndarray, held_out: np.ndarray, *, window_bytes: int
) -> Compressed:
    """Both ways for the window held_out[1 .. window_bytes] and the tail held_out[1 ..] (uint8 streams)."""
    raw = held_out.tobytes()
    read = train.tobytes() + raw[:1]
    before = len(compress(read))

    def alone(stop: int) -> float:
        return 8 * len(compress(raw[1:stop])) / (stop - 1)

    def primed(stop: int) -> float:
        return 8 * (len(compress(read + raw[1:stop])) - before) / (stop - 1)

    window_stop, tail_stop = min(window_bytes + 1, len(raw)), len(raw)
    return Compressed(
        window_alone=alone(window_stop),
        tail_alone=alone(tail_stop),
        window=primed(window_stop),
        tail=primed(tail_stop),
    )
