import os

import pytest
import torch

from dormouse.errors import CheckpointError, TrainingHalted
from dormouse.store import checkpoint


def state_of(step):
    return {
        "model": {"w": torch.full((40, 40), float(step)), "table": torch.arange(6).reshape(2, 3)},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step)), "m": torch.randn(5)}}, "lr": [0.1]},
        "step": step,
        "best": None,
    }


def filled(root, *entries):
    for step, extra in entries:
        checkpoint.save(root, step, state_of(step), extra)
    return root


def biggest_file(folder):
    return max(folder.iterdir(), key=lambda path: path.stat().st_size)


def test_a_state_comes_back_bit_for_bit(tmp_path):
    state = state_of(3)
    back = checkpoint.load(checkpoint.save(tmp_path, 3, state, {}))
    assert torch.equal(back["model"]["w"], state["model"]["w"])
    assert torch.equal(back["model"]["table"], state["model"]["table"])
    assert torch.equal(back["optimizer"]["state"][0]["m"], state["optimizer"]["state"][0]["m"])
    assert back["optimizer"]["state"][0]["step"].item() == 3.0
    assert (back["step"], back["best"], back["optimizer"]["lr"]) == (3, None, [0.1])


def test_saving_leaves_nothing_but_the_checkpoint(tmp_path):
    filled(tmp_path, (1, {}), (1, {"bpb": 2.0}))
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]
    assert checkpoint.manifest(tmp_path / "step_1")["bpb"] == 2.0


def test_a_file_cut_to_half_its_length_is_named_and_the_older_checkpoint_used(tmp_path):
    filled(tmp_path, (9, {}), (10, {}))
    victim = biggest_file(tmp_path / "step_10")
    os.truncate(victim, victim.stat().st_size // 2)
    said = []
    assert checkpoint.latest(tmp_path, report=said.append).name == "step_9"
    assert len(said) == 1
    assert "step_10" in said[0]
    assert victim.name in said[0]
    with pytest.raises(CheckpointError, match=victim.name):
        checkpoint.load(tmp_path / "step_10")


@pytest.mark.parametrize("name", ["manifest.json", "state.json", ".metadata"])
def test_a_missing_file_is_named(tmp_path, name):
    filled(tmp_path, (1, {}), (2, {}))
    (tmp_path / "step_2" / name).unlink()
    said = []
    assert checkpoint.latest(tmp_path, report=said.append).name == "step_1"
    assert name in said[0]


def test_a_changed_byte_is_noticed(tmp_path):
    filled(tmp_path, (1, {}))
    victim = biggest_file(tmp_path / "step_1")
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(bytes(data))
    assert "SHA-256" in checkpoint.damage(tmp_path / "step_1")
    assert checkpoint.latest(tmp_path) is None


@pytest.mark.parametrize("content", ['{"step": 1, "fil', "{}", "[]"])
def test_a_manifest_that_is_cut_or_empty_is_damage(tmp_path, content):
    filled(tmp_path, (1, {}))
    (tmp_path / "step_1" / "manifest.json").write_text(content)
    assert "manifest.json" in checkpoint.damage(tmp_path / "step_1")


def test_latest_is_the_highest_step_and_best_the_lowest_bpb(tmp_path):
    filled(tmp_path, (9, {"bpb": 2.5}), (10, {"bpb": 2.1}), (100, {"bpb": 2.1}), (200, {}))
    assert checkpoint.latest(tmp_path).name == "step_200"
    assert checkpoint.best(tmp_path).name == "step_10"


def test_retention_keeps_the_newest_and_the_best(tmp_path):
    filled(tmp_path, (1, {"bpb": 2.0}), (2, {"bpb": 3.0}), (3, {}), (4, {}), (5, {}))
    assert checkpoint.retain(tmp_path, 2, upto=5) == [2, 3]
    assert checkpoint.steps(tmp_path) == [1, 4, 5]


def test_damaged_checkpoints_ahead_of_the_run_do_not_push_out_healthy_ones(tmp_path):
    filled(tmp_path, (3, {}), (8, {"bpb": 1.0}), (9, {}))
    assert checkpoint.retain(tmp_path, 1, upto=3) == []
    assert checkpoint.steps(tmp_path) == [3, 8, 9]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_state_with_a_non_finite_number_is_not_written(tmp_path, value):
    filled(tmp_path, (1, {}))
    broken = state_of(2)
    broken["optimizer"]["state"][0]["m"][3] = value
    with pytest.raises(TrainingHalted, match=r"optimizer\.state\.0\.m"):
        checkpoint.save(tmp_path, 2, broken, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_what_a_kill_left_never_counts_and_is_cleared_away(tmp_path):
    filled(tmp_path, (1, {}), (2, {}))
    (tmp_path / "step_2").rename(tmp_path / ".old-step_2")
    (tmp_path / ".tmp-step_3").mkdir()
    (tmp_path / ".trash-step_0").mkdir()
    assert checkpoint.latest(tmp_path).name == "step_1"
    checkpoint.tidy(tmp_path)
    assert checkpoint.latest(tmp_path).name == "step_2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_1", "step_2"]


def test_no_checkpoint_is_none(tmp_path):
    assert checkpoint.latest(tmp_path / "none") is None
    assert checkpoint.best(tmp_path / "none") is None
