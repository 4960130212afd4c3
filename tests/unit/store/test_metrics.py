import json

import pytest

from dormouse.errors import RunDirError
from dormouse.store.metrics import MetricsWriter, read_metrics


def test_rows_come_back_in_order_with_schema_kind_and_step(tmp_path):
    with MetricsWriter(tmp_path / "m.jsonl") as writer:
        writer.write("train", 1, {"ce": 2.5})
        writer.write("eval", 2, {"bpb": 8.0, "registers": {"a": 1.0}})
    assert read_metrics(tmp_path / "m.jsonl") == [
        {"schema": 1, "kind": "train", "step": 1, "ce": 2.5},
        {"schema": 1, "kind": "eval", "step": 2, "bpb": 8.0, "registers": {"a": 1.0}},
    ]


def test_non_finite_values_are_dropped_counted_and_kept_as_text(tmp_path):
    path = tmp_path / "m.jsonl"
    with MetricsWriter(path) as writer:
        writer.write("train", 1, {"grad_norm": float("inf"), "ce": 1.0, "parts": [1.0, float("nan")]})
        assert writer.dropped == 2

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    row = json.loads(path.read_text(), parse_constant=refuse)
    assert row["ce"] == 1.0
    assert "grad_norm" not in row
    assert row["non_finite"] == {"grad_norm": "inf", "parts.1": "nan"}


def test_resuming_at_a_step_removes_the_rows_after_it(tmp_path):
    path = tmp_path / "m.jsonl"
    with MetricsWriter(path) as writer:
        for step in range(1, 6):
            writer.write("train", step, {})
        assert writer.truncate_after(3) == 2
        writer.write("train", 4, {"again": True})
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4]
    assert read_metrics(path)[-1]["again"] is True


def test_half_a_line_at_the_end_is_ignored_and_then_dropped(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"schema": 1, "kind": "train", "step": 1}\n{"schema": 1, "ki')
    assert [row["step"] for row in read_metrics(path)] == [1]
    with MetricsWriter(path) as writer:
        writer.write("train", 2, {})
    assert [row["step"] for row in read_metrics(path)] == [1, 2]


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(RunDirError, match="line 2"):
        read_metrics(path)


def test_no_file_means_no_rows(tmp_path):
    assert read_metrics(tmp_path / "none.jsonl") == []
