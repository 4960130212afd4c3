"""Which bytes may follow so that the text stays valid UTF-8.

UTF-8 is a regular language, so eight states are enough. At a character boundary (`START`) the next byte is
ASCII or one of the lead bytes C2-F4; inside a character it is a continuation byte 80-BF. Four lead bytes
narrow the second byte, and that is where the invalid forms live: after E0 below A0 and after F0 below 90
would be overlong forms, after ED above 9F surrogates, after F4 above 8F code points past U+10FFFF. C0, C1
(always overlong) and F5-FF never occur. This is table 3-7 of the Unicode Standard, "Well-Formed UTF-8 Byte
Sequences".

A text of a fixed number of bytes must not stop inside a character, so the mask also knows how many bytes
remain: a lead byte is allowed only if its whole character fits. From `START` an ASCII byte always fits, and a
character that has been begun always has room to end: at least one byte is allowed at every point.
"""

import torch
from torch import Tensor

START, TAIL_1, TAIL_2, TAIL_3, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4 = range(8)

_PENDING = (0, 1, 2, 3, 2, 2, 3, 3)  # bytes still missing in each state, by number
_LONGEST = 4  # bytes of the longest character: more room than this changes nothing
_REFUSED = -1

_RULES = (  # in this state, bytes first .. last lead to that state
    (START, 0x00, 0x7F, START),
    (START, 0xC2, 0xDF, TAIL_1),
    (START, 0xE0, 0xE0, AFTER_E0),
    (START, 0xE1, 0xEC, TAIL_2),
    (START, 0xED, 0xED, AFTER_ED),
    (START, 0xEE, 0xEF, TAIL_2),
    (START, 0xF0, 0xF0, AFTER_F0),
    (START, 0xF1, 0xF3, TAIL_3),
    (START, 0xF4, 0xF4, AFTER_F4),
    (AFTER_E0, 0xA0, 0xBF, TAIL_1),
    (AFTER_ED, 0x80, 0x9F, TAIL_1),
    (AFTER_F0, 0x90, 0xBF, TAIL_2),
    (AFTER_F4, 0x80, 0x8F, TAIL_2),
    (TAIL_3, 0x80, 0xBF, TAIL_2),
    (TAIL_2, 0x80, 0xBF, TAIL_1),
    (TAIL_1, 0x80, 0xBF, START),
)


def _transitions() -> Tensor:
    """State after each byte, int64 [8, 256]; `_REFUSED` where no valid text goes on."""
    table = torch.full((len(_PENDING), 256), _REFUSED)
    for state, first, last, target in _RULES:
        table[state, first : last + 1] = target
    return table


def _masks(transitions: Tensor) -> Tensor:
    """Allowed bytes for each state and room of 0 .. 4 bytes, bool [8, 5, 256]."""
    needed = 1 + torch.tensor(_PENDING)[transitions.clamp(min=0)]
    room = torch.arange(_LONGEST + 1)
    return (transitions != _REFUSED)[:, None] & (needed[:, None] <= room[:, None])


_NEXT = _transitions()
_ALLOWED = _masks(_NEXT)


def advance(state: int, byte: int) -> int:
    """The state after `byte` (0 .. 255); raises `ValueError` if no valid text has this byte here."""
    target = int(_NEXT[state, byte])
    if target == _REFUSED:
        raise ValueError(f"byte 0x{byte:02X} cannot follow in UTF-8 (state {state})")
    return target


def allowed(state: int, *, room: int) -> Tensor:
    """Bytes that may come next when `room` bytes, this one included, are left: bool [256], on the CPU.

    Never all False as long as `room` is at least `max(1, missing(state))`.
    """
    return _ALLOWED[state, min(room, _LONGEST)]


def missing(state: int) -> int:
    """How many bytes the character that has been begun still needs; 0 at a character boundary."""
    return _PENDING[state]
