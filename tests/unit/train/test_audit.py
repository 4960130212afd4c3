import torch
from torch import nn

from dormouse.config.load import load_preset
from dormouse.model.experts import TsctExperts
from dormouse.train.audit import MovementAudit, inert, unread_gates


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


class Controlled(nn.Module):
    """Controller of 3 gates, 4 router columns and one row of padding."""

    def __init__(self):
        super().__init__()
        self.controller = nn.Linear(2, 8, bias=False)


def controller_audit(reached, counts=(1, 1, 1, 1), **how):
    """Rows `reached` get a gradient and move."""
    model = Controlled()
    audit = MovementAudit(model, n_experts=len(counts), **how)
    gradient = torch.zeros(8, 2)
    gradient[list(reached)] = 0.5
    model.controller.weight.grad = gradient
    with torch.no_grad():
        model.controller.weight -= 0.1 * gradient
    audit.observe()
    audit.routed(torch.tensor(counts))
    return audit.report()


def test_gates_and_router_columns_are_entries_of_their_own_and_padding_need_not_move():
    found = controller_audit(range(7))
    names = [entry.name.removeprefix("controller.weight") for entry in found]
    assert names[:3] == ["[w_attn]", "[w_mem]", "[w_ffn]"]
    assert names[3:] == ["[router 0]", "[router 1]", "[router 2]", "[router 3]", "[padding 7]"]
    assert [entry.expected for entry in found] == [True] * 7 + [False]
    assert inert(found) == []


def test_a_router_column_or_a_gate_that_did_not_move_is_named():
    assert inert(controller_audit((0, 2, 3, 4, 6))) == ["controller.weight[w_mem]", "controller.weight[router 2]"]


def test_the_column_of_an_expert_without_bytes_and_the_gate_of_a_branch_that_is_off_need_not_move():
    assert inert(controller_audit((0, 2, 3, 4, 6), (1, 1, 0, 1), unread={"w_mem"})) == []


def test_the_logit_of_a_single_expert_has_no_effect():
    assert inert(controller_audit((0, 1, 2), (9,))) == []


def test_gates_of_branches_that_are_off_are_unread():
    config = load_preset("tiny", overrides=["use_engram=false"])
    assert unread_gates(config) == {"w_mem"}
    assert unread_gates(load_preset("tiny", overrides=["use_kda=false"])) == {"w_attn"}
    assert unread_gates(load_preset("tiny", overrides=["use_kda=false", "use_plain_attn=true"])) == set()


def test_experts_that_always_run_are_judged_as_a_whole_however_many_they_are():
    """Four shared beside four routed ones, three of them without a byte."""
    experts = TsctExperts(d_model=8, d_ffn=8, n_experts=4, rank=2, top_k=1, n_shared=4)
    holder = nn.ModuleDict({"experts": experts})
    audit = MovementAudit(holder, n_experts=4)
    audit.routed(torch.tensor([9, 0, 0, 0]))
    found = {entry.name: entry.expected for entry in audit.report()}
    assert found["experts.shared.up_U"]
    assert [found[f"experts.bank.up_U[{e}]"] for e in range(4)] == [True, False, False, False]
