"""Agreement against chance: closed forms of uniform choices, tied and independent passes, and random draws."""

from itertools import combinations
from math import sqrt

import numpy as np
import pytest

from dormouse.instruments.pass_agreement import agreements


def pair(first, second, n_experts):
    found = agreements(np.stack([first, second]), n_experts)
    assert len(found) == 1
    return found[0]


def every_pair(n_experts, k):
    """All pairs of sets, once each: what two independent uniform passes do on average."""
    sets = np.array(list(combinations(range(n_experts), k)))
    i, j = np.divmod(np.arange(len(sets) ** 2), len(sets))
    return sets[i], sets[j]


@pytest.mark.parametrize(
    ("n_experts", "k", "disjoint", "identical"),
    [(8, 2, 0.536, 0.036), (4, 1, 0.75, 0.25), (4, 2, 0.167, 0.167), (8, 1, 0.875, 0.125), (16, 2, 0.758, 0.008)],
)
def test_chance_of_uniform_sets_is_the_closed_form(n_experts, k, disjoint, identical):
    found = pair(*every_pair(n_experts, k), n_experts)
    assert (found.disjoint_chance, found.identical_chance) == pytest.approx((disjoint, identical), abs=6e-4)
    assert (found.disjoint, found.identical) == pytest.approx((found.disjoint_chance, found.identical_chance))


def test_independent_passes_have_kappa_zero_and_tied_ones_one():
    first, second = every_pair(5, 1)
    assert pair(first, second, 5).kappa == pytest.approx(0, abs=1e-12)
    tied = pair(first, first, 5)
    assert (tied.raw, tied.kappa, tied.identical, tied.disjoint) == (1, 1, 1, 0)


def test_unequal_shares_raise_chance():
    # 0.9 and 0.1 in both passes, independent: agreement 0.82 is chance and kappa is 0
    first = np.repeat([0, 0, 1, 1], [81, 9, 9, 1])[:, None]
    second = np.repeat([0, 1, 0, 1], [81, 9, 9, 1])[:, None]
    found = pair(first, second, 2)
    assert (found.raw, found.chance) == pytest.approx((0.82, 0.82))
    assert found.kappa == pytest.approx(0, abs=1e-12)


def test_an_agreement_of_0_959_of_four_experts_is_kappa_0_945():
    first = np.tile(np.arange(4), 1000)[:, None]
    second = first.copy()
    second[:164] = (second[:164] + 1) % 4  # 41 of each expert move on, so that both passes stay uniform
    found = pair(first, second, 4)
    assert (found.raw, found.chance) == pytest.approx((0.959, 0.25))
    assert found.kappa == pytest.approx(0.945, abs=5e-4)


def test_one_expert_throughout_has_no_kappa():
    alone = np.full((10, 1), 3)
    found = pair(alone, alone, 4)
    assert (found.raw, found.chance, found.kappa) == (1, 1, None)


def test_at_k_1_sets_say_what_the_first_expert_says():
    random = np.random.default_rng(3)
    found = pair(random.integers(4, size=(500, 1)), random.integers(4, size=(500, 1)), 4)
    assert (found.identical, found.disjoint) == pytest.approx((found.raw, 1 - found.raw))
    assert (found.identical_chance, found.disjoint_chance) == pytest.approx((found.chance, 1 - found.chance))


def test_random_choices_lie_within_four_sigma_of_chance():
    random, n = np.random.default_rng(0), 4000
    draw = [random.permuted(np.tile(np.arange(8), (n, 1)), axis=1)[:, :2] for _ in range(2)]
    found = pair(*draw, 8)
    for value, chance in ((found.disjoint, 15 / 28), (found.identical, 1 / 28), (found.raw, 1 / 8)):
        assert abs(value - chance) < 4 * sqrt(chance * (1 - chance) / n)
    assert abs(found.kappa) < 4 * sqrt(1 / 8 / n) / (7 / 8) * 1.1


def test_the_order_inside_a_set_does_not_matter_to_sets_but_to_the_first_expert():
    found = pair(np.array([[0, 1], [2, 3]]), np.array([[1, 0], [2, 0]]), 4)
    assert (found.raw, found.identical, found.disjoint) == (0.5, 0.5, 0)


def test_transitions_count_rows_to_columns():
    found = pair(np.array([[0], [0], [1]]), np.array([[2], [2], [0]]), 3)
    assert found.transitions.tolist() == [[0, 0, 2], [1, 0, 0], [0, 0, 0]]


def test_every_pair_of_passes_is_compared_and_one_pass_with_none():
    ids = np.random.default_rng(1).integers(3, size=(4, 20, 1))
    assert [(found.first, found.second) for found in agreements(ids, 3)] == list(combinations(range(4), 2))
    assert agreements(ids[:1], 3) == []


def test_many_different_sets_are_compared_in_blocks(monkeypatch):
    from dormouse.instruments import pass_agreement

    random = np.random.default_rng(2)
    ids = random.permuted(np.tile(np.arange(12), (2, 300, 1)), axis=-1)[..., :3]
    whole = agreements(ids, 12)[0]
    monkeypatch.setattr(pass_agreement, "_BLOCK", 1000)
    parts = agreements(ids, 12)[0]
    assert (parts.disjoint_chance, parts.identical_chance) == (whole.disjoint_chance, whole.identical_chance)
