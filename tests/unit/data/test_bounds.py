"""Document starts, looked up in the stream and not in the window."""

import numpy as np

from dormouse.data.bounds import document_starts


def as_bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, dtype=np.uint8)


def starts(text: bytes, separator: bytes, start: int = 0, stop: int | None = None) -> list[int]:
    stop = len(text) if stop is None else stop
    return (start + np.flatnonzero(document_starts(as_bytes(text), start, stop, separator=separator))).tolist()


def test_a_document_starts_at_the_first_byte_and_after_each_separator():
    assert starts(b"abcd|efghijk", b"|") == [0, 5]
    assert starts(b"one\n\ntwo\n\nthree", b"\n\n") == [0, 5, 10]


def test_a_separator_at_the_very_end_starts_nothing():
    assert starts(b"abc|", b"|") == [0]


def test_two_separators_in_a_row_hold_an_empty_document():
    assert starts(b"abcd||efg", b"|") == [0, 5, 6]


def test_the_cut_of_the_stream_does_not_change_the_answer():
    text = b"ab\n\ncd\n\n\nefg\n\n\n\nh\n\n"
    whole = starts(text, b"\n\n")
    for cut in range(len(text) + 1):
        assert starts(text, b"\n\n", 0, cut) + starts(text, b"\n\n", cut) == whole


def test_a_window_starts_a_document_only_if_one_really_starts_there():
    text = b"aaaa|bbbb"
    assert starts(text, b"|", 5, 9) == [5]
    assert starts(text, b"|", 4, 9) == [5]
    assert starts(text, b"|", 6, 9) == []


def test_part_of_a_separator_is_none():
    assert starts(b"a\nb\n\nc", b"\n\n") == [0, 5]


def test_a_window_shorter_than_the_separator_works():
    text = b"xENDyENDz"
    assert [starts(text, b"END", at, at + 1) for at in range(len(text))] == [
        [0],
        [],
        [],
        [],
        [4],
        [],
        [],
        [],
        [8],
    ]
