"""The sections are frozen and strict; a run has one length; windows fit; keys are unique and documented."""

import pytest
from pydantic import ValidationError

from dormouse.config.schema import SECTIONS, DataConfig, ModelConfig, RunConfig, TrainConfig, section_of
from dormouse.errors import ConfigError


def refusal(section, **settings):
    with pytest.raises(ConfigError) as caught:
        section.model_validate(settings)
    return str(caught.value)


def test_a_section_cannot_be_changed_in_place():
    with pytest.raises(ValidationError):
        ModelConfig().rank = 3


def test_every_key_has_a_description_and_belongs_to_one_section_only():
    keys = [key for section in SECTIONS.values() for key in section.model_fields]
    assert len(keys) == len(set(keys))
    for section in SECTIONS.values():
        assert all(field.description for field in section.model_fields.values())


def test_a_key_knows_its_section():
    assert (section_of("rank"), section_of("lr"), section_of("eval"), section_of("moe.topk")) == (
        "model",
        "train",
        "data",
        None,
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank": True}, "model.rank = true: must be a whole number; ignored, rank = 64 would have run"),
        ({"rank": 6.5}, "model.rank = 6.5: must be a whole number"),
        ({"rank": 64.0}, "model.rank = 64.0: must be a whole number"),
        ({"rank": "64"}, 'model.rank = "64": must be a whole number'),
        ({"rank": 0}, "model.rank = 0: must be at least 1"),
        ({"use_kda": 1}, "model.use_kda = 1: must be true or false"),
        ({"norm_eps": float("nan")}, "model.norm_eps = nan: must be a finite number"),
        ({"norm_eps": 0}, "model.norm_eps = 0: must be above 0"),
        ({"layout": "serial"}, 'model.layout = "serial": must be "parallel" or "sequential"'),
        ({"vocab": 257}, "model.vocab = 257: must be 256"),
        ({"engram_orders": [2, "x"]}, 'model.engram_orders = [2, "x"]: must be a whole number'),
        ({"tsct_parts": "head"}, 'model.tsct_parts = "head": must be a list'),
        ({"kda_gate_rank": "half"}, 'model.kda_gate_rank = "half": must be a whole number or must be "full"'),
    ],
)
def test_a_wrong_type_or_value_is_refused_and_not_converted(settings, words):
    assert words in refusal(ModelConfig, **settings)


def test_all_wrong_fields_are_listed_at_once():
    lines = refusal(ModelConfig, rank=0, n_expert=8, layout=3).splitlines()
    assert len(lines) == 3
    assert any("model.n_expert = 8: no such key" in line and "Nearest valid key: n_experts" in line for line in lines)


def test_a_whole_number_is_a_number():
    assert TrainConfig(steps=1, lr=1).lr == 1


@pytest.mark.parametrize("settings", [{}, {"steps": 10, "minutes": 1.0}])
def test_a_run_has_exactly_one_length(settings):
    assert "train.steps = " in refusal(TrainConfig, **settings)
    assert TrainConfig(steps=10).minutes is None
    assert TrainConfig(minutes=0.5).steps is None


@pytest.mark.parametrize(
    "settings",
    [
        {"decay_fraction": 1.1},
        {"decay_fraction": -0.1},
        {"final_lr_fraction": 2},
        {"lr": 0},
        {"grad_clip": 0},
        {"batch_size": 0},
        {"retract_every": -1},
        {"seed": -1},
        {"device": "gpu"},
        {"optimizer": "sgd"},
        {"minutes": 0, "steps": None},
    ],
)
def test_train_settings_out_of_range_are_refused(settings):
    key = next(iter(settings))
    assert f"train.{key} = " in refusal(TrainConfig, **({"steps": 1} | settings))


@pytest.mark.parametrize("device", ["auto", "cpu", "mps", "cuda", "cuda:1"])
def test_known_devices_are_taken(device):
    assert TrainConfig(steps=1, device=device).device == device


def test_a_window_longer_than_the_capacity_is_refused_not_cropped():
    said = refusal(RunConfig, model={"max_seq_len": 128}, train={"steps": 1, "seq_len": 129, "eval_seq_len": 128})
    assert "train.seq_len = 129" in said
    assert "model.max_seq_len = 128" in said
    assert "cropped" in said
    assert "eval_seq_len" not in said


def test_the_separator_is_escaped_bytes():
    assert DataConfig().separator_bytes() is None
    assert DataConfig(document_separator=r"\n\n").separator_bytes() == b"\n\n"
    assert DataConfig(document_separator=r"\x00\\").separator_bytes() == b"\x00\\"
    assert DataConfig(document_separator="\u00e9").separator_bytes() == b"\xc3\xa9"
    assert r"data.document_separator" in refusal(DataConfig, document_separator=r"\xZZ")


def test_none_written_as_a_word_unsets_what_may_be_unset_and_nothing_else():
    assert DataConfig(eval="none").eval is None
    assert TrainConfig.model_validate({"steps": "none", "minutes": 1.0}).steps is None
    assert ModelConfig(act_quant="none").act_quant == "none"
    assert "model.rank" in refusal(ModelConfig, rank="none")


def test_a_dumped_configuration_reads_back_as_itself():
    config = RunConfig(model=ModelConfig(), train=TrainConfig(steps=7), data=DataConfig())
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_activation_bits_may_be_written_as_a_number():
    assert ModelConfig.model_validate({"act_quant": 8}) == ModelConfig(act_quant="8")
    assert 'must be "none"' in refusal(ModelConfig, act_quant=5)
