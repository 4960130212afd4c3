"""Small runs and models that the field cases share: 40,000 bytes of made-up text, one thread, the CPU."""

import hashlib

import numpy as np
import pytest

from dormouse.cli.main import main

SMALL = (
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "max_iter=2", "kda_decay_rank=4"),
    *("kda_gate_rank=4", "engram_rows=64", "engram_dim=4", "seq_len=16", "batch_size=2", "eval_batches=2"),
    *("eval_seq_len=16", "eval_batch_size=2", "single_pass_fraction=0", "log_every=1"),
)


class CommandLine:
    """The commands on the smallest model, in this process, in a folder of their own."""

    def __init__(self, folder):
        self.folder = folder
        words = np.random.default_rng(5).choice([b"the ", b"cat ", b"sat. ", b"on\n", b"mat "], size=9000)
        (folder / "train.txt").write_bytes(b"".join(words)[:40_000])
        (folder / "held.txt").write_bytes(np.random.default_rng(6).bytes(2000))

    def train(self, *arguments, sets=(), data="train.txt", held_out="held.txt"):
        """Exit code of `dormouse train`; a setting in `sets` replaces the small one of its name."""
        chosen = {text.split("=")[0]: text for text in (*SMALL, *sets)}
        settings = (part for text in chosen.values() for part in ("--set", text))
        fixed = ("--data", data, "--eval", held_out, "--threads", "1", "--device", "cpu", "--sample-bytes", "0")
        return main(["train", *fixed, *settings, *arguments])

    def hashes(self, name="."):
        """SHA-256 of every file below a folder, by relative path."""
        root = self.folder / name
        return {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CommandLine(tmp_path)


class Runs(CommandLine):
    """The same runs through the library, where a test may reach into a step."""

    def config(self, *overrides, **flags):
        from dormouse.config.load import load_run_config

        chosen = {text.split("=")[0]: text for text in (*SMALL, "eval_every=0", "save_every=0", *overrides)}
        places = {"data": str(self.folder / "train.txt"), "eval": str(self.folder / "held.txt"), "steps": 6}
        return load_run_config("tiny", None, list(chosen.values()), {**places, "threads": 1, "device": "cpu", **flags})

    def begin(self, config, name="run", **options):
        from dormouse.store.rundir import RunDir
        from dormouse.train.run import Options, prepare, start

        return start(prepare(config), RunDir.create(self.folder / name), Options(**options))

    def finish(self, run, hook=None):
        """Train to the end; `hook(step, model)` is called between backward and clipping."""
        from dataclasses import replace

        from dormouse.train.loop import train
        from dormouse.train.progress import SilentDisplay
        from dormouse.train.signals import StopRequest

        run.settings = replace(run.settings, gradient_hook=hook)
        try:
            return train(run, SilentDisplay(), StopRequest())
        finally:
            run.close()

    def rows(self, name, kind):
        from dormouse.store.metrics import read_metrics

        return [row for row in read_metrics(self.folder / name / "metrics.jsonl") if row["kind"] == kind]


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)
