"""The built-in corpus: exact bytes, loud damage, and where each register lies."""

import hashlib
import lzma

import numpy as np
import pytest

from dormouse.data import shelf
from dormouse.errors import DataError

# Sizes and SHA-256 prefixes as published for this split, before this code existed.
PUBLISHED = {"train": (12_080_852, "0f9df9a03f064a10"), "held_out": (1_228_273, "3f98673d6ddbb10d")}


def test_both_texts_have_the_published_size_and_hash():
    for name, load in (("train", shelf.load_train), ("held_out", shelf.load_held_out)):
        data = load()
        assert (len(data), hashlib.sha256(data.tobytes()).hexdigest()[:16]) == PUBLISHED[name]
        assert data.dtype == np.uint8
        assert not data.flags.writeable


def test_the_published_window_holds_four_blocks_of_the_novel_and_three_of_each_other():
    window = {
        name: sum(min(stop, 40_960) - start for start, stop in ranges if start < 40_960)
        for name, ranges in shelf.registers().items()
    }
    assert window == {"novel": 4 * 4_096, "drama": 3 * 4_096, "scripture": 3 * 4_096}


def test_registers_cover_every_held_out_byte_once():
    owner = np.zeros(shelf.HELD_OUT_BYTES, dtype=int)
    for ranges in shelf.registers().values():
        for start, stop in ranges:
            owner[start:stop] += 1
    assert (owner == 1).all()


def test_gathering_a_register_gives_back_a_continuous_work():
    data = shelf.load_held_out()
    texts = {
        name: b"".join(data[start:stop].tobytes() for start, stop in ranges)
        for name, ranges in shelf.registers().items()
    }
    assert texts["novel"].startswith(b"Persuasion\n")
    assert b"Sir Walter Elliot, of Kellynch Hall, in Somersetshire, was a man who," in texts["novel"]
    assert texts["drama"].startswith(b"TWELFTH NIGHT; OR, WHAT YOU WILL\n")
    assert texts["scripture"].startswith(b"Rom 1\n\n1 Paul, a servant of Jesus Christ")
    assert texts["scripture"].endswith(b"21 The grace of our Lord Jesus Christ be with you all. Amen.\n")


def test_dealing_goes_on_with_the_longer_streams_when_one_is_used_up():
    ranges = shelf.dealt_ranges({"a": 5, "b": 2, "c": 8}, block=3)
    # a0-3 b0-2 c0-3 | a3-5 c3-6 | c6-8
    assert ranges == {"a": [(0, 3), (8, 10)], "b": [(3, 5)], "c": [(5, 8), (10, 13), (13, 15)]}


@pytest.mark.parametrize("damage", ["cut", "other text", "missing"])
def test_a_damaged_packaged_file_is_refused_by_name(tmp_path, monkeypatch, damage):
    folder = tmp_path / "corpora"
    folder.mkdir()
    packed = lzma.compress(b"some other text")
    if damage != "missing":
        (folder / "shelf.heldout.xz").write_bytes(packed[:-9] if damage == "cut" else packed)
    monkeypatch.setattr(shelf, "files", lambda package: tmp_path)
    with pytest.raises(DataError, match=r"shelf\.heldout\.xz .*install the package again"):
        shelf.load_held_out()


def test_the_package_carries_the_credits_of_all_three_sources():
    notice = (shelf.files("dormouse.data") / "corpora" / "NOTICE").read_text("ascii")
    for credit in (
        "Julia Silge",
        "Open Knowledge Foundation",
        "Attribution 2.5",
        "Chip Chapin",
        "public domain",
    ):
        assert credit in notice
