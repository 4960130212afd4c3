"""DM-38: a run that was stopped, resumed, and had one step held back by the firewall is the run that never stopped."""

import json

import pytest

from dormouse.cli.main import main
from dormouse.store import checkpoint

PARTS = ("model", "optimizer", "random", "firewall", "progress", "tally")


@pytest.mark.parametrize("sets", [[], ["grad_accum=3"], ["moe_topk=2"], ["optimizer=adamw"]], ids=str)
def test_six_steps_are_three_and_three_in_every_part(command_line, sets):
    """Evaluations at 2, 4 and 6, so that the best score so far is carried over too."""
    sets = ["eval_every=2", *sets]
    assert command_line.train("--steps", "6", "--out", "whole", "--quiet", sets=sets) == 0
    assert command_line.train("--steps", "3", "--out", "parts", "--quiet", sets=sets) == 0
    assert main(["resume", "parts", "--steps", "6", "--quiet", "--sample-bytes", "0"]) == 0
    whole, parts = (
        checkpoint.manifest(command_line.folder / name / "checkpoints" / "step_6")["content"]
        for name in ("whole", "parts")
    )
    assert [part for part in PARTS if part != "progress" and whole[part] != parts[part]] == []
    # The shorter run's evaluation at its end, at step 3, is one more than the longer run made, and may be the best.
    ends = [checkpoint.load(command_line.folder / name / "checkpoints" / "step_6") for name in ("whole", "parts")]
    first, second = (
        {key: value for key, value in end["progress"].items() if not key.startswith("best")} for end in ends
    )
    assert first == second


def test_a_changed_length_is_written_down_and_a_changed_network_is_refused(command_line, capsys):
    assert command_line.train("--steps", "2", "--out", "run", "--quiet") == 0
    before = command_line.hashes("run")
    assert command_line.train("--resume", "--steps", "4", "--out", "run", sets=["n_experts=8"]) == 2
    assert "model.n_experts: 4 -> 8" in capsys.readouterr().err
    assert command_line.hashes("run") == before
    assert main(["resume", "run", "--steps", "4", "--sample-bytes", "0"]) == 0
    assert "steps changed: 2 -> 4" in capsys.readouterr().out
    [entry] = json.loads((command_line.folder / "run" / "run.json").read_text())["resumed"]
    assert entry["changed"]["steps"] == [2, 4]
