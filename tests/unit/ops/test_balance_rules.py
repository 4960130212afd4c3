"""The z-loss and the two rules of the selection bias, on published figures and on a hostile router."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse.ops.balance import loss_free_bias, quantile_bias, switch_term, z_loss
from dormouse.ops.selection import select_top_k


@pytest.mark.parametrize(("n_experts", "value"), [(2, 0.4805), (3, 1.2069), (4, 1.9218), (8, 4.3241), (16, 7.6872)])
def test_the_z_loss_of_equal_logits_of_zero_is_the_squared_logarithm(n_experts, value):
    assert z_loss(torch.zeros(5, n_experts)).item() == pytest.approx(value, abs=5e-5)


def test_the_z_loss_is_a_mean_over_the_tokens_that_count():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, False, False])
    expected = sum(math.log(sum(math.exp(v) for v in row)) ** 2 for row in logits[mask].tolist()) / 3
    assert z_loss(logits, mask).item() == pytest.approx(expected)
    assert z_loss(logits, torch.zeros(6, dtype=torch.bool)).item() == 0
    assert z_loss(logits[:0]).item() == 0


def test_a_batch_twice_has_the_same_gradient_in_the_routers_weights():
    """papers.md 4.2: mean terms do not see the number of tokens."""
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = []
    for rows in (x, torch.cat([x, x])):
        weight = torch.linspace(-1, 1, 20, dtype=torch.float64).view(4, 5).sin().requires_grad_()
        logits = rows @ weight.T
        probs = logits.softmax(-1)
        (switch_term(probs, select_top_k(probs, 1)[1]) + z_loss(logits)).backward()
        found.append(weight.grad)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-15)


def test_the_loss_free_rule_moves_by_its_rate_towards_the_mean_count_and_stays_centred():
    bias = loss_free_bias(torch.zeros(4), torch.tensor([7, 1, 0, 0]), rate=0.001)
    assert bias.tolist() == pytest.approx([-0.0015, 0.0005, 0.0005, 0.0005])
    assert torch.equal(loss_free_bias(bias, torch.zeros(4), rate=0.001), bias - bias.mean())


@given(st.lists(st.integers(0, 500), min_size=2, max_size=9), st.floats(-3, 3))
def test_a_constant_on_all_biases_changes_nothing(counts, constant):
    n = len(counts)
    start = torch.linspace(-0.2, 0.3, n, dtype=torch.float64)
    scores = torch.rand(40, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    a, b = (loss_free_bias(start + c, torch.tensor(counts), rate=0.01) for c in (0.0, constant))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    a, b = (quantile_bias(start + c, scores, 1, rate=1.0) for c in (0.0, constant))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def loads(scores, bias, k):
    _, ids = select_top_k(scores, k, prefer=scores + bias)
    return torch.bincount(ids.flatten(), minlength=scores.shape[1])


def skewed(tokens, n_experts, generator):
    """Logits in which expert 0 is favoured by 3 and expert 1 by 1 (papers.md 4.4)."""
    logits = torch.randn(tokens, n_experts, generator=generator)
    logits[:, 0] += 3
    logits[:, 1] += 1
    return logits


@pytest.mark.parametrize(("tokens", "n_experts", "k"), [(64, 4, 1), (512, 8, 2), (4096, 16, 2)])
@pytest.mark.parametrize(("rate", "steps"), [(1.0, 10), (0.5, 20)])
def test_quantiles_balance_a_fixed_batch_to_a_few_tokens_at_any_size(tokens, n_experts, k, rate, steps):
    """papers.md 4.4: some 2 to 4 tokens above kT/E by step 10 at rate 1, by step 20 at rate 0.5."""
    scores = skewed(tokens, n_experts, torch.Generator().manual_seed(0))
    bias = torch.zeros(n_experts)
    for _ in range(steps):
        bias = quantile_bias(bias, scores, k, rate=rate)
    assert loads(scores, torch.zeros(n_experts), k).max() > 2 * tokens * k / n_experts
    assert loads(scores, bias, k).max() <= tokens * k / n_experts + 4


FLOORS = {(64, 4, 1): 0.27, (512, 8, 2): 0.121, (4096, 16, 2): 0.078}
"""Mean (max - mean) / mean of the loads of perfectly random routing (papers.md 4.4)."""


@pytest.mark.parametrize("shape", FLOORS)
def test_random_routing_has_the_published_floor(shape):
    tokens, n_experts, k = shape
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(60):
        counts = loads(torch.rand(tokens, n_experts, generator=generator), torch.zeros(n_experts), k).double()
        found.append((counts.max() / counts.mean() - 1).item())
    assert sum(found) / 60 == pytest.approx(FLOORS[shape], rel=0.15)


@pytest.mark.parametrize("shape", FLOORS)
@pytest.mark.parametrize(("rule", "steps", "allowed"), [("quantile", 20, 1.6), ("loss_free", 250, 4.5)])
def test_a_hostile_router_ends_near_the_floor_of_its_number_of_tokens(shape, rule, steps, allowed):
    """Fresh tokens every step; the loss-free rule at rate 0.01 stays 2 to 4 times above the floor, as published."""
    (tokens, n_experts, k), generator = shape, torch.Generator().manual_seed(2)
    bias, tail = torch.zeros(n_experts), []
    for step in range(steps + 20):
        scores = skewed(tokens, n_experts, generator).sigmoid()
        counts = loads(scores, bias, k)
        if step >= steps:
            tail.append((counts.double().max() / counts.double().mean() - 1).item())
        if rule == "quantile":
            bias = quantile_bias(bias, scores, k, rate=0.5)
        else:
            bias = loss_free_bias(bias, counts, rate=0.01)
    assert sum(tail) / 20 <= allowed * FLOORS[shape]


def test_quantiles_refuse_to_balance_where_every_expert_is_selected():
    with pytest.raises(ValueError, match="top_k = 4 with 4 experts"):
        quantile_bias(torch.zeros(4), torch.rand(8, 4), 4)
    assert torch.equal(quantile_bias(torch.ones(4), torch.rand(0, 4), 1), torch.ones(4))


PUSH = torch.tensor([1.0, -0.25, -0.25, -0.25], dtype=torch.float64)


def critical_coefficient(tokens, seed):
    """Where the Switch term's gradient is as long as that of a mean task loss; expert 0 leads by 0.30."""
    logits = 0.3 * torch.randn(tokens, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits = (logits + torch.tensor([0.3, 0.0, 0.0, 0.0])).requires_grad_()
    probs = logits.softmax(-1)
    (gradient,) = torch.autograd.grad(switch_term(probs, select_top_k(probs, 1)[1]), logits)
    return (PUSH.norm() * math.sqrt(tokens) / tokens / gradient.norm()).item()


def test_the_critical_coefficient_grows_with_the_tokens_only_where_the_task_loss_is_a_sum():
    """papers.md 2 row 3: 2.85, 3.99, 2.68, 2.77 for a mean loss; a sum is the mean times the tokens: 183 to 11,336."""
    found = {t: sum(critical_coefficient(t, seed) for seed in range(8)) / 8 for t in (64, 256, 1024, 4096)}
    assert all(2.5 < value < 4.0 for value in found.values())
    assert max(found.values()) / min(found.values()) < 1.5
    assert 130 < 64 * found[64] < 300
    assert 10_000 < 4096 * found[4096] < 16_000
