"""DM-30: stopping and resuming in the middle or at the end of an epoch reads each window once an epoch."""

import numpy as np
import pytest

from dormouse.cli.main import main
from dormouse.store.metrics import read_metrics


def windows(path):
    return [row["windows"] for row in read_metrics(path / "metrics.jsonl") if row["kind"] == "windows"]


@pytest.mark.parametrize("stops", [(7,), (5,), (7, 12)], ids=str)
def test_windows_of_a_resumed_run_are_those_of_the_uninterrupted_one(command_line, stops):
    """Twenty windows of 16 bytes, batches of 4: three epochs are 15 steps."""
    numbered = np.append(np.repeat(np.arange(20, dtype=np.uint8), 16), np.uint8(99)).tobytes()
    (command_line.folder / "numbered").write_bytes(numbered)
    options = ("--log-windows", "--quiet")
    settings = {"sets": ["batch_size=4"], "data": "numbered"}
    assert command_line.train("--steps", "15", "--out", "whole", *options, **settings) == 0
    assert command_line.train("--steps", str(stops[0]), "--out", "parts", *options, **settings) == 0
    for length in (*stops[1:], 15):
        again = ["resume", "parts", "--steps", str(length), "--sample-bytes", "0"]
        assert main([*again, *options]) == 0
    whole = windows(command_line.folder / "whole")
    assert windows(command_line.folder / "parts") == whole
    epochs = np.array(whole).reshape(3, 20)
    assert [sorted(epoch) for epoch in epochs.tolist()] == [list(range(20))] * 3
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3
