"""Where documents start, decided from the bytes alone.

A document starts at the first byte of the stream and at every byte that directly follows a separator. The
test looks back only as many bytes as the separator is long, also across the edge of a training window, so the
answer for a byte does not depend on how the stream is cut. Occurrences of the separator may overlap; after
two separators in a row lies an empty document, and only the byte after the second one starts a non-empty one.
"""

import re

import numpy as np

from dormouse.errors import DataError

_SIMPLE = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\x00", "\\": b"\\"}


def parse_separator(text: str | None) -> bytes | None:
    r"""The bytes meant by a setting such as ``\n\n`` or ``\x00``; None for None.

    Known escapes are ``\n \r \t \0 \\ \xHH``; everything else stands for its UTF-8 bytes. Raises `DataError`
    for an empty setting or an unknown escape.
    """
    if text is None:
        return None
    if not text:
        raise DataError(
            "document_separator='' would start a document at every byte; leave it out or name some bytes"
        )
    return b"".join(
        _piece(part, text) for part in re.findall(r"\\x[0-9a-fA-F]{2}|\\.?|[^\\]+", text, re.DOTALL)
    )


def _piece(part: str, text: str) -> bytes:
    if not part.startswith("\\"):
        return part.encode("utf-8")
    if len(part) == 4:
        return bytes([int(part[2:], 16)])
    if part[1:] not in _SIMPLE:
        raise DataError(
            f"document_separator={text!r} holds the unknown escape {part!r}; "
            "known are \\n \\r \\t \\0 \\\\ \\xHH"
        )
    return _SIMPLE[part[1:]]


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
