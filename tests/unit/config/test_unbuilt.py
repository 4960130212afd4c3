"""A mechanism that is asked for and not built is named with field, value, alternative and way out."""

import json

import pytest

from dormouse.config.load import load_preset, load_run_config
from dormouse.config.model_schema import ModelConfig
from dormouse.config.unbuilt import unbuilt

ASKED = {
    "bf16": True,
    "use_gr": True,
    "use_attnres": True,
    "use_mhc": True,
    "use_situ": True,
    "use_msa": True,
    "use_mor": True,
    "jepa_weight": 0.05,
    "dspark_weight": 0.1,
    "msa_distill_weight": 0.1,
}


@pytest.mark.parametrize("key", ASKED)
def test_a_mechanism_that_is_not_built_is_named(key):
    (line,) = unbuilt(ModelConfig.model_validate({key: ASKED[key]}))
    assert line.startswith(f"model.{key} = ")
    assert "is not built in this version" in line
    assert "would have run" in line
    assert f"Set {key} = " in line


def test_the_way_out_leads_out(tmp_path):
    for key, value in ASKED.items():
        asked = ModelConfig.model_validate({key: value})
        (line,) = unbuilt(asked)
        file = tmp_path / "asked.toml"
        file.write_text(f"{key} = {json.dumps(value)}\n", encoding="utf-8")
        way_out = line.rpartition("Set ")[2].removesuffix(".")
        assert load_run_config("small", file).model == asked
        assert unbuilt(load_run_config("small", file, [way_out]).model) == []


def test_several_mechanisms_are_named_one_by_one():
    assert len(unbuilt(ModelConfig(bf16=True, use_gr=True, use_situ=True))) == 3


def test_byteflow_is_named():
    assert [line.partition(" = ")[0] for line in unbuilt(load_preset("byteflow"))] == ["model.use_byteflow"]


def test_the_schema_s_defaults_ask_for_nothing_that_is_not_built():
    assert unbuilt(ModelConfig()) == []
