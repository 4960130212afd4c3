"""A recorded result is replaced only when that is asked for, and one of another program never."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "record_run.py"
RECORD = {
    "config": {"train": {"seed": 3}},
    "provenance": {"commit": None},
    "data": {"train_sha256": "a"},
    "window": {"bytes": 64},
    "parameters": {"total": 5},
    "result": dict.fromkeys(("step", "scored_bytes", "window_bytes", "total_steps", "trained_bytes", "seconds"), 2)
    | {"bpb": 2.5, "skipped": 0, "sample": "left out"},
}


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Calls the tool on a completed run; returns the exit code. Results go to a folder of the test."""
    spec = importlib.util.spec_from_file_location("record_run", SCRIPT)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.setattr(tool, "RESULTS", tmp_path / "results")
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"schema": 1, **RECORD}))
    (run / "metrics.jsonl").write_text('{"kind": "eval", "step": 2, "trained_bytes": 2, "bpb": 2.5}\n')
    return lambda name, *more: tool.main([str(run), name, *more])


@pytest.fixture
def results(tmp_path):
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def test_a_run_is_recorded_with_its_figures(record, tmp_path):
    assert record("first") == 0
    found = json.loads((tmp_path / "results" / "first.json").read_text())
    assert (found["benchmark"], found["config"], found["result"]["bpb"]) == ("training", RECORD["config"], 2.5)
    assert found["evaluations"] == [{"step": 2, "trained_bytes": 2, "bpb": 2.5, "by_register": None}]


def test_a_recorded_run_is_replaced_only_on_request(record, results, capsys):
    old = json.dumps({"benchmark": "training", "result": "old"})
    (results / "first.json").write_text(old)
    assert record("first") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (results / "first.json").read_text() == old
    assert record("first", "--overwrite") == 0
    assert json.loads((results / "first.json").read_text())["result"]["bpb"] == 2.5


@pytest.mark.parametrize("content", ['{"benchmark": "speed"}', "[]", "{}", "no JSON", ""])
def test_the_result_of_another_program_is_never_replaced(record, results, content, capsys):
    (results / "table.json").write_text(content)
    assert record("table", "--overwrite") == 2
    assert "another program" in capsys.readouterr().err
    assert (results / "table.json").read_text() == content


@pytest.mark.parametrize("name", ["peers", "generation", "../elsewhere", "folder/name"])
def test_names_that_are_not_for_runs_are_refused_even_while_free(record, results, name, capsys):
    assert record(name, "--overwrite") == 2
    assert f"name = {name}" in capsys.readouterr().err
    assert list(results.iterdir()) == []
    assert not (results.parent / "elsewhere.json").exists()
