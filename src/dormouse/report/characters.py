"""How the bytes of a text are shown: one group a character, and something visible for whatever has no glyph.

Bytes that form a UTF-8 character are shown together, as that character. Control bytes and bytes outside valid UTF-8
become an escape such as `\\x80`, invisible and direction-changing characters one such as `\\u200b`, and a combining
mark stands on a dotted circle, so that it does not climb onto its neighbor.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["plain", "newline", "tab", "mark"]
_DOTTED_CIRCLE = "\u25cc"


@dataclass(frozen=True)
class Character:
    """Bytes `start .. start + length - 1` of a text, shown together."""

    start: int
    length: int
    text: str
    """What is shown; for a newline or tab the character itself."""
    kind: Kind
    """`mark` is a name for what cannot be seen."""


def characters(data: bytes) -> Iterator[Character]:
    """Every byte of `data`, in order, in exactly one character."""
    position = 0
    while position < len(data):
        byte = data[position]
        if byte < 0x80:
            yield Character(position, 1, *_ascii(byte))
            position += 1
            continue
        length, text = _decoded(data[position : position + 4])
        yield Character(position, length, *(_visible(text) if text else _escape(byte)))
        position += length


def _ascii(byte: int) -> tuple[str, Kind]:
    if byte == 0x0A:
        return "\n", "newline"
    if byte == 0x09:
        return "\t", "tab"
    return (chr(byte), "plain") if 0x20 <= byte < 0x7F else _escape(byte)


def _escape(byte: int) -> tuple[str, Kind]:
    return f"\\x{byte:02x}", "mark"


def _decoded(head: bytes) -> tuple[int, str]:
    """(length, character) of the UTF-8 sequence that `head` starts with; (1, "") where there is none."""
    for length in (2, 3, 4):
        try:
            return length, head[:length].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return 1, ""


def _visible(text: str) -> tuple[str, Kind]:
    group = unicodedata.category(text)[0]
    if group in "CZ":
        return (f"\\u{ord(text):04x}", "mark")
    return (_DOTTED_CIRCLE + text if group == "M" else text, "plain")
