"""SIGINT and SIGTERM in the first step, in an evaluation and in a save: nothing is lost, nothing is repeated."""

import os
import signal

import numpy as np
import pytest

from dormouse.cli.main import main
from dormouse.store import checkpoint
from dormouse.store.metrics import read_metrics
from dormouse.train import evaluate, loop, run

SMALL = [
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "max_iter=1", "kda_decay_rank=4"),
    *("kda_gate_rank=4", "engram_rows=64", "engram_dim=4", "eval_seq_len=16", "eval_batch_size=1"),
]
TIMES = {"bytes_per_second", "elapsed_seconds", "seconds_left"}


@pytest.fixture
def train(tmp_path):
    """Runs `dormouse train` on the smallest model for 6 steps; returns the exit code."""
    words = np.random.default_rng(5).choice([b"the ", b"cat ", b"sat. ", b"on\n", b"mat "], size=9000)
    (tmp_path / "train.txt").write_bytes(b"".join(words)[:40_000])
    (tmp_path / "held.txt").write_bytes(np.random.default_rng(6).bytes(2000))

    def command(name):
        return main(
            [
                *("train", "--out", str(tmp_path / name), "--data", str(tmp_path / "train.txt"), "--steps", "6"),
                *("--eval", str(tmp_path / "held.txt"), "--threads", "1", "--seq-len", "16", "--batch-size", "2"),
                *("--eval-batches", "3", "--eval-every", "2", "--save-every", "3", "--log-every", "1"),
                *("--device", "cpu", "--sample-bytes", "0", "--quiet"),
                *(part for setting in SMALL for part in ("--set", setting)),
            ]
        )

    return command


def signal_in(monkeypatch, place, number):
    """Send `number` to this process inside a step, an evaluation, a save, or the building of the model."""
    module, name, at = {
        "build": (run, "build_model", 1),
        "first step": (loop, "train_step", 1),
        "evaluation": (evaluate, "_bits", 2),
        "save": (checkpoint, "write_json", 1),
    }[place]
    real, calls = getattr(module, name), []

    def interrupted(*arguments, **named):
        calls.append(name)
        if len(calls) == at:
            os.kill(os.getpid(), number)
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, interrupted)


def rows(path):
    found = [row for row in read_metrics(path / "metrics.jsonl") if row["kind"] in ("train", "eval")]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in found]


@pytest.mark.parametrize(
    ("place", "number", "saved"),
    [
        ("build", signal.SIGTERM, None),
        ("first step", signal.SIGTERM, 1),
        ("evaluation", signal.SIGINT, 2),
        ("save", signal.SIGTERM, 2),
    ],
)
def test_a_signal_saves_the_last_finished_step_and_the_resumed_run_is_the_same(
    train, tmp_path, monkeypatch, capsys, place, number, saved
):
    assert train("whole") == 0
    with monkeypatch.context() as patched:
        signal_in(patched, place, number)
        assert train("parts") == 128 + number
    assert f"dormouse resume {tmp_path / 'parts'}" in capsys.readouterr().out
    path = checkpoint.latest(tmp_path / "parts" / "checkpoints")
    assert (None if path is None else path.name) == (None if saved is None else f"step_{saved}")
    if place == "evaluation":
        assert [row["step"] for row in rows(tmp_path / "parts") if row["kind"] == "eval"] == []
    assert main(["resume", str(tmp_path / "parts"), "--quiet", "--sample-bytes", "0"]) == 0
    whole, parts = (
        checkpoint.manifest(tmp_path / name / "checkpoints" / "step_6")["content"] for name in ("whole", "parts")
    )
    assert {key for key in whole if whole[key] != parts[key]} <= {"clock"}
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")


def test_handlers_are_put_back_after_a_run(train):
    before = signal.getsignal(signal.SIGTERM)
    assert train("run") == 0
    assert signal.getsignal(signal.SIGTERM) is before
