"""Polar retraction of matrices outside the iteration's basin, against the singular value decomposition."""

import pytest
import torch

from dormouse.ops.polar import orthogonality_error, polar


def drawn(m, r, smallest, largest):
    gen = torch.Generator().manual_seed(4)
    U = torch.linalg.qr(torch.randn(m, r, generator=gen, dtype=torch.float64))[0]
    V = torch.linalg.qr(torch.randn(r, r, generator=gen, dtype=torch.float64))[0]
    return (U * torch.linspace(smallest, largest, r, dtype=torch.float64)) @ V.T, U @ V.T


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 0.2, 1.6, 5.0, 1e3, 1e12])
def test_the_scale_of_a_matrix_does_not_matter(scale):
    X, factor = drawn(48, 12, 0.6 * scale, 1.2 * scale)
    found = polar(X.float(), 5)
    assert (found - factor).abs().max() < 1e-5
    assert orthogonality_error(found) < 1e-6


def test_a_stack_of_different_scales_is_judged_one_by_one():
    matrices = [drawn(32, 8, 0.7 * scale, scale) for scale in (1.0, 50.0, 1e-6)]
    found = polar(torch.stack([X.float() for X, _ in matrices]), 5)
    for one, (_, factor) in zip(found, matrices, strict=True):
        assert (one - factor).abs().max() < 1e-5
