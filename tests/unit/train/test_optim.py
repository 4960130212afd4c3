"""Which optimiser trains which parameter, at which decay: written out for the arms that differ."""

import pytest
import torch
from torch import nn

from dormouse.config.load import load_run_config
from dormouse.config.schema import TrainConfig
from dormouse.model.lm import Dormouse
from dormouse.model.roles import Role, declare
from dormouse.train.optim import build_optimizer

MUON = {
    "loop.mixer.q.weight": (2, 0.05, True),
    "loop.mixer.k.weight": (2, 0.05, True),
    "loop.mixer.v.weight": (2, 0.05, True),
    "loop.mixer.out.weight": (1, 0.05, True),
    "loop.mixer.gate.weight": (1, 0.05, True),
    "loop.engram.key.weight": (1, 0.05, True),
    "out_proj.weight": (1, 0.05, True),
    "loop.experts.bank.up_U": (1, 0.0, False),
    "loop.experts.bank.up_V": (1, 0.0, False),
    "loop.experts.bank.down_U": (1, 0.0, False),
    "loop.experts.bank.down_V": (1, 0.0, False),
}
"""(blocks, weight decay, rate scaled by shape): heads one by one, matrices whole, factors without decay or scale."""
ADAMW = {
    "embedding.weight": 0.0,
    "lm_head.weight": 0.0,
    "loop.experts.bank.up_s": 0.0,
    "loop.mixer.A_log": 0.0,
    "loop.mixer.conv": 0.0,
    "loop.mixer.beta.weight": 0.05,
    "loop.controller.weight": 0.05,
    "loop.norm.weight": 0.0,
    "lm_head.bias": 0.0,
}
KDA = ("kda_decay_rank=4", "kda_gate_rank=4")
SMALL = ("d_model=32", "head_dim=16", "rank=4", "d_ffn=32", "engram_rows=64", "engram_dim=4", "weight_decay=0.05", *KDA)


def built(*overrides):
    config = load_run_config("tiny", None, [*SMALL, *overrides], {})
    model = Dormouse(config.model)
    return model, build_optimizer(model, config.train)


def test_every_parameter_is_in_exactly_one_group():
    for overrides in ((), ("optimizer=adamw",), ("use_kda=false", "use_tsct=false", "engram_dense_half=true")):
        model, bundle = built(*overrides)
        assert sorted(map(id, bundle.parameters())) == sorted(map(id, model.parameters()))


def test_matrices_heads_and_factors_go_to_muon():
    _, bundle = built()
    found = {p.name: (p.blocks, p.weight_decay, p.shape_scale) for p in bundle.muon.parameters}
    assert {name: found.get(name) for name in MUON} == MUON


def test_the_rest_goes_to_adamw_with_decay_on_the_controller_alone():
    model, bundle = built()
    decay = {id(p): group["weight_decay"] for group in bundle.adamw.param_groups for p in group["params"]}
    found = {name: decay[id(p)] for name, p in model.named_parameters() if id(p) in decay}
    assert {name: found.get(name) for name in ADAMW} == ADAMW
    assert [name for name, value in found.items() if value] == ["loop.controller.weight", "loop.mixer.beta.weight"]


def test_without_muon_matrices_decay_in_adamw_and_tables_stay_with_adagrad():
    model, bundle = built("optimizer=adamw")
    assert bundle.muon.parameters == []
    decay = {id(p): group["weight_decay"] for group in bundle.adamw.param_groups for p in group["params"]}
    names = dict(model.named_parameters())
    assert decay[id(names["loop.mixer.q.weight"])] == 0.05
    assert [name for name in names if name.endswith("table")] == list(bundle.table.parameters)


@pytest.mark.parametrize("overrides", [(), ("use_tsct=false",), ("use_kda=false", "use_plain_attn=true")])
def test_every_parameter_lies_in_memory_as_its_saved_state_will(overrides):
    model, _ = built(*overrides)
    assert [name for name, p in model.named_parameters() if not p.is_contiguous()] == []


def test_moments_of_a_transposed_parameter_survive_a_reload():
    """Two steps are one, a reload from contiguous copies, and one more."""
    gradient = torch.arange(12.0).view(3, 4) - 5

    def bundle():
        model = nn.Linear(4, 3, bias=False)
        model.weight = nn.Parameter(torch.ones(4, 3).T)
        declare(model, weight=Role.VECTOR)
        return model.weight, build_optimizer(model, TrainConfig(optimizer="adamw", steps=2))

    def step(weight, optimizer):
        weight.grad = gradient.clone()
        optimizer.step(1.0)

    (whole, first), (parts, second) = bundle(), bundle()
    step(whole, first)
    saved = {key: value.clone(memory_format=torch.contiguous_format) for key, value in _moments(first).items()}
    step(whole, first)
    step(parts, second)
    state = second.state_dict()
    state["adamw"]["state"][0] = saved
    second.load_state_dict(state)
    step(parts, second)
    assert torch.equal(whole, parts)


def _moments(optimizer):
    return optimizer.state_dict()["adamw"]["state"][0]


def test_one_bundle_step_scales_every_rate():
    model, bundle = built()
    for p in model.parameters():
        p.grad = torch.ones_like(p).to_sparse(1) if any(p is t for t in bundle.table.parameters.values()) else None
    names = dict(model.named_parameters())
    bias = names["lm_head.bias"]
    bias.grad = torch.ones_like(bias)
    [table] = bundle.table.parameters.values()
    before = bias.detach().clone(), table.detach().clone()
    bundle.step(0.5)
    assert (bias - before[0]).tolist() == pytest.approx([-0.5 * bundle.lr] * 256, rel=1e-4)
    assert (table - before[1]).mean().item() == pytest.approx(-0.5 * bundle.table.lr, rel=1e-4)
