"""Costs against the specification's arithmetic (M8) and against torch's own counter."""

from collections import Counter

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dormouse.config.flops import (
    dense_expert_flops,
    expert_flops,
    flops_per_byte,
    forward_flops,
    retraction_flops,
    retraction_flops_per_step,
    spectral_factor_shapes,
)
from dormouse.config.load import load_preset
from dormouse.config.model_schema import ModelConfig
from dormouse.config.train_schema import TrainConfig
from dormouse.model.lm import Dormouse
from dormouse.model.roles import spectral_factors


def costs(config, **options):
    return {cost.name: cost for cost in flops_per_byte(config, **options)}


def test_a_spectral_expert_of_small_costs_0_721_mflop_and_a_dense_one_8_73_times_as_much():
    small = ModelConfig()
    assert expert_flops(small) == 4 * 64 * (768 + 2048) == 720_896
    assert dense_expert_flops(small) == 6_291_456
    assert round(dense_expert_flops(small) / expert_flops(small), 2) == 8.73
    assert expert_flops(ModelConfig(use_tsct=False)) == 6_291_456


def test_routing_pays_for_k_of_the_experts_and_the_blend_for_all():
    assert costs(ModelConfig(n_experts=8))["experts"].per_pass == 8 * 720_896
    assert costs(ModelConfig(n_experts=8, moe_topk=2))["experts"].per_pass == 2 * 720_896


def test_the_expert_cost_is_what_torch_counts():
    x = torch.empty(1, 768, device="meta")
    up_u, up_v = torch.empty(768, 64, device="meta"), torch.empty(2048, 64, device="meta")
    down_u, down_v = torch.empty(2048, 64, device="meta"), torch.empty(768, 64, device="meta")
    with FlopCounterMode(display=False) as counter:
        _ = ((x @ up_u) @ up_v.T @ down_u) @ down_v.T
    assert counter.get_total_flops() == expert_flops(ModelConfig())


def test_a_retraction_of_small_is_1_141_mflop_over_16_factors():
    small = ModelConfig()
    assert spectral_factor_shapes(small) == {(768, 64): 9, (2048, 64): 6, (256, 64): 1}
    assert round(retraction_flops(small, iters=3) / 1e6) == 1_141
    by_hand = sum(n * (14 * 64**2 * m + 6 * 64**3) for m, n in ((768, 9), (2048, 6), (256, 1)))
    assert retraction_flops(small, iters=3) == by_hand


def test_a_rare_retraction_costs_a_step_its_share_and_none_costs_nothing():
    each = {n: retraction_flops_per_step(ModelConfig(), TrainConfig(steps=1, retract_every=n, retract_iters=3))
            for n in (0, 1, 4)}  # fmt: skip
    # Two products with the long sides; three squares and twice three products of 64 x 64.
    assert each[1] == sum(n * (4 * 64**2 * m + (3 + 6) * 2 * 64**3) for m, n in ((768, 9), (2048, 6), (256, 1)))
    assert each[4] == pytest.approx(each[1] / 4, abs=1)
    assert each[0] == 0


def test_a_dense_network_has_nothing_to_retract():
    assert retraction_flops(ModelConfig(use_tsct=False), iters=3) == 0
    head = ModelConfig(d_model=128, n_heads=2, rank=32, tsct_parts=("head",))
    assert spectral_factor_shapes(head) == {(128, 32): 1, (256, 32): 1}


def test_a_forward_pays_every_pass_and_the_readout_once():
    config = ModelConfig(max_iter=4)
    assert forward_flops(config) - forward_flops(ModelConfig(max_iter=3)) == sum(
        cost.per_pass for cost in flops_per_byte(config)
    )
    assert costs(config)["lm_head"].per_pass == 0
    assert costs(ModelConfig(deep_supervision=0.1))["lm_head"].per_pass == 2 * 64 * (768 + 256)


def test_plain_attention_grows_with_the_context_and_kda_does_not():
    plain = ModelConfig(use_kda=False, use_plain_attn=True)
    # Causal scores and sums: (T + 1) / 2 keys a query on average, two products of d multiply-adds each.
    growth = (
        costs(plain, context=511)["plain attention"].per_pass - costs(plain, context=255)["plain attention"].per_pass
    )
    assert growth == 2 * 2 * 768 * 128
    assert costs(ModelConfig(), context=511) == costs(ModelConfig(), context=255)


@pytest.mark.parametrize(("switch", "name"), [("use_kda=false", "KDA"), ("use_engram=false", "memory")])
def test_a_part_that_is_off_costs_nothing(switch, name):
    assert name in costs(load_preset("small"))
    assert name not in costs(load_preset("small", [switch]))


def test_byteflow_is_not_built_and_not_priced():
    assert flops_per_byte(load_preset("byteflow")) == []


@pytest.mark.parametrize("shared", [1, 2])
def test_shared_experts_cost_as_much_as_selected_ones_and_have_factors(shared):
    plain, more = ModelConfig(n_experts=4, moe_topk=2), ModelConfig(n_experts=4, moe_topk=2, n_shared_experts=shared)
    each = costs(plain)["experts"].per_pass / 2
    assert costs(more)["experts"].per_pass == (2 + shared) * each
    with torch.device("meta"):
        factors = [p for _, p in spectral_factors(Dormouse(more))]
    found = Counter()
    for p in factors:
        found[tuple(p.shape[-2:])] += p[..., 0, 0].numel()
    assert spectral_factor_shapes(more) == dict(found)


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"router_rank": 2}, 4 * 768 * (4 - 8) + 2 * 2 * (1536 + 4)),
        ({"router_per_pass": "columns"}, 2 * 1536 * 4),
        ({"n_null_experts": 2}, 4 * 768 * (12 - 8)),
    ],
    ids=str,
)
def test_every_router_has_its_price(change, more):
    plain = costs(ModelConfig(n_experts=4, moe_topk=1))["controller"].per_pass
    assert costs(ModelConfig(n_experts=4, moe_topk=1, **change))["controller"].per_pass - plain == more
