"""DM-35: a checkpoint with a file cut or gone is named on the way past it, and the run ends as if it were whole."""

import json

import pytest

from dormouse.cli.main import main
from dormouse.store import checkpoint

PARTS = ("model", "optimizer", "random", "firewall", "progress")


@pytest.mark.parametrize("harm", ["cut", "missing"])
def test_resume_passes_over_a_damaged_checkpoint_loudly_and_ends_the_same(command_line, capsys, harm):
    sets = ["save_every=1", "eval_every=0"]
    assert command_line.train("--steps", "4", "--out", "run", "--quiet", sets=sets) == 0
    root = command_line.folder / "run" / "checkpoints"
    wanted = checkpoint.manifest(root / "step_4")["content"]
    file = max((root / "step_4").iterdir(), key=lambda path: path.stat().st_size)
    if harm == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        file.unlink()
    (root / ".tmp-step_9").mkdir()
    capsys.readouterr()
    assert main(["resume", "run", "--sample-bytes", "0"]) == 0
    said = capsys.readouterr().out
    assert f"checkpoint step_4 is skipped: {file.name}" in said
    assert "resumed at step 3" in said
    found = checkpoint.manifest(root / "step_4")["content"]
    assert {part: found[part] for part in PARTS} == {part: wanted[part] for part in PARTS}
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []
    assert json.loads((root / "step_4" / "manifest.json").read_text())["step"] == 4
