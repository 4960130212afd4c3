import datetime
import subprocess
from pathlib import Path

from dormouse.store.provenance import provenance


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
