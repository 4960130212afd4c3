"""A refusal names field, value, what would have run instead, and the way out (S6, DM-05 item 3, DM-07)."""

import pytest

from dormouse.config.model_schema import ModelConfig
from dormouse.errors import ConfigError

# settings, then what the message must hold: field and value, what would have run, the way out
REFUSALS = {
    "head width": ({"n_heads": 11}, "model.n_heads = 11", "704 channels", "head_dim * n_heads = d_model"),
    "k above E": ({"moe_topk": 5, "n_experts": 4}, "model.moe_topk = 5", "all 4 experts", "Use 1 to 4"),
    "k below 0": (
        {"moe_topk": -1, "n_experts": 4},
        "model.moe_topk = -1",
        "the dense blend",
        "0 for the dense blend",
    ),
    "balance while dense": (
        {"moe_lb_coef": 0.01},
        "model.moe_lb_coef = 0.01",
        "dense blend",
        "Set moe_topk between",
    ),
    "negative balance": (
        {"moe_lb_coef": -0.5, "moe_topk": 1},
        "model.moe_lb_coef = -0.5",
        "rewarded collapse",
        "Use 0 for no balance term",
    ),
    "frozen router": (
        {"moe_topk": 1, "moe_renormalize": True},
        "model.moe_renormalize = true with model.moe_topk = 1",
        "no gradient",
        "Set moe_renormalize = false, or moe_topk = 2",
    ),
    "negative z": ({"moe_z_coef": -1.0, "moe_topk": 1}, "model.moe_z_coef = -1.0", "without bound", "Use 0"),
    "z while dense": ({"moe_z_coef": 0.001}, "model.moe_z_coef = 0.001", "dense blend", "moe_z_coef = 0."),
    "sigmoid while dense": (
        {"router_score": "sigmoid"},
        'model.router_score = "sigmoid"',
        "dense blend",
        'router_score = "softmax"',
    ),
    "bias while dense": (
        {"selection_bias": "quantile"},
        'model.selection_bias = "quantile"',
        "without a selection bias",
        "Set moe_topk between",
    ),
    "noise while dense": ({"router_noise": 0.1}, "model.router_noise = 0.1", "without noise", "router_noise = 0"),
    "null while dense": ({"n_null_experts": 1}, "model.n_null_experts = 1", "null experts", "n_null_experts = 0"),
    "bias without a choice": (
        {"selection_bias": "loss_free", "moe_topk": 3},
        'model.selection_bias = "loss_free" with model.moe_topk = 3',
        "changes nothing",
        "Lower moe_topk",
    ),
    "router of full rank": ({"router_rank": 3}, "model.router_rank = 3", "costs more", "0 for the full matrix"),
    "two mixers": (
        {"use_plain_attn": True},
        "model.use_plain_attn = true",
        "only one",
        "Set use_kda = false",
    ),
    "odd rotary head": (
        {"use_plain_attn": True, "use_kda": False, "head_dim": 3, "n_heads": 256},
        "model.head_dim = 3",
        "unrotated",
        "even head_dim",
    ),
    "rank too high": (
        {"rank": 769},
        "model.rank = 769",
        "rank = 768 would have run",
        "Use rank = 768 or less",
    ),
    "no spectral part": (
        {"tsct_parts": []},
        "model.tsct_parts = []",
        "dense network",
        "Set use_tsct = false",
    ),
    "part named twice": ({"tsct_parts": ["head", "head"]}, "model.tsct_parts", "no effect", "at most once"),
    "decay rank": ({"kda_decay_rank": 769}, "model.kda_decay_rank = 769", "more numbers", "Use 1 to 768."),
    "gate rank": ({"kda_gate_rank": 0}, "model.kda_gate_rank = 0", "or none", '"full"'),
    "no rows": ({"engram_rows": 0}, "model.engram_rows = 0", "1 row shared", "use_engram = false"),
    "cap at 0": ({"engram_lam_max": 0.0}, "model.engram_lam_max = 0.0", "never read", "use_engram = false"),
    "cap above 1": ({"engram_lam_max": 1.5}, "model.engram_lam_max = 1.5", "negative share", "at most 1"),
    "no orders": ({"engram_orders": []}, "model.engram_orders = []", "would have run", "[2, 3, 4]"),
    "order 1": ({"engram_orders": [1, 2]}, "model.engram_orders = [1, 2]", "would have run", "[2, 3, 4]"),
    "order 9": ({"engram_orders": [2, 9]}, "model.engram_orders = [2, 9]", "would have run", "[2, 3, 4]"),
    "orders repeat": (
        {"engram_orders": [2, 2]},
        "model.engram_orders = [2, 2]",
        "would have run",
        "[2, 3, 4]",
    ),
    "orders fall": ({"engram_orders": [3, 2]}, "model.engram_orders = [3, 2]", "would have run", "[2, 3, 4]"),
}


@pytest.mark.parametrize("case", REFUSALS, ids=str)
def test_a_contradiction_is_refused_with_field_value_alternative_and_way_out(case):
    settings, *needed = REFUSALS[case]
    with pytest.raises(ConfigError) as refusal:
        ModelConfig.model_validate(settings)
    assert refusal.value.exit_code == 2
    assert "\n" not in str(refusal.value)
    for words in needed:
        assert words in str(refusal.value)


LEGAL = {
    "one expert": {"n_experts": 1},
    "k equal to E": {"n_experts": 4, "moe_topk": 4},
    "routing without a balancer": {"moe_topk": 1},
    "balance with routing": {"moe_topk": 1, "moe_lb_coef": 0.01},
    "renormalised top-2": {"moe_topk": 2, "moe_renormalize": True},
    "selection bias with a choice": {"selection_bias": "loss_free", "moe_topk": 2},
    "all experts and a null one": {"selection_bias": "quantile", "moe_topk": 3, "n_null_experts": 1},
    "low-rank router": {"router_rank": 2},
    "no attention at all": {"use_kda": False},
    "rank at the width": {"rank": 768},
    "cap at 1": {"engram_lam_max": 1.0},
    "one row": {"engram_rows": 1},
    "orders at both ends": {"engram_orders": [2, 8]},
}


@pytest.mark.parametrize("case", LEGAL, ids=str)
def test_a_setting_on_the_legal_side_of_a_rule_is_taken(case):
    config = ModelConfig.model_validate(LEGAL[case])
    for key, value in LEGAL[case].items():
        assert getattr(config, key) == (tuple(value) if isinstance(value, list) else value)


def test_all_broken_rules_are_reported_one_a_line():
    with pytest.raises(ConfigError) as refusal:
        ModelConfig.model_validate({"n_heads": 11, "moe_topk": 9, "engram_rows": 0})
    lines = str(refusal.value).splitlines()
    assert [line.split(" = ")[0] for line in lines] == [
        "model.n_heads",
        "model.moe_topk",
        "model.engram_rows",
    ]
