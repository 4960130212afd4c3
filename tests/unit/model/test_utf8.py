"""The UTF-8 machine against Python's own decoder: every character, every short prefix, random long ones."""

import random
from functools import reduce

import pytest
import torch

from dormouse.model import utf8


def follow(data):
    """The state after `data`, or None if the machine refuses a byte of it."""
    state = utf8.START
    for byte in data:
        if not utf8.allowed(state, room=4)[byte]:
            return None
        state = utf8.advance(state, byte)
    return state


def python_accepts(data):
    """Whether Python's decoder takes `data` as the beginning of a text.

    The strict decoder and its reason are asked: the incremental one waits for the third byte of a surrogate.
    """
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def python_missing(data):
    """How many continuation bytes make `data` complete, found by trying one second byte of each kind."""
    for count in range(4):
        for byte in (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF):
            tail = bytes([byte]) + b"\x80" * (count - 1) if count else b""
            try:
                (data + tail).decode()
            except UnicodeDecodeError:
                continue
            return count
    raise AssertionError(data)


def characters(state=utf8.START, begun=b""):
    """Every single character the machine can spell, in byte order."""
    for byte in utf8.allowed(state, room=4).nonzero().flatten().tolist():
        after, spelled = utf8.advance(state, byte), begun + bytes([byte])
        if after == utf8.START:
            yield spelled
        else:
            yield from characters(after, spelled)


def test_the_machine_spells_exactly_the_characters_of_unicode():
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    assert b"".join(characters()) == every.encode()


def test_every_prefix_of_one_to_three_bytes_is_judged_as_by_python():
    prefixes = [b""]
    for length in (1, 2, 3):
        longer = []
        for prefix in prefixes:
            accepted = utf8.allowed(follow(prefix), room=4).tolist()
            wanted = [python_accepts(prefix + bytes([byte])) for byte in range(256)]
            assert accepted == wanted, prefix
            longer += [prefix + bytes([byte]) for byte in range(256) if wanted[byte]]
        # After an ASCII byte the machine is at START again, so one ASCII byte stands for all of them.
        prefixes = [prefix for prefix in longer if length == 1 or prefix[0] in (0x61, *range(0x80, 256))]


def test_random_strings_of_four_bytes_are_judged_as_by_python():
    rng = random.Random(0)
    leads = [0x00, 0x7F, 0xC0, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF3, 0xF4, 0xF5, 0xFF]
    for _ in range(20_000):
        data = bytes([rng.choice(leads), *(rng.choice([0x41, rng.randrange(0x80, 0xC0)]) for _ in range(3))])
        assert (follow(data) is not None) == python_accepts(data), data


@pytest.mark.parametrize(
    "data",
    [
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xf0\x80\x80\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5",
        b"\x80",
        b"\xc3A",
    ],
    ids=[
        "overlong 2",
        "overlong 3",
        "overlong 4",
        "surrogate",
        "past 10FFFF",
        "F5",
        "stray tail",
        "broken off",
    ],
)
def test_known_invalid_forms_are_refused(data):
    assert follow(data) is None
    with pytest.raises(ValueError, match="cannot follow"):
        reduce(utf8.advance, data, utf8.START)


@pytest.mark.parametrize(
    "data", [b"", b"a", b"\xc3", b"\xe0", b"\xe2\x82", b"\xed", b"\xf0", b"\xf4\x8f", b"\xf1\x80\x80"]
)
def test_missing_counts_the_bytes_that_complete_the_character(data):
    assert utf8.missing(follow(data)) == python_missing(data)


def test_only_characters_that_fit_may_begin():
    for room, last_lead in [(1, 0x7F), (2, 0xDF), (3, 0xEF), (4, 0xF4), (1000, 0xF4)]:
        assert int(utf8.allowed(utf8.START, room=room).nonzero().max()) == last_lead
    assert not utf8.allowed(utf8.START, room=0).any()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 50])
def test_any_walk_within_the_mask_ends_as_valid_text_of_the_full_length(length):
    rng = random.Random(length)
    for _ in range(300):
        state, data = utf8.START, b""
        for room in range(length, 0, -1):
            choices = utf8.allowed(state, room=room).nonzero().flatten().tolist()
            byte = rng.choice([byte for byte in choices if byte > 0x7F] or choices)
            state, data = utf8.advance(state, byte), data + bytes([byte])
        assert len(data) == length
        assert len(data.decode()) <= length


def test_the_mask_is_boolean_and_spans_the_byte_alphabet():
    mask = utf8.allowed(utf8.START, room=4)
    assert mask.dtype == torch.bool
    assert mask.shape == (256,)
