"""DM-19: ties on the E2M1 grid go to the even code."""

import pytest
import torch

from dormouse.quant import encode, fake_quant, fake_quant_activations, pack, round_to, unpack

TIES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
EVEN = [0, 1, 1, 2, 2, 4, 4]
GRID = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rounded", [lambda x: fake_quant(x, "fp4", 32), lambda x: fake_quant_activations(x, "fp4", 0)])
def test_ties(rounded, dtype):
    x = torch.tensor([6.0, *TIES, *(-t for t in TIES)], dtype=dtype)
    assert rounded(x).tolist() == [6, *EVEN, *(-e for e in EVEN)]


def test_neighbours_of_ties():
    assert round_to(torch.tensor([6.0, 0.2500001, 5.0001]), "fp4", 32).tolist() == [6, 0.5, 6]


def test_all_sixteen_codes_survive():
    codes = torch.tensor([*GRID, *(-g for g in GRID)])
    for y in (round_to(codes, "fp4", 0), unpack(pack(codes, "fp4", 0))):
        assert torch.equal(y.view(torch.int32), codes.view(torch.int32))


def test_nothing_off_the_grid_appears():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    assert set(encode(x, "fp4", 32).codes.abs().unique().tolist()) == set(GRID)
