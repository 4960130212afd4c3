"""Every byte is shown, once, as something that can be seen."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse.report.characters import characters


def shown(data):
    return [(character.text, character.length, character.kind) for character in characters(data)]


@given(st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_every_byte_is_in_exactly_one_character_and_nothing_is_invisible(data):
    position = 0
    for character in characters(data):
        assert character.start == position
        position += character.length
        if character.kind in ("plain", "mark"):
            assert character.text == " " or all(unicodedata.category(c)[0] not in "CZ" for c in character.text)
    assert position == len(data)


@given(st.text(st.characters(exclude_categories=("C", "Z", "M"))))
def test_what_can_be_seen_is_shown_as_it_is(text):
    assert "".join(character.text for character in characters(text.encode())) == text


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("é".encode(), [("é", 2, "plain")]),
        ("日".encode(), [("日", 3, "plain")]),
        ("🙂".encode(), [("🙂", 4, "plain")]),
        (b"a \n\t", [("a", 1, "plain"), (" ", 1, "plain"), ("\n", 1, "newline"), ("\t", 1, "tab")]),
        (b"\x00\r\x7f", [("\\x00", 1, "mark"), ("\\x0d", 1, "mark"), ("\\x7f", 1, "mark")]),
        ("\u202e\u200b\u00a0".encode(), [("\\u202e", 3, "mark"), ("\\u200b", 3, "mark"), ("\\u00a0", 2, "mark")]),
        ("e\u0301".encode(), [("e", 1, "plain"), ("\u25cc\u0301", 2, "plain")]),
        # not UTF-8: a lone continuation, a cut character, an overlong slash, a surrogate, beyond U+10FFFF
        (b"\x80", [("\\x80", 1, "mark")]),
        ("日".encode()[:2], [("\\xe6", 1, "mark"), ("\\x97", 1, "mark")]),
        (b"\xc0\xaf", [("\\xc0", 1, "mark"), ("\\xaf", 1, "mark")]),
        (b"\xed\xa0\x80", [("\\xed", 1, "mark"), ("\\xa0", 1, "mark"), ("\\x80", 1, "mark")]),
        (b"\xf5\x80\x80\x80", [("\\xf5", 1, "mark")] + 3 * [("\\x80", 1, "mark")]),
        (b"\xc3(", [("\\xc3", 1, "mark"), ("(", 1, "plain")]),
    ],
)
def test_examples(data, expected):
    assert shown(data) == expected
