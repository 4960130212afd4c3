"""Retraction of stacks against float64 references, on the inputs of DM-16 and on healthy drift."""

import pytest
import torch

from dormouse.ops import retraction
from dormouse.ops.polar import orthogonality_error, polar, polar_direct, polar_reference
from dormouse.ops.retraction import qr_reference, retract_stacks

METHODS = ("polar", "qr", "cholesky_qr")


def drawn(n, m, r, *, low=1.0, high=1.0, seed=0):
    """Random matrices with singular values evenly spread over an interval; float64."""
    gen = torch.Generator().manual_seed(seed)
    U, V = (torch.linalg.qr(torch.randn(n, k, r, generator=gen, dtype=torch.float64))[0] for k in (m, r))
    return (U * torch.linspace(low, high, r, dtype=torch.float64)) @ V.mT


def retracted(X, **options):
    X = X.clone()
    retract_stacks([X], **options)
    return X


def reference(X, method):
    return polar_reference(X.double()) if method == "polar" else qr_reference(X)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("m", "r"), [(64, 16), (16, 16), (33, 1), (1, 1), (200, 7)])
def test_a_healthy_drift_becomes_the_references_factor(method, m, r):
    X = drawn(3, m, r, low=0.99, high=1.01)
    found = retracted(X.float(), method=method)
    assert (found - reference(X, method)).abs().max() < 2e-5
    assert orthogonality_error(found).max() < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_at_condition_number_two_three_steps_are_enough(method):
    X = drawn(2, 96, 24, low=0.6, high=1.2)
    found = retracted(X.float(), method=method, iters=3)
    assert (found - reference(X, method)).abs().max() < 2e-5


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_orthonormal_factor_comes_back(method, dtype):
    X = drawn(2, 40, 8).to(dtype)
    close = 1e-6 if dtype == torch.float32 else 1e-14
    found = retracted(X, method=method)
    assert (found - X).abs().max() < close
    for _ in range(50):
        retract_stacks([found], method=method)
    assert (found - X).abs().max() < 5 * close
    assert found.dtype == dtype


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-12, 1e-9, 1e-6, 1.0, 1e6, 1e12])
def test_the_scale_does_not_matter(method, scale):
    X = drawn(1, 16, 4, low=0.9, high=1.1)
    found = retracted((X * scale).float(), method=method, iters=3)
    assert (found - reference(X, method)).abs().max() < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_together_is_one_by_one(method):
    stacks = [drawn(n, m, 8, low=0.95, high=1.05, seed=m).float() for n, m in ((3, 32), (1, 64), (2, 8))]
    alone = [torch.stack([retracted(x[None], method=method)[0] for x in X]) for X in stacks]
    retract_stacks(stacks, method=method)
    for X, expected in zip(stacks, alone, strict=True):
        assert (X - expected).abs().max() < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_ranks_and_dtypes_may_be_mixed_and_nothing_may_be_empty(method):
    X, Y, Z = drawn(2, 16, 4, high=1.1).float(), drawn(1, 16, 8, high=1.1), torch.zeros(0, 16, 4)
    retract_stacks([X, Y, Z], method=method, iters=2)
    assert max(orthogonality_error(X).max(), orthogonality_error(Y).max()) < 1e-6
    retract_stacks([], method=method)


