"""Spectral layers beside dense ones: full rank reproduces, lower rank is off by the singular values cut off."""

import pytest
import torch
from torch import nn

from dormouse import ExpertBank, SpectralLinear, TsctExperts
from dormouse.model.factor_format import formatted_layers
from dormouse.model.spectral import truncate

SHAPES = [(24, 40), (40, 24), (16, 16), (1, 5), (5, 1)]


def dense(d_in, d_out, *, bias=True, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(d_in, d_out, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("d_in", "d_out"), SHAPES)
def test_full_rank_reproduces_a_dense_layer(d_in, d_out, bias):
    layer, x = dense(d_in, d_out, bias=bias), torch.randn(7, d_in)
    spectral, found = SpectralLinear.from_dense(layer, "full")
    torch.testing.assert_close(spectral(x), layer(x), rtol=0, atol=1e-5)
    assert found.error == 0
    assert (spectral.bias is None) != bias


def test_full_rank_has_the_dense_layers_gradient_of_the_input():
    layer, x = dense(24, 40), torch.randn(7, 24, requires_grad=True)
    spectral, _ = SpectralLinear.from_dense(layer, "full")
    ours, theirs = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (spectral, layer))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 5, 23])
def test_the_error_is_the_tail_of_the_singular_values(rank):
    layer = dense(24, 40)
    spectral, found = SpectralLinear.from_dense(layer, rank)
    values = torch.linalg.svdvals(layer.weight.detach().double())
    tail = values[rank:].square().sum().sqrt().item()
    measured = torch.linalg.norm(layer.weight.detach().double() - spectral.weight().detach().double()).item()
    assert found.error.item() == pytest.approx(tail, abs=1e-4)
    assert measured == pytest.approx(tail, abs=1e-4)
    assert found.relative_error.item() == pytest.approx(tail / values.square().sum().sqrt().item(), abs=1e-6)
    assert spectral.s.detach().tolist() == pytest.approx(values[:rank].tolist(), abs=1e-5)


def test_a_known_spectrum_is_found():
    Q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    weight = Q @ torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0, 0.0], dtype=torch.float64)) @ Q.T
    found = truncate(weight, 2)
    assert found.s.tolist() == pytest.approx([4, 3])
    assert found.error.item() == pytest.approx(5**0.5)
    assert found.relative_error.item() == pytest.approx((5 / 30) ** 0.5)


def test_a_zero_weight_has_no_error_and_stays_zero():
    spectral, found = SpectralLinear.from_dense(torch.zeros(4, 3), 2)
    assert found.relative_error == 0
    assert torch.equal(spectral(torch.randn(5, 3)), torch.zeros(5, 4))


def test_the_generator_is_left_alone_and_the_dense_layer_too():
    layer = dense(8, 8)
    weight, before = layer.weight.detach().clone(), torch.get_rng_state()
    spectral, _ = SpectralLinear.from_dense(layer, 4)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        spectral.bias.add_(1)
    assert torch.equal(layer.weight, weight)
    assert not torch.equal(layer.bias, spectral.bias)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_layer_has_the_dense_layers_dtype(dtype):
    spectral, _ = SpectralLinear.from_dense(dense(8, 6).to(dtype), "full")
    assert {p.dtype for p in spectral.parameters()} == {dtype}
    assert spectral(torch.randn(2, 8, dtype=dtype)).dtype == dtype


def test_in_fp32_the_forward_is_the_plain_product_of_three_factors_to_the_bit():
    layer, x = SpectralLinear(24, 40, 8), torch.randn(7, 24)
    assert torch.equal(layer(x), ((x @ layer.U) * layer.s) @ layer.V.T)
    bank = ExpertBank(d_model=8, d_ffn=16, n_experts=3, rank=4)
    w = bank.prepare()
    for seen, master, scale in ((w.U1, bank.up_U, bank.up_s), (w.V2, bank.down_V, bank.down_s)):
        assert torch.equal(seen, master * scale.unsqueeze(1))
    assert w.V1 is bank.up_V
    assert w.U2 is bank.down_U


