"""DM-16: polar retraction on inconvenient inputs, item by item."""

import pytest
import torch

from dormouse.ops.polar import orthogonality_error, polar, polar_direct, polar_reference
from dormouse.ops.retraction import retract_stack, retract_stacks

FORMS = {
    "polar": lambda X, iters: polar(X, iters),
    "retract_stack": lambda X, iters: retract_stack(X, iters=iters),
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def orthonormal(m, r, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(m, r, generator=gen, dtype=torch.float64))[0]


@forms
@pytest.mark.parametrize("scale", [1e-12, 1e-9, 1e-6, 1.0, 1e6, 1e12])
def test_1_the_scale_does_not_matter(form, scale):
    values = torch.tensor([0.91, 0.97, 1.04, 1.1], dtype=torch.float64)
    X = (orthonormal(16, 4) * values @ orthonormal(4, 4, seed=1)).T
    found = form((X * scale).float(), 3)
    assert found.shape == (4, 16)
    assert (found - polar_reference(X)).abs().max() < 1e-5
    assert torch.linalg.matrix_norm(found).item() == pytest.approx(2, abs=1e-5)


def test_2_zeros_stay_zeros_and_their_error_is_reported():
    X = torch.zeros(4, 16)
    errors = retract_stacks([X], iters=3, measure=True)
    assert torch.equal(X, torch.zeros(4, 16))
    assert errors.largest_before.item() == errors.largest_after.item() == 0.5


def test_2_of_two_equal_rows_one_direction_is_missing_and_reported():
    X = orthonormal(16, 4).T.float().contiguous()
    X[3] = X[2]
    errors = retract_stacks([X], iters=9, measure=True)
    assert X.isfinite().all()
    assert torch.linalg.svdvals(X).tolist() == pytest.approx([1, 1, 1, 0], abs=1e-4)
    assert errors.largest_after.item() == pytest.approx(0.25, abs=1e-4)


@forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_3_a_gram_matrix_beyond_half_precision(form, dtype):
    """Gram entries of 307,200, above fp16's 65,504; the one direction there is gets length 1, 63 are missing."""
    X = torch.full((64, 768), 20.0, dtype=dtype)
    assert orthogonality_error(X).item() == pytest.approx(307_200, rel=1e-4)
    found = form(X, 4)
    assert found.dtype == dtype
    assert torch.linalg.matrix_norm(found.double(), ord=2).item() == pytest.approx(1, abs=3e-3)
    assert orthogonality_error(found).item() == pytest.approx(63**0.5 / 64, rel=1e-3)


@forms
def test_4_a_stack_of_experts_is_not_one_tall_matrix(form):
    factor = orthonormal(4, 2).float()
    stack = torch.stack([factor, factor])
    found = form(stack, 3)
    assert orthogonality_error(found).max() < 1e-5
    for one, alone in zip(found, stack, strict=True):
        assert (one - form(alone, 3)).abs().max() < 1e-6
    flattened = form(stack.view(8, 2), 5).view(2, 4, 2)
    assert orthogonality_error(flattened).tolist() == pytest.approx([0.353553] * 2, abs=1e-5)


def test_5_the_fixed_coefficients_on_single_numbers():
    values = torch.tensor([0.5, 0.25], dtype=torch.float64).view(2, 1, 1)
    steps = [polar_direct(values, n).flatten().tolist() for n in (1, 2, 3)]
    assert [first for first, _ in steps] == pytest.approx([0.79296875, 0.981118, 0.999983], abs=1e-6)
    assert steps[2][1] == pytest.approx(0.962733, abs=1e-6)


def test_5_an_error_that_is_left_is_reported():
    """Condition 4: three steps from 0.25 leave 1 - 0.962733^2 in one of two directions."""
    X = torch.zeros(2, 4, dtype=torch.float64)
    X[0, 0], X[1, 1] = 1.0, 0.25
    left = orthogonality_error(polar_direct(X.mT, 3)).item()
    assert left == pytest.approx((1 - 0.962733**2) / 2, abs=1e-6)
    assert orthogonality_error(polar(X, 3)).item() == pytest.approx(left, abs=1e-12)
