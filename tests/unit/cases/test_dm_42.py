"""DM-42: a setting that would be dropped stops the command, and what is printed is what runs."""

import json

import pytest
import torch

from dormouse.store import checkpoint

WRONG = {
    "a mistyped key": ("n_expert = 8\n", ["n_expert = 8", "n_experts", "section model"]),
    "a wrong section": ("[train]\nmoe_topk = 2\n", ["moe_topk belongs to section model, not to train"]),
    "the same key twice": ("lr = 0.1\nlr = 0.2\n", ["line 2"]),
    "in its table and outside": ("lr = 0.1\n[train]\nlr = 0.2\n", ["lr"]),
    "a table that is none": ("[optimiser]\nlr = 0.1\n", ["optimiser", "train"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_with_a_setting_that_would_be_dropped_is_refused_and_nothing_written(command_line, capsys, case):
    text, named = WRONG[case]
    (command_line.folder / "my.toml").write_text(text)
    before = command_line.hashes()
    assert command_line.train("--steps", "1", "--config", "my.toml", "--out", "run") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(word in printed.err for word in named), printed.err
    assert command_line.hashes() == before
    assert not (command_line.folder / "run").exists()


@pytest.mark.parametrize(
    ("file", "sets", "flags", "expected"),
    [
        (None, [], [], 3e-3),
        ("0.004", [], [], 4e-3),
        ("0.004", ["lr=0.005"], [], 5e-3),
        ("0.004", ["lr=0.005"], ["--lr", "1e-3"], 1e-3),
        (None, [], ["--lr", "1e-3"], 1e-3),
    ],
)
def test_flag_beats_set_beats_file_beats_preset_down_to_the_optimiser(
    command_line, capsys, file, sets, flags, expected
):
    (command_line.folder / "my.toml").write_text(f"[train]\nlr = {file}\n" if file else "")
    sets = ["warmup_steps=0", "decay_fraction=0", *sets]
    assert command_line.train("--steps", "1", "--config", "my.toml", "--out", "run", *flags, sets=sets) == 0
    printed = capsys.readouterr().out
    assert f"lr={expected:g} " in printed or expected == 3e-3
    record = json.loads((command_line.folder / "run" / "run.json").read_text())
    assert record["config"]["train"]["lr"] == expected
    state = checkpoint.load(checkpoint.latest(command_line.folder / "run" / "checkpoints"))
    assert state["optimizer"]["adamw"]["param_groups"][0]["lr"] == pytest.approx(expected)


def test_cuda_without_a_gpu_is_refused_and_auto_falls_back(command_line, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = command_line.hashes()
    assert command_line.train("--steps", "1", "--out", "run", "--device", "cuda") == 2
    assert "train.device = cuda" in capsys.readouterr().err
    assert command_line.hashes() == before
    assert command_line.train("--steps", "1", "--out", "run", "--device", "auto") == 0
    assert "on cpu" in capsys.readouterr().out
