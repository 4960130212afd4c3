"""DM-39: a directory that is a run's, somebody's, or nobody's to write is refused with every byte in it unchanged."""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from dormouse.cli.main import main
from dormouse.store.metrics import read_metrics
from dormouse.store.rundir import RunDir

AGAIN = ("--steps", "1", "--out", "run", "--quiet")


def test_the_same_command_twice_leaves_every_file_of_the_first(command_line, capsys):
    assert command_line.train(*AGAIN) == 0
    before = command_line.hashes("run")
    assert command_line.train(*AGAIN) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert command_line.hashes("run") == before


@pytest.mark.parametrize("way", ["train", "overwrite", "resume", "train --resume"])
def test_a_directory_in_use_is_refused_on_every_way_in(command_line, capsys, way):
    assert command_line.train(*AGAIN) == 0
    with RunDir.open(command_line.folder / "run") as owner:
        owner.lock()
        before = command_line.hashes("run")
        code = {
            "train": lambda: command_line.train(*AGAIN),
            "overwrite": lambda: command_line.train(*AGAIN, "--overwrite"),
            "resume": lambda: main(["resume", "run", "--steps", "2", "--sample-bytes", "0"]),
            "train --resume": lambda: command_line.train("--resume", "--steps", "2", "--out", "run"),
        }[way]()
        assert code == 2
        assert command_line.hashes("run") == before
    message = capsys.readouterr().err
    assert f"in use by process {os.getpid()}" in message or "already holds a run" in message


def test_files_of_somebody_else_are_refused_even_to_overwrite(command_line, capsys):
    (command_line.folder / "run").mkdir()
    (command_line.folder / "run" / "notes.txt").write_text("mine")
    before = command_line.hashes()
    for more in ((), ("--overwrite",), ("--resume",)):
        assert command_line.train(*AGAIN, *more) == 2
        assert "notes.txt" in capsys.readouterr().err
    assert command_line.hashes() == before


def test_both_ways_in_are_written_down_in_the_run(command_line):
    assert command_line.train(*AGAIN) == 0
    assert command_line.train(*AGAIN, "--overwrite") == 0
    record = json.loads((command_line.folder / "run" / "run.json").read_text())
    assert any("overwriting the run" in note for note in record["notes"])
    assert command_line.train("--resume", "--steps", "2", "--out", "run", "--quiet") == 0
    events = [row for row in read_metrics(command_line.folder / "run" / "metrics.jsonl") if row["kind"] == "event"]
    assert [(row["event"], row["step"]) for row in events] == [("resumed", 1)]


def test_a_directory_that_may_not_be_written_is_refused_before_step_one(command_line, monkeypatch):
    """In a child that is nobody, because root may write anywhere; below the system's folder, which nobody can enter."""
    assert command_line.train(*AGAIN) == 0
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        root = Path(place)
        root.chmod(0o755)
        shutil.copytree(command_line.folder, root / "there")
        monkeypatch.chdir(root / "there")
        moved = [*AGAIN[:2], "--out", "other", "--quiet"]
        assert command_line.train(*moved) == 0
        assert main(["resume", "other", "--sample-bytes", "0", "--quiet"]) == 0  # imports what the child needs
        for path in (root / "there", *(root / "there").rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = command_line.hashes(root / "there")
        message = root / "said"
        message.touch()
        message.chmod(0o666)
        assert as_nobody(["resume", "other", "--steps", "2", "--sample-bytes", "0"], message) == 2
        assert "cannot be written (Permission denied)" in message.read_text()
        assert command_line.hashes(root / "there") == before


def as_nobody(arguments, message):
    """Exit code of the command in a forked child without root's rights; its standard error goes to `message`."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            with message.open("w") as file, contextlib.redirect_stderr(file):
                code = main(arguments)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
