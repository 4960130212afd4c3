"""Order of the layers, one length a run, and every configuration input of DM-42."""

import pytest

from dormouse.config.load import load_preset, load_run_config, preset_names, resolve
from dormouse.config.schema import TrainConfig
from dormouse.errors import ConfigError


def refusal(*args, **kwargs):
    with pytest.raises(ConfigError) as caught:
        load_run_config(*args, **kwargs)
    assert caught.value.exit_code == 2
    return str(caught.value)


def toml(tmp_path, text):
    path = tmp_path / "my.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_flag_beats_set_beats_the_file_beats_the_preset_beats_the_default(tmp_path):
    file = toml(tmp_path, "[train]\nlr = 0.2\nbatch_size = 5\n")
    preset = load_run_config("small")
    assert preset.train.lr == TrainConfig(steps=1).lr != 0.2
    assert preset.train.batch_size == 8 != TrainConfig(steps=1).batch_size
    assert load_run_config("small", file).train.lr == 0.2
    assert load_run_config("small", file).train.batch_size == 5
    assert load_run_config("small", file, ["lr=0.3"]).train.lr == 0.3
    assert load_run_config("small", file, ["lr=0.3"], {"lr": 1e-3}).train.lr == 1e-3
    assert load_run_config("small", file, ["lr=0.3"], {"lr": None}).train.lr == 0.3


def test_the_origin_of_every_changed_value_is_known(tmp_path):
    file = toml(tmp_path, "rank = 16\n\n[train]\nseed = 4\n")
    origins = resolve("small", file, ["n_experts=8"], {"steps": 5}).origins
    assert origins["model.rank"].endswith("my.toml, line 1")
    assert origins["train.seed"].endswith("my.toml, line 4")
    assert origins["model.n_experts"] == "--set"
    assert origins["train.steps"] == "explicit flag"
    assert origins["model.d_model"] == "preset small"
    assert "model.norm_eps" not in origins
    assert "train.minutes" not in resolve("tiny", flags={"steps": 5}).origins


@pytest.mark.parametrize("way", ["set", "flag", "file"])
def test_steps_from_above_replace_minutes_from_below(tmp_path, way):
    assert load_run_config("tiny").train.minutes is not None
    layers = {
        "set": ("tiny", None, ["steps=9"]),
        "flag": ("tiny", None, [], {"steps": 9}),
        "file": ("tiny", toml(tmp_path, "[train]\nsteps = 9\n")),
    }
    train = load_run_config(*layers[way]).train
    assert (train.steps, train.minutes) == (9, None)


def test_minutes_from_above_replace_steps_from_below():
    train = load_run_config("small", flags={"minutes": 1.5}).train
    assert (train.steps, train.minutes) == (None, 1.5)


def test_what_would_have_run_is_the_value_of_the_layer_below(tmp_path):
    assert "rank = 96 would have run" in refusal("nano", None, ["rank=0"])
    assert "rank = 16 would have run" in refusal("nano", toml(tmp_path, "rank = 16\n"), ["rank=0"])
    assert "rank = 64 would have run" in refusal("swift50", toml(tmp_path, "rank = 64\n"), ["rank=-1"])


def test_two_lengths_in_one_layer_are_refused():
    said = refusal("tiny", None, ["steps=9", "minutes=2"])
    assert "train.steps = 9, train.minutes = 2" in said


def test_a_misspelt_key_in_a_file_is_refused_with_the_nearest_key_its_section_and_the_line(tmp_path):
    said = refusal("small", toml(tmp_path, "rank = 16\nn_expert = 8\n"))
    assert "model.n_expert = 8: no such key" in said
    assert "n_experts = 3 would have run" in said
    assert "Nearest valid key: n_experts (section model)" in said
    assert "my.toml, line 2" in said


def test_a_right_key_in_the_wrong_section_is_refused_with_the_right_one(tmp_path):
    said = refusal("small", toml(tmp_path, "lr = 1.0\n[train]\nn_experts = 8\n[optim]\nseed = 1\n[empty]\n"))
    lines = said.splitlines()
    assert len(lines) == 4
    assert "[empty]" in lines[0]
    assert "model.lr = 1.0: lr belongs to section train, not to model" in lines[1]
    assert "train.n_experts = 8: n_experts belongs to section model, not to train" in lines[2]
    assert "model.n_experts = 3 would have run" in lines[2]
    assert "line 3" in lines[2]
    said = refusal("small", toml(tmp_path, "rank = 16\nmoe.topk = 2\ntrain.lr = 0\n"))
    assert "moe.topk = 2: no such key" in said
    assert "my.toml, line 2" in said
    assert "my.toml, line 3" in said
    assert "optim.seed = 1: seed belongs to section train, not to optim" in lines[3]


