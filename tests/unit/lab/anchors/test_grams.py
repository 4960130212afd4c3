"""Counts of byte strings: the same as counting by hand and by a dictionary."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from dormouse.lab.anchors.grams import GramTable, continuation_table, count_tables, encode


def as_bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, dtype=np.uint8)


def as_dict(table: GramTable) -> dict[bytes, int]:
    keys = [int(code).to_bytes(table.order, "big") for code in table.codes]
    return dict(zip(keys, table.counts.tolist(), strict=True))


def test_a_code_is_the_big_endian_number_of_its_bytes():
    assert encode(as_bytes(b"\x01\x02\xff"), 2).tolist() == [0x0102, 0x02FF]
    assert encode(as_bytes(b"\xff" * 8), 8).tolist() == [2**64 - 1]
    assert encode(as_bytes(b"abc"), 4).tolist() == []


def test_small_counts_are_those_counted_by_hand():
    one, two, three = count_tables(as_bytes(b"banana"), 3)
    assert as_dict(one) == {b"a": 3, b"b": 1, b"n": 2}
    assert as_dict(two) == {b"an": 2, b"ba": 1, b"na": 2}
    assert as_dict(three) == {b"ana": 2, b"ban": 1, b"nan": 1}


def test_a_continuation_count_is_the_number_of_different_bytes_before():
    _, two, three = count_tables(as_bytes(b"banana"), 3)
    # before a: b, n; before n: a. before an: b, n; before na: a.
    assert as_dict(continuation_table(two)) == {b"a": 2, b"n": 1}
    assert as_dict(continuation_table(three)) == {b"an": 2, b"na": 1}


@pytest.mark.parametrize("size", [8, 9, 15, 400])
def test_all_orders_agree_with_a_dictionary(size):
    text = np.random.default_rng(size).choice(np.array([0, 1, 97, 255], dtype=np.uint8), size)
    tables = count_tables(text, 8)
    raw = text.tobytes()
    for order, table in enumerate(tables, start=1):
        assert as_dict(table) == Counter(raw[i : i + order] for i in range(size - order + 1))
        assert (np.diff(table.codes.astype(object)) > 0).all()
    for order in range(1, 8):
        before = defaultdict(set)
        for i in range(size - order):
            before[raw[i + 1 : i + 1 + order]].add(raw[i])
        assert as_dict(continuation_table(tables[order])) == {gram: len(seen) for gram, seen in before.items()}
