"""What holds for any input: idempotence, mirror symmetry, powers of two, half a step."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse.quant import FORMATS, encode, pack, round_to, unpack

ROUNDED = [f for f in FORMATS if f != "fp32"]
SCALED = [f for f in FORMATS if FORMATS[f].scaled]
ANY = settings(deadline=None, max_examples=60, derandomize=True, database=None)

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
moderate = st.one_of(st.just(0.0), st.floats(2.0**-20, 2.0**20, width=32), st.floats(-(2.0**20), -(2.0**-20), width=32))


def rows(numbers, max_size=11):
    return st.lists(numbers, min_size=1, max_size=max_size).map(lambda x: torch.tensor([x], dtype=torch.float32))


def same(a, b):
    """Equal to the bit."""
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("fmt", ROUNDED)
@given(x=rows(finite), group=st.sampled_from([0, 1, 4]))
@ANY
def test_rounding_twice_changes_nothing(fmt, x, group):
    once = round_to(x, fmt, group)
    if fmt == "ternary":  # its scale is a mean, which moves
        assert same(encode(x, fmt, group).codes, encode(once, fmt, group).codes)
    else:
        assert same(once, round_to(once, fmt, group))


@pytest.mark.parametrize("fmt", [f for f in ROUNDED if f != "ternary"])
@given(x=rows(moderate), group=st.sampled_from([0, 1, 4]))
@ANY
def test_rounding_twice_changes_nothing_in_bf16(fmt, x, group):
    once = round_to(x.bfloat16(), fmt, group)
    assert torch.equal(once, round_to(once, fmt, group))


@pytest.mark.parametrize("fmt", ROUNDED)
@given(x=rows(finite), group=st.sampled_from([0, 4]))
@ANY
def test_negatives_are_mirrored(fmt, x, group):
    assert torch.equal(round_to(-x, fmt, group), -round_to(x, fmt, group))


@pytest.mark.parametrize("fmt", [*SCALED, "bf16"])
@given(x=rows(moderate), group=st.sampled_from([0, 4]), power=st.integers(-60, 60))
@ANY
def test_a_power_of_two_on_the_input_is_one_on_the_output(fmt, x, group, power):
    assert same(round_to(x * 2.0**power, fmt, group), round_to(x, fmt, group) * 2.0**power)


def step_at(codes, fmt):
    """Distance of neighbouring codes around a code, from ml_dtypes for floats."""
    if FORMATS[fmt].kind in ("integer", "ternary"):
        return np.ones_like(codes)
    dtype = {"fp8": ml_dtypes.float8_e4m3fn, "fp4": ml_dtypes.float4_e2m1fn}[fmt]
    grid = np.arange(2 ** (FORMATS[fmt].bits - 1), dtype=np.uint8).view(dtype).astype(np.float64)
    grid = grid[np.isfinite(grid)]
    gaps = np.diff(grid)
    place = np.searchsorted(grid, np.abs(codes))
    return np.maximum(gaps[np.minimum(place, len(gaps) - 1)], gaps[np.maximum(place - 1, 0)])


@pytest.mark.parametrize("fmt", SCALED)
@given(x=rows(finite), group=st.sampled_from([0, 4]))
@ANY
def test_the_error_is_at_most_half_a_step(fmt, x, group):
    encoded = encode(x, fmt, group)
    size = group or x.shape[1]
    scale = encoded.scales.double().repeat_interleave(size, 1)[:, : x.shape[1]].numpy()
    exact, codes = x.double().numpy(), encoded.codes.double().numpy()
    step = step_at(codes, fmt) * scale
    reached = np.abs(exact) <= FORMATS[fmt].largest * scale  # ternary saturates by design
    error = np.abs(exact - round_to(x, fmt, group).double().numpy())
    assert (error <= step / 2 * (1 + 2**-15) + 2.0**-149)[reached].all()
    if fmt != "ternary":
        beyond = np.abs(exact) - FORMATS[fmt].largest * scale
        assert (beyond <= np.abs(exact) * 2.0**-15).all()


@pytest.mark.parametrize("fmt", FORMATS)
@given(x=rows(finite, max_size=23), group=st.sampled_from([0, 1, 4, 32]))
@ANY
def test_unpacking_gives_the_rounded_values(fmt, x, group):
    assert same(unpack(pack(x, fmt, group)), round_to(x, fmt, group))


@pytest.mark.parametrize("fmt", ROUNDED)
@given(x=rows(finite), place=st.integers(0, 10), bad=st.sampled_from([math.inf, -math.inf, math.nan]))
@ANY
def test_a_non_finite_number_changes_no_other(fmt, x, place, bad):
    place %= x.shape[1] + 1
    with_bad = torch.cat([x[:, :place], torch.tensor([[bad]]), x[:, place:]], 1)
    y = round_to(with_bad, fmt, 0)
    assert torch.equal(y[:, place], torch.tensor([bad])) or (math.isnan(bad) and y[0, place].isnan())
    assert same(torch.cat([y[:, :place], y[:, place + 1 :]], 1), round_to(x, fmt, 0))
