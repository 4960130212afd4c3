import math

import pytest
import torch

from dormouse.instruments.utilization import add_counts, utilization
from dormouse.model.router import Router


def test_shares_4_2_0_0_have_entropy_0_459148_and_two_dead_experts():
    found = utilization([4, 2, 0, 0])
    assert found.entropy == pytest.approx(0.459148, abs=1e-6)
    assert found.dead == 2
    assert found.shares == pytest.approx((4 / 6, 2 / 6, 0, 0))


def test_with_two_experts_a_byte_the_entropy_is_over_assignments():
    found = utilization([3, 3, 2, 0])
    assert found.entropy == pytest.approx(0.780639, abs=1e-6)
    assert found.dead == 1


def test_uniform_reads_one_and_one_expert_for_everything_reads_zero():
    assert utilization([5, 5, 5, 5]).entropy == pytest.approx(1.0, abs=1e-12)
    assert utilization([0, 9, 0, 0]).entropy == 0.0


def test_the_entropy_is_that_of_the_shares():
    # 9/16 and 7/16: H = 0.4943 by hand
    found = utilization([9, 7, 0, 0])
    assert (found.shares, found.dead) == ((0.5625, 0.4375, 0.0, 0.0), 2)
    assert found.entropy == pytest.approx(-(9 / 16 * math.log(9 / 16) + 7 / 16 * math.log(7 / 16)) / math.log(4))


def test_a_single_expert_is_one_and_no_routing_is_no_utilisation():
    assert utilization([7]).entropy == 1.0
    assert utilization([0, 0, 0]) is None


def test_pooled_ranks_are_even_although_each_rank_uses_one_expert():
    ranks = torch.tensor([[4, 0], [0, 4]])
    assert utilization(ranks.sum(0)).entropy == pytest.approx(1.0)
    assert [utilization(rank).entropy for rank in ranks] == [0.0, 0.0]


def test_counting_pools_every_pass_and_slot_and_leaves_no_graph():
    counts = torch.zeros(4, dtype=torch.int64)
    add_counts(counts, torch.tensor([[[[0, 1], [2, 1]]]]))
    add_counts(counts, torch.tensor([1]))
    assert counts.tolist() == [1, 3, 1, 0]
    assert not counts.requires_grad


def test_the_metric_falls_when_a_router_is_trained_away_from_two_experts():
    """M2: a few steps against the probability of experts 2 and 3 take H from near 1 to at most 1/2 and two die."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(400, 8, generator=generator), torch.randn(4, 8, generator=generator, requires_grad=True)
    bias = torch.zeros(4, requires_grad=True)
    router, readings = Router(4, 1), []
    for _ in range(60):
        routing = router(x @ weight.T + bias)
        counts = torch.zeros(4, dtype=torch.int64)
        add_counts(counts, routing.ids)
        readings.append(utilization(counts))
        gradients = torch.autograd.grad(routing.probs[:, 2:].mean(), (weight, bias))
        with torch.no_grad():
            for value, gradient in zip((weight, bias), gradients, strict=True):
                value -= 20.0 * gradient
    first, last = readings[0], readings[-1]
    assert first.entropy > 0.9
    assert first.dead == 0
    assert last.dead == 2
    assert last.entropy <= 0.5 + 1e-9
    assert sum(last.shares[:2]) == 1.0
