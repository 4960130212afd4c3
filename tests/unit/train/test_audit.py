import torch
from torch import nn

from dormouse.train.audit import MovementAudit, inert


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Parameter(torch.ones(3))
        self.experts_U = nn.Parameter(torch.ones(4, 2, 2))
        self.expert_norm = nn.Parameter(torch.ones(4))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)


def move(model, experts, *, dense=True):
    """A gradient and a change for `dense`, the norm, and the named experts."""
    model.dense.grad = torch.full((3,), 0.5) if dense else torch.zeros(3)
    model.expert_norm.grad = torch.ones(4)
    model.experts_U.grad = torch.zeros(4, 2, 2)
    model.experts_U.grad[experts] = 1.0
    with torch.no_grad():
        for value in (model.dense, model.expert_norm, model.experts_U):
            value -= 0.1 * value.grad


def audited(experts, counts, *, dense=True):
    model = Parts()
    audit = MovementAudit(model, n_experts=4)
    move(model, experts, dense=dense)
    audit.observe()
    audit.routed(torch.tensor(counts))
    return audit.report()


def test_every_tensor_and_every_expert_is_listed_with_its_change_and_gradient():
    found = {entry.name: entry for entry in audited([0, 1, 2, 3], [1, 1, 1, 1])}
    assert list(found) == [
        "dense",
        "experts_U[0]",
        "experts_U[1]",
        "experts_U[2]",
        "experts_U[3]",
        "expert_norm",
    ]
    assert found["dense"].largest_gradient == 0.5
    assert abs(found["dense"].largest_change - 0.05) < 1e-6
    assert inert(list(found.values())) == []


def test_an_expert_with_bytes_that_did_not_move_is_named():
    assert inert(audited([0, 2], [5, 1, 9, 0])) == ["experts_U[1]"]


def test_an_expert_without_bytes_is_not_expected_to_move():
    assert inert(audited([0, 2], [5, 0, 9, 0])) == []


def test_in_a_dense_blend_every_expert_is_expected_to_move():
    assert inert(audited([0, 2], [0, 0, 0, 0])) == ["experts_U[1]", "experts_U[3]"]


def test_a_tensor_without_gradient_is_named_even_if_its_bits_changed():
    model = Parts()
    audit = MovementAudit(model, n_experts=4)
    move(model, [0, 1, 2, 3], dense=False)
    with torch.no_grad():
        model.dense += 1e-7
    audit.observe()
    audit.routed(torch.tensor([1, 1, 1, 1]))
    assert inert(audit.report()) == ["dense"]
