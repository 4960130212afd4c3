import json

import pytest
import torch

from dormouse.store import tree


def test_a_nested_state_survives_json_with_types_of_keys_and_containers():
    state = {
        "optimizer": {"state": {0: {"m": torch.ones(2), "step": torch.tensor(3.0)}, 7: {"m": torch.zeros(0, 3)}}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": [0, 7]}],
        "none": None,
        "flag": True,
        "empty": {},
    }
    tensors, description = tree.flatten(state)
    back = tree.unflatten(json.loads(json.dumps(description)), tensors)
    assert back["groups"] == state["groups"]
    assert list(back["optimizer"]["state"]) == [0, 7]
    assert back["none"] is None
    assert back["flag"] is True
    assert back["empty"] == {}
    assert torch.equal(back["optimizer"]["state"][0]["m"], torch.ones(2))


def test_templates_have_the_shapes_and_dtypes_of_the_tensors():
    tensors, description = tree.flatten({"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": [torch.tensor(1)]})
    found = tree.templates(description)
    assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
        name: (value.shape, value.dtype) for name, value in tensors.items()
    }


def test_an_object_that_is_neither_tensor_nor_json_is_refused():
    with pytest.raises(TypeError, match=r"a\.b: set"):
        tree.flatten({"a": {"b": {1, 2}}})
