"""The runner of experiments: one line a run, resumable, refusals before the first run."""

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
SMALL = (
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "kda_decay_rank=4", "kda_gate_rank=4"),
    *("engram_rows=64", "engram_dim=4", "seq_len=16", "batch_size=2", "eval_batches=2", "eval_seq_len=16"),
    *("eval_batch_size=2", "single_pass_fraction=0", "latch_every=2", "eval_every=0", "save_every=0"),
)
VARIANTS = """
from contextlib import contextmanager
from unittest import mock
from dormouse.train.muon import Muon

class Slow(Muon):
    def move(self, p, direction, lr, scale):
        super().move(p, direction, lr / 100, scale)

@contextmanager
def slow():
    with mock.patch("dormouse.train.optim.Muon", Slow):
        yield
"""


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run_arms = load("run_arms")


@pytest.fixture
def folder(tmp_path):
    words = np.random.default_rng(5).choice([b"the ", b"cat ", b"sat. "], size=9000)
    (tmp_path / "train.txt").write_bytes(b"".join(words)[:30_000])
    (tmp_path / "held.txt").write_bytes(np.random.default_rng(6).bytes(2000))
    data = [f"data.data={tmp_path / 'train.txt'}", f"data.eval={tmp_path / 'held.txt'}"]
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "variants.py").write_text(VARIANTS)
    write_plan(tmp_path / "x", shared=[*SMALL, *data])
    return tmp_path / "x"


def write_plan(folder, *, shared, arms=None, preset="tiny", steps=2):
    arms = arms or {"fp32": [], "fp4": ["quant=fp4"], "slow": ["variant:slow"]}
    lines = [
        f'preset = "{preset}"',
        f"steps = {steps}",
        "threads = 1",
        "seeds = [0, 1]",
        f"shared = {shared}",
        "[arms]",
    ]
    text = "\n".join([*lines, *(f"{name} = {changes}" for name, changes in arms.items())])
    (folder / "plan.toml").write_text(text.replace("'", '"'))


def rows(folder):
    with (folder / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def call(folder, *arguments):
    return run_arms.main([str(folder), "--runs", str(folder.parent / "runs"), *arguments])


def test_every_arm_and_seed_gets_its_line_once(folder, capsys):
    assert call(folder, "--seeds", "0") == 0
    assert call(folder) == 0
    found = rows(folder)
    assert [(row["arm"], row["seed"]) for row in found] == [(a, s) for s in "01" for a in ("fp32", "fp4", "slow")]
    assert {row["tsct"] for row in found if row["arm"] == "fp4"} == {"tsct=fp4"}
    assert float(found[1]["effective_error"]) > 100 * float(found[0]["effective_error"])
    assert float(found[2]["master_error"]) != float(found[0]["master_error"])
    assert all(0 <= float(row["moe_entropy"]) <= 1 and row["moe_dead"] in "0123" for row in found)
    assert all(row["curve"].endswith(f":{row['bpb']}") for row in found)
    assert list((folder.parent / "runs").iterdir()) == []
    capsys.readouterr()
    assert call(folder) == 0
    assert "6 of 6 runs are done" in capsys.readouterr().out
    assert len(rows(folder)) == 6


def test_a_file_with_fewer_columns_keeps_them(folder):
    (folder / "runs.csv").write_text("arm,preset,changes,seed,steps,threads,bpb\n")
    assert call(folder, "--arms", "fp32", "--seeds", "1") == 0
    [row] = rows(folder)
    assert list(row) == ["arm", "preset", "changes", "seed", "steps", "threads", "bpb"]
    assert float(row["bpb"]) > 0


def test_listing_runs_nothing(folder, capsys):
    assert call(folder, "--list", "--arms", "fp4") == 0
    assert "left: fp4 seed 1" in capsys.readouterr().out
    assert not (folder / "runs.csv").exists()


@pytest.mark.parametrize("change", [{"preset": "nano"}, {"steps": 3}, {"arms": {"fp32": ["quant=bf16"]}}])
def test_a_line_that_was_made_otherwise_is_refused(folder, capsys, change):
    assert call(folder, "--arms", "fp32", "--seeds", "0") == 0
    shared = run_arms.read_plan(folder).shared
    write_plan(folder, shared=shared, **change)
    assert call(folder) == 2
    assert "unlike runs would have been compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arms", "arguments", "said"),
    [
        (None, ("--arms", "fp3"), "arms = fp3"),
        (None, ("--seeds", "7"), "seeds = 7"),
        ({"a": ["variant:fast"]}, (), "variant:fast"),
        ({"a": '"quant=fp4"'}, (), "every arm are lists"),
    ],
)
def test_refusals_come_before_the_first_run(folder, capsys, arms, arguments, said):
    if arms is not None:
        write_plan(folder, shared=[], arms=arms)
    assert call(folder, *arguments) == 2
    assert said in capsys.readouterr().err.replace('"', "")
    assert not (folder / "runs.csv").exists()


def test_a_missing_variants_file_or_plan_is_named(folder, capsys):
    (folder / "variants.py").unlink()
    assert call(folder) == 2
    assert "variants.py is not there" in capsys.readouterr().err
    (folder / "plan.toml").unlink()
    assert call(folder) == 2
    assert "is not a plan" in capsys.readouterr().err


def test_a_refused_training_ends_with_the_arm_and_the_code(folder, capsys):
    write_plan(folder, shared=[*SMALL], arms={"a": ["n_experts=0"]})
    assert call(folder) == 1
    assert "arm a, seed 0: training ended with exit code 2" in capsys.readouterr().err
