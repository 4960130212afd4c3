"""Every target that the Makefile declares is there, has a line of help, and runs modules that exist."""

import re
from importlib.util import find_spec
from pathlib import Path

TEXT = (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8")


def test_every_declared_target_exists_and_is_explained():
    declared = re.search(r"^\.PHONY:(.*)$", TEXT, re.MULTILINE)[1].split()
    explained = re.findall(r"^([a-z]+):.*##", TEXT, re.MULTILINE)
    assert set(declared) <= set(explained)


def test_modules_of_the_benchmarks_that_it_runs_exist(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    named = re.findall(r"-m (benchmarks\.\w+)", TEXT)
    names = ("generation", "retraction", "dispatch", "instruments", "peers")
    assert named == [f"benchmarks.{name}" for name in names]
    assert all(find_spec(name) is not None for name in named)
