"""Retraction and Muon's orthogonalisation against singular value decompositions in float64."""

import pytest
import torch

from dormouse.ops.orthogonalise import orthogonalise, orthogonalise_reference
from dormouse.ops.polar import orthogonality_error, polar, polar_reference, polynomial


def with_singular_values(m, values, seed=0):
    gen = torch.Generator().manual_seed(seed)
    r = len(values)
    U = torch.linalg.qr(torch.randn(m, r, generator=gen, dtype=torch.float64))[0]
    V = torch.linalg.qr(torch.randn(r, r, generator=gen, dtype=torch.float64))[0]
    return (U * torch.tensor(values, dtype=torch.float64)) @ V.T


def test_scalar_iteration_reaches_the_published_values():
    X = torch.zeros(4, 1, dtype=torch.float64)
    X[0] = 0.9
    # p(0.9) = 1.875 * 0.9 - 1.25 * 0.729 + 0.375 * 0.59049
    assert polar(X, 1)[0, 0].item() == pytest.approx(0.99768375, abs=1e-8)


def test_three_steps_reach_the_polar_factor_at_condition_number_two():
    X = with_singular_values(64, torch.linspace(0.6, 1.2, 16).tolist())
    assert (polar(X.float(), 3) - polar_reference(X)).abs().max() < 2e-5


def test_one_step_repairs_a_small_drift():
    X = with_singular_values(128, (1 + 0.01 * torch.linspace(-1, 1, 32)).tolist()).float()
    assert orthogonality_error(polar(X, 1)) < 1e-6


def test_batched_and_single_calls_agree():
    stack = torch.stack([with_singular_values(48, [1.1] * 8, seed=s).float() for s in range(3)])
    for one, whole in zip(stack, polar(stack, 2), strict=True):
        torch.testing.assert_close(polar(one, 2), whole, rtol=1e-6, atol=1e-6)


def test_zeros_stay_zero_and_their_error_is_reported():
    assert torch.equal(polar(torch.zeros(16, 4), 3), torch.zeros(16, 4))
    assert orthogonality_error(torch.zeros(16, 4)).item() == pytest.approx(0.5)


def test_a_fresh_factor_reads_nearly_zero():
    Q = torch.linalg.qr(torch.randn(768, 64, generator=torch.Generator().manual_seed(0)))[0]
    assert orthogonality_error(Q) < 1e-7


@pytest.mark.parametrize("shape", [(3, 48, 16), (2, 16, 16), (2, 8, 40)])
def test_muon_update_equals_the_polynomial_of_the_singular_values(shape):
    G = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(orthogonalise(G), orthogonalise_reference(G).float(), rtol=0, atol=2e-3)


def test_muon_update_ignores_the_scale_and_keeps_zeros():
    G = torch.randn(2, 24, 8, generator=torch.Generator().manual_seed(0))
    for scale in (1e-12, 1e12):
        torch.testing.assert_close(orthogonalise(G * scale), orthogonalise(G), rtol=1e-3, atol=1e-4)
    assert torch.equal(orthogonalise(torch.zeros(2, 8, 4)), torch.zeros(2, 8, 4))


@pytest.mark.parametrize("iters", [2, 3, 4])
def test_powers_of_what_no_longer_matters_are_not_computed(iters, monkeypatch):
    """Denormal numbers cost a CPU a hundredfold: no product of the polynomial sees one but as an exact zero."""
    noise = 1e-7 * torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(0))
    gram = torch.eye(64) + noise + noise.mT
    seen, product = [], torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: seen.extend((a, b)) or product(a, b))
    total = polynomial(gram, iters)
    monkeypatch.undo()
    tiny = torch.finfo(torch.float32).tiny
    assert len(seen) >= 2 * iters
    assert not any(((x != 0) & (x.abs() < tiny)).any() for x in (*seen, total))
    exact = polynomial(gram.double(), iters)
    torch.testing.assert_close(total.double(), exact, rtol=0, atol=1e-7)
