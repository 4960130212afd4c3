"""A changed setting that nothing reads is said aloud; one that is read is not."""

import pytest
import torch

from dormouse.config.inert import MODEL_READERS, TRAIN_READERS, inert_settings
from dormouse.config.load import load_preset, load_run_config
from dormouse.config.schema import section_of
from dormouse.model.lm import Dormouse


def said(*overrides):
    return inert_settings(load_run_config("small", overrides=overrides))


@pytest.mark.parametrize(
    ("setting", "switch"),
    [
        ("engram_rows=7", "use_engram=false"),
        ("table_lr=1", "use_engram=false"),
        ("kda_conv_width=4", "use_kda=false"),
        ("rank=32", "use_tsct=false"),
        ("retract_every=2", "use_tsct=false"),
        ("retract_iters=3", "retract_every=0"),
        ("muon_lr=1", "optimizer=adamw"),
        ("moe_topk=1", "n_experts=1"),
        ("moe_gate_scale=n_experts", "n_experts=1"),
        ("router_per_pass=bias", "max_iter=1"),
    ],
)
def test_a_setting_whose_mechanism_is_off_is_announced(setting, switch):
    key = setting.partition("=")[0]
    assert said(setting) == []
    assert [line.partition(" = ")[0] for line in said(setting, switch)] == [key]


@pytest.mark.parametrize(
    "setting",
    [
        "act_group=8",
        "mor_k=1",
        "mor_bce_weight=0.1",
        "jepa_mask_span=2",
        "dspark_k=2",
        "aux_fb_horizon=3",
        "msa_kb=2",
        "mhc_streams=2",
        "byteflow_bins=8",
        "moe_renormalize=true",
        "selection_bias_rate=0.1",
        "balance_per_pass=true",
    ],
)
def test_a_setting_of_a_mechanism_that_is_off_by_default_is_announced(setting):
    assert [line.partition(" = ")[0] for line in said(setting)] == [setting.partition("=")[0]]


def test_the_balance_term_of_a_single_expert_is_announced():
    assert said("moe_topk=1", "moe_lb_coef=0.01") == []
    assert "moe_lb_coef = 0.01 has no effect: n_experts = 1" in said("moe_topk=1", "moe_lb_coef=0.01", "n_experts=1")[1]


def test_what_is_announced_for_a_single_expert_changes_neither_output_nor_gradient():
    found = []
    for changes in ((), ("moe_topk=1", "moe_lb_coef=0.5", "moe_gate_scale=n_experts")):
        torch.manual_seed(0)
        sizes = ("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "kda_decay_rank=4", "engram_rows=8")
        model = Dormouse(load_preset("small", [*sizes, "n_experts=1", *changes]))
        out = model(torch.arange(12).view(2, 6))
        assert out.routing is None  # the balance term is made from the routing record
        out.logits.square().sum().backward()
        found.append([out.logits, *(p.grad.to_dense() for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) > 5
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right)


def test_a_run_that_ends_in_its_warm_up_is_announced():
    assert "the full rate is never reached" in said("steps=20")[0]
    assert said("steps=21") == []


def test_the_tables_name_keys_that_exist():
    assert all(section_of(key) == "model" for keys, _, _ in MODEL_READERS for key in keys)
    assert all(section_of(key) == "train" for keys, _, _ in TRAIN_READERS for key in keys)