def test_a_new_layer_keeps_the_mean_square_of_its_input():
    torch.manual_seed(0)
    for d_in, d_out, rank in ((256, 256, 16), (256, 1024, 64), (512, 128, 32)):
        x = torch.randn(4000, d_in)
        for gain in (1.0, 0.1):
            y = SpectralLinear(d_in, d_out, rank, gain=gain)(x)
            assert y.square().mean().sqrt().item() == pytest.approx(gain, rel=0.06)


@pytest.mark.parametrize(
    "wrong",
    [{"rank": 0}, {"rank": -3}, {"rank": "ful"}, {"rank": 4, "weight_format": "fp5"}, {"rank": 4, "format_group": -1}],
)
def test_impossible_layers_are_refused_with_field_and_value(wrong):
    key, value = list(wrong.items())[-1]
    with pytest.raises(ValueError, match=f"{key} = '?{value}'?"):
        SpectralLinear(8, 8, **wrong)


def test_a_bank_of_full_rank_reproduces_dense_experts():
    torch.manual_seed(0)
    up, down, x = torch.randn(3, 20, 8) * 0.3, torch.randn(3, 8, 20) * 0.2, torch.randn(11, 8)
    bank, found = ExpertBank.from_dense(up, down, "full")
    ids = torch.randint(3, (11, 1))
    y = bank(x, ids, torch.ones(11, 1))
    expected = torch.stack([down[e] @ nn.functional.silu(up[e] @ row) for row, e in zip(x, ids[:, 0], strict=True)])
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)
    assert found.up.error.tolist() == pytest.approx([0, 0, 0])


def test_a_truncated_bank_reports_every_experts_tail():
    torch.manual_seed(0)
    up, down = torch.randn(3, 20, 8), torch.randn(3, 8, 20)
    bank, found = ExpertBank.from_dense(up, down, 5)
    assert bank.up_U.shape == (3, 8, 5)
    for dense_weights, part in ((up, found.up), (down, found.down)):
        tails = torch.linalg.svdvals(dense_weights.double())[:, 5:].square().sum(1).sqrt()
        assert part.error.tolist() == pytest.approx(tails.tolist(), abs=1e-4)


def test_layers_in_any_model_are_found_with_their_factors():
    model = nn.Sequential(SpectralLinear(4, 4, 2), nn.ReLU(), ExpertBank(d_model=4, d_ffn=8, n_experts=2, rank=2))
    first, second = formatted_layers(model)
    assert (first.name, set(first.factors)) == ("0", {"U", "V"})
    assert (second.name, set(second.factors)) == ("2", {"up_U", "up_V", "down_U", "down_V"})
    assert first.stacked("U").shape == (1, 4, 2)
    assert second.stacked("up_V").shape == (2, 8, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("top_k", [0, 1, 2])
def test_experts_give_back_the_dtype_they_got(dtype, top_k):
    experts = TsctExperts(d_model=16, d_ffn=32, n_experts=4, rank=8, top_k=top_k).to(dtype)
    y, _ = experts(torch.randn(7, 16, dtype=dtype), torch.randn(7, 4, dtype=dtype))
    assert y.dtype == dtype


def test_a_layer_that_somebody_extended_is_still_found():
    class Extended(SpectralLinear):
        def __init__(self):
            super().__init__(8, 8, 4)
            self.extra = nn.Parameter(torch.zeros(3))

    [layer] = formatted_layers(nn.Sequential(Extended()))
    assert set(layer.factors) == {"U", "V"}


def test_the_gradient_is_the_same_by_functional_call():
    layer, x = SpectralLinear(8, 6, 4, weight_format="fp4"), torch.randn(5, 8)
    parameters = dict(layer.named_parameters())
    found = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,)).sum())(parameters)
    expected = torch.autograd.grad(layer(x).sum(), list(parameters.values()))
    for name, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(found[name], gradient)
