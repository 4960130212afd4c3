"""A changed setting that nothing reads is said aloud; one that is read is not."""

import pytest

from dormouse.config.inert import MODEL_READERS, TRAIN_READERS, inert_settings
from dormouse.config.load import load_run_config
from dormouse.config.schema import section_of


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
        "jepa_mask_span=2",
        "dspark_k=2",
        "aux_fb_horizon=3",
        "msa_kb=2",
        "mhc_streams=2",
        "byteflow_bins=8",
        "moe_renormalize=true",
    ],
)
def test_a_setting_of_a_mechanism_that_is_off_by_default_is_announced(setting):
    assert [line.partition(" = ")[0] for line in said(setting)] == [setting.partition("=")[0]]


def test_a_run_that_ends_in_its_warm_up_is_announced():
    assert "the full rate is never reached" in said("steps=20")[0]
    assert said("steps=21") == []


def test_the_tables_name_keys_that_exist():
    assert all(section_of(key) == "model" for keys, _, _ in MODEL_READERS for key in keys)
    assert all(section_of(key) == "train" for keys, _, _ in TRAIN_READERS for key in keys)
