"""The built-in corpus "shelf": Austen, Shakespeare and the King James Bible, 13.3 MB of English.

Two xz files lie beside this module (`corpora/`, with a NOTICE). Loading unpacks them in memory, which takes a
quarter of a second, and compares length and SHA-256 with the constants below, so every figure quoted for the
shelf belongs to exactly these bytes. Training and held-out text are split by whole works. The held-out file
deals three streams - a novel, three plays, the Bible from Romans on - in blocks of 4,096 bytes in turn, so
that any prefix is a mixture of all three; once a stream is used up the others go on alone. `registers()`
recomputes from the three stream lengths which bytes belong to which. `tools/build_shelf.py` rebuilds both
files from their packages.
"""

import hashlib
import lzma
from importlib.resources import files

import numpy as np

from dormouse.errors import DataError

TRAIN_BYTES = 12_080_852
TRAIN_SHA256 = "0f9df9a03f064a10c949dbed57b5d707576be6226d7d4e07f2fc82d74be39a41"
HELD_OUT_BYTES = 1_228_273
HELD_OUT_SHA256 = "3f98673d6ddbb10d7231d2a8b94304ffe7dd872fdff7b00d80c7b309b4ea751b"

BLOCK = 4_096
STREAM_BYTES = {"novel": 466_828, "drama": 368_588, "scripture": 392_857}
"""Length in bytes of the three held-out streams, in the order in which they are dealt."""


def load_train() -> np.ndarray:
    """Training text: uint8 [12,080,852], read-only. Raises `DataError` when the packaged file is damaged."""
    return _unpack("shelf.train.xz", TRAIN_BYTES, TRAIN_SHA256)


def load_held_out() -> np.ndarray:
    """Held-out text: uint8 [1,228,273], read-only. Raises `DataError` when the packaged file is damaged."""
    return _unpack("shelf.heldout.xz", HELD_OUT_BYTES, HELD_OUT_SHA256)


def registers() -> dict[str, list[tuple[int, int]]]:
    """Byte ranges [start, stop) of the held-out file for each register, in file order."""
    return dealt_ranges(STREAM_BYTES, block=BLOCK)


def dealt_ranges(streams: dict[str, int], *, block: int) -> dict[str, list[tuple[int, int]]]:
    """Where the bytes of each stream land when the streams are dealt in turn, `block` bytes at a time."""
    ranges: dict[str, list[tuple[int, int]]] = {name: [] for name in streams}
    position = 0
    for taken in range(0, max(streams.values()), block):
        for name, length in streams.items():
            size = min(block, length - taken)
            if size > 0:
                ranges[name].append((position, position + size))
                position += size
    return ranges


def _unpack(name: str, size: int, sha256: str) -> np.ndarray:
    packed = files("dormouse.data") / "corpora" / name
    try:
        raw = lzma.decompress(packed.read_bytes())
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"built-in corpus file {name} cannot be unpacked ({error}); {_WAY_OUT}") from error
    found = hashlib.sha256(raw).hexdigest()
    if len(raw) != size or found != sha256:
        raise DataError(
            f"built-in corpus file {name} unpacks to {len(raw):,} bytes with SHA-256 {found[:16]}, "
            f"expected {size:,} bytes with {sha256[:16]}; {_WAY_OUT}"
        )
    return np.frombuffer(raw, dtype=np.uint8)


_WAY_OUT = "no figure would be comparable: install the package again, or name your own file with data=PATH"
