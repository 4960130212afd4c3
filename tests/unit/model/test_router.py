"""The router's rules one by one: what selects, what weighs, what each pass has for itself."""

import pytest
import torch
import torch.nn.functional as F

from dormouse.config.sizes import count_parts
from dormouse.model.router import Router


def logits(n=64, columns=4, seed=0):
    return torch.randn(n, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def biased(*values, **options):
    router = Router(len(values), options.pop("top_k", 1), bias_sets=1, **options).double()
    router.selection_bias.copy_(torch.tensor([values]))
    return router


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_sigmoid_gate_is_the_sigmoid_of_its_own_logit_alone(k):
    x = logits()
    routing = Router(4, k, score="sigmoid", gate_scale=2.0)(x)
    order = x.sort(-1, descending=True)
    assert torch.equal(routing.ids, order.indices[:, :k])
    torch.testing.assert_close(routing.gates, 2 / (1 + torch.exp(-order.values[:, :k])))
    torch.testing.assert_close(routing.probs.sum(-1), torch.ones(64, dtype=torch.float64))


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_bias_decides_who_is_selected_and_never_what_a_gate_weighs(score):
    x = logits().requires_grad_()
    routing = biased(9.0, 0.0, 0.0, 0.0, score=score)(x)
    assert (routing.ids == 0).all()
    expected = (x.softmax(-1) if score == "softmax" else x.sigmoid())[:, :1]
    assert torch.equal(routing.gates, expected)
    (mine,) = torch.autograd.grad(routing.gates.square().sum(), x)
    (reference,) = torch.autograd.grad(expected.square().sum(), x)
    assert torch.equal(mine, reference)


def test_a_bias_of_zero_is_plain_top_k_and_a_constant_on_all_changes_nothing():
    x = logits()
    plain = Router(4, 2)(x)
    for value in (0.0, 0.25):
        routing = biased(value, value, value, value, top_k=2)(x)
        assert torch.equal(routing.ids, plain.ids)
        assert torch.equal(routing.gates, plain.gates)


def test_each_pass_may_have_its_own_bias():
    router = Router(4, 1, bias_sets=2).double()
    router.selection_bias.copy_(torch.tensor([[0.0, 0, 0, 9], [9.0, 0, 0, 0]]))
    assert (router(logits(), pass_index=0).ids == 3).all()
    assert (router(logits(), pass_index=1).ids == 0).all()


def test_noise_selects_while_training_weighs_nothing_and_is_absent_otherwise():
    x, plain = logits(), Router(4, 2)(logits())
    router = Router(4, 2, noise=1.0).train()
    torch.manual_seed(5)  # not the seed of the logits: noise equal to them would keep their order
    noisy, again = router(x), router(x)
    assert not torch.equal(noisy.ids, plain.ids)
    assert not torch.equal(noisy.ids, again.ids)
    assert torch.equal(noisy.gates, x.softmax(-1).gather(-1, noisy.ids))
    assert torch.equal(router.eval()(x).ids, plain.ids)


@pytest.mark.parametrize("options", [{"score": "sigmoid"}, {"n_null": 1}, {"noise": 0.1}, {"bias_sets": 1}], ids=str)
def test_the_dense_blend_takes_nothing_that_is_for_a_selection(options):
    with pytest.raises(ValueError, match="top_k = 0"):
        Router(4, 0, **options)


ROUTERS = {
    "shared": [],
    "bias by pass": ["router_per_pass=bias"],
    "columns by pass": ["router_per_pass=columns"],
    "low rank": ["router_rank=2"],
    "low rank, columns by pass": ["router_rank=2", "router_per_pass=columns"],
    "null experts": ["n_null_experts=3"],
    "shared experts": ["n_shared_experts=2"],
    "shared dense experts": ["n_shared_experts=2", "use_tsct=false"],
}


@pytest.mark.parametrize("name", ROUTERS)
def test_the_closed_form_counts_every_router(name, make_model):
    model = make_model(*ROUTERS[name])
    parts = {part.name: part for part in count_parts(model.config) if part.built}
    counted = sum(p.parameters for name, p in parts.items() if name == "controller" or "router" in name)
    assert counted == sum(p.numel() for p in model.loop.controller.parameters())
    assert sum(part.parameters for part in parts.values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("own", ["bias", "columns"])
def test_terms_of_a_pass_at_zero_are_the_shared_router_to_the_bit(own, make_model, make_bytes):
    shared, model, ids = make_model("moe_topk=2"), make_model("moe_topk=2", f"router_per_pass={own}"), make_bytes(2, 24)
    state = model.state_dict()
    name = f"loop.controller.pass_{own}"
    state.update(shared.state_dict())
    state[name] = torch.zeros_like(state[name])
    model.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, shared(ids).logits)


@pytest.mark.parametrize("own", ["bias", "columns"])
def test_terms_of_a_pass_reach_that_pass_and_have_a_gradient_of_their_own(own, make_model, make_bytes):
    model, ids = make_model("moe_topk=2", f"router_per_pass={own}"), make_bytes(2, 24)
    term = getattr(model.loop.controller, f"pass_{own}")
    F.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten()).backward()
    assert term.grad[0].abs().sum() > 0
    assert term.grad[1].abs().sum() > 0
    assert not torch.equal(term.grad[0], term.grad[1])
    with torch.no_grad():
        before = model(ids).routing.probs
        term[1] += torch.randn(term[1].shape, generator=torch.Generator().manual_seed(3))
        after = model(ids).routing.probs
    assert torch.equal(before[0], after[0])
    assert (before[1] - after[1]).abs().max() > 1e-3


