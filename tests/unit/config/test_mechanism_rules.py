"""Contradictions that the original refuses are refused here too, whether or not the mechanism is built."""

import pytest

from dormouse.config.model_schema import ModelConfig
from dormouse.errors import ConfigError

FLOW = {"use_byteflow": True, "use_kda": False, "use_engram": False}
REFUSALS = {
    "act_group": ({"act_group": 5}, "model.act_group = 5", "3 channels", "divisor of d_model"),
    "residual": ({"use_gr": True, "use_mhc": True}, "model.use_gr = true", "only one", "use_gr, use_mhc"),
    "streams": (
        {"use_mhc": True, "mhc_streams": 5},
        "model.mhc_streams = 5",
        "would have run",
        "divisor of d_model",
    ),
    "dense sparsity": (
        {"use_msa": True, "msa_kb": 128},
        "model.msa_kb = 128",
        "dense attention",
        "below 128",
    ),
    "mor": ({"use_mor": True, "mor_k": 5}, "model.mor_k = 5", "all passes", "mor_k = 4 or less"),
    "stride": ({"dspark_stride": 0}, "model.dspark_stride = 0", "no draft", "Use 1 or more"),
    "horizon": (
        {"aux_fb_weight": 0.1, "aux_fb_horizon": 0},
        "model.aux_fb_horizon = 0",
        "twice",
        "horizon of 1",
    ),
    "flow and memory": (
        {"use_byteflow": True},
        "model.use_engram = true",
        "left out",
        "use_byteflow = false",
    ),
    "flow and routing": (FLOW | {"moe_topk": 1}, "model.moe_topk = 1", "left out", "use_byteflow = false"),
    "flow and JEPA": (
        FLOW | {"jepa_weight": 0.05},
        "model.jepa_weight = 0.05",
        "left out",
        "use_byteflow = false",
    ),
    "no chunks": (
        FLOW | {"byteflow_k_tokens": 0},
        "model.byteflow_k_tokens = 0",
        "would have run",
        "Correct",
    ),
    "chunks over window": (
        FLOW | {"byteflow_k_tokens": 513},
        "byteflow_k_tokens = 513",
        "would have run",
        "Correct",
    ),
    "long window": (FLOW | {"max_seq_len": 513}, "model.max_seq_len = 513", "would have run", "Correct"),
    "no bins": (FLOW | {"byteflow_bins": 0}, "model.byteflow_bins = 0", "would have run", "Correct"),
    "no noise": (FLOW | {"byteflow_eps2": 0.0}, "model.byteflow_eps2 = 0.0", "would have run", "Correct"),
    "flow heads": (
        FLOW | {"byteflow_heads_local": 5},
        "byteflow_heads_local = 5",
        "would have run",
        "Correct",
    ),
}


@pytest.mark.parametrize("case", REFUSALS, ids=str)
def test_a_contradiction_between_mechanisms_is_refused(case):
    settings, *needed = REFUSALS[case]
    with pytest.raises(ConfigError) as refusal:
        ModelConfig.model_validate(settings)
    for words in needed:
        assert words in str(refusal.value)


def test_keys_of_a_mechanism_that_is_off_are_not_judged():
    ModelConfig(mhc_streams=5, msa_kb=128, mor_k=9, aux_fb_horizon=0, byteflow_bins=0, byteflow_k_tokens=0)


def test_the_one_lifted_pair_byteflow_with_kda_is_legal():
    assert ModelConfig(use_byteflow=True, use_engram=False).use_kda
