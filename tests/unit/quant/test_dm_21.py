"""DM-21: integer codes neither wrap nor lose their sign nor use -8 and -128."""

import pytest
import torch

from dormouse.quant import encode, fake_quant_activations, pack, round_to, unpack


def test_int4_codes():
    x = torch.tensor([-7, -3.5, -2.5, -0.5, 0.5, 1.5, 2.5, 7])
    encoded = encode(x, "int4", 32)
    assert encoded.scales.tolist() == [1.0]
    assert encoded.codes.tolist() == [-7, -4, -2, 0, 0, 2, 2, 7]
    assert fake_quant_activations(x, "4").tolist() == [-7, -4, -2, 0, 0, 2, 2, 7]


def test_int8_codes():
    x = torch.arange(-127.0, 128.0)
    encoded = encode(x, "int8", 0)
    assert encoded.scales.tolist() == [1.0]
    assert encoded.codes.tolist() == list(range(-127, 128))
    assert torch.equal(fake_quant_activations(x, "8"), x)


@pytest.mark.parametrize(("fmt", "largest"), [("int4", 7), ("int8", 127)])
def test_the_lowest_integer_never_appears(fmt, largest):
    x = torch.tensor([-1e9, -largest - 1, -largest - 0.5, -largest, largest, largest + 0.6, 1e9])
    assert encode(x, fmt, 0, 1.0).codes.tolist() == [*[-largest] * 4, *[largest] * 3]
    assert encode(-torch.rand(1000, generator=torch.Generator().manual_seed(0)), fmt, 32).codes.min() == -largest


def test_one_past_the_end_does_not_wrap():
    assert round_to(torch.tensor([7.0000005]), "int4", 0, 1.0).item() == 7
    assert pack(torch.tensor([7.0000005, -7.0]), "int4", 0).payload.tolist() == [0x97]


@pytest.mark.parametrize("count", [15, 14, 1])
def test_packing_is_the_identity_on_all_codes(count):
    x = torch.arange(-7.0, 8.0)[:count]
    y = unpack(pack(x, "int4", 0))
    assert torch.equal(y, x)
    assert (y < 0).sum() == (x < 0).sum()
