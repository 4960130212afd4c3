"""Compressors: which bytes are counted, and that the settings are those named."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
import zstandard

from dormouse.lab.anchors.compressors import COMPRESSORS, Compressed, compress_anchor

UNPACK = {
    "gzip": gzip.decompress,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
    "zstd": lambda raw: zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(raw),
}


def noise(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def test_a_compressor_that_does_nothing_needs_eight_bits_everywhere():
    found = compress_anchor(lambda raw: raw, noise(500, 0), noise(301, 1), window_bytes=100)
    assert found == Compressed(window_alone=8.0, tail_alone=8.0, window=8.0, tail=8.0)


def test_the_scored_bytes_are_those_after_the_first_and_the_first_counts_as_read():
    train, held_out = b"train", b"0123456789"
    asked = []

    def record(raw: bytes) -> bytes:
        asked.append(raw)
        return raw

    compress_anchor(
        record, np.frombuffer(train, dtype=np.uint8), np.frombuffer(held_out, dtype=np.uint8), window_bytes=4
    )
    assert sorted(asked) == sorted([b"train0", b"1234", b"123456789", b"train01234", b"train0123456789"])


def test_a_window_longer_than_the_text_scores_what_there_is():
    found = compress_anchor(lambda raw: raw, noise(10, 2), noise(50, 3), window_bytes=1_000)
    assert found.window == found.tail == 8.0


@pytest.mark.parametrize("name", list(COMPRESSORS))
def test_each_compressor_gives_back_its_input(name):
    kind, compress = COMPRESSORS[name]
    raw = noise(3_000, 4).tobytes() * 3
    assert UNPACK[kind](compress(raw)) == raw
    assert len(compress(raw)) < 10_000


@pytest.mark.parametrize("name", ["gzip -9", "xz -9e", "zstd -19", "zstd --ultra -22"])
def test_priming_with_the_same_text_makes_it_almost_free(name):
    text = noise(4_000, 5)
    found = compress_anchor(COMPRESSORS[name][1], text, text, window_bytes=1_000)
    assert found.window_alone > 7.9
    assert found.tail < 0.2


@pytest.mark.parametrize("name", ["zstd -19", "zstd --ultra -22"])
def test_zstd_sees_as_far_back_as_the_longest_training_text_of_the_shelf(name):
    # A repetition 9 MB back is out of reach of the ordinary 8 MiB window of level 19.
    first = noise(50_000, 6)
    far = np.concatenate([first, np.zeros(9_000_000, dtype=np.uint8)])
    assert compress_anchor(COMPRESSORS[name][1], far, first, window_bytes=1_000).tail < 0.5


def test_sizes_do_not_depend_on_the_time_of_day():
    compress = COMPRESSORS["gzip -9"][1]
    assert compress(b"text")[4:8] == bytes(4)