def test_a_wrong_name_in_set_is_refused_with_the_nearest_key():
    said = refusal("small", None, ["moe.topk=2"])
    assert "moe.topk = 2: no such key; ignored, moe_topk = 0 would have run" in said
    assert "Nearest valid key: moe_topk (section model)" in said


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("n_expert", "n_experts"),
        ("moe.topk", "moe_topk"),
        ("model.moe-topk", "moe_topk"),
        ("batchsize", "batch_size"),
        ("train.learning.lr", "lr"),
        ("topk", "moe_topk"),
        ("D_MODEL", "d_model"),
        ("engram", "use_engram"),
    ],
)
def test_the_nearest_key_is_the_one_meant(word, near):
    assert f"Nearest valid key: {near} " in refusal("small", None, [f"{word}=2"])


def test_a_word_like_no_key_is_refused_without_a_guess():
    assert "zzzz = 1: no such key" in refusal("small", None, ["zzzz=1"])


def test_the_same_key_twice_in_a_file_is_refused_with_its_line(tmp_path):
    said = refusal("small", toml(tmp_path, "rank = 16\nlayout = 'parallel'\nrank = 8\n"))
    assert "my.toml, line 3: rank is given twice" in said


def test_the_same_key_at_the_top_level_and_in_its_table_is_refused(tmp_path):
    said = refusal("small", toml(tmp_path, "rank = 16\n[model]\nrank = 16\n"))
    assert "model.rank: given twice" in said


def test_the_same_key_twice_in_set_is_refused_when_the_values_differ():
    said = refusal("small", None, ["rank=16", "model.rank=8"])
    assert "model.rank = 8: given twice, first as 16" in said
    assert load_run_config("small", None, ["rank=16", "model.rank=16"]).model.rank == 16


def test_the_original_s_removed_keys_are_refused_with_the_reason(tmp_path):
    said = refusal("small", toml(tmp_path, "ponder_prior = 0.15\ndropout = 0.0\n"))
    assert "ponder_prior = 0.15: the key was removed: learned halting" in said
    assert "dropout = 0.0: the key was removed" in said
    assert "line 2" in said


def test_text_that_is_not_toml_is_refused_with_file_line_and_text(tmp_path):
    said = refusal("small", toml(tmp_path, "rank = 16\nlayout = sequential\n"))
    assert "my.toml, line 2: not valid TOML" in said
    assert "layout = sequential" in said


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content):
    path = tmp_path / "my.toml"
    if content is not None:
        path.write_bytes(content)
    assert f"config = {path}: cannot be read" in refusal("small", path)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    assert "cannot be read" in refusal("small", tmp_path)


def test_a_byte_order_mark_is_no_key(tmp_path):
    path = tmp_path / "my.toml"
    path.write_bytes(b"\xef\xbb\xbfrank = 16\n")
    assert load_run_config("small", path).model.rank == 16


@pytest.mark.parametrize("name", ["tinny", "moe-cap-3", "", "../tiny", "tiny.toml"])
def test_an_unknown_preset_is_refused_with_the_list(name):
    said = refusal(name)
    assert f"preset = {name}: no such preset" in said
    assert all(preset in said for preset in preset_names())


def test_the_nearest_preset_is_named():
    assert "Nearest: tiny." in refusal("tinny")
    assert "Nearest: moe-cap-4." in refusal("moe_cap_4")


def test_problems_of_all_layers_are_reported_together(tmp_path):
    said = refusal("small", toml(tmp_path, "n_expert = 8\n"), ["moe.topk=2", "rank=0"], {"lr": -1.0})
    assert [line.split(" = ")[0] for line in said.splitlines()] == [
        "model.n_expert",
        "moe.topk",
        "model.rank",
        "train.lr",
    ]
    assert "[train.lr: explicit flag]" in said


def test_a_rule_across_layers_says_where_each_value_came_from():
    said = refusal("small", None, ["moe_topk=9"])
    assert "model.moe_topk = 9" in said
    assert "[model.moe_topk: --set]" in said
    assert "[train.eval_seq_len" not in said
    said = refusal("small", None, ["max_seq_len=128"], {"seq_len": 200})
    assert "model.max_seq_len: --set" in said
    assert "train.seq_len: explicit flag" in said


def test_overrides_are_validated_and_not_merely_copied():
    with pytest.raises(ConfigError, match=r"model.n_heads = 3"):
        load_preset("small", ["n_heads=3"])


def test_load_preset_returns_the_model_and_refuses_what_it_would_drop():
    assert load_preset("small", ["n_experts=8", "moe_topk=1"]).n_experts == 8
    with pytest.raises(ConfigError, match=r"train\.lr = 0.1: not a key of the model"):
        load_preset("small", ["lr=0.1"])


def test_a_flag_may_be_a_path(tmp_path):
    assert load_run_config("small", flags={"data": tmp_path}).data.data == str(tmp_path)
