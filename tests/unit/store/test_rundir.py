import hashlib
import os
import subprocess
import sys

import pytest

from dormouse.errors import RunDirError
from dormouse.store.rundir import RunDir


def contents(path):
    return {
        str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in path.rglob("*") if p.is_file()
    }


def finished_run(path):
    with RunDir.create(path) as run:
        run.write_run({"config": 1})
        run.metrics.write_text("{}\n")
    return path


def test_a_second_run_in_the_same_directory_is_refused_and_changes_nothing(tmp_path):
    path = finished_run(tmp_path / "run")
    before = contents(path)
    with pytest.raises(RunDirError, match=r"already holds a run.*resume.*--overwrite"):
        RunDir.create(path)
    assert contents(path) == before


def test_overwrite_removes_the_runs_files_and_says_so(tmp_path):
    path = finished_run(tmp_path / "run")
    with RunDir.create(path, overwrite=True) as run:
        assert not run.run_json.exists()
        assert not run.metrics.exists()
        assert any("overwriting" in note for note in run.notes)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_with_foreign_files_is_refused_even_with_overwrite(tmp_path, overwrite):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunDirError, match=r"thesis\.txt"):
        RunDir.create(tmp_path, overwrite=overwrite)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thesis.txt"]


def test_an_owned_directory_is_refused_with_the_owners_process_number(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        run.write_run({})
        with pytest.raises(RunDirError, match=rf"in use by process {os.getpid()}"):
            RunDir.open(tmp_path / "run").lock()
        with pytest.raises(RunDirError, match=r"already holds a run|in use"):
            RunDir.create(tmp_path / "run")


def test_an_owned_directory_is_not_overwritten(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        run.write_run({"owner": "first"})
        with pytest.raises(RunDirError, match="in use by process"):
            RunDir.create(tmp_path / "run", overwrite=True)
        assert run.read_run() == {"owner": "first"}


def test_of_two_that_start_at_the_same_time_one_is_refused(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from dormouse.store.rundir import RunDir\n"
        "from dormouse.errors import RunDirError\n"
        "try:\n    run = RunDir.create(Path(sys.argv[1]))\nexcept RunDirError: sys.exit(2)\n"
        "time.sleep(1.0)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    started = [subprocess.Popen(command) for _ in range(3)]
    assert sorted(process.wait() for process in started) == [0, 2, 2]


def test_the_lock_of_a_killed_process_is_stale_and_taken_over(tmp_path):
    path = finished_run(tmp_path / "run")
    child = os.fork()
    if child == 0:
        RunDir.open(path).lock()
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert (path / "lock").read_text() == f"{child}\n"
    with RunDir.open(path) as run:
        run.lock()
        assert any(f"stale lock of process {child}" in note for note in run.notes)
    assert (path / "lock").read_text() == ""


@pytest.mark.parametrize("place", ["/proc/dormouse-run", "/dev/null/run"])
def test_a_place_that_cannot_be_written_is_refused(place):
    from pathlib import Path

    with pytest.raises(RunDirError, match=r"cannot be written.*--out"):
        RunDir.create(Path(place))


def test_a_directory_without_write_permission_is_refused(tmp_path):
    """Root may write anywhere, so the attempt is made by a child that is nobody."""
    path = tmp_path / "locked"
    path.mkdir(mode=0o555)
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            RunDir.create(path)
        except RunDirError:
            os._exit(2)
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert list(path.iterdir()) == []


def test_a_file_is_not_a_run_directory(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunDirError, match="is a file"):
        RunDir.create(tmp_path / "file")


def test_opening_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunDirError, match="does not exist"):
        RunDir.open(tmp_path / "nothing")
    with pytest.raises(RunDirError, match=r"no run\.json"):
        RunDir.open(tmp_path)


def test_a_start_that_was_killed_before_run_json_does_not_block_the_directory(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "lock").write_text("999999999\n")
    (path / ".run.json.tmp").write_text('{"half')
    with RunDir.create(path) as run:
        assert any("stale lock" in note for note in run.notes)


def test_run_json_comes_back_as_written_and_damage_is_named(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        run.write_run({"a": [1, 2.5, None]})
        assert run.read_run() == {"a": [1, 2.5, None]}
        run.run_json.write_text('{"a": ')
        with pytest.raises(RunDirError, match="is not JSON"):
            run.read_run()


def test_a_start_that_ended_before_its_first_step_leaves_the_place_free(tmp_path):
    with RunDir.create(tmp_path / "run") as first:
        assert first.checkpoints.is_dir()
    with RunDir.create(tmp_path / "run") as second:
        assert second.path == tmp_path / "run"
    (tmp_path / "run" / "checkpoints" / "step_1").mkdir(parents=True)
    with pytest.raises(RunDirError, match="already holds a run"):
        RunDir.create(tmp_path / "run")


def test_a_file_where_a_run_is_expected_is_called_a_file(tmp_path):
    (tmp_path / "letters.txt").write_text("x")
    with pytest.raises(RunDirError, match="is a file: there is no run"):
        RunDir.open(tmp_path / "letters.txt")
