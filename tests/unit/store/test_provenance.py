import datetime
import subprocess
from pathlib import Path

from dormouse.store.provenance import checkout, provenance


def test_it_names_versions_device_threads_and_date():
    found = provenance(device="cpu", threads=2)
    assert found["device"] == "cpu"
    assert found["threads"] == 2
    assert found["versions"]["torch"].startswith("2.")
    assert datetime.datetime.fromisoformat(found["date"]).tzinfo is not None
    assert found["cpu"]
    assert found["cores"] >= 1


def test_the_commit_is_the_one_git_names():
    root = Path(__file__).parents[3]
    git = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    expected = git.stdout.strip() or None
    found = provenance()
    assert found["commit"] == expected
    assert (found["dirty"] is None) == (expected is None)


def test_a_result_that_a_measurement_writes_is_no_change_of_the_tree(tmp_path):
    files = {"code.py": True, "benchmarks/results/peers.json": False, "experiments/0001-x/runs.csv": False}
    git(tmp_path, "init", "-q")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "first")
    assert checkout(tmp_path)[1] is False
    for name, changes in files.items():
        (tmp_path / name).write_text("new")
        assert checkout(tmp_path)[1] is changes
        (tmp_path / name).write_text("old")


def git(folder, *arguments):
    subprocess.run(["git", "-C", str(folder), *arguments], check=True)
