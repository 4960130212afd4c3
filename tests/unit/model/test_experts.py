"""Dispatch against the masked blend and a double loop: outputs and all gradients, on every awkward shape."""

import pytest
import torch
import torch.nn.functional as F

from dormouse.config.load import load_preset
from dormouse.errors import ConfigError
from dormouse.model.dense_bank import DenseBank
from dormouse.model.experts import RoutedExperts, TsctExperts
from dormouse.model.router import Router


def bank(*, n_experts=4, top_k=1, d_model=8, d_ffn=20, rank=4, seed=0, **options):
    torch.manual_seed(seed)
    experts = TsctExperts(d_model=d_model, d_ffn=d_ffn, n_experts=n_experts, rank=rank, top_k=top_k, **options).double()
    with torch.no_grad():
        for p in experts.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return experts


def inputs(tokens, *, d_model=8, n_experts=4, seed=1):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, d_model, generator=gen, dtype=torch.float64).requires_grad_()
    logits = torch.randn(tokens, n_experts, generator=gen, dtype=torch.float64).requires_grad_()
    return x, logits


def outputs_and_gradients(experts, x, logits, path):
    y, _ = experts(x, logits, path=path)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(y.dtype)
    return [y, *torch.autograd.grad((y * weight).sum(), [x, logits, *experts.parameters()], allow_unused=True)]


@pytest.mark.parametrize("top_k", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [0, 1, 3, 37])
@pytest.mark.parametrize("reference", ["masked", "loop"])
def test_dispatch_equals_the_references_in_float64(top_k, tokens, reference):
    experts = bank(top_k=top_k)
    x, logits = inputs(tokens)
    fast = outputs_and_gradients(experts, x, logits, "dispatch")
    slow = outputs_and_gradients(experts, x, logits, reference)
    for f, s in zip(fast, slow, strict=True):
        s = torch.zeros_like(f) if s is None else s
        torch.testing.assert_close(f, s, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("top_k", [1, 2])
def test_dispatch_equals_the_blend_in_fp32(top_k):
    experts = bank(top_k=top_k, d_model=32, d_ffn=64, rank=8).float()
    x, logits = (t.detach().float().requires_grad_() for t in inputs(129, d_model=32))
    for f, s in zip(
        outputs_and_gradients(experts, x, logits, "dispatch"),
        outputs_and_gradients(experts, x, logits, "masked"),
        strict=True,
    ):
        torch.testing.assert_close(f, s, rtol=1e-5, atol=1e-5)


def test_all_tokens_on_one_expert_leave_the_others_with_zero_gradient():
    experts = bank()
    x, _ = inputs(3)
    logits = torch.tensor([[0.0, 0.0, 9.0, 0.0]] * 3, dtype=torch.float64, requires_grad=True)
    y, routing = experts(x, logits)
    torch.testing.assert_close(y, experts(x, logits, path="masked")[0])
    y.square().sum().backward()
    assert routing.ids.unique().tolist() == [2]
    for name, p in experts.named_parameters():
        others = p.grad[[0, 1, 3]]
        assert torch.equal(others, torch.zeros_like(others)), name
        assert p.grad[2].abs().sum() > 0, name


def test_no_token_gives_an_empty_result_and_a_working_backward():
    experts = bank()
    x, logits = inputs(0)
    y, routing = experts(x, logits)
    assert y.shape == (0, 8)
    assert torch.bincount(routing.ids.flatten(), minlength=4).tolist() == [0] * 4
    y.sum().backward()
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in experts.parameters())


def test_ties_choose_the_same_experts_on_every_path():
    experts = bank(top_k=2)
    x, _ = inputs(5)
    logits = torch.zeros(5, 4, dtype=torch.float64)
    fast, routing = experts(x, logits)
    slow, other = experts(x, logits, path="masked")
    assert routing.ids.tolist() == other.ids.tolist() == [[0, 1]] * 5
    assert torch.bincount(routing.ids.flatten(), minlength=4).sum() == 10
    torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("top_k", [-1, 5])
def test_an_impossible_k_is_refused_before_any_forward(top_k):
    with pytest.raises(ValueError, match=rf"top_k = {top_k} with n_experts = 4"):
        bank(top_k=top_k)


