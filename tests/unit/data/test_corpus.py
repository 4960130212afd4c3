"""From configuration to two streams: the built-in corpus, a user's own, and everything that is refused."""

import hashlib
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dormouse.config.schema import DataConfig
from dormouse.data import shelf
from dormouse.data.corpus import Corpus, load_corpus, load_held_out
from dormouse.errors import DataError


def load(data: object = "shelf", held_out: object = None, *, seq_len=256, eval_seq_len=512, dedup=False) -> Corpus:
    return load_corpus(named(data, held_out, dedup=dedup), seq_len=seq_len, eval_seq_len=eval_seq_len)


def named(data: object, held_out: object = None, **more) -> DataConfig:
    return DataConfig(data=str(data), eval=None if held_out is None else str(held_out), **more)


def load_side(data: object = "shelf", held_out: object = None, *, train_sha256="0" * 64, eval_seq_len=512) -> Corpus:
    config = named(data, held_out)
    return load_held_out(config, seq_len=256, eval_seq_len=eval_seq_len, train_sha256=train_sha256)


def noise(path: Path, size: int, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes())
    return path


def test_the_built_in_corpus_needs_no_path():
    corpus = load()
    assert (corpus.name, len(corpus.train), len(corpus.held_out)) == ("shelf", 12_080_852, 1_228_273)
    assert corpus.held_out_sha256 == shelf.HELD_OUT_SHA256
    assert set(corpus.registers) == {"novel", "drama", "scripture"}
    assert corpus.notes == ()


def test_own_text_gives_its_end_as_held_out_and_says_so(tmp_path):
    path = noise(tmp_path / "own", 300_000, 0)
    corpus = load(path)
    assert corpus.train.tobytes() + corpus.held_out.tobytes() == path.read_bytes()
    assert len(corpus.held_out) / 300_000 == pytest.approx(0.05, abs=0.015)
    assert corpus.train_sha256 == hashlib.sha256(corpus.train.tobytes()).hexdigest()
    assert corpus.held_out_sha256 == hashlib.sha256(corpus.held_out.tobytes()).hexdigest()
    assert re.search(rf"no eval file named: the last {len(corpus.held_out):,} of 300,000 bytes", corpus.notes[0])


def test_a_named_held_out_file_is_taken_whole(tmp_path):
    corpus = load(noise(tmp_path / "a", 5_000, 1), noise(tmp_path / "b", 3_000, 2))
    assert corpus.train.tobytes() == (tmp_path / "a").read_bytes()
    assert corpus.held_out.tobytes() == (tmp_path / "b").read_bytes()
    assert corpus.notes == ()


def test_the_built_in_text_can_stand_on_either_side(tmp_path):
    own = noise(tmp_path / "own", 3_000, 3)
    assert load("shelf", own).held_out.tobytes() == own.read_bytes()
    assert load(own, "shelf").held_out_sha256 == shelf.HELD_OUT_SHA256


def test_context_plus_one_bytes_on_each_side_are_enough_and_one_less_is_not(tmp_path):
    train, held_out = noise(tmp_path / "t", 257, 4), noise(tmp_path / "h", 513, 5)
    load(train, held_out)
    with pytest.raises(DataError, match=r"train text of .*t holds 257 bytes, .*seq_len=257 needs 258 bytes"):
        load(train, held_out, seq_len=257)
    with pytest.raises(DataError, match=r"held-out text of .*h holds 513 bytes, .*eval_seq_len=513 needs 514 bytes"):
        load(train, held_out, eval_seq_len=513)


@pytest.mark.parametrize("size", [1, 256, 257, 769])
def test_text_too_small_for_both_sides_is_refused_with_both_needs(tmp_path, size):
    message = rf"small holds {size} bytes .*training needs 257 bytes and the held-out part 513"
    with pytest.raises(DataError, match=message) as refusal:
        load(noise(tmp_path / "small", size, 6))
    assert refusal.value.exit_code == 2


def test_the_same_place_on_both_sides_is_refused_under_any_name(tmp_path):
    path = noise(tmp_path / "folder" / "text", 5_000, 7)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "hard").hardlink_to(path)
    for other in (path, tmp_path / "folder" / ".." / "folder" / "text", tmp_path / "link", tmp_path / "hard"):
        with pytest.raises(DataError, match=r"eval=.* is the same place as data="):
            load(path, other)


def test_one_side_inside_the_other_is_refused(tmp_path):
    path = noise(tmp_path / "folder" / "text", 5_000, 8)
    noise(tmp_path / "folder" / "more", 5_000, 9)
    with pytest.raises(DataError, match=r"lies inside data="):
        load(tmp_path / "folder", path)
    with pytest.raises(DataError, match=r"contains data="):
        load(path, tmp_path / "folder")


