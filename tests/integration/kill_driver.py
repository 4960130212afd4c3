"""Trains the smallest model in children of one process and kills them; prints what happened as JSON.

Importing torch takes seconds, forking takes milliseconds: the parent trains the uninterrupted run on one thread
(which imports everything and starts no thread pool), then every child trains, and the parent kills it while it
starts, trains, or writes a checkpoint. Usage: kill_driver.py kills|twice FOLDER
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from dormouse.cli.main import main
from dormouse.store import checkpoint

STEPS = 240
SMALL = [
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "max_iter=1", "kda_decay_rank=4"),
    *("kda_gate_rank=4", "engram_rows=64", "engram_dim=4", "eval_seq_len=16", "eval_batch_size=2"),
]


def train(folder, name, *arguments):
    return main(
        [
            *("train", "--resume", "--out", str(folder / name), "--steps", str(STEPS), "--quiet"),
            *("--data", str(folder / "train.txt"), "--eval", str(folder / "held.txt"), "--threads", "1"),
            *("--seq-len", "16", "--batch-size", "2", "--eval-batches", "1", "--eval-every", "7"),
            *("--device", "cpu", "--sample-bytes", "0"),
            *(part for setting in SMALL for part in ("--set", setting)),
            *arguments,
        ]
    )


def child(work):
    """Run `work` in a fork with its output thrown away; returns the process number."""
    number = os.fork()
    if number:
        return number
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    code = 70
    try:
        code = work()
    finally:
        os._exit(code)


def exit_code(number):
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def kill(folder, number, draw, *, moment):
    """SIGKILL while the child starts, trains, or writes a checkpoint; returns (exit code, was it writing)."""
    root = folder / "killed" / "checkpoints"
    goal = max(checkpoint.steps(root), default=0) + draw.randint(1, 5)
    limit = time.monotonic() + 20
    if moment == "start":
        time.sleep(draw.uniform(0.02, 0.4))
    else:
        while time.monotonic() < limit and max(checkpoint.steps(root), default=0) < goal:
            time.sleep(0.001)
        time.sleep(draw.uniform(0.0, 0.08))
    while moment == "save" and time.monotonic() < limit and not any(root.glob(".tmp-*")):
        time.sleep(0.0005)
    os.kill(number, signal.SIGKILL)
    code = exit_code(number)
    return code, any(root.glob(".tmp-*"))


def kills(folder):
    draw = random.Random(11)
    assert train(folder, "whole", "--save-every", "1000") == 0
    codes, in_saves, damaged = [], 0, []
    for round_number in range(24):
        number = child(lambda: train(folder, "killed", "--save-every", "1"))
        code, saving = kill(folder, number, draw, moment=("start", "train", "save")[round_number % 3])
        codes.append(code)
        in_saves += saving
        checkpoint.latest(folder / "killed" / "checkpoints", report=damaged.append)
    reached = checkpoint.steps(folder / "killed" / "checkpoints")[-1]
    last = exit_code(child(lambda: train(folder, "killed", "--save-every", "1000")))
    return {"codes": codes, "in_saves": in_saves, "damaged": damaged, "reached": reached, "last": last}


def twice(folder):
    """Two SIGINTs in the middle of the third save."""

    def work():
        real, calls = checkpoint.write_json, []

        def interrupted(path, value):
            calls.append(path)
            if path.name == "manifest.json" and path.parent.name == ".tmp-step_3":
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(30)
            real(path, value)

        checkpoint.write_json = interrupted
        return train(folder, "twice", "--save-every", "1")

    code = exit_code(child(work))
    root = folder / "twice" / "checkpoints"
    return {"code": code, "steps": checkpoint.steps(root), "latest": checkpoint.latest(root).name}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[2])
    words = np.random.default_rng(5).choice([b"the ", b"cat ", b"sat. ", b"on\n", b"mat "], size=9000)
    (place / "train.txt").write_bytes(b"".join(words)[:40_000])
    (place / "held.txt").write_bytes(np.random.default_rng(6).bytes(2000))
    print("\n" + json.dumps({"kills": kills, "twice": twice}[sys.argv[1]](place)))