def test_renormalising_a_single_gate_is_refused():
    with pytest.raises(ValueError, match="no gradient"):
        bank(top_k=1, renormalize=True)


def test_the_router_has_a_gradient_at_k_1_without_a_balance_term():
    experts = bank()
    x, logits = inputs(8)
    y, _ = experts(x, logits)
    y.square().mean().backward()
    assert logits.grad.norm() > 1e-3


def test_top_k_0_is_the_softmax_blend_bit_for_bit():
    experts = bank(top_k=0).float()
    x, logits = (t.detach().float() for t in inputs(17))
    w = experts.prepare().routed
    expected = torch.zeros_like(x)
    for e in range(4):
        hidden = torch.nn.functional.silu((x @ w.U1[e]) @ w.V1[e].T)
        expected = expected + logits.softmax(-1)[:, e, None] * ((hidden @ w.U2[e]) @ w.V2[e].T)
    assert torch.equal(experts(x, logits)[0], expected)


def test_gates_are_the_plain_or_renormalised_probabilities():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    plain = bank(top_k=2).router(logits).gates[0]
    kept = bank(top_k=2, renormalize=True).router(logits).gates[0]
    scaled = bank(top_k=2, gate_scale=4.0).router(logits).gates[0]
    assert plain.tolist() == pytest.approx([0.643914, 0.236883], abs=1e-6)
    assert kept.tolist() == pytest.approx([0.731059, 0.268941], abs=1e-6)
    torch.testing.assert_close(scaled, 4 * plain)


@pytest.mark.parametrize("top_k", [1, 2])
def test_dense_experts_dispatch_equals_their_blend(top_k):
    torch.manual_seed(0)
    experts = RoutedExperts(Router(4, top_k), DenseBank(d_model=8, d_ffn=12, n_experts=4)).double()
    x, logits = inputs(23)
    fast = outputs_and_gradients(experts, x, logits, "dispatch")
    slow = outputs_and_gradients(experts, x, logits, "masked")
    for f, s in zip(fast, slow, strict=True):
        torch.testing.assert_close(f, s, rtol=1e-10, atol=1e-10)


def test_a_fresh_spectral_expert_keeps_its_factors_orthonormal_and_counts_360_576_parameters():
    experts = TsctExperts(d_model=768, d_ffn=2048, n_experts=1, rank=64, top_k=0)
    assert sum(p.numel() for p in experts.parameters()) == 360_576
    for factor in (experts.bank.up_U, experts.bank.up_V, experts.bank.down_U, experts.bank.down_V):
        gram = factor[0].T @ factor[0]
        assert (gram - torch.eye(64)).norm() / 64 < 1e-6


@pytest.mark.parametrize("overrides", [["moe_topk=5"], ["moe_topk=-1"], ["moe_renormalize=true"]])
def test_the_configuration_refuses_the_same_settings(overrides):
    with pytest.raises(ConfigError):
        load_preset("tiny", overrides=overrides)


@pytest.mark.parametrize("path", ["dispatch", "masked", "loop"])
@pytest.mark.parametrize("top_k", [0, 1, 3])
def test_shared_experts_are_added_with_a_gate_of_one_whatever_the_router_says(top_k, path):
    experts = bank(top_k=top_k, n_shared=2)
    x, logits = inputs(19)
    with_shared, _ = experts(x, logits, path=path)
    shared, experts.shared = experts.shared, None
    alone, _ = experts(x, logits, path=path)
    w = shared.prepare()
    for e in range(2):
        alone = alone + (F.silu((x @ w.U1[e]) @ w.V1[e].T) @ w.U2[e]) @ w.V2[e].T
    torch.testing.assert_close(with_shared, alone, rtol=1e-10, atol=1e-10)


def test_shared_experts_are_retracted_and_latched_like_the_others():
    import dormouse
    from dormouse.model.factor_format import formatted_layers

    experts = bank(n_shared=1)
    assert len(list(formatted_layers(experts))) == 2
    dormouse.retract(experts, iters=3)
    for name in ("up_U", "up_V", "down_U", "down_V"):
        X = getattr(experts.shared, name)[0].detach()
        torch.testing.assert_close(X.T @ X, torch.eye(4).double(), rtol=0, atol=1e-3)
