"""What a retraction reports, whom it gives more steps, and that it reads nothing back from a device."""

import pytest
import torch

from dormouse.ops import retraction
from dormouse.ops.polar import orthogonality_error, polar_direct, polar_reference
from dormouse.ops.retraction import retract_stack, retract_stacks

METHODS = ("polar", "qr", "cholesky_qr")


def drawn(n, m, r, *, low, high, seed=0):
    """Random matrices with singular values evenly spread over an interval; float64."""
    gen = torch.Generator().manual_seed(seed)
    U, V = (torch.linalg.qr(torch.randn(n, k, r, generator=gen, dtype=torch.float64))[0] for k in (m, r))
    return (U * torch.linspace(low, high, r, dtype=torch.float64)) @ V.mT


def measured(X):
    """From the definition, in float64."""
    X = X.double()
    gram = X.mT @ X - torch.eye(X.shape[-1], dtype=torch.float64)
    return gram.square().sum((-2, -1)).sqrt() / X.shape[-1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("off", [0.0, 1e-4, 1e-2, 0.1, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reported_errors_are_the_measured_ones_in_the_order_of_the_stacks(method, off, dtype):
    """In fp32 the rounding of the Gram matrix adds half a unit in its last place at most, 6e-8."""
    shapes = ((2, 96, 16), (1, 40, 8), (3, 200, 16), (1, 768, 64))
    stacks = [drawn(*shape, low=1 - off / 4, high=1 + off / 4, seed=shape[1]).to(dtype) for shape in shapes]
    before = [measured(X) for X in stacks]
    errors = retract_stacks(stacks, method=method, measure=True)
    noise = 1e-8 if dtype == torch.float64 else 6e-8
    for read, truth in ((errors.before, before), (errors.after, [measured(X) for X in stacks])):
        for found, expected in zip(read, truth, strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=noise)
    assert errors.largest_before.shape == errors.largest_after.shape == ()
    assert errors.largest_before.item() == max(e.max().item() for e in errors.before)
    assert errors.largest_after.item() == max(e.max().item() for e in errors.after)


def test_only_what_costs_nothing_is_measured_unasked():
    X = drawn(2, 32, 8, low=1, high=1.1)
    errors = retract_stacks([X.clone()])
    assert errors.largest_before > 1e-3
    assert (errors.after, errors.largest_after) == (None, None)
    errors = retract_stacks([X.clone()], method="qr")
    assert (errors.before, errors.largest_before) == (None, None)
    assert retract_stacks([], measure=True).largest_before.item() == 0.0
    assert retract_stacks([torch.zeros(0, 16, 4)], measure=True).largest_after.item() == 0.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("change", ["far", "nan", "inf"])
def test_one_unhealthy_matrix_neither_fails_nor_harms_the_others(method, change):
    """One plain quintic step would diverge from a norm above 1.5275; what is not finite is not hidden."""
    X = drawn(3, 32, 8, low=0.99, high=1.01)
    healthy = X.float()
    sick = X.float()
    sick[1] = {"far": sick[1] * 3, "nan": torch.nan, "inf": torch.inf}[change]
    errors = retract_stacks([sick], method=method, measure=True)
    retract_stacks([healthy], method=method)
    assert torch.equal(sick[::2], healthy[::2])
    if change == "far":
        assert (sick[1] - healthy[1]).abs().max() < 1e-5
    else:
        assert not errors.largest_before.isfinite()
        assert errors.largest_after.isnan()


def test_a_large_error_inside_the_basin_gets_more_steps():
    X = drawn(2, 64, 16, low=0.5, high=1.1)
    assert orthogonality_error(polar_direct(X, 1)).max() > 1e-2
    assert orthogonality_error(retract_stack(X.float())).max() < 1e-5


def test_steps_are_added_to_the_matrix_that_needs_them_alone():
    """The healthy one gets exactly the step that was asked for: an error of 5/8 e^3, in the direct form's numbers."""
    X = torch.cat([drawn(1, 64, 16, low=0.98, high=1.03), drawn(1, 64, 16, low=0.5, high=1.1)])
    found = retract_stack(X)
    torch.testing.assert_close(found[0], polar_direct(X[0], 1), rtol=0, atol=1e-12)
    assert (found[1] - polar_reference(X[1])).abs().max() < 1e-5
    assert (found[0] - polar_reference(X[0])).abs().max() > 1e-7


@pytest.mark.parametrize("method", METHODS)
def test_without_looking_at_the_numbers_the_result_is_the_same(method, monkeypatch):
    """Devices where looking would wait compute both ways and choose: the same bits, and `iters` still counts."""
    X = drawn(3, 32, 8, low=0.95, high=1.05).float()
    looked = [retract_stack(X, method=method, iters=n) for n in (1, 2)]
    monkeypatch.setattr(retraction, "_surely", lambda flags: False)
    blind = [retract_stack(X, method=method, iters=n) for n in (1, 2)]
    assert all(torch.equal(x, y) for x, y in zip(looked, blind, strict=True))
    assert torch.equal(*blind) == (method != "polar")


@pytest.mark.parametrize("method", METHODS)
def test_no_number_is_read_back_from_a_device(method):
    """Tensors on the meta device have no numbers: whoever reads one fails."""
    stacks = [torch.empty(3, 32, 8, device="meta"), torch.empty(1, 64, 8, device="meta")]
    errors = retract_stacks(stacks, method=method, iters=2, measure=True)
    assert errors.largest_before.is_meta
    assert errors.largest_after.is_meta
    with pytest.raises(RuntimeError):
        errors.largest_after.item()
