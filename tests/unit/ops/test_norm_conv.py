"""Hand-written normalisations and the short convolution against their formulas, with all gradients."""

import pytest
import torch

from dormouse.ops.conv import short_conv, short_conv_reference
from dormouse.ops.norm import l2_norm, l2_norm_reference, rms_norm, rms_norm_reference


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("shape", [(1, 4), (3, 5, 8), (0, 6)])
def test_rms_norm_equals_its_formula(shape):
    x, w = random(*shape), random(shape[-1], seed=1)
    fast, slow = rms_norm(x, w, 1e-3), rms_norm_reference(x, w, 1e-3)
    torch.testing.assert_close(fast, slow)
    d = random(*shape, seed=2).detach()
    torch.testing.assert_close(torch.autograd.grad(fast, [x, w], d), torch.autograd.grad(slow, [x, w], d))


@pytest.mark.parametrize("shape", [(1, 4), (3, 5, 2, 8)])
def test_l2_norm_equals_its_formula(shape):
    x = random(*shape)
    fast, slow = l2_norm(x), l2_norm_reference(x)
    torch.testing.assert_close(fast, slow)
    d = random(*shape, seed=2).detach()
    torch.testing.assert_close(torch.autograd.grad(fast, x, d), torch.autograd.grad(slow, x, d))


def test_a_zero_vector_stays_zero():
    x = torch.zeros(2, 4, requires_grad=True)
    y = l2_norm(x)
    y.sum().backward()
    assert torch.equal(y, torch.zeros(2, 4))
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("bounded", [False, True])
def test_short_convolution_equals_its_definition(bounded):
    x, weight, tail = random(2, 9, 3), random(4, 3, seed=1), random(2, 3, 3, seed=2)
    age = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5], [5, 6, 0, 0, 1, 2, 3, 4, 5]]) if bounded else None
    fast, carried = short_conv(x, weight, tail, age)
    slow = short_conv_reference(x, weight, tail, age)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(carried, x[:, -3:])
    d = random(2, 9, 3, seed=3).detach()
    inputs = [x, weight, tail]
    torch.testing.assert_close(torch.autograd.grad(fast, inputs, d), torch.autograd.grad(slow, inputs, d))


def test_convolution_by_hand_reads_only_the_past():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1)
    weight = torch.tensor([1.0, 10.0, 100.0]).view(3, 1)
    y, tail = short_conv(x, weight, torch.tensor([7.0, 8.0]).view(1, 2, 1))
    assert y.flatten().tolist() == [1 + 80 + 700, 2 + 10 + 800, 3 + 20 + 100, 4 + 30 + 200]
    assert tail.flatten().tolist() == [3.0, 4.0]
