"""Closed-form sizes against the original's published totals and against the instantiated network.

The totals are those that the original measured on its own models, or its specification derived from them: the
sum of the parts built here must be the network's own count, the sum of all parts the original's.
"""

import pytest
import torch

from dormouse.config.load import load_preset
from dormouse.config.model_schema import ModelConfig
from dormouse.config.sizes import (
    controller_columns,
    count_parts,
    expert_parameters,
    memory_parameters,
    table_rows,
    total_parameters,
)
from dormouse.config.unbuilt import unbuilt
from dormouse.errors import ConfigError
from dormouse.model.lm import Dormouse

# preset: (total of the original, tensors of the original)
ORIGINAL = {
    "small": (9_197_454, 54),
    "nano": (7_193_002, 54),
    "mor": (9_197_454, 54),
    "base": (13_065_874, 54),
    "swift50": (19_716_978, 84),
    "one_b": (38_615_842, 60),
    "p150": (132_862_786, 60),
    "moe-cap-2": (8_836_878, 48),
    "moe-cap-4": (9_558_030, 60),
    "moe-cap-8": (11_006_478, 84),
    "moe-cap-16": (13_903_374, 132),
    "plain9m": (13_358_510, 46),
    "byteflow": (15_923_968, None),
    "byteflow_9m": (9_380_736, None),
}
SMALL_PARTS = {
    "embedding": (196_608, 1),
    "controller": (12_288, 1),
    "KDA decay, low rank": (98_304, 2),
    "KDA decay bias": (768, 1),
    "KDA A_log": (12, 1),
    "KDA beta": (9_216, 1),
    "KDA output norm": (64, 1),
    "experts": (1_081_728, 18),
    "memory key and value": (147_456, 2),
    "memory table": (3_145_728, 1),
    "memory dense half": (589_824, 1),
    "loop norm": (768, 1),
    "iteration embedding": (3_072, 1),
    "residual scalar": (1, 1),
    "out_proj": (98_368, 3),
    "MoR router": (769, 2),
    "final norm": (768, 1),
    "lm_head": (65_600, 3),
    "JEPA predictor": (591_360, 3),
    "draft head": (204_800, 3),
    "acceptance head": (832, 1),
}


@pytest.mark.parametrize("preset", ORIGINAL)
def test_all_parts_together_are_the_original_s_total(preset):
    total, tensors = ORIGINAL[preset]
    config = load_preset(preset)
    assert total_parameters(config, built_only=False) == total
    if tensors is not None:
        assert sum(part.tensors for part in count_parts(config)) == tensors


def test_every_part_of_small_is_the_original_s():
    parts = {part.name: (part.parameters, part.tensors) for part in count_parts(load_preset("small"))}
    assert SMALL_PARTS.items() <= parts.items()
    attention = [numbers for name, numbers in parts.items() if name.startswith("KDA")]
    assert sum(count for count, _ in attention) == 3_057_484
    assert sum(tensors for _, tensors in attention) == 11
    assert sum(count for count, _ in parts.values()) - parts["memory table"][0] == 6_051_726


def test_what_the_original_builds_beyond_this_version_is_listed_with_its_size():
    missing = [part for part in count_parts(load_preset("small")) if not part.built]
    assert {part.name: part.parameters for part in missing} == {
        "MoR router": 769,
        "JEPA predictor": 591_360,
        "draft head": 204_800,
        "acceptance head": 832,
    }
    assert total_parameters(load_preset("small")) == 9_197_454 - 769 - 796_992


def test_the_plain_control_s_unused_parts_are_listed_as_not_built():
    # The specification derives about 8.77 million live parameters for plain9m.
    config = load_preset("plain9m")
    unused = {part.name for part in count_parts(config) if not part.built}
    assert {"memory key and value", "memory table", "memory dense half", "KDA beta"} <= unused
    assert round(total_parameters(config) / 1e6, 2) == 8.77


def test_the_plain_control_at_the_width_that_the_original_measured():
    config = load_preset("plain9m", ["d_ffn=3072"])
    assert total_parameters(config, built_only=False) == 12_669_934


def test_byteflow_around_the_loop_adds_its_stages_to_small():
    config = ModelConfig(use_byteflow=True, use_engram=False)
    assert total_parameters(config, built_only=False) == 12_126_862
    assert total_parameters(config) == 0
    wide = load_preset("byteflow", ["byteflow_d_global=640"])
    assert total_parameters(wide, built_only=False) == 12_697_344


def test_an_expert_of_small_has_360_576_parameters_and_a_dense_one_8_72_times_as_many():
    assert expert_parameters(ModelConfig()) == 360_576
    weights = 2 * 768 * 2048
    assert weights == 3_145_728
    assert round(weights / expert_parameters(ModelConfig()), 2) == 8.72
    assert expert_parameters(ModelConfig(use_tsct=False)) == weights + 2048 + 768


@pytest.mark.parametrize(("experts", "columns"), [(1, 4), (2, 8), (3, 8), (4, 8), (8, 12), (16, 20)])
def test_the_controller_is_padded_to_four_columns(experts, columns):
    assert controller_columns(experts) == columns


@pytest.mark.parametrize("rung", [2, 4, 8, 16])
def test_a_rung_of_the_ladder_costs_its_experts_and_its_columns(rung):
    small, config = load_preset("small"), load_preset(f"moe-cap-{rung}")
    columns = {2: 8, 4: 8, 8: 12, 16: 20}[rung]
    difference = 360_576 * (rung - 3) + 1_536 * (columns - 8)
    assert total_parameters(config) - total_parameters(small) == difference


@pytest.mark.parametrize(("rows", "built"), [(1, 1), (2, 2), (3, 4), (25_000, 32_768), (32_768, 32_768)])
def test_a_table_has_a_power_of_two_rows(rows, built):
    assert table_rows(rows) == built


def test_the_memory_of_small_has_3_145_728_numbers_and_none_when_it_is_off():
    assert memory_parameters(ModelConfig()) == 3_145_728
    assert memory_parameters(ModelConfig(use_engram=False)) == 0


VARIANTS = [
    [],
    ["use_engram=false"],
    ["use_kda=false"],
    ["use_kda=false", "use_plain_attn=true"],
    ["use_tsct=false"],
    ["tsct_parts=[head]"],
    ["tsct_parts=[out_proj]"],
    ["layout=sequential"],
    ["layout=parallel", "engram_dense_half=true"],
    ["kda_conv_width=1", "kda_gate_rank=full"],
    ["kda_conv_width=3", "kda_gate_rank=16", "kda_decay_rank=8"],
    ["n_experts=1", "moe_topk=1"],
    ["n_experts=17", "moe_topk=2"],
    ["engram_orders=[2,5]", "engram_rows=1000", "engram_dim=8"],
]


@pytest.mark.parametrize("preset", ["small", "tiny"])
@pytest.mark.parametrize("overrides", VARIANTS, ids=" ".join)
def test_the_built_parts_are_what_the_network_has(preset, overrides):
    config = load_preset(preset, overrides)
    assert instantiated(config) == total_parameters(config)


@pytest.mark.parametrize("preset", ORIGINAL)
def test_every_preset_has_the_size_it_says_or_is_refused(preset):
    config = load_preset(preset)
    if unbuilt(config):
        with pytest.raises(ConfigError, match="is not built"):
            instantiated(config)
    else:
        assert instantiated(config) == total_parameters(config)


def instantiated(config):
    """Parameters of the network itself, counted without memory for them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Dormouse(config).parameters())