def test_a_low_rank_router_of_enough_rank_has_the_logits_of_the_full_one(make_model):
    full, thin = make_model("n_experts=6"), make_model("n_experts=6", "router_rank=5")
    down, up = thin.loop.controller.router_down, thin.loop.controller.router_up
    with torch.no_grad():
        full.loop.controller.weight[3:9] = up @ down
        full.loop.controller.weight[:3] = thin.loop.controller.weight[:3]
    c, h0 = torch.randn(2, 7, full.config.d_model), torch.randn(2, 7, full.config.d_model)
    torch.testing.assert_close(
        thin.loop.controller.router_logits(c, h0), full.loop.controller.router_logits(c, h0), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", ROUTERS)
def test_folded_is_the_controller_as_one_linear_map(name, make_model):
    model = make_model(*ROUTERS[name])
    controller, d = model.loop.controller, model.config.d_model
    c, h0 = torch.randn(5, d), torch.randn(5, d)
    for i in range(model.config.max_iter):
        weight, bias = controller.folded(i)
        whole = F.linear(torch.cat([c, h0], -1), weight, bias)
        logits = controller.router_logits(c, h0, pass_index=i)
        torch.testing.assert_close(whole[:, 3:], logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changes", [[], ["router_score=sigmoid"], ["n_null_experts=2"]], ids=str)
def test_unit_gates_are_one_where_all_logits_are_zero(changes, make_model):
    router = make_model("moe_gate_scale=unit", *changes).loop.experts.router
    routing = router(torch.zeros(3, router.n_experts + router.n_null))
    torch.testing.assert_close(routing.gates, torch.ones(3, 1))


@pytest.mark.parametrize(
    "more", [[], ["router_per_pass=bias"], ["router_score=sigmoid", "selection_bias=quantile"]], ids=str
)
@pytest.mark.parametrize("k", [1, 2])
def test_a_streamed_router_of_very_many_columns_gives_the_same_logits(more, k, make_model, make_bytes):
    model = make_model("n_experts=1100", "router_rank=4", f"moe_topk={k}", "rank=2", "d_ffn=8", *more)
    if model.loop.experts.router.selection_bias is not None:
        model.loop.experts.router.selection_bias.normal_(std=0.1)
    ids = make_bytes(2, 12)
    with torch.no_grad():
        whole = model(ids)
        model.loop.keeps_routing = False
        streamed = model(ids)
    assert whole.routing is not None
    assert streamed.routing is None
    torch.testing.assert_close(streamed.logits, whole.logits, rtol=1e-5, atol=1e-5)
    assert model(ids).routing is not None  # with gradients everything is kept


def test_noise_is_as_large_as_it_was_set():
    x = logits()
    torch.manual_seed(5)
    assert torch.equal(Router(4, 2, noise=1e-9).train()(x).ids, Router(4, 2)(x).ids)
    changed = [(Router(4, 1, noise=n).train()(x.repeat(50, 1)).ids != Router(4, 1)(x.repeat(50, 1)).ids).double().mean()
               for n in (0.1, 1.0)]  # fmt: skip
    assert 0 < changed[0] < changed[1] / 3
