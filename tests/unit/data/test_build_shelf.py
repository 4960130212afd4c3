"""The script that rebuilds the corpus: its rules on small examples, without the packages."""

import importlib.util
import struct
from pathlib import Path

import pytest

from dormouse.data import shelf

SCRIPT = Path(__file__).parents[3] / "tools" / "build_shelf.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("build_shelf", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cleaning_is_the_published_rule(script):
    assert script.clean(b"\n\na \t\r\nb\n\n\n\n\n\nc\n\n\nd\n\n") == "a\nb\n\n\nc\n\n\nd\n"
    assert script.clean(b"\xa3 5") == "\u00a3 5\n"
    assert script.clean("\u00a3 5".encode()) == "\u00a3 5\n"


def test_works_are_joined_with_cleaned_seams(script):
    assert script.join(["a\n", "b\n"]) == "a\n\n\nb\n"


def test_dealing_and_the_register_ranges_describe_the_same_file(script, monkeypatch):
    monkeypatch.setattr(shelf, "BLOCK", 3)
    streams = {"a": b"aaaaa", "b": b"bb", "c": b"cccccccc"}
    dealt = script.deal(list(streams.values()))
    assert dealt == b"aaabbcccaaccccc"
    ranges = shelf.dealt_ranges({name: len(text) for name, text in streams.items()}, block=3)
    for name, places in ranges.items():
        assert b"".join(dealt[start:stop] for start, stop in places) == streams[name]


def test_a_chapter_heading_is_printed_where_the_chapter_changes(script):
    verses = [
        ("Ge", "1", "1", "In"),
        ("Ge", "1", "2", "And"),
        ("Ge", "2", "1", "Thus"),
        ("Exo", "2", "1", "Now"),
    ]
    assert script.scripture(verses) == "Ge 1\n\n1 In\n2 And\n\nGe 2\n\n1 Thus\n\nExo 2\n\n1 Now\n"


def test_a_character_vector_of_r_is_read(script):
    strings = b"".join(struct.pack(">ii", 0x40009, len(text)) + text for text in (b"SENSE", b"", b"by"))
    raw = b"X\n" + struct.pack(">iii", 2, 0x30600, 0x20300) + struct.pack(">ii", 16, 3) + strings
    assert script.RReader(raw).read() == [b"SENSE", b"", b"by"]
    with pytest.raises(ValueError, match="not an XDR"):
        script.RReader(b"A\n")
