"""Muon against two steps written out in float64, with the polynomial applied to singular values."""

import pytest
import torch
from torch import nn

from dormouse.ops.orthogonalise import orthogonalise_reference
from dormouse.train.muon import Muon, MuonParameter

LR, MOMENTUM, CLOSE = 0.02, 0.95, 2e-4  # CLOSE: 1 % of the rate; the polynomial in fp32 is good to 0.2 %


def gradients(*shape, count=2):
    gen = torch.Generator().manual_seed(3)
    return [torch.randn(*shape, generator=gen) for _ in range(count)]


def by_hand(start, grads, *, scale=1.0, decay=0.0):
    """Momentum, Nesterov look-ahead, orthogonalised update, decoupled decay."""
    p, buffer = start.double(), torch.zeros_like(start, dtype=torch.float64)
    for grad in grads:
        buffer = MOMENTUM * buffer + (1 - MOMENTUM) * grad.double()
        ahead = MOMENTUM * buffer + (1 - MOMENTUM) * grad.double()
        p = p * (1 - LR * decay) - LR * scale * orthogonalise_reference(ahead)
    return p.float()


def steps(muon, parameter, grads, lr_scale=1.0):
    for grad in grads:
        parameter.grad = grad.clone()
        muon.step(lr_scale)
    return parameter.detach()


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        ((12, 12), {"weight_decay": 0.5}, {"decay": 0.5}),
        ((48, 12), {}, {"scale": 2.0}),
        ((12, 48), {}, {"scale": 1.0}),
        ((48, 12), {"shape_scale": False}, {"scale": 1.0}),
    ],
)
def test_two_steps_are_those_written_out(shape, options, expected):
    start, grads = gradients(*shape, count=1)[0], gradients(*shape, count=3)[1:]
    p = nn.Parameter(start.clone())
    found = steps(Muon([MuonParameter("p", p, **options)], lr=LR), p, grads)
    assert (found - by_hand(start, grads, **expected)).abs().max() < CLOSE
    assert (found - start).abs().max() > 20 * CLOSE


def test_heads_are_orthogonalised_one_by_one():
    start, *grads = gradients(24, 16, count=3)
    whole = nn.Parameter(start.clone())
    found = steps(Muon([MuonParameter("heads", whole, blocks=3)], lr=LR), whole, grads)
    heads = [by_hand(start[a : a + 8], [g[a : a + 8] for g in grads]) for a in (0, 8, 16)]
    assert (found - torch.cat(heads)).abs().max() < CLOSE
    assert (found - by_hand(start, grads, scale=1.5**0.5)).abs().max() > 10 * CLOSE


def test_a_stack_of_factors_is_one_matrix_each_and_batching_changes_nothing():
    start, *grads = gradients(3, 20, 4, count=3)
    stack, other = nn.Parameter(start.clone()), nn.Parameter(torch.ones(20, 4))
    muon = Muon([MuonParameter("stack", stack), MuonParameter("other", other)], lr=LR)
    for grad in grads:
        stack.grad, other.grad = grad.clone(), grad[0].clone()
        muon.step(1.0)
    each = [by_hand(start[i], [g[i] for g in grads], scale=5**0.5) for i in range(3)]
    assert (stack - torch.stack(each)).abs().max() < 3 * CLOSE


def test_the_rate_is_scaled_and_without_gradient_nothing_moves():
    start, grad = gradients(12, 12)
    full, half, still = (nn.Parameter(start.clone()) for _ in range(3))
    steps(Muon([MuonParameter("p", full)], lr=LR), full, [grad])
    steps(Muon([MuonParameter("p", half)], lr=LR), half, [grad], lr_scale=0.5)
    torch.testing.assert_close((half - start) * 2, full - start, rtol=1e-3, atol=1e-6)
    Muon([MuonParameter("p", still, weight_decay=0.5)], lr=LR).step(1.0)
    assert torch.equal(still, start)


def test_saved_momentum_continues_to_the_bit():
    start, *grads = gradients(12, 6, count=5)
    whole, first, second = (nn.Parameter(start.clone()) for _ in range(3))
    steps(Muon([MuonParameter("p", whole)], lr=LR), whole, grads)
    before = Muon([MuonParameter("p", first)], lr=LR)
    steps(before, first, grads[:2])
    after = Muon([MuonParameter("p", second)], lr=LR)
    after.load_state_dict({name: value.clone() for name, value in before.state_dict().items()})
    second.data.copy_(first.data)
    assert torch.equal(steps(after, second, grads[2:]), whole.detach())


def test_a_matrix_of_a_stack_without_gradient_stays_whatever_its_momentum():
    """An expert that gets no byte: its momentum fades, but an orthogonalised direction has no size to fade."""
    p = nn.Parameter(torch.zeros(2, 6, 3))
    muon = Muon([MuonParameter("p", p, shape_scale=False)], lr=LR)
    p.grad = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    muon.step(1.0)
    before = p.detach().clone()
    p.grad[1] = 0
    muon.step(1.0)
    assert torch.equal(p[1], before[1])
    assert not torch.equal(p[0], before[0])
    p.grad[1] = 1
    muon.step(1.0)
    assert not torch.equal(p[1], before[1])
