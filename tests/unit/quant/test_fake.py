"""Fake quantisation: the forward rounds, the backward is written out."""

import pytest
import torch

from dormouse.quant import FORMATS, attention_format, encode, fake_quant, fake_quant_activations, round_to, saturates

ROUNDED = [f for f in FORMATS if f != "fp32"]


def sample(dtype=torch.float32):
    return torch.randn(3, 70, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_off_means_off():
    x = sample().requires_grad_()
    assert fake_quant(x, "fp32") is x
    assert fake_quant_activations(x, "none") is x


@pytest.mark.parametrize("fmt", ROUNDED)
def test_forward_is_rounding_in_groups_of_32(fmt):
    assert torch.equal(fake_quant(sample(), fmt), round_to(sample(), fmt, 32))
    assert not torch.equal(fake_quant(sample(), fmt), sample())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fmt", ROUNDED)
def test_the_gradient_is_the_upstream_gradient(fmt, dtype):
    x = (sample(dtype) * 1e3).requires_grad_()
    upstream = sample(dtype).flip(0)
    y = fake_quant(x, fmt)
    assert y.dtype == dtype
    y.backward(upstream)
    assert torch.equal(x.grad, upstream)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fmt", ["fp8", "fp4", "int8", "int4", "ternary"])
def test_with_a_fixed_scale_only_numbers_beyond_the_range_get_none(fmt, dtype):
    largest = FORMATS[fmt].largest
    x = torch.tensor([-1e6, -largest, -0.1, 0.0, 1.0, largest, 1e6], dtype=dtype, requires_grad=True)
    fake_quant(x, fmt, 0, scale=1.0).sum().backward()
    ends = 1.0 if fmt == "ternary" else 0.0
    assert x.grad.tolist() == [ends, 1, 1, 1, 1, 1, ends]


@pytest.mark.parametrize(("fmt", "last_inside"), [("int8", 127.5), ("int4", 7.5), ("fp4", 7.0), ("fp8", 464.0)])
def test_the_range_ends_half_a_step_beyond_the_largest_code(fmt, last_inside):
    """Ties go to the even code: the one after E4M3's 448 (480) is odd, those after 7, 127 and 6 are even."""
    x = torch.tensor([last_inside])
    outside = torch.nextafter(x, torch.tensor([1e9]))
    below = torch.nextafter(x, torch.tensor([0.0]))
    found = [saturates(v, fmt, 0, 1.0).item() for v in (below, x, outside)]
    assert found == [False, fmt != "fp8", True]


def test_non_finite_numbers_do_not_count_as_saturated():
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30])
    assert saturates(x, "int8", 0, 1.0).tolist() == [False, False, False, True]


def test_a_scale_takes_no_gradient():
    scale = torch.tensor([0.5], requires_grad=True)
    x = sample().requires_grad_()
    fake_quant(x, "int4", 0, scale).sum().backward()
    assert scale.grad is None


def test_a_second_derivative_passes_too():
    x = sample().requires_grad_()
    (grad,) = torch.autograd.grad((fake_quant(x, "int8") ** 2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert torch.equal(second, torch.full_like(x, 2.0))


@pytest.mark.parametrize(("setting", "fmt"), [("8", "int8"), ("4", "int4"), ("fp4", "fp4")])
def test_activations_share_a_scale_over_a_whole_vector_by_default(setting, fmt):
    y = fake_quant_activations(sample(), setting)
    assert torch.equal(y, round_to(sample(), fmt, 0))
    assert torch.equal(fake_quant_activations(sample(), setting, 16), round_to(sample(), fmt, 16))
    assert torch.equal(y[1:2], fake_quant_activations(sample()[1:2], setting))


def test_attention_never_goes_below_eight_bits():
    assert {s: attention_format(s) for s in ("none", "8", "4", "fp4")} == {
        "none": "none",
        "8": "8",
        "4": "8",
        "fp4": "8",
    }


def test_unknown_settings_are_named():
    with pytest.raises(ValueError, match=r"act_quant = '2'.*use none, 8, 4, fp4"):
        fake_quant_activations(sample(), "2")
    with pytest.raises(ValueError, match="act_quant = 'int8'"):
        attention_format("int8")
    with pytest.raises(ValueError, match="fmt = 'fp5'"):
        fake_quant(sample(), "fp5")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by the tracer itself
@pytest.mark.parametrize("fmt", ["bf16", "fp4", "int8", "ternary"])
def test_traced_graphs_are_whole_and_give_the_same_bits(fmt):
    torch._dynamo.reset()
    traced = torch.compile(lambda x: fake_quant(x, fmt, 32), backend="eager", fullgraph=True)
    x = sample().requires_grad_()
    y = traced(x)
    assert torch.equal(y, round_to(sample(), fmt, 32))
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("fmt", ROUNDED)
def test_autocast_changes_no_bit(fmt):
    with torch.autocast("cpu", torch.bfloat16):
        inside = encode(sample(), fmt, 32)
    assert torch.equal(inside.codes, encode(sample(), fmt, 32).codes)
