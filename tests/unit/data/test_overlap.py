"""Runs of bytes in both texts: found at any offset, counted exactly, removed from training only."""

import numpy as np
import pytest

from dormouse.data import overlap as module
from dormouse.data import shelf
from dormouse.data.overlap import find_overlap, remove_overlap


def noise(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def slow_overlap(train: bytes, held_out: bytes, width: int) -> tuple[set[int], set[int]]:
    """Covered offsets in both texts by the definition, with Python's own substring search."""
    in_train = {train[i : i + width] for i in range(len(train) - width + 1)}
    in_held = {held_out[i : i + width] for i in range(len(held_out) - width + 1)}
    held = {
        i + k for i in range(len(held_out) - width + 1) if held_out[i : i + width] in in_train for k in range(width)
    }
    trained = {i + k for i in range(len(train) - width + 1) if train[i : i + width] in in_held for k in range(width)}
    return held, trained


def test_unrelated_texts_share_nothing():
    found = find_overlap(noise(5_000, 1), noise(3_000, 2))
    assert (found.held_out_bytes, found.held_out_share, found.train_bytes) == (0, 0.0, 0)


def test_a_copied_passage_is_found_at_any_offset():
    held_out = noise(1_000, 3)
    train = np.concatenate([noise(777, 4), held_out[101:301], noise(500, 5)])
    found = find_overlap(train, held_out)
    assert found.held_out_bytes == 200
    assert found.held_out_share == pytest.approx(0.2)
    assert found.train_ranges.tolist() == [[777, 977]]


def test_a_run_one_byte_short_is_not_leakage():
    held_out = noise(1_000, 6)
    train = np.concatenate([noise(100, 7), held_out[500:563], noise(100, 8)])
    assert find_overlap(train, held_out).held_out_bytes == 0
    train = np.concatenate([noise(100, 7), held_out[500:564], noise(100, 8)])
    assert find_overlap(train, held_out).held_out_bytes == 64


@pytest.mark.parametrize("piece", [16, 100, 1 << 20])
def test_repetitive_texts_agree_with_the_definition(piece, monkeypatch):
    monkeypatch.setattr(module, "_PIECE", piece)
    generator = np.random.default_rng(9)
    for width in (2, 8, 16):
        train, held_out = (generator.integers(0, 3, size, dtype=np.uint8) for size in (700, 300))
        found = find_overlap(train, held_out, width=width)
        held, trained = slow_overlap(train.tobytes(), held_out.tobytes(), width)
        assert found.held_out_bytes == len(held)
        assert {place for start, stop in found.train_ranges for place in range(start, stop)} == trained


def test_removal_leaves_the_rest_of_the_training_text_in_order():
    held_out = noise(1_000, 10)
    train = np.concatenate([held_out[:80], noise(300, 11), held_out[200:300], noise(50, 12)])
    cleaned = remove_overlap(train, find_overlap(train, held_out))
    assert cleaned.tobytes() == noise(300, 11).tobytes() + noise(50, 12).tobytes()
    assert find_overlap(cleaned, held_out).held_out_bytes == 0
    assert not cleaned.flags.writeable


def test_texts_shorter_than_a_run_share_nothing():
    short = noise(63, 13)
    assert find_overlap(short, short).held_out_bytes == 0
    assert find_overlap(noise(64, 13), noise(64, 13)).held_out_bytes == 64


def test_the_shelf_leaks_the_published_share():
    # Published for this split: 0.03 % of the held-out text in runs of 64 bytes.
    found = find_overlap(shelf.load_train(), shelf.load_held_out())
    assert round(100 * found.held_out_share, 2) == 0.03
