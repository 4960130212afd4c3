"""DM-22: the straight-through gradient at the bound and beyond it; and DM-14's reason for masters."""

import pytest
import torch

from dormouse.quant import fake_quant, fake_quant_activations, round_to

X = [-1.0, -0.5, 0.0, 0.5, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "rounded",
    [
        lambda x: fake_quant(x, "int8", 32),
        lambda x: fake_quant(x, "int4", 32),
        lambda x: fake_quant(x, "fp4", 0),
        lambda x: fake_quant(x, "ternary", 0),
        lambda x: fake_quant_activations(x, "8"),
        lambda x: fake_quant_activations(x, "4"),
    ],
)
def test_extremes_keep_their_gradient(rounded, dtype):
    x = torch.tensor(X, dtype=dtype, requires_grad=True)
    rounded(x).backward(torch.ones(5, dtype=dtype))
    assert x.grad.tolist() == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.5 / 7, torch.tensor([0.5 / 7])])
def test_numbers_beyond_a_fixed_scale_get_zero(scale, dtype):
    x = torch.tensor(X, dtype=dtype, requires_grad=True)
    fake_quant(x, "int4", 32, scale).backward(torch.ones(5, dtype=dtype))
    assert x.grad.tolist() == [0, 1, 1, 1, 0]


def test_a_bf16_copy_does_not_move_where_a_master_does():
    """100 updates of -0.001 on 1.0: below 1.0 half a step of bf16 is 2^-9."""
    master, copy = torch.ones(1), torch.ones(1)
    for _ in range(100):
        master = master - 0.001
        copy = round_to(copy - 0.001, "bf16", 0)
    assert master.item() == pytest.approx(0.9, abs=1e-5)
    assert copy.item() == 1.0
