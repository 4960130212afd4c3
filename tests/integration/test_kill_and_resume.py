"""DM-35: whatever kills a run, and whenever, it can be resumed and ends as if nothing had happened."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dormouse.store import checkpoint
from dormouse.store.metrics import read_metrics

TIMES = {"bytes_per_second", "elapsed_seconds", "seconds_left"}


def drive(mode, folder):
    command = [sys.executable, str(Path(__file__).with_name("kill_driver.py")), mode, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def rows(folder, kind):
    found = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == kind]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in found]


@pytest.mark.slow
def test_after_more_than_twenty_kills_in_steps_and_saves_the_run_is_the_uninterrupted_one(tmp_path):
    found = drive("kills", tmp_path)
    assert found["codes"].count(-9) >= 20
    assert found["in_saves"] >= 5
    assert found["damaged"] == []
    assert 20 < found["reached"] < 240
    assert found["last"] == 0
    whole, killed = (
        checkpoint.manifest(tmp_path / name / "checkpoints" / "step_240")["content"] for name in ("whole", "killed")
    )
    for part in ("model", "optimizer", "random", "tally", "firewall", "progress"):
        assert whole[part] == killed[part]
    for kind in ("train", "eval"):
        assert rows(tmp_path / "whole", kind) == rows(tmp_path / "killed", kind)
    leftovers = [path.name for path in (tmp_path / "killed" / "checkpoints").iterdir() if path.name.startswith(".")]
    assert leftovers == []


def test_a_second_interrupt_in_a_save_ends_at_once_and_leaves_the_older_checkpoints(tmp_path):
    found = drive("twice", tmp_path)
    assert found["code"] == 130
    assert found["latest"] == "step_2"
    assert found["steps"] == [1, 2]
