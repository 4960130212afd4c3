"""Grouped products against dispatch by pieces: outputs and gradients, empty experts and null experts included."""

import pytest
import torch

from dormouse.ops.grouped_ffn import fits_grouped, grouped_ffn
from dormouse.ops.spectral_ffn import routed_ffn


def case(ids, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    n, k = ids.shape
    shapes = [(n, 16), (n, k), *((4, rows, 8) for rows in (16, 32, 32, 16))]
    return [torch.randn(s, generator=generator).div(s[-2] ** 0.25).to(dtype).requires_grad_() for s in shapes]


IDS = {
    "one each": torch.randint(4, (57, 1), generator=torch.Generator().manual_seed(1)),
    "two each": torch.stack([torch.arange(30) % 2, 2 + torch.arange(30) % 2], 1),
    "empty experts": torch.full((9, 1), 2),
    "null experts": torch.tensor([[0, 4], [4, 1], [4, 5], [3, 2], [5, 0]]),
    "null alone": torch.full((3, 1), 4),
}


@pytest.mark.parametrize("name", IDS)
def test_grouped_products_give_what_dispatch_gives(name):
    ids = IDS[name]
    found = []
    for run in (grouped_ffn, routed_ffn):
        x, gates, *w = leaves = case(ids)
        y = run(x, ids, gates, *w)
        found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * max(1.0, b.detach().abs().max().item()))


def test_half_precision_is_as_near_as_its_rounding():
    ids = IDS["one each"]
    x, gates, *w = case(ids, torch.bfloat16)
    y = grouped_ffn(x, ids, gates, *w)
    assert y.dtype == torch.bfloat16
    exact = routed_ffn(x, ids, gates, *w)
    assert (y - exact).norm() < 0.02 * exact.norm()


def test_what_does_not_fit_is_said():
    x, _, U1, V1, *_ = case(IDS["one each"])
    assert fits_grouped(x, U1, V1)
    assert not fits_grouped(x.double(), U1, V1)
    assert not fits_grouped(x[:, :15], U1, V1)
    assert not fits_grouped(x.bfloat16()[:, :12], U1, V1)
