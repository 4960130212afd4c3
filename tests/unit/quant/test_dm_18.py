"""DM-18: groups of zeros, of denormal and of non-finite numbers."""

import math

import pytest
import torch

from dormouse.quant import FORMATS, encode, fake_quant, fake_quant_activations, round_to, saturates

ROUNDED = [f for f in FORMATS if f != "fp32"]
EVERY = [
    *[pytest.param(lambda x, f=f: fake_quant(x, f, 32), id=f) for f in ROUNDED],
    *[pytest.param(lambda x, f=f: fake_quant_activations(x, f, 32), id=f"act {f}") for f in ("8", "4", "fp4")],
]


@pytest.mark.parametrize("rounded", EVERY)
def test_zeros_stay_exactly_zero(rounded):
    assert torch.equal(rounded(torch.zeros(2, 32)), torch.zeros(2, 32))


@pytest.mark.parametrize("rounded", EVERY)
def test_denormal_groups_stay_finite_within_half_a_step(rounded):
    """Largest step of any format at its smallest scale: 2^-126; of fp16: 2^-24."""
    one = torch.zeros(1, 32)
    one[0, 3] = 1e-40
    for x in (one, torch.full((1, 32), 1e-45)):
        y = rounded(x)
        assert y.isfinite().all()
        assert (y[x == 0] == 0).all()
        assert (y - x).abs().max() <= 2.0**-127


@pytest.mark.parametrize("rounded", EVERY)
def test_a_zero_row_changes_no_other(rounded):
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    x[2] = 0
    y = rounded(x)
    assert torch.equal(y[2], torch.zeros(32))
    for row in (0, 1, 3):
        assert torch.equal(y[row], rounded(x[row : row + 1])[0])


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("rounded", EVERY)
def test_non_finite_numbers_stay_so_and_change_nothing_else(rounded, bad):
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    x[1, 5] = 0
    healthy = rounded(x)
    x[1, 5] = bad
    y = rounded(x)
    assert not y[1, 5].isfinite()
    assert y[1, 5].isnan() == math.isnan(bad)
    y[1, 5] = healthy[1, 5]
    for row in (0, 2, 3):
        assert torch.equal(y[row], healthy[row])


@pytest.mark.parametrize("fmt", [f for f in ROUNDED if f != "ternary"])
def test_the_rest_of_the_group_is_rounded_as_if_it_were_absent(fmt):
    x = torch.randn(1, 32, generator=torch.Generator().manual_seed(0))
    rest = round_to(x[:, :31], fmt, 0)
    x[0, 31] = math.nan
    assert torch.equal(round_to(x, fmt, 0)[:, :31], rest)


@pytest.mark.parametrize("fmt", ROUNDED)
def test_a_group_without_a_finite_number(fmt):
    x = torch.full((1, 4), math.nan)
    assert round_to(x, fmt, 0).isnan().all()
    assert not FORMATS[fmt].scaled or encode(x, fmt, 0).scales.item() == 2.0**-126


@pytest.mark.parametrize("shape", [(0,), (4, 0), (0, 32)])
@pytest.mark.parametrize("rounded", EVERY)
def test_empty_tensors_give_empty_tensors(rounded, shape):
    x = torch.empty(shape, requires_grad=True)
    y = rounded(x)
    assert y.shape == shape
    y.sum().backward()
    assert x.grad.shape == shape


def test_three_hundred_is_not_forty_four():
    assert round_to(torch.tensor([300.0]), "int8", 0, 1.0).item() == 127
    assert round_to(torch.tensor([500.0]), "fp8", 0, 1.0).item() == 448
    assert round_to(torch.tensor([math.inf]), "fp8", 0, 1.0).item() == math.inf
    assert not saturates(torch.tensor([math.inf]), "fp8", 0, 1.0).item()
