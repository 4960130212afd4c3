"""Where documents start, decided from the bytes alone.

A document starts at the first byte of the stream and at every byte that directly follows a separator. The
test looks back only as many bytes as the separator is long, also across the edge of a training window, so the
answer for a byte does not depend on how the stream is cut. Occurrences of the separator may overlap; after
two separators in a row lies an empty document, and only the byte after the second one starts a non-empty one.
"""

import numpy as np


def document_starts(data: np.ndarray, start: int, stop: int, *, separator: bytes) -> np.ndarray:
    """bool [stop - start], True where a document starts at that byte of the uint8 stream `data`."""
    width = len(separator)
    first = max(0, start - width)
    segment = data[first:stop]
    starts = np.zeros(stop - first, dtype=bool)
    if len(segment) > width:
        hit = np.ones(len(segment) - width, dtype=bool)
        for offset, byte in enumerate(separator):
            hit &= segment[offset : offset + len(hit)] == byte
        starts[width:] = hit
    if first == 0 and len(starts):
        starts[0] = True
    return starts[start - first :]
