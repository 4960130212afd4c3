"""Typical bytes, the routing in words, and the surprisal's curve, against examples by hand."""

import re

import numpy as np
import pytest

from dormouse.report.reading import rows
from dormouse.report.sparkline import HEIGHT, sparkline
from dormouse.report.typical import CLASSES, class_shares, classes, profiles
from traces import made_trace


def test_byte_classes_are_those_of_the_standard_library():
    table, names = classes(), {name: index for index, name in enumerate(CLASSES)}
    for byte in range(256):
        character = chr(byte)
        if byte >= 128:
            expected = "non-ASCII"
        elif character in "aeiouAEIOU":
            expected = "vowels"
        elif character.isalpha():
            expected = "consonants"
        elif character.isdigit():
            expected = "digits"
        elif character in " \n":
            expected = {" ": "space", "\n": "newline"}[character]
        else:
            expected = "punctuation" if character.isprintable() else "control"
        assert table[byte] == names[expected], byte


def test_shares_and_lifts_of_an_expert():
    # text: a a a b; expert 0 reads both b and one a over two passes, expert 1 the other five a
    data = np.frombuffer(b"aaab", dtype=np.uint8)
    ids = np.array([[1, 1, 0, 0], [1, 1, 1, 0]])[..., None]
    first, second, third = profiles(data, ids, 3)
    assert (first.assignments, second.assignments, third.assignments) == (3, 5, 0)
    assert [(t.byte, t.share, t.lift) for t in first.typical] == [
        (ord("b"), pytest.approx(2 / 3), pytest.approx(8 / 3))
    ]
    assert [(t.byte, t.share, t.lift) for t in second.typical] == [(ord("a"), 1, pytest.approx(4 / 3))]
    assert first.class_shares == pytest.approx((1 / 3, 2 / 3, 0, 0, 0, 0, 0, 0))
    assert (third.class_shares, third.typical) == ((0,) * 8, ())
    assert class_shares(data) == (0.75, 0.25, 0, 0, 0, 0, 0, 0)


def test_a_common_byte_with_some_lift_comes_before_a_rare_one_with_much():
    data = np.frombuffer(b"e" * 60 + b"q" + b"t" * 60, dtype=np.uint8)
    ids = np.array([1] * 15 + [0] * 46 + [1] * 60)[None, :, None]  # lifts: e 1.97, q 2.63
    assert [typical.byte for typical in profiles(data, ids, 2)[0].typical] == [ord("e"), ord("q")]


def test_the_words_of_a_text():
    trace = made_trace("ab\né".encode(), passes=2, top_k=2)
    ids = np.array([[[0, 1], [0, 1], [2, 1], [3, 0], [3, 1]], [[1, 2]] * 5])
    trace = type(trace)(**{**vars(trace), "ids": ids, "bits": np.array([np.nan, 2, 4, 1, 2.0])})
    first, second = rows(trace)
    assert (first.start, first.text, first.bits) == (0, "ab\u21b5", 3)
    assert first.experts == ("0+1 x2, 2+1", "1+2 x3")
    assert (second.start, second.text, second.bits) == (3, "é", 1.5)
    assert second.experts == ("3+0, 3+1", "1+2 x2")


def test_a_long_line_is_cut_between_characters_and_a_first_byte_alone_has_no_mean():
    found = list(rows(made_trace(b"\n" + ("é" * 40).encode())))
    assert [(row.start, len(row.text)) for row in found] == [(0, 1), (1, 16), (33, 16), (65, 8)]
    assert found[0].bits is None
    many = list(rows(made_trace(("x" + "é" * 40).encode())))
    assert [row.start for row in many] == [0, 31, 63]


def levels(path):
    return [float(y) for y in re.findall(r"V([\d.]+)h1", path)]


def test_the_curve_has_the_mean_and_the_peak_of_each_stretch():
    spark = sparkline(np.array([1.0, 3, 0, 8, 2]), columns=3)
    assert (spark.width, spark.bytes_a_column, spark.ceiling) == (3, 2, 8)
    assert levels(spark.mean) == [HEIGHT * (1 - y / 8) for y in (2, 4, 2)]
    assert levels(spark.peak) == pytest.approx([HEIGHT * (1 - y / 8) for y in (3, 8, 2)], abs=0.05)
    assert spark.level == pytest.approx(HEIGHT * (1 - 2.8 / 8))


@pytest.mark.parametrize("number", [1, 399, 400, 401, 8191])
def test_a_curve_has_at_most_four_hundred_columns_and_all_bytes(number):
    spark = sparkline(np.full(number, 0.25))
    assert spark.width == -(-number // spark.bytes_a_column) <= 400
    assert set(levels(spark.mean)) == {HEIGHT * 0.75}