@pytest.mark.parametrize("method", METHODS)
def test_each_expert_is_orthonormal_by_itself(method):
    """Two equal factors flattened to 8 x 2 would become blocks of 0.5 I, at error 0.353553."""
    factor = torch.linalg.qr(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))[0]
    found = retracted(torch.stack([factor, factor]), method=method)
    assert orthogonality_error(found).tolist() == pytest.approx([0, 0], abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_zeros_and_missing_ranks_stay_finite_and_are_reported(method):
    X = torch.zeros(2, 16, 4)
    X[1] = drawn(1, 16, 4)[0]
    X[1, :, 3] = X[1, :, 2]
    found = retracted(X, method=method, iters=3)
    assert found.isfinite().all()
    if method != "qr":  # QR completes the basis with arbitrary columns
        assert orthogonality_error(found)[0] == 0.5
    if method == "polar":  # Cholesky-QR completes a missing column from rounding
        assert orthogonality_error(found)[1] > 0.2


def test_rank_three_of_four_reports_one_quarter():
    X = drawn(1, 16, 4)
    X[..., 3] = X[..., 2]
    assert orthogonality_error(polar(X.float(), 12)).item() == pytest.approx(0.25, abs=1e-4)


def test_a_gram_matrix_beyond_half_precision():
    """64 x 768 filled with 20: Gram entries of 307,200 lie above fp16's 65,504."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = polar(torch.full((768, 64), 20.0, dtype=dtype).float(), 4)
        assert found.isfinite().all()
        assert torch.linalg.matrix_norm(found, ord=2).item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_gram_form_is_the_direct_form(steps):
    X = drawn(3, 48, 12, low=0.8, high=1.2)
    torch.testing.assert_close(polar(X, steps), polar_direct(X, steps), rtol=0, atol=1e-12)
    fast = retracted(drawn(3, 48, 12, low=0.97, high=1.02), iters=steps)
    torch.testing.assert_close(fast, polar_direct(drawn(3, 48, 12, low=0.97, high=1.02), steps), rtol=0, atol=1e-12)


def test_the_fixed_coefficients_on_single_numbers():
    values = torch.tensor([0.5, 0.25], dtype=torch.float64).view(2, 1, 1)
    steps = [polar_direct(values, n).flatten().tolist() for n in (1, 2, 3)]
    assert [first for first, _ in steps] == pytest.approx([0.79296875, 0.981118, 0.999983], abs=1e-6)
    assert steps[2][1] == pytest.approx(0.962733, abs=1e-6)


@pytest.mark.parametrize("error", [0.0, 1e-4, 0.1, 2.0])
def test_the_reported_error_is_the_measured_one(error):
    X = drawn(2, 64, 16, low=1 - error / 4, high=1 + error / 4)
    gram = X.mT @ X - torch.eye(16, dtype=torch.float64)
    measured = gram.square().sum((-2, -1)).sqrt() / 16
    assert orthogonality_error(X).tolist() == pytest.approx(measured.tolist(), rel=1e-6, abs=1e-12)
    assert orthogonality_error(X.float()).tolist() == pytest.approx(measured.tolist(), rel=1e-4, abs=2e-7)


@pytest.mark.parametrize("change", ["far", "nan", "inf"])
def test_one_unhealthy_matrix_neither_fails_nor_harms_the_others(change):
    """One plain quintic step would diverge from a norm above 1.5275."""
    X = drawn(3, 32, 8, low=0.99, high=1.01)
    sick = X.float()
    sick[1] = {"far": sick[1] * 3, "nan": torch.nan, "inf": torch.inf}[change]
    found = retracted(sick)
    expected = polar_reference(X)
    for e in (0, 2):
        assert (found[e] - expected[e]).abs().max() < 1e-5
    if change == "far":
        assert (found[1] - expected[1]).abs().max() < 1e-5
    else:
        assert not found[1].isfinite().all()


def test_a_large_error_inside_the_basin_gets_more_steps():
    X = drawn(2, 64, 16, low=0.5, high=1.1)
    assert orthogonality_error(polar_direct(X, 1)).max() > 1e-2
    assert orthogonality_error(retracted(X.float())).max() < 1e-5


def test_without_asking_the_numbers_the_result_is_the_same(monkeypatch):
    """Devices where asking would wait go through `polar` always."""
    X = drawn(3, 32, 8, low=0.99, high=1.01).float()
    fast = retracted(X)
    monkeypatch.setattr(retraction, "GUARD", -1.0)
    assert (retracted(X) - fast).abs().max() < 1e-5
