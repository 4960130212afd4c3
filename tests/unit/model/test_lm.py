"""Properties of the whole model: one readout, roles, the router's sight, the memory's cap."""

import pytest
import torch
import torch.nn.functional as F

from dormouse.config.load import load_preset
from dormouse.errors import ConfigError
from dormouse.model.lm import Dormouse
from dormouse.model.roles import Role, named_roles


def test_a_fresh_model_with_a_dense_head_predicts_uniformly(make_bytes):
    model = Dormouse(load_preset("tiny", overrides=["engram_rows=64"]))
    ids = make_bytes(2, 16)
    loss = F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(5.545177, abs=1e-5)  # ln 256


def test_mean_of_projected_passes_is_what_is_read_out(make_model, make_bytes):
    model, ids = make_model("max_iter=3"), make_bytes(1, 12)
    with torch.no_grad():
        state = model.initial_state(1)
        hidden = model.loop(model.embedding(ids), ids, None, state).hidden
        per_pass = torch.stack([model.out_proj(h) for h in hidden]).mean(0)
        torch.testing.assert_close(model.lm_head(model.norm(per_pass)), model(ids).logits, rtol=1e-5, atol=1e-5)


def test_every_parameter_has_a_role_and_a_gradient(make_model, make_bytes):
    model, ids = make_model("moe_topk=4", "deep_supervision=0.5").train(), make_bytes(2, 40)
    out = model(ids)
    assert len(out.pass_logits) == 2
    F.cross_entropy(out.logits.flatten(0, 1), ids.flatten()).backward()
    for name, p, role in named_roles(model):
        assert isinstance(role, Role)
        grad = p.grad.coalesce().values() if p.grad.is_sparse else p.grad
        assert grad.abs().sum() > 0, name


def test_the_router_sees_the_number_of_the_pass(make_model, make_bytes):
    model, ids = make_model(), make_bytes(1, 12)
    with torch.no_grad():
        before = model(ids).routing.probs
        model.loop.iter_embed[1] += 3.0
        after = model(ids).routing.probs
    assert torch.equal(before[0], after[0])
    assert (before[1] - after[1]).abs().max() > 1e-3


def test_padding_columns_of_the_controller_are_never_read(make_model, make_bytes):
    model, ids = make_model("n_experts=4"), make_bytes(1, 12)
    assert model.loop.controller.weight.shape[0] == 8
    with torch.no_grad():
        before = model(ids).logits
        model.loop.controller.weight[7] = 1e6
        assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize(("n_experts", "columns"), [(2, 8), (3, 8), (4, 8), (8, 12), (16, 20)])
def test_controller_columns_are_padded_to_four(n_experts, columns, make_model):
    model = make_model(f"n_experts={n_experts}")
    assert model.loop.controller.weight.shape == (columns, 32)


@pytest.mark.parametrize("cap", [0.25, 0.5])
def test_a_saturated_memory_gate_is_capped(cap, make_model, make_bytes):
    model = make_model(f"engram_lam_max={cap}", "engram_dense_half=true", "engram_orders=[2]")
    engram = model.loop.engram
    memory = engram.look_up(make_bytes(1, 9), torch.zeros(1, 1, dtype=torch.int64), torch.arange(9)[None])
    x, query = torch.randn(1, 9, 16), torch.randn(1, 9, 16)
    with torch.no_grad():
        saturated = engram(memory, query, x, torch.ones(1, 9, 1))
        at_cap = engram(memory, query, x, torch.full((1, 9, 1), cap))
        dense = (1 - cap) * engram.dense_half(x)
    assert torch.equal(saturated, at_cap)
    assert (saturated - dense).norm() <= cap * memory.value.norm() + 1e-6


def test_the_router_decides_in_fp32_under_autocast(make_model):
    model = make_model("n_experts=2", "moe_topk=1", "controller_norm=false")
    controller = model.loop.controller
    with torch.no_grad():
        controller.weight.zero_()
        controller.weight[3, 0] = 1.0
        controller.weight[4, 0], controller.weight[4, 1] = 1.0, 3 / 1024
        x = torch.zeros(9, 16)
        x[:, :2] = 1.0
        for rows in (1, 9):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = controller.router_logits(x[:rows], torch.zeros(rows, 16))
            assert logits.dtype == torch.float32
            assert logits[0].tolist() == [1.0, 1.0029296875]


def test_a_mechanism_that_is_not_built_is_refused_by_name():
    config = load_preset("tiny", overrides=["use_mor=true"])
    with pytest.raises(ConfigError, match="use_mor"):
        Dormouse(config)


def test_masked_and_looped_paths_give_the_same_logits(make_model, make_bytes):
    model, ids = make_model("moe_topk=2"), make_bytes(1, 20)
    with torch.no_grad():
        fast = model(ids).logits
        for path in ("masked", "loop"):
            torch.testing.assert_close(model(ids, path=path).logits, fast, rtol=0, atol=1e-5)
