"""Packed codes: bytes against ml_dtypes and numpy, sizes counted by hand, damage refused."""

import json
import math

import ml_dtypes
import numpy as np
import pytest
import torch

from dormouse.errors import CheckpointError, UsageError
from dormouse.quant import FORMATS, pack, packed_bytes, packed_from, round_to, unpack

SHAPES = [(1,), (7,), (3, 5), (2, 3, 33), (4, 64), (0,), (4, 0), (0, 32)]


def sample(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def same(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("group", [0, 2, 32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_round_trip_and_size(fmt, shape, group):
    x = sample(shape)
    packed = pack(x, fmt, group)
    assert same(unpack(packed), round_to(x, fmt, group))
    assert packed.nbytes == packed_bytes(shape, fmt, group)


def test_bytes_counted_by_hand():
    """3 rows of 70 numbers, 3 groups of up to 32 each: 210 codes, 9 scales."""
    sizes = {fmt: packed_bytes((3, 70), fmt, 32) for fmt in FORMATS}
    assert sizes == {
        "fp32": 840,
        "bf16": 420,
        "fp16": 420,
        "fp8": 210 + 36,
        "fp4": 105 + 36,
        "int8": 210 + 36,
        "int4": 105 + 36,
        "ternary": 42 + 36,
    }
    assert packed_bytes((7,), "int4", 0) == 4 + 4
    assert packed_bytes((6,), "ternary", 0) == 2 + 4


@pytest.mark.parametrize(("fmt", "dtype"), [("fp8", ml_dtypes.float8_e4m3fn), ("fp4", ml_dtypes.float4_e2m1fn)])
def test_small_floats_have_their_standard_encoding(fmt, dtype):
    patterns = np.arange(2 ** FORMATS[fmt].bits, dtype=np.uint8)
    numbers = patterns.view(dtype).astype(np.float32)
    keep = np.isfinite(numbers)
    packed = pack(torch.from_numpy(numbers[keep]), fmt, 0)
    assert packed.scales.item() == 1
    stored = packed.payload.numpy()
    if fmt == "fp4":
        stored = np.stack([stored & 15, stored >> 4], 1).reshape(-1)
    assert np.array_equal(stored, patterns[keep])


def test_integers_are_twos_complement_with_the_earlier_code_in_the_low_half():
    packed = pack(torch.arange(-7.0, 8.0), "int4", 0)
    codes = np.arange(-7, 8, dtype=np.int8)
    halves = np.append(codes, 0).astype(np.uint8) & 15
    assert packed.payload.tolist() == (halves[::2] | halves[1::2] << 4).tolist()
    assert pack(torch.arange(-127.0, 128.0), "int8", 0).payload.tolist() == list(range(-127, 128))


def test_ternary_codes_are_digits_of_base_three():
    x = torch.tensor([1.0, -1.0, 0.0, 1.0, 1.0, -1.0])
    digits = [2, 0, 1, 2, 2]
    first = sum(d * 3**i for i, d in enumerate(digits))
    rest = 0 + sum(1 * 3**i for i in range(1, 5))
    assert pack(x, "ternary", 0).payload.tolist() == [first, rest]


def test_every_ternary_byte_is_read_back():
    digits = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 5)
    parts = {"payload": torch.arange(243, dtype=torch.uint8), "scales": torch.ones(1)}
    made = packed_from(parts, {"layout": 1, "format": "ternary", "group": 0, "shape": [1215]})
    assert torch.equal(unpack(made).view(243, 5).flip(1), digits)
    x = torch.cat([digits.flatten(), torch.ones(1)])
    assert torch.equal(unpack(pack(x, "ternary", 1))[:-1], digits.flatten())


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_pack_as_their_fp32_values(fmt, dtype):
    x = sample((3, 40)).to(dtype)
    assert same(unpack(pack(x, fmt, 32)), round_to(x.float(), fmt, 32))


@pytest.mark.parametrize("fmt", FORMATS)
def test_parts_and_description_restore_the_tensor(fmt):
    packed = pack(sample((3, 41)), fmt, 32)
    tensors = {name: t.clone() for name, t in packed.tensors().items()}
    again = packed_from(tensors, json.loads(json.dumps(packed.description())))
    assert same(unpack(again), unpack(packed))
    assert all(t.is_contiguous() for t in tensors.values())


def test_a_packed_tensor_does_not_follow_its_source():
    x = sample((4, 4))
    packed = pack(x, "fp32", 0)
    unpack(packed).zero_()
    kept = x.clone()
    x.zero_()
    assert torch.equal(unpack(packed), kept)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("fmt", FORMATS)
def test_non_finite_numbers_are_refused(fmt, bad):
    x = sample((3, 5))
    x[1, 2] = bad
    with pytest.raises(UsageError, match="1 infinite or NaN numbers among 15"):
        pack(x, fmt, 0)


def damaged(fmt, **changes):
    packed = pack(sample((3, 40)), fmt, 32)
    tensors, description = packed.tensors(), packed.description()
    for key, value in changes.items():
        (tensors if key in ("payload", "scales") else description)[key] = value
    return {k: t for k, t in tensors.items() if t is not None}, description


@pytest.mark.parametrize(
    ("fmt", "changes", "reason"),
    [
        ("int8", {"payload": torch.zeros(119, dtype=torch.int8)}, "payload is torch.int8"),
        ("int8", {"payload": torch.zeros(120, dtype=torch.uint8)}, "instead of torch.int8"),
        ("int8", {"payload": torch.full((120,), -128, dtype=torch.int8)}, "no codes of int8"),
        ("int4", {"payload": torch.full((60,), 0x88, dtype=torch.uint8)}, "no codes of int4"),
        ("fp8", {"payload": torch.full((120,), 0x7F, dtype=torch.uint8)}, "no codes of fp8"),
        ("ternary", {"payload": torch.full((24,), 243, dtype=torch.uint8)}, "no codes of ternary"),
        ("bf16", {"payload": torch.full((120,), torch.nan, dtype=torch.bfloat16)}, "no codes of bf16"),
        ("fp4", {"scales": torch.ones(3, 3)}, "scales are torch.float32 \\(3, 3\\)"),
        ("fp4", {"scales": torch.ones(3, 2).bfloat16()}, "scales are torch.bfloat16"),
        ("fp4", {"scales": torch.zeros(3, 2)}, "not all positive"),
        ("fp4", {"scales": torch.tensor([[1.0, 1.0], [torch.inf, 1.0], [1.0, 1.0]])}, "not all positive and finite"),
        ("fp4", {"scales": None}, "scales are missing"),
        ("bf16", {"scales": torch.ones(3, 2)}, "scales are there"),
        ("fp4", {"payload": None}, "payload"),
        ("fp4", {"layout": 2}, "layout = 2"),
        ("fp4", {"format": "fp5"}, "fmt = 'fp5'"),
        ("fp4", {"shape": [-1, 40]}, "negative sizes"),
        ("fp4", {"shape": None}, "damaged"),
    ],
)
def test_damaged_parts_are_refused(fmt, changes, reason):
    with pytest.raises(CheckpointError, match=reason):
        packed_from(*damaged(fmt, **changes))


def test_sizes_of_impossible_shapes_are_refused():
    for shape, fmt, group in [((), "int8", 0), ((3,), "int9", 0), ((3,), "int8", -1)]:
        with pytest.raises(ValueError):
            packed_bytes(shape, fmt, group)