def test_a_copy_under_another_name_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"same content as data=.*\(SHA-256 [0-9a-f]{16}\)"):
        load(noise(tmp_path / "a", 5_000, 10), noise(tmp_path / "b", 5_000, 10))


def test_shared_passages_are_reported_and_removed_only_on_request(tmp_path):
    held_out = noise(tmp_path / "h", 2_000, 11)
    train = tmp_path / "t"
    before = np.random.default_rng(12).integers(0, 256, 3_000, dtype=np.uint8).tobytes()
    train.write_bytes(before + held_out.read_bytes()[500:600])
    kept = load(train, held_out)
    assert kept.train.tobytes() == train.read_bytes()
    assert re.search(r"leakage: 5\.00% of the held-out bytes .*dedup=true removes", kept.notes[0])
    cleaned = load(train, held_out, dedup=True)
    assert cleaned.train.tobytes() == before
    assert cleaned.train_sha256 == hashlib.sha256(before).hexdigest()
    assert re.search(r"removed from the training text, 3,000 bytes remain", cleaned.notes[0])


def test_the_held_out_side_alone_is_that_of_the_whole_corpus(tmp_path):
    own, other = noise(tmp_path / "own", 300_000, 20), noise(tmp_path / "other", 3_000, 21)
    for data, held_out in (("shelf", None), (own, None), (own, other), ("shelf", other), (own, "shelf")):
        whole, side = load(data, held_out), load_side(data, held_out)
        assert side.held_out.tobytes() == whole.held_out.tobytes()
        assert side.held_out_sha256 == whole.held_out_sha256
        assert len(side.train) == 0
        assert side.train_sha256 == "0" * 64
        if held_out is None:
            assert (side.registers, side.notes) == (whole.registers, whole.notes)


def test_the_held_out_side_needs_no_training_text_unless_it_is_cut_from_it(tmp_path):
    other = noise(tmp_path / "other", 3_000, 22)
    assert load_side(tmp_path / "gone", other).held_out.tobytes() == other.read_bytes()
    with pytest.raises(DataError, match=r"data=.*gone: there is no such .*name another text with --eval"):
        load_side(tmp_path / "gone")
    with pytest.raises(DataError, match=r"eval=.*lost: there is no such .*name another text with --eval"):
        load_side(tmp_path / "gone", tmp_path / "lost")


def test_the_held_out_side_is_refused_when_it_is_training_text_or_too_short(tmp_path):
    own, other = noise(tmp_path / "own", 3_000, 23), noise(tmp_path / "other", 3_000, 24)
    with pytest.raises(DataError, match=r"is the same place as data=.*; name separate text with --eval"):
        load_side(own, own)
    with pytest.raises(DataError, match=r"same content as the run's training text .*name other text with --eval"):
        load_side(own, other, train_sha256=hashlib.sha256(other.read_bytes()).hexdigest())
    with pytest.raises(DataError, match=r"eval_seq_len=3000 needs 3,001 bytes; name more text with --eval"):
        load_side(own, other, eval_seq_len=3_000)


def test_a_place_that_is_not_there_is_refused_with_what_a_new_run_may_do(tmp_path):
    there = noise(tmp_path / "there", 5_000, 25)
    with pytest.raises(DataError, match=r"data=.*gone: .*name one, or use data=shelf"):
        load(tmp_path / "gone", there)
    with pytest.raises(DataError, match=r"eval=.*gone: .*name one, or leave eval out"):
        load(there, tmp_path / "gone")


def test_removal_that_leaves_too_little_is_refused(tmp_path):
    held_out = noise(tmp_path / "h", 2_000, 13)
    train = tmp_path / "t"
    train.write_bytes(held_out.read_bytes()[:1_000] + b"x" * 100)
    with pytest.raises(DataError, match=r"without what is also held out holds 100 bytes"):
        load(train, held_out, dedup=True)


def test_the_order_of_creation_does_not_change_a_folders_text(tmp_path):
    for folder, order in (("one", "abc"), ("two", "cab")):
        for name in order:
            noise(tmp_path / folder / name, 2_000, ord(name))
    assert load(tmp_path / "one").train_sha256 == load(tmp_path / "two").train_sha256


def test_a_large_file_without_line_ends_needs_bounded_memory(tmp_path):
    peaks = []
    for size in (5_000_000, 20_000_000):
        path = tmp_path / f"{size}"
        path.write_bytes(np.random.default_rng(14).integers(11, 256, size, dtype=np.uint8).tobytes())
        tracemalloc.start()
        corpus = load(path, noise(tmp_path / "h", 10_000, 15))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert isinstance(corpus.train, np.memmap)
    assert max(peaks) < 64e6
    assert peaks[1] < 1.1 * peaks[0]
