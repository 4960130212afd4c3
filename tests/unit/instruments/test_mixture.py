"""The mixture probe against closed forms of independent choice, tied passes, and the dense blend."""

import math

import pytest
import torch

from dormouse.instruments.mixture import joined, mixture
from dormouse.model.records import RoutingRecord
from dormouse.model.router import Router

TEXTS, LENGTH = 16, 500


def record_of(logits, top_k):
    """Routing of logits [P, B, T, E]."""
    each = [Router(logits.shape[-1], top_k)(part.flatten(0, 1)) for part in logits]

    def stack(tensors):
        return torch.stack(tensors).view(*logits.shape[:3], -1)

    ids = None if top_k == 0 else stack([routing.ids for routing in each])
    return RoutingRecord(stack([r.probs for r in each]), ids, stack([r.gates for r in each]))


def independent(n_experts, *, passes=2, lean=None, seed=1):
    """Logits of passes that know nothing of one another; `lean` [E] makes the loads uneven."""
    drawn = torch.randn(passes, TEXTS, LENGTH, n_experts, generator=torch.Generator().manual_seed(seed))
    return drawn if lean is None else drawn + torch.tensor(lean)


def four_sigma(share):
    return 4 * math.sqrt(share * (1 - share) / (TEXTS * LENGTH))


@pytest.mark.parametrize(("n_experts", "top_k"), [(8, 2), (4, 1), (4, 2), (8, 1), (16, 1), (16, 2)])
def test_independent_uniform_choices_reach_the_closed_forms_and_kappa_is_zero(n_experts, top_k):
    """Equal with 1 / C(E, k), disjoint with C(E - k, k) / C(E, k): 3.6 % and 53.6 % for 2 of 8."""
    found = mixture(record_of(independent(n_experts), top_k))
    sets = math.comb(n_experts, top_k)
    identical, disjoint = 1 / sets, math.comb(n_experts - top_k, top_k) / sets
    for value, chance, expected in (
        (found.identical, found.identical_chance, identical),
        (found.disjoint, found.disjoint_chance, disjoint),
        (found.agreement, found.agreement_chance, 1 / n_experts),
    ):
        assert value == pytest.approx(expected, abs=four_sigma(expected))
        assert chance == pytest.approx(expected, abs=four_sigma(expected))
    assert abs(found.kappa) < 4 * math.sqrt(1 / n_experts / (1 - 1 / n_experts) / (TEXTS * LENGTH))
    assert found.support == top_k
    assert found.disagreement == pytest.approx(1 - 1 / n_experts, abs=four_sigma(1 / n_experts))


def test_the_figures_of_the_literature_come_out():
    found = mixture(record_of(independent(8), 2))
    assert (found.disjoint_chance, found.identical_chance) == pytest.approx((0.536, 0.036), abs=0.006)
    assert (mixture(record_of(independent(16), 2))).disjoint_chance == pytest.approx(0.758, abs=0.006)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_uneven_loads_raise_chance_and_kappa_stays_zero(top_k):
    found = mixture(record_of(independent(8, lean=[2.0, 1.5, 0, 0, 0, 0, 0, -2.0]), top_k))
    assert found.agreement > 0.2
    assert found.kappa == pytest.approx(0, abs=0.03)
    assert found.identical == pytest.approx(found.identical_chance, abs=four_sigma(found.identical))
    assert found.disjoint == pytest.approx(found.disjoint_chance, abs=four_sigma(found.disjoint))


def test_chance_of_the_strongest_expert_is_the_product_of_the_loads():
    """Loads (3/4, 1/4) and (1/2, 1/2): c = 0.5; one of four positions agrees: kappa -0.5."""
    ids = torch.tensor([[[0, 0, 0, 1]], [[0, 1, 1, 0]]])
    logits = 9.0 * torch.nn.functional.one_hot(ids, 2).float()
    found = mixture(record_of(logits, 1))
    assert (found.agreement, found.agreement_chance) == (0.25, 0.5)
    assert found.kappa == pytest.approx(-0.5)
    assert (found.identical, found.identical_chance, found.disjoint, found.disjoint_chance) == (0.25, 0.5, 0.75, 0.5)
    assert found.load == pytest.approx((5 / 8, 3 / 8))
    assert found.effective == pytest.approx(math.exp(-(5 / 8 * math.log(5 / 8) + 3 / 8 * math.log(3 / 8))))


@pytest.mark.parametrize("top_k", [1, 2])
def test_tied_passes_agree_perfectly(top_k):
    one = independent(8, passes=1)
    found = mixture(record_of(one.repeat(3, 1, 1, 1), top_k))
    assert (found.agreement, found.kappa, found.identical, found.disjoint) == (1.0, 1.0, 1.0, 0.0)
    assert found.cosine == pytest.approx(1.0, abs=1e-6)


def test_the_dense_blend_is_one_set_of_all_experts():
    found = mixture(record_of(independent(4), 0))
    assert (found.identical, found.disjoint, found.support) == (1.0, 0.0, 4.0)
    assert (found.identical_chance, found.disjoint_chance) == (1.0, 0.0)
    assert found.kappa == pytest.approx(0, abs=0.05)


def test_the_cosine_is_that_of_the_gate_vectors():
    ids = torch.tensor([[[[0, 1]]], [[[1, 2]]]])
    gates = torch.tensor([[[[0.6, 0.2]]], [[[0.5, 0.3]]]])
    found = mixture(RoutingRecord(torch.full((2, 1, 1, 4), 0.25), ids, gates))
    assert found.cosine == pytest.approx(0.2 * 0.5 / (math.hypot(0.6, 0.2) * math.hypot(0.5, 0.3)), abs=1e-6)
    assert (found.identical, found.disjoint, found.agreement) == (0.0, 0.0, 0.0)


def test_one_pass_has_no_pairs_one_text_no_disagreement_and_one_expert_no_kappa():
    alone = mixture(record_of(independent(4, passes=1)[:, :1], 2))
    assert (alone.cosine, alone.kappa, alone.identical, alone.disagreement) == (None, None, None, None)
    stuck = mixture(record_of(independent(4, lean=[1e4, 0, 0, 0]), 1))
    assert (stuck.agreement, stuck.kappa, stuck.effective) == (1.0, None, 1.0)


def test_texts_that_are_routed_alike_do_not_disagree():
    by_position = independent(8, passes=2)[:, :1].expand(-1, TEXTS, -1, -1)
    assert mixture(record_of(by_position, 1)).disagreement == 0.0


def test_the_probe_repeats_itself_and_leaves_no_graph():
    logits = independent(8).requires_grad_()
    record = record_of(logits, 2)
    assert mixture(record) == mixture(record)
    halves = [
        RoutingRecord(*(t[:, part] for t in (record.probs, record.ids, record.gates)))
        for part in (slice(0, 9), slice(9, 16))
    ]
    assert mixture(joined(halves)) == mixture(record)
    assert logits.grad is None


def test_the_load_counts_assignments_and_in_a_blend_gates():
    probs = torch.tensor([[[[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.4, 0.6]]]])
    ids = torch.tensor([[[[0], [0], [0], [1]]]])
    assert mixture(RoutingRecord(probs, ids, probs.gather(-1, ids))).load == pytest.approx((0.75, 0.25))
    assert mixture(RoutingRecord(probs, None, probs)).load == pytest.approx((0.775, 0.225))
