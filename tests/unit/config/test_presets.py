"""Every preset loads and says what it is for and what it is not; the original's flat files load unchanged."""

import re
import tomllib

import pytest

from dormouse.config.diff import diff_configs
from dormouse.config.load import load_preset, load_run_config, preset_names, preset_text
from dormouse.config.sizes import memory_parameters, total_parameters
from dormouse.config.unbuilt import unbuilt

EXPECTED = [
    "base", "byteflow", "byteflow_9m", "moe-cap-16", "moe-cap-2", "moe-cap-4", "moe-cap-8", "mor", "nano",
    "one_b", "p150", "plain9m", "small", "swift50", "tiny",
]  # fmt: skip
AUXILIARY = ("jepa_weight", "dspark_weight", "aux_fb_weight", "msa_distill_weight", "deep_supervision")
# Every key that the original's preset files hold, with preset small's values.
ORIGINAL_SMALL = """
bf16 = false
act_group = 0
d_model = 768
n_heads = 12
head_dim = 64
d_ffn = 2048
vocab = 256
use_byteflow = false
max_seq_len = 512
max_iter = 4
rank = 64
norm_eps = 0.001
use_kda = true
use_plain_attn = false
use_tsct = true
use_engram = true
use_gr = false
use_attnres = false
use_mhc = false
use_situ = false
use_msa = false
n_experts = 3
moe_topk = 0
moe_lb_coef = 0.0
jepa_weight = 0.05
jepa_mask_frac = 0.15
jepa_mask_span = 8
dspark_weight = 0.0
dspark_k = 4
dspark_stride = 16
aux_fb_weight = 0.0
aux_fb_horizon = 2
engram_rows = 25000
engram_orders = [2, 3, 4]
engram_dim = 32
engram_lam_max = 0.5
use_mor = false
mor_k = 2
mor_bce_weight = 0.05
mhc_streams = 4
byteflow_d_local = 96
byteflow_d_global = 768
byteflow_k_tokens = 128
byteflow_e_layers = 2
byteflow_g_layers = 2
byteflow_heads_local = 4
byteflow_heads_global = 8
byteflow_w_local = 256
byteflow_d_ff_local = 256
byteflow_d_ff_global = 2048
byteflow_bins = 16
byteflow_eps2 = 0.5
byteflow_logdet = false
byteflow_max_bytes = 512
"""


def test_the_shipped_presets_are_the_required_ones():
    assert preset_names() == EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_a_preset_loads_as_a_whole_run(name):
    config = load_run_config(name)
    assert config.model == load_preset(name)
    assert (config.train.steps is None) != (config.train.minutes is None)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_preset_says_what_it_is_for_what_it_is_not_and_what_to_expect(name):
    header = [line for line in preset_text(name).splitlines() if line.startswith("#")]
    text = " ".join(line.removeprefix("# ") for line in header)
    assert header[0].startswith(f"# {name}: ")
    assert "Not for: " in text
    assert "Expected: " in text
    assert re.search(r"auxiliary loss", text, re.IGNORECASE)


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "tiny"])
def test_the_parameters_in_a_preset_s_header_are_its_parameters(name):
    header = " ".join(line.removeprefix("# ") for line in preset_text(name).splitlines() if line.startswith("#"))
    stated = re.search(r"Expected: ([\d,]+) parameters built.*? original counts ([\d,]*\d)", header)
    assert stated is not None
    model = load_preset(name)
    assert int(stated[1].replace(",", "")) == total_parameters(model)
    assert int(stated[2].replace(",", "")) == total_parameters(model, built_only=False)


@pytest.mark.parametrize("name", EXPECTED)
def test_auxiliary_losses_are_off_unless_the_preset_is_about_one(name):
    model = load_preset(name)
    assert all(getattr(model, key) == 0 for key in AUXILIARY)
    assert model.use_mor == (name == "mor")


@pytest.mark.parametrize("name", EXPECTED)
def test_only_mor_and_byteflow_ask_for_what_is_not_built(name):
    assert bool(unbuilt(load_preset(name))) == (name in ("mor", "byteflow", "byteflow_9m"))


@pytest.mark.parametrize("rung", [2, 4, 8, 16])
def test_a_rung_of_the_ladder_is_small_and_one_number(rung):
    found = diff_configs(load_run_config("small"), load_run_config(f"moe-cap-{rung}"))
    assert [(item.key, item.left, item.right) for item in found] == [("n_experts", 3, rung)]


def test_byteflow_9m_is_byteflow_and_one_number():
    found = diff_configs(load_run_config("byteflow"), load_run_config("byteflow_9m"))
    assert [(item.key, item.left, item.right) for item in found] == [("byteflow_d_global", 768, 496)]


def test_a_flat_file_of_the_original_loads_unchanged(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(ORIGINAL_SMALL, encoding="utf-8")
    model = load_run_config("small", path).model
    for key, value in tomllib.loads(ORIGINAL_SMALL).items():
        assert getattr(model, key) == (tuple(value) if isinstance(value, list) else value)
    # The file asks for JEPA, which is read, counted and said to be not built.
    assert [line.partition(" = ")[0] for line in unbuilt(model)] == ["model.jepa_weight"]


def test_the_values_of_the_original_s_presets_are_taken_over():
    swift, large = load_preset("swift50"), load_preset("p150")
    assert (swift.d_model, swift.n_heads, swift.d_ffn, swift.rank, swift.max_iter, swift.n_experts) == (
        1024, 16, 4096, 96, 8, 8,
    )  # fmt: skip
    assert (large.d_model, large.n_heads, large.d_ffn, large.rank, large.max_iter, large.max_seq_len) == (
        4096, 64, 11264, 64, 12, 2048,
    )  # fmt: skip


def test_tiny_runs_on_two_cores_by_minutes_and_routes():
    config = load_run_config("tiny")
    assert config.train.minutes is not None
    assert config.model.moe_topk >= 1


def test_the_header_of_tiny_states_its_size_within_a_tenth():
    stated = re.search(r"about ([\d.]+) million parameters, ([\d.]+) million of them memory", preset_text("tiny"))
    assert stated is not None
    model = load_preset("tiny")
    assert float(stated[1]) * 1e6 == pytest.approx(total_parameters(model), rel=0.1)
    assert float(stated[2]) * 1e6 == pytest.approx(memory_parameters(model), rel=0.1)
