"""`dormouse config` prints what is used, refuses what is wrong, and speaks JSON."""

import json

import pytest
from typer.testing import CliRunner

from dormouse.cli.config import app
from dormouse.config.load import preset_names
from dormouse.config.schema import SECTIONS, TrainConfig
from dormouse.errors import ConfigError


def run(*words):
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_show_prints_every_key_with_its_value_and_origin():
    text = run("show", "tiny", "--set", "n_experts=8", "--set", "data=[bold]x")
    for section in SECTIONS.values():
        assert all(key in text for key in section.model_fields)
    row = next(line for line in text.splitlines() if "n_experts " in line)
    assert "8" in row
    assert "--set" in row
    assert '"[bold]x"' in text


def test_show_as_json_is_the_effective_configuration_and_nothing_else():
    shown = json.loads(run("show", "small", "--set", "n_experts=4", "--json"))
    assert shown["config"]["model"]["n_experts"] == 4
    assert shown["origins"]["model.n_experts"] == "--set"
    assert shown["parameters_with_unbuilt_parts"] == 9_558_030
    assert shown["parameters"] == sum(part["parameters"] for part in shown["parts"] if part["built"])
    assert shown["unbuilt"] == []


def test_show_ends_with_what_a_byte_and_a_retraction_cost():
    # small by hand: 4 passes of controller, KDA, memory and 3 experts; projections and readout once
    d, r, f = 768, 64, 2048
    kda = 2 * (4 * d * d + d * d + 2 * d * r + d * 12) + 7 * 12 * 64**2
    passes = 4 * (4 * d * 8 + kda + 2 * d + 2 * d * d + 3 * 4 * r * (d + f))
    forward = passes + 4 * 3 * 32 * d + 2 * r * (d + d) + 2 * r * (d + 256)
    retraction = sum(n * (4 * r * r * m + 18 * r**3) for m, n in ((768, 9), (2048, 6), (256, 1)))
    sets = ("--set", "retract_iters=3", "--set", "retract_every=2")
    text = " ".join(run("show", "small", *sets).split())
    assert text.endswith(f"{forward:,} FLOPs a byte of a forward (all passes, built parts), "
                         f"{retraction // 2:,} a step of retraction.")  # fmt: skip
    shown = json.loads(run("show", "small", *sets, "--json"))
    assert (shown["forward_flops_per_byte"], shown["retraction_flops_per_step"]) == (forward, retraction // 2)


def test_show_counts_attention_over_the_windows_that_are_trained_on():
    sets = ("--set", "use_kda=false", "--set", "use_plain_attn=true", "--set", "seq_len=")
    costs = [json.loads(run("show", "small", *sets[:-1], f"{sets[-1]}{n}", "--json"))["forward_flops_per_byte"]
             for n in (128, 256)]  # fmt: skip
    assert costs[1] - costs[0] == 4 * 2 * 768 * 128


def test_show_does_not_price_what_is_not_built():
    shown = json.loads(run("show", "byteflow", "--json"))
    assert (shown["forward_flops_per_byte"], shown["retraction_flops_per_step"]) == (None, None)
    assert "byteflow is not built" in run("show", "byteflow")


def test_show_says_what_is_not_built_and_what_has_no_effect():
    text = run("show", "mor", "--set", "engram_rows=9", "--set", "use_engram=false")
    assert "model.use_mor = true: mixture of recursions is not built" in text
    assert "engram_rows = 9 has no effect: use_engram = false." in text


def test_show_lists_the_parts_when_asked():
    assert "acceptance head" in run("show", "small", "--parts")
    assert "acceptance head" not in run("show", "small")


def test_show_reads_a_file(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text("n_experts = 2\n", encoding="utf-8")
    shown = json.loads(run("show", "small", "--config", str(path), "--json"))
    assert shown["config"]["model"]["n_experts"] == 2


def test_diff_prints_only_what_differs():
    text = run("diff", "small", "moe-cap-8")
    assert "model.n_experts" in text
    assert "model.rank" not in text
    assert "same configuration" in run("diff", "small", "small")
    found = json.loads(run("diff", "small", "small", "--set", "lr=1.0", "--json"))["differences"]
    assert found == [{"section": "train", "key": "lr", "left": TrainConfig(steps=1).lr, "right": 1.0}]


def test_diff_takes_files_on_a_preset(tmp_path):
    path = tmp_path / "arm.toml"
    path.write_text("n_experts = 8\n", encoding="utf-8")
    found = json.loads(run("diff", "small", str(path), "--on", "small", "--json"))["differences"]
    assert [(d["key"], d["left"], d["right"]) for d in found] == [("n_experts", 3, 8)]


def test_presets_lists_all_with_purpose_and_size():
    rows = json.loads(run("presets", "--json"))["presets"]
    assert [row["name"] for row in rows] == preset_names()
    assert all(row["purpose"] for row in rows)
    assert {row["name"] for row in rows if row["unbuilt"]} == {"mor", "byteflow", "byteflow_9m"}
    assert all(name in run("presets") for name in preset_names())


@pytest.mark.parametrize(
    "words",
    [
        ["show", "tinny"],
        ["show", "tiny", "--set", "moe.topk=2"],
        ["show", "tiny", "--config", "no-such-file.toml"],
        ["diff", "tiny", "tinny"],
    ],
)
def test_a_wrong_request_is_a_usage_error_and_prints_nothing(words, capsys):
    with pytest.raises(ConfigError) as refusal:
        app(words, standalone_mode=False)
    assert refusal.value.exit_code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["show", "diff", "presets"])
def test_help_has_examples(command):
    text = run(command, "--help")
    assert "Examples" in text
    assert f"dormouse config {command}" in text
