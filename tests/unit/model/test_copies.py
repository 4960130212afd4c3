"""A copy of a model is a model: roles survive every way of copying or moving one."""

import copy
import io

import pytest
import torch
from torch import nn

from dormouse.model.roles import Role, declare, named_roles, spectral_factors


def assigned(model):
    twin = copy.deepcopy(model)
    twin.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    return twin


def pickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": pickled,
    "meta": lambda model: copy.deepcopy(model).to("meta"),
    "to_empty": lambda model: copy.deepcopy(model).to("meta").to_empty(device="cpu"),
    "double": lambda model: copy.deepcopy(model).double(),
    "assign": assigned,
}


@pytest.mark.parametrize("way", WAYS)
def test_roles_survive(make_model, way):
    model = make_model()
    expected = [(name, role) for name, _, role in named_roles(model)]
    assert [name for name, _ in expected] == [name for name, _ in model.named_parameters()]
    twin = WAYS[way](model)
    assert [(name, role) for name, _, role in named_roles(twin)] == expected
    assert [name for name, _ in twin.spectral_factors()] == [name for name, _ in model.spectral_factors()]


def test_a_parameter_without_role_is_refused_by_name():
    layer = nn.Sequential(nn.Linear(2, 3))
    with pytest.raises(TypeError, match=r"0\.weight has no role; Linear must declare it"):
        list(named_roles(layer))
    declare(layer[0], weight=Role.MATRIX, bias=Role.VECTOR)
    assert [role for _, _, role in named_roles(layer)] == [Role.MATRIX, Role.VECTOR]
    assert spectral_factors(layer) == []


def test_a_shared_parameter_is_listed_once(make_model):
    model = make_model()
    twice = nn.ModuleList([model.out_proj, model.out_proj])
    tied = nn.ModuleList([model.out_proj, copy.deepcopy(model.out_proj)])
    for name, parameter in model.out_proj.named_parameters():
        setattr(tied[1], name, parameter)
    for pair in (twice, tied):
        names = [name for name, _, _ in named_roles(pair)]
        assert names == [name for name, _ in pair.named_parameters()]
        assert len(names) == len(list(model.out_proj.parameters()))
