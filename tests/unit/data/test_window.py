"""The scored window: which bytes are scored, once each, for any batch size."""

import math

import numpy as np
import pytest
import torch

from dormouse.data.window import EvalWindow
from dormouse.errors import DataError

ELEVEN = np.arange(100, 111, dtype=np.uint8)


def scored(window: EvalWindow) -> list[tuple[int, int]]:
    """(offset in the file, value) of every counted target, in order."""
    out = []
    for batch in window:
        places = window.positions(batch)
        out += zip(places[batch.mask.numpy()].tolist(), batch.targets[batch.mask].tolist(), strict=True)
    return out


@pytest.mark.parametrize("batch_size", [1, 2, 3, 11])
def test_eleven_bytes_are_scored_once_each_but_the_first(batch_size):
    window = EvalWindow(ELEVEN, batches=None, batch_size=batch_size, seq_len=4)
    assert scored(window) == [(place, 100 + place) for place in range(1, 11)]
    assert window.scored_bytes == 10


@pytest.mark.parametrize("batch_size", [1, 2, 3, 11])
def test_bits_per_byte_of_the_eleven_byte_case_do_not_depend_on_the_batch_size(batch_size):
    # Losses of 1 nat, then 4 nats on the last three bytes: 10 scored bytes hold 7 * 1 + 3 * 4 = 19 nats.
    loss = {place: 4.0 if place >= 8 else 1.0 for place in range(1, 11)}
    window = EvalWindow(ELEVEN, batches=None, batch_size=batch_size, seq_len=4)
    total = sum(loss[place] for place, _ in scored(window))
    assert total / (window.scored_bytes * math.log(2)) == pytest.approx(2.741121, abs=1e-6)


def test_every_sequence_has_the_byte_before_it_as_its_only_context():
    window = EvalWindow(ELEVEN, batches=None, batch_size=2, seq_len=4)
    rows = [row.tolist() for batch in window for row in batch.inputs]
    assert rows == [[100, 101, 102, 103], [104, 105, 106, 107], [108, 109, 0, 0]]
    masks = [row.tolist() for batch in window for row in batch.mask]
    assert masks == [[True] * 4, [True] * 4, [True, True, False, False]]


def test_the_usual_window_is_40960_bytes_and_starts_at_the_second_byte():
    data = np.random.default_rng(0).integers(0, 256, 50_000, dtype=np.uint8)
    window = EvalWindow(data)
    assert (window.window_bytes, window.scored_bytes, len(window)) == (40_960, 40_960, 10)
    assert all(batch.inputs.shape == (8, 512) and bool(batch.mask.all()) for batch in window)
    assert [value for _, value in scored(window)] == data[1:40_961].tolist()


def test_the_window_in_bytes_may_be_given_and_read_with_any_batch_size():
    data = np.random.default_rng(1).integers(0, 256, 5_000, dtype=np.uint8)
    reference = scored(EvalWindow(data, batches=3, batch_size=8, seq_len=100))
    for batch_size in (1, 5, 7, 24, 100):
        assert scored(EvalWindow(data, window_bytes=2_400, batch_size=batch_size, seq_len=100)) == reference


def test_a_short_file_is_scored_whole_and_says_so():
    window = EvalWindow(ELEVEN[:7])
    assert (window.window_bytes, window.scored_bytes) == (40_960, 6)
    assert scored(window) == [(place, 100 + place) for place in range(1, 7)]


def test_two_bytes_are_the_least():
    assert scored(EvalWindow(ELEVEN[:2])) == [(1, 101)]
    for size in (0, 1):
        with pytest.raises(DataError, match=rf"{size} bytes holds no scored byte"):
            EvalWindow(ELEVEN[:size])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 11])
def test_the_length_is_the_number_of_batches(batch_size):
    window = EvalWindow(ELEVEN, batches=None, batch_size=batch_size, seq_len=4)
    assert len(window) == len(list(window)) == math.ceil(3 / batch_size)


def test_iterating_twice_gives_the_same_batches():
    window = EvalWindow(ELEVEN, batches=None, batch_size=2, seq_len=4)
    for one, other in zip(window, window, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.window_ids, other.window_ids)


def test_document_starts_are_those_of_the_file():
    text = np.frombuffer(b"abc|defg|hijk", dtype=np.uint8)
    window = EvalWindow(text, batches=None, batch_size=2, seq_len=5, separator=b"|")
    marked = [batch.window_ids[row] * 5 + column for batch in window for row, column in batch.bounds.nonzero().tolist()]
    assert [int(place) for place in marked] == [0, 4, 9]
    assert next(iter(EvalWindow(text))).bounds is None
