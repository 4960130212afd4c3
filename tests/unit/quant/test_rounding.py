"""Codes and scales against ml_dtypes, numpy's float16 and float64 arithmetic."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from dormouse.quant import FORMATS, Encoded, decode, encode, round_to, scales

FLOATS = {
    "bf16": (ml_dtypes.bfloat16, np.uint16),
    "fp16": (np.float16, np.uint16),
    "fp8": (ml_dtypes.float8_e4m3fn, np.uint8),
    "fp4": (ml_dtypes.float4_e2m1fn, np.uint8),
}
SCALED = {"fp8": 448, "fp4": 6, "int8": 127, "int4": 7}


def grid(fmt):
    """Every finite number of a float format, ascending, both zeros included."""
    dtype, raw = FLOATS[fmt]
    numbers = np.arange(2 ** FORMATS[fmt].bits, dtype=np.uint32).astype(raw).view(dtype).astype(np.float32)
    return np.sort(numbers[np.isfinite(numbers)])


def cast(numbers, fmt):
    """The independent rounding, with saturation."""
    largest = grid(fmt)[-1]
    return np.clip(numbers.astype(np.float32), -largest, largest).astype(FLOATS[fmt][0]).astype(np.float32)


def bits(numbers):
    return np.asarray(numbers, dtype=np.float32).view(np.uint32)


def ours(numbers, fmt):
    fixed = {"scale": 1.0} if FORMATS[fmt].scaled else {}
    return round_to(torch.from_numpy(numbers), fmt, 0, **fixed).numpy()


def probes(fmt):
    """Codes, midpoints of neighbours and the fp32 neighbours of both."""
    codes = np.unique(grid(fmt).astype(np.float64))
    points = np.concatenate([codes, (codes[1:] + codes[:-1]) / 2])
    exact = points.astype(np.float32)
    assert np.array_equal(exact.astype(np.float64), points)
    with np.errstate(over="ignore"):
        around = [np.nextafter(exact, np.float32(side)) for side in (-math.inf, math.inf)]
    return np.concatenate([grid(fmt), exact, *(a[np.isfinite(a)] for a in around)])


@pytest.mark.parametrize("fmt", FLOATS)
def test_floats_agree_on_every_code_midpoint_and_their_neighbours(fmt):
    numbers = probes(fmt)
    assert np.array_equal(bits(ours(numbers, fmt)), bits(cast(numbers, fmt)))


@pytest.mark.parametrize("fmt", FLOATS)
def test_floats_agree_on_any_finite_pattern(fmt):
    rng = np.random.default_rng(0)
    anything = rng.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    near = (rng.standard_normal(100_000) * grid(fmt)[-1] ** 0.5 * 2.0 ** rng.integers(-12, 4, 100_000)).astype(
        np.float32
    )
    edges = np.float32([3.4028235e38, -3.4028235e38, 1.1754944e-38, 1.1754942e-38, 1e-45, -1e-45, 0.0, -0.0, 65519.996])
    numbers = np.concatenate([anything[np.isfinite(anything)], near, edges])
    assert np.array_equal(bits(ours(numbers, fmt)), bits(cast(numbers, fmt)))


@pytest.mark.parametrize("fmt", FLOATS)
def test_all_codes_survive(fmt):
    assert np.array_equal(bits(ours(grid(fmt), fmt)), bits(grid(fmt)))
    assert len(grid(fmt)) == {"bf16": 65280, "fp16": 63488, "fp8": 254, "fp4": 16}[fmt]


def scale_oracle(raw):
    """fp32 ``raw`` to 16 significant bits, by float64 arithmetic."""
    significand, exponent = np.frexp(np.float64(np.float32(raw)))
    return np.maximum(np.ldexp(np.rint(significand * 2**16), exponent - 16), 2.0**-126)


def code_oracle(quotient, fmt):
    if fmt in FLOATS:
        return cast(quotient, fmt).astype(np.float64)
    largest = SCALED.get(fmt, 1)
    return np.clip(np.rint(quotient.astype(np.float64)), -largest, largest)


def groups_of(x, group):
    """Start and end of every group of a row."""
    n = x.shape[-1]
    size = group or n
    return [(i, min(i + size, n)) for i in range(0, n, size)]


def inputs():
    rng = np.random.default_rng(1)
    normal = rng.standard_normal((6, 101)).astype(np.float32)
    return {
        "normal": normal,
        "heavy tails": np.exp(4 * normal).astype(np.float32) * np.sign(normal),
        "tiny": (normal * 1e-36).astype(np.float32),
        "denormal": (normal * 1e-38).astype(np.float32),
        "huge": np.clip(normal.astype(np.float64) * 2e38, -3.4e38, 3.4e38).astype(np.float32),
        "few values": (np.rint(normal * 4) / 8).astype(np.float32),
    }


@pytest.mark.parametrize("group", [0, 1, 32, 200])
@pytest.mark.parametrize("fmt", SCALED)
@pytest.mark.parametrize("kind", inputs())
def test_scaled_formats_agree_code_for_code(kind, fmt, group):
    x = inputs()[kind]
    encoded = encode(torch.from_numpy(x), fmt, group)
    for row in range(x.shape[0]):
        for i, (start, end) in enumerate(groups_of(x, group)):
            part = x[row, start:end].astype(np.float64)
            scale = scale_oracle(np.abs(part).max() / SCALED[fmt])
            if np.abs(part).max() < 3e38:  # above, the scale is held where its largest value is finite
                assert encoded.scales[row, i].item() == scale
            # A quotient of two fp32 numbers, rounded to float64 and then to fp32, is the fp32 quotient.
            codes = code_oracle((part / encoded.scales[row, i].item()).astype(np.float32), fmt)
            assert np.array_equal(encoded.codes[row, start:end].numpy(), codes)
            values = decode(encoded)[row, start:end].double().numpy()
            assert np.array_equal(values, (codes * encoded.scales[row, i].item()).astype(np.float32))


@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("kind", inputs())
def test_ternary_agrees_with_the_mean_magnitude_in_float64(kind, group):
    x = inputs()[kind]
    encoded = encode(torch.from_numpy(x), "ternary", group)
    for row in range(x.shape[0]):
        for i, (start, end) in enumerate(groups_of(x, group)):
            part = x[row, start:end].astype(np.float64)
            mean, scale = math.fsum(np.abs(part)) / (end - start), encoded.scales[row, i].item()
            assert scale == pytest.approx(max(mean, 2.0**-126), rel=1.01 * 2**-16)
            assert scale == scale_oracle(scale)
            codes = code_oracle((part / scale).astype(np.float32), "ternary")
            assert np.array_equal(encoded.codes[row, start:end].numpy(), codes)


def test_ternary_of_the_published_example():
    x = torch.tensor([[0.9, -0.2, 0.05], [-1.4, 0.3, 0.6]])
    encoded = encode(x.reshape(1, 6), "ternary", 0)
    assert encoded.scales.item() == pytest.approx(0.575, rel=2**-16)
    assert encoded.codes.reshape(2, 3).tolist() == [[1, 0, 0], [-1, 1, 1]]


def test_the_ternary_scale_does_not_depend_on_the_order_of_the_numbers():
    x = torch.randn(64, 999, generator=torch.Generator().manual_seed(0)).exp()
    order = torch.randperm(999, generator=torch.Generator().manual_seed(1))
    assert torch.equal(scales(x, "ternary", 0), scales(x[:, order], "ternary", 0))


@pytest.mark.parametrize(("fmt", "ties"), [("int8", np.arange(126) + 0.5), ("fp8", np.arange(17.0, 32.0, 2.0))])
def test_ties_are_ties_under_any_scale(fmt, ties):
    """A product with the rounded reciprocal of the scale would miss some of them."""
    scale = torch.randint(2**15, 2**16, (500, 1), generator=torch.Generator().manual_seed(0)).float() / 2**20
    x = torch.from_numpy(ties).float() * scale
    expected = np.rint(ties) if fmt == "int8" else cast(ties, fmt)
    assert torch.equal(encode(x, fmt, 0, scale).codes, torch.from_numpy(expected).float().expand(500, -1))


@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_but_fake_quantisation_carries_a_gradient(fmt):
    x = torch.ones(2, 5, requires_grad=True)
    encoded = encode(x, fmt, 2)
    given = scales(x, fmt, 2)
    assert not any(t.requires_grad for t in (encoded.codes, decode(encoded), round_to(x, fmt, 2)))
    assert given is None or not given.requires_grad


def test_int8_maps_the_largest_number_to_127():
    x = torch.tensor([[3.0, -5.0, 1.0], [0.1, 0.2, 0.3]])
    assert encode(x, "int8", 0).codes.abs().amax(1).tolist() == [127, 127]


@pytest.mark.parametrize("fmt", ["fp8", "fp4", "int8", "int4", "ternary"])
def test_a_short_last_group_is_a_group_of_its_own(fmt):
    x = torch.randn(3, 2, 70, generator=torch.Generator().manual_seed(0))
    parts = [round_to(x[..., i : i + 32], fmt, 0) for i in (0, 32, 64)]
    assert torch.equal(round_to(x, fmt, 32), torch.cat(parts, -1))
    assert scales(x, fmt, 32).shape == (3, 2, 3)


@pytest.mark.parametrize("fmt", FORMATS)
def test_strided_inputs_and_meta_tensors(fmt):
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)).t()
    assert torch.equal(round_to(x, fmt, 32), round_to(x.contiguous(), fmt, 32))
    seen = round_to(x.to("meta"), fmt, 32)
    assert seen.shape == x.shape
    assert seen.device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("fmt", [f for f in FORMATS if f != "fp32"])
def test_other_dtypes_are_rounded_as_their_fp32_values(fmt, dtype):
    x = torch.randn(4, 70, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = round_to(x, fmt, 32)
    assert y.dtype == dtype
    assert torch.equal(y, round_to(x.float(), fmt, 32).to(dtype))


@pytest.mark.parametrize("fmt", [f for f in FORMATS if f != "fp32"])
@pytest.mark.parametrize("largest", [1e300, 3.4028234663852886e38])
def test_finite_stays_finite(fmt, largest):
    x = torch.tensor([[largest, -largest, 1.0]], dtype=torch.float64)
    assert round_to(x, fmt, 0).isfinite().all()
    half = torch.tensor([[65504.0, -65504.0, 1.0]], dtype=torch.float16)
    assert round_to(half, fmt, 0).isfinite().all()


@pytest.mark.parametrize("fmt", [*SCALED, "ternary"])
def test_the_largest_scale_is_an_ordinary_one(fmt):
    x = torch.tensor([torch.finfo(torch.float32).max])
    given = scales(x, fmt, 0).item()
    assert given == scale_oracle(given)
    assert FORMATS[fmt].largest * given <= x.item() < FORMATS[fmt].largest * given * (1 + 2**-14)
    once = round_to(x, fmt, 0)
    assert torch.equal(once, round_to(once, fmt, 0))


def test_a_scale_for_each_group_broadcasts():
    x = torch.tensor([[1.0, 2.0, 30.0, 40.0]])
    encoded = encode(x, "int4", 2, torch.tensor([0.5, 10.0]))
    assert encoded.codes.tolist() == [[2, 4, 3, 4]]
    assert encoded.scales.tolist() == [[0.5, 10.0]]
    assert decode(Encoded(encoded.codes, encoded.scales, "int4", 2)).tolist() == x.tolist()


def test_improper_entries_of_a_given_scale_are_loud():
    x = torch.ones(5, 1)
    given = torch.tensor([[0.0], [-1.0], [math.inf], [math.nan], [1.0]])
    y = round_to(x, "int4", 0, given).flatten()
    assert y.isnan().tolist() == [False, True, True, True, False]
    assert y[0] == 7 * 2.0**-126


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"fmt": "fp6"}, "fmt = 'fp6'"),
        ({"group": -1}, "group = -1"),
        ({"x": torch.ones(3, dtype=torch.int64)}, "torch.int64"),
        ({"x": torch.tensor(1.0)}, "no axis"),
        ({"scale": 0.0}, "scale = 0.0"),
        ({"scale": math.nan}, "scale = nan"),
        ({"scale": torch.ones(2)}, "shape \\(2,\\)"),
        ({"fmt": "bf16", "scale": 1.0}, "bf16 has no scale"),
        ({"fmt": "fp32", "scale": 1.0}, "fp32 has no scale"),
    ],
)
def test_wrong_arguments_are_named(arguments, field):
    with pytest.raises(ValueError, match=field):
        round_to(**{"x": torch.ones(3), "fmt": "int8", "group": 0, "scale": None, **arguments})
