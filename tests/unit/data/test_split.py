"""Where a text without a held-out file is cut."""

from pathlib import Path

import numpy as np
import pytest

from dormouse.data.files import Source
from dormouse.data.split import split_source
from dormouse.errors import DataError


def source(size: int, starts: tuple[int, ...] = (0,), text: bytes | None = None) -> Source:
    data = np.zeros(size, dtype=np.uint8) if text is None else np.frombuffer(text, dtype=np.uint8)
    return Source(Path("corpus"), data, starts)


def cut(of: Source, *, train_min: int = 257, held_out_min: int = 513, separator: bytes | None = None) -> int:
    return split_source(of, train_min=train_min, held_out_min=held_out_min, separator=separator)[0]


def test_the_last_twentieth_of_a_long_text_is_held_out_from_a_block_on():
    place = cut(source(1_000_000))
    assert place % 4_096 == 0
    assert 0.95 - 0.005 < place / 1_000_000 <= 0.95


def test_a_short_text_gives_one_evaluation_sequence():
    assert cut(source(2_000)) == 2_000 - 513


def test_the_smallest_possible_text_is_split_into_exactly_one_window_each():
    assert cut(source(257 + 513)) == 257
    message = r"holds 769 bytes .*training needs 257 bytes and the held-out part 513, together 770"
    with pytest.raises(DataError, match=message):
        cut(source(257 + 513 - 1))


def test_the_cut_falls_between_two_files_when_one_ends_near_by():
    assert cut(source(100_000, starts=(0, 20_000, 94_000, 97_300, 99_900))) == 94_000


def test_a_file_that_starts_far_away_does_not_attract_the_cut():
    # 80 % and 99 % lie outside half to twice a twentieth; a text of 100,000 bytes is too short for blocks.
    assert cut(source(100_000, starts=(0, 80_000, 99_000))) == 95_000


def test_the_cut_moves_to_the_nearest_document():
    text = bytearray(b"x" * 100_000)
    for place in (90_100, 94_899, 96_000):
        text[place] = ord("|")
    assert cut(source(0, text=bytes(text)), separator=b"|") == 94_900
