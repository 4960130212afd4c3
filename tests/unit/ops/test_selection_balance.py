"""Selection and the Switch term on numbers that can be checked by hand."""

import math

import pytest
import torch

from dormouse.ops.balance import switch_term
from dormouse.ops.selection import select_top_k


def test_ties_take_exactly_k_different_experts_lowest_index_first():
    _, ids = select_top_k(torch.full((5, 4), 0.25), 2)
    assert ids.tolist() == [[0, 1]] * 5
    _, ids = select_top_k(torch.full((1, 16), 1 / 16), 3)
    assert ids.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("k", [0, -1, 5])
def test_an_impossible_k_is_refused_with_both_numbers(k):
    with pytest.raises(ValueError, match=f"{k} with 4 experts"):
        select_top_k(torch.rand(3, 4), k)


def test_probabilities_of_plain_and_renormalised_gates():
    gates, _ = select_top_k(torch.tensor([[2.0, 1.0, 0.0, -1.0]]).softmax(-1), 2)
    assert gates[0].tolist() == pytest.approx([0.643914, 0.236883], abs=1e-6)


def test_masked_positions_count_neither_in_shares_nor_in_probabilities():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.99, 0.01], [0.99, 0.01]])
    ids = probs.argmax(-1, keepdim=True)
    mask = torch.tensor([True, True, False, False])
    assert switch_term(probs, ids, mask).item() == pytest.approx(1.0, abs=1e-6)
    assert switch_term(probs, ids).item() == pytest.approx(1.27, abs=0.005)
    probs[2:] = torch.tensor([0.5, 0.5])
    assert switch_term(probs, ids, mask).item() == pytest.approx(1.0, abs=1e-6)


def test_no_counted_position_gives_zero_and_zero_gradient():
    probs = torch.rand(4, 2).softmax(-1).requires_grad_()
    term = switch_term(probs, probs.argmax(-1, keepdim=True), torch.zeros(4, dtype=torch.bool))
    term.backward()
    assert term.item() == 0
    assert torch.equal(probs.grad, torch.zeros(4, 2))


def test_floor_is_one_and_collapse_approaches_the_number_of_experts():
    uniform = torch.full((8, 4), 0.25)
    ids = torch.arange(8).remainder(4).unsqueeze(1)
    assert switch_term(uniform, ids).item() == pytest.approx(1.0)
    collapsed = torch.tensor([[100.0, 0.0, 0.0, 0.0]]).softmax(-1).repeat(8, 1)
    assert switch_term(collapsed, torch.zeros(8, 1, dtype=torch.int64)).item() == pytest.approx(4.0)


def test_gradient_is_not_zero_at_k_1_and_equals_the_closed_form():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    probs = logits.softmax(-1)
    _, ids = select_top_k(probs, 1)
    switch_term(probs, ids).backward()
    share = torch.bincount(ids.flatten(), minlength=4).double() / 6
    expected = 4 * probs * (share - (probs * share).sum(-1, keepdim=True)) / 6
    torch.testing.assert_close(logits.grad, expected.detach())
    assert math.isfinite(logits.grad.norm())
    assert logits.grad.norm() > 1e-3
