"""Streamed selection against the selection from all logits at once, ties included."""

import math
from itertools import combinations

import pytest
import torch

from dormouse.ops.selection import largest, largest_reference, select_top_k
from dormouse.ops.streamed_top_k import streamed_top_k, streamed_top_k_reference


@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("n_experts", [7, 16, 33])
def test_rounds_of_argmax_select_what_a_stable_sort_selects_ties_included(n_experts, k):
    values = torch.randint(4, (500, n_experts), generator=torch.Generator().manual_seed(k)).float()
    assert torch.equal(largest(values, k), largest_reference(values, k))
    assert torch.equal(largest(torch.full((3, n_experts), 0.5), k), torch.arange(k).expand(3, k))


def test_more_rounds_than_a_sort_is_worth_still_follow_the_rule():
    values = torch.randint(3, (50, 20), generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(select_top_k(values, 12)[1], largest_reference(values, 12))


@pytest.mark.parametrize("block", [1, 3, 16, 1000])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_streaming_equals_all_logits_at_once(k, score, block):
    generator = torch.Generator().manual_seed(k)
    hidden = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    up = torch.randn(23, 6, generator=generator, dtype=torch.float64)
    bias, selects = torch.randn(2, 23, generator=generator, dtype=torch.float64)
    for options in ({}, {"bias": bias}, {"bias": bias, "selection_bias": 0.1 * selects}):
        gates, ids = streamed_top_k(hidden, up, k, score=score, block=block, **options)
        expected, chosen = streamed_top_k_reference(hidden, up, k, score=score, **options)
        assert torch.equal(ids, chosen)
        torch.testing.assert_close(gates, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("block", [1, 2, 5, 12])
def test_equal_experts_are_taken_lowest_id_first_over_block_borders(block):
    up = torch.ones(12, 2, dtype=torch.float64)
    _, ids = streamed_top_k(torch.ones(3, 2, dtype=torch.float64), up, 4, block=block)
    assert ids.tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize(("n_experts", "k", "subsets"), [(12, 2, 66), (10, 3, 120)])
def test_a_router_of_rank_2k_reaches_every_set_of_k_experts(n_experts, k, subsets):
    """papers.md 4.1: experts on the moment curve; the polynomial with the set as double roots singles it out."""
    points = torch.linspace(-1, 1, n_experts, dtype=torch.float64)
    up = torch.stack([points**power for power in range(2 * k + 1)], 1)  # the constant column is the bias
    found = set()
    for wanted in combinations(range(n_experts), k):
        polynomial = torch.ones(1, dtype=torch.float64)
        for root in points[list(wanted)].tolist():
            for _ in range(2):
                shifted, scaled = torch.zeros(len(polynomial) + 1), torch.zeros(len(polynomial) + 1)
                shifted, scaled = shifted.double(), scaled.double()
                shifted[1:], scaled[:-1] = polynomial, -root * polynomial
                polynomial = shifted + scaled
        _, ids = streamed_top_k(-polynomial[None] * 1e3, up, k, block=4)
        found.add(tuple(sorted(ids[0].tolist())))
    assert len(found) == subsets == math.comb(n_experts, k)


@pytest.mark.parametrize("k", [0, 8])
def test_an_impossible_k_is_refused(k):
    with pytest.raises(ValueError, match=f"top_k = {k} with 7 experts"):
        streamed_top_k(torch.ones(2, 3), torch.ones(7, 3), k)
