"""The table of anchors: packaged figures are real, and belong to exactly one pair of texts and one window."""

import json

import numpy as np
import pytest

from dormouse.data import shelf
from dormouse.errors import DataError
from dormouse.lab.anchors import table as module
from dormouse.lab.anchors.compressors import COMPRESSORS
from dormouse.lab.anchors.kneser_ney import KneserNey
from dormouse.lab.anchors.table import KINDS, anchors_for, packaged, read_table, row_names

# Window and tail as measured by an independent program before this one existed.
PUBLISHED = {
    "order-0": (4.641, 4.577),
    "Kneser-Ney 2-gram": (3.640, 3.592),
    "Kneser-Ney 3-gram": (2.957, 2.869),
    "Kneser-Ney 4-gram": (2.414, 2.375),
    "Kneser-Ney 5-gram": (2.135, 2.098),
    "Kneser-Ney 6-gram": (2.015, 1.981),
    "Kneser-Ney 7-gram": (1.980, 1.940),
    "Kneser-Ney 8-gram": (1.972, 1.929),
    "gzip -9": (3.184, 3.035),
    "bzip2 -9": (2.686, 2.245),
    "xz -9e": (2.323, 2.197),
    "zstd -19": (2.454, 2.274),
    "zstd --ultra -22": (2.389, 2.228),
}
SHELF = {"train_sha256": shelf.TRAIN_SHA256, "held_out_sha256": shelf.HELD_OUT_SHA256, "window_bytes": 40_960}


def noise(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(97, 105, size, dtype=np.uint8)


def small(**changes):
    arguments = {"train_sha256": "t", "held_out_sha256": "h", "window_bytes": 100}
    return anchors_for(noise(900, 0), noise(301, 1), **(arguments | changes))


def test_packaged_figures_agree_with_the_published_ones():
    table = packaged(*SHELF.values())
    assert [row.name for row in table.rows] == [name for name, _ in row_names(KINDS, range(2, 9))]
    for name, (window, tail) in PUBLISHED.items():
        assert table.row(name).window == pytest.approx(window, abs=0.0025)
        assert table.row(name).tail == pytest.approx(tail, abs=0.0015)
    assert table.row("uniform").window == 8.0
    assert table.provenance["commit"]


def test_packaged_figures_are_what_this_code_measures():
    table = packaged(*SHELF.values())
    train, held_out = shelf.load_train(), shelf.load_held_out()
    bits = KneserNey(train, max_order=3).bits(held_out, [1, 2, 3])
    for order, name in ((1, "order-0"), (2, "Kneser-Ney 2-gram"), (3, "Kneser-Ney 3-gram")):
        assert table.row(name).window == pytest.approx(bits[order][:40_960].mean(), abs=1e-9)
        assert table.row(name).tail == pytest.approx(bits[order].mean(), abs=1e-9)
    size = len(COMPRESSORS["bzip2 -9"][1](held_out[1:40_961].tobytes()))
    assert table.row("bzip2 -9").window_alone == 8 * size / 40_960


def test_packaged_figures_are_used_without_measuring(monkeypatch):
    monkeypatch.setattr(module, "_measure", lambda *arguments: pytest.fail("measured"))
    table = anchors_for(noise(900, 0), noise(301, 1), **SHELF)
    assert table.row("Kneser-Ney 5-gram").window == pytest.approx(2.135, abs=0.001)
    assert table.provenance is not None


@pytest.mark.parametrize("key", list(SHELF))
def test_another_text_or_window_does_not_get_the_packaged_figures(key, monkeypatch):
    asked = []

    def measure(train, held_out, window_bytes, names, progress):
        asked.extend(names)
        return {name: module.AnchorRow(name, "ngram", 0.5, 0.5) for name in names}

    monkeypatch.setattr(module, "_measure", measure)
    other = SHELF | {key: 512 if key == "window_bytes" else "0" * 64}
    assert packaged(*other.values()) is None
    table = anchors_for(noise(900, 0), noise(301, 1), **other)
    assert asked == [row.name for row in table.rows if row.name != "uniform"]
    assert {row.window for row in table.rows} == {8.0, 0.5}
    assert table.provenance is None


def test_other_text_is_measured_on_its_window_and_its_tail():
    table = small(kinds=("uniform", "order0", "ngram", "gzip"), orders=(2, 4))
    assert [row.name for row in table.rows] == [
        "uniform",
        "order-0",
        "Kneser-Ney 2-gram",
        "Kneser-Ney 4-gram",
        "gzip -9",
    ]
    bits = KneserNey(noise(900, 0), max_order=4).bits(noise(301, 1), [4])[4]
    assert table.row("Kneser-Ney 4-gram").window == pytest.approx(bits[:100].mean(), abs=1e-12)
    assert table.row("Kneser-Ney 4-gram").tail == pytest.approx(bits.mean(), abs=1e-12)
    assert (table.scored_bytes, table.tail_bytes) == (100, 300)
    # eight equally likely bytes cost three bits
    assert table.row("order-0").tail == pytest.approx(3.0, abs=0.05)


def test_kinds_can_be_left_out():
    assert [row.kind for row in small(kinds=("order0", "bzip2")).rows] == ["order0", "bzip2"]


def test_a_text_without_a_scored_byte_is_refused():
    with pytest.raises(DataError, match="1 bytes holds no scored byte"):
        anchors_for(noise(900, 0), noise(1, 1), train_sha256="t", held_out_sha256="h", window_bytes=10)


def test_a_text_too_long_for_n_grams_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(module, "NGRAM_LIMIT", 899)
    with pytest.raises(DataError, match=r"900 bytes .*--skip order0,ngram"):
        small(kinds=("ngram",))
    assert small(kinds=("gzip",)).rows


def test_a_table_survives_json():
    table = small(kinds=("uniform", "order0", "gzip"))
    text = json.dumps({**table.as_json(), "corpus": "extra keys are no harm"})
    assert read_table(text) == table
