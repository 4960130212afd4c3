"""Hash rows against published FNV-1a values and big-integer arithmetic."""

import pytest
import torch

from dormouse.ops.ngram import ngram_keys, ngram_rows, unsigned_remainder

PUBLISHED = {
    b"a": 0xAF63DC4C8601EC8C,
    b"ab": 0x089C4407B545986A,
    b"abc": 0xE71FA2190541574B,
    b"fo": 0x08985907B541D342,
    b"foo": 0xDCB27518FED9D577,
    b"foob": 0xDD120E790C2512AF,
    b"\xff\x00\x00\x01": 0x6961196491CC682D,
    b"\x01\x00\x00\xff": 0xAD2BB1774799DFE9,
}


def key_of(text):
    ids = torch.tensor([list(text)])
    return ngram_keys(ids, len(text))[0, -1]


@pytest.mark.parametrize(("text", "value"), PUBLISHED.items())
def test_keys_equal_the_published_values(text, value):
    assert int(key_of(text)) % 2**64 == value


@pytest.mark.parametrize(
    ("text", "rows", "row"),
    [
        (b"a", 1_000_003, 783675),
        (b"ab", 1_000_003, 621057),
        (b"abc", 1_000_003, 795201),
        (b"ba", 1_000_003, 444909),
        (b"\xff\x00", 1_000_003, 952592),
        (b"\x00\x00", 1_000_003, 546070),
        (b"a", 65536, 60556),
        (b"ab", 65536, 39018),
        (b"abc", 65536, 22347),
    ],
)
def test_rows_are_the_unsigned_remainder(text, rows, row):
    assert int(unsigned_remainder(key_of(text), rows)) == row


def test_rows_do_not_depend_on_batch_shape_or_on_what_precedes_a_document():
    ids = torch.tensor([list(b"the cat sat on the mat")])
    age = torch.arange(ids.shape[1]).unsqueeze(0)
    arguments = {"orders": [2, 3, 4], "n_rows": 4096}
    rows, valid = ngram_rows(ids, torch.zeros(1, 3, dtype=torch.int64), age, **arguments)
    other, other_valid = ngram_rows(ids.repeat(3, 1), torch.full((3, 3), 255), age.repeat(3, 1), **arguments)
    assert torch.equal(valid.repeat(3, 1, 1), other_valid)
    assert torch.equal(torch.where(valid, rows, -1).repeat(3, 1, 1), torch.where(other_valid, other, -1))
    assert valid[0, :4].tolist() == [[False] * 3, [True, False, False], [True, True, False], [True] * 3]


def test_reversed_bytes_have_other_rows_and_order_3_and_4_reach_the_sign_bit():
    gen = torch.Generator().manual_seed(0)
    for order in (3, 4):
        ids = torch.randint(256, (2000, order), generator=gen)
        keys = ngram_keys(ids, order)[:, 0]
        assert 0.4 < (keys < 0).double().mean() < 0.6
        expected = []
        for row in ids.tolist():
            h = 14695981039346656037
            for byte in row:
                h = ((h ^ byte) * 1099511628211) % 2**64
            expected.append(h % 1_000_003)
        assert unsigned_remainder(keys, 1_000_003).tolist() == expected


def test_the_original_hash_keeps_31_bits_of_its_own_basis():
    ids = torch.tensor([list(b"abc")])
    h = 1469598103934665603
    for byte in b"abc":
        h = ((h ^ byte) * 1099511628211) % 2**64
    rows, _ = ngram_rows(
        ids, torch.zeros(1, 2, dtype=torch.int64), torch.arange(3)[None], orders=[3], n_rows=1000, hash_name="original"
    )
    assert int(rows[0, 2, 0]) == (h & 0x7FFFFFFF) % 1000
