"""Every tensor is made on the device of its input: no pass mixes devices.

Two oracles without a second device: the meta device, where a model has shapes but no numbers, and a default device of
meta, where a tensor made without a device meets the model's own numbers and is an error.
"""

import pytest
import torch

from dormouse.model.decode import ByteStep, fits
from dormouse.ops.dispatch import plan_dispatch

ARMS = {
    "tiny": [],
    "parallel, dense half": ["layout=parallel", "engram_dense_half=true"],
    "no convolution": ["kda_conv_width=1"],
    "plain attention": ["use_kda=false", "use_plain_attn=true"],
    "two experts a byte": ["moe_topk=2", "moe_renormalize=true"],
    "blend": ["moe_topk=0", "moe_lb_coef=0"],
    "dense experts": ["use_tsct=false"],
    "dense blend": ["use_tsct=false", "moe_topk=0", "moe_lb_coef=0"],
}


def marks(device):
    bounds = torch.zeros(2, 40, dtype=torch.bool, device="cpu")
    bounds[0, 7] = bounds[1, 39] = True
    return bounds.to(device)


@pytest.mark.parametrize("arm", ARMS)
def test_a_model_without_numbers_runs_forward_and_backward(arm, make_model, make_bytes):
    """`masked` for the routed arms: to cut rows into segments their lengths must be known."""
    model, ids = make_model(*ARMS[arm]).to("meta"), make_bytes(2, 40).to("meta")
    for bounds in (None, marks("meta")):
        first = model(ids, bounds=bounds, path="masked")
        second = model(ids[:, :1], state=first.state, path="masked")
        assert first.logits.shape == (2, 40, 256)
        (first.logits.sum() + second.logits.sum()).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.device.type == "meta", name


@pytest.mark.parametrize("arm", ARMS)
def test_no_tensor_of_a_pass_is_made_on_the_default_device(arm, make_model, make_bytes):
    model, ids, bounds = make_model(*ARMS[arm]), make_bytes(2, 40), marks("cpu")
    with torch.device("meta"):
        for given in (None, bounds):
            first = model(ids, bounds=given)
            second = model(ids[:, :1], state=first.state)
            (first.logits.sum() + second.logits.sum()).backward()
        if fits(model):
            logits, state = ByteStep(model)(ids[:, 0], second.state)
            assert {logits.device.type, state.history.device.type} == {"cpu"}
            ByteStep(model)(ids[:1, 0], model.initial_state(1))
    assert all(p.grad.device.type == "cpu" for p in model.parameters())


def test_a_dispatch_plan_needs_no_numbers_and_counts_what_is_there():
    ids = torch.tensor([[2, 0], [2, 3], [0, 2]])
    assert plan_dispatch(ids, 5).counts.tolist() == [2, 0, 3, 1, 0]
    assert plan_dispatch(ids[:0], 5).counts.tolist() == [0] * 5
    plan = plan_dispatch(ids.to("meta"), 5)
    assert {t.device.type for t in (plan.order, plan.inverse, plan.counts, plan.tokens)} == {"meta"}
    assert plan.counts.shape == (5,)
