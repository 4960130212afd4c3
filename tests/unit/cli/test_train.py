"""The `train`, `resume`, `eval` and `demo` commands on the smallest model, in this process."""

import json
import math

import numpy as np
import pytest
import torch

from dormouse.cli.main import main
from dormouse.store.metrics import read_metrics

SMALL = [
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "max_iter=2", "kda_decay_rank=4"),
    *("kda_gate_rank=4", "engram_rows=64", "engram_dim=4", "eval_seq_len=16", "eval_batch_size=2"),
    "single_pass_fraction=0",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    words = np.random.default_rng(5).choice([b"the ", b"cat ", b"sat. ", b"on\n", b"mat "], size=9000)
    (tmp_path / "train.txt").write_bytes(b"".join(words)[:40_000])
    (tmp_path / "held.txt").write_bytes(np.random.default_rng(6).bytes(2000))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*arguments, sets=()):
    """`dormouse train` on the smallest model; returns the exit code."""
    return main(
        [
            *("train", "--data", "train.txt", "--eval", "held.txt", "--threads", "1", "--device", "cpu"),
            *("--seq-len", "16", "--batch-size", "2", "--eval-batches", "2", "--sample-bytes", "0"),
            *(part for setting in (*SMALL, *sets) for part in ("--set", setting)),
            *arguments,
        ]
    )


def files(path):
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


def test_train_eval_and_resume_in_json_print_one_object_each(folder, capsys):
    assert train("--steps", "3", "--out", "run", "--json") == 0
    trained = json.loads(capsys.readouterr().out)
    assert (trained["total_steps"], trained["stopped"], trained["trained_bytes"]) == (3, None, 96)

    assert main(["eval", "run", "--json", "--threads", "1"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert {"bpb", "scored_bytes", "window_bytes", "data_sha256", "step", "checkpoint"} <= scored.keys()
    assert scored["bpb"] == pytest.approx(trained["bpb"], abs=1e-9)
    assert scored["window_bytes"] == scored["scored_bytes"] == 64

    assert main(["resume", "run", "--steps", "5", "--json", "--sample-bytes", "3"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed["total_steps"] == 5
    assert len((folder / "run" / "samples" / f"step_{resumed['step']}.txt").read_bytes()) == 3
    rows = [row for row in read_metrics(folder / "run" / "metrics.jsonl") if row["kind"] == "eval"]
    assert [row["step"] for row in rows] == [3, 5]


def test_the_last_lines_show_score_yardsticks_place_and_the_way_on(folder, capsys):
    assert train("--steps", "2", "--out", "run", "--log-every", "1") == 0
    out = capsys.readouterr().out
    assert "moe=[" in out
    assert "window of 64 held-out bytes" in out
    assert "uniform" in out.partition("held-out bits per byte")[2]
    assert "run: run\n" in out
    assert "dormouse resume run --steps 4" in out


def test_three_steps_and_a_resume_to_six_are_six_steps(folder, capsys):
    from dormouse.store import checkpoint

    assert train("--steps", "6", "--out", "whole", "--quiet") == 0
    assert train("--steps", "3", "--out", "parts", "--quiet") == 0
    assert train("--resume", "--steps", "6", "--out", "parts", "--quiet") == 0
    whole, parts = (
        checkpoint.manifest(folder / name / "checkpoints" / "step_6")["content"] for name in ("whole", "parts")
    )
    for part in ("model", "optimizer", "random", "firewall"):
        assert whole[part] == parts[part]


def test_resuming_with_other_experts_is_refused_with_the_difference(folder, capsys):
    assert train("--steps", "2", "--out", "run", "--quiet") == 0
    before = files(folder / "run")
    assert train("--resume", "--steps", "4", "--out", "run", sets=["n_experts=8"]) == 2
    assert "model.n_experts: 4 -> 8" in capsys.readouterr().err
    assert files(folder / "run") == before


def test_resume_keeps_the_length_that_was_not_given_again(folder, capsys):
    assert train("--steps", "3", "--out", "run", "--quiet") == 0
    assert train("--resume", "--out", "run") == 0
    assert "done: 3 steps" in capsys.readouterr().out


def test_train_resume_without_a_run_there_begins_one(folder, capsys):
    assert train("--resume", "--steps", "1", "--out", "run", "--quiet") == 0
    assert (folder / "run" / "run.json").exists()
    assert train("--resume", "--steps", "1") == 2
    assert "--out" in capsys.readouterr().err


def test_train_resume_reads_the_runs_own_data_and_says_when_it_begins_a_new_run(folder, capsys):
    assert train("--steps", "2", "--out", "run", "--quiet") == 0
    sizes = [part for setting in SMALL for part in ("--set", setting)]
    again = ["train", "--resume", "--out", "run", "--steps", "3", *sizes]
    again += ["--seq-len", "16", "--batch-size", "2", "--eval-batches", "2", "--sample-bytes", "0"]
    assert main(again) == 0
    assert "done: 3 steps" in capsys.readouterr().out
    assert train("--resume", "--steps", "1", "--out", "rnu") == 0
    assert "rnu holds no run yet: a new one begins there" in capsys.readouterr().out


def test_settings_of_a_file_count_as_given_whatever_the_file_is_called(folder, capsys):
    (folder / "preset-mine.toml").write_text("[train]\nsteps = 4\n")
    assert train("--steps", "2", "--out", "run", "--quiet") == 0
    assert train("--resume", "--out", "run", "--config", "preset-mine.toml") == 0
    assert "done: 4 steps" in capsys.readouterr().out


def test_the_settings_line_is_written_as_set_reads_it(folder, capsys):
    assert train("--steps", "1", "--out", "run") == 0
    out = capsys.readouterr().out
    assert "controller_norm=true" in out
    assert "engram_orders=[2, 3, 4, 5, 6]" in out


def test_the_same_directory_twice_is_refused_and_overwrite_is_the_way_in(folder, capsys):
    assert train("--steps", "1", "--out", "run", "--quiet") == 0
    before = {name: (folder / "run" / name).read_bytes() for name in ("run.json", "metrics.jsonl")}
    assert train("--steps", "1", "--out", "run", "--seed", "1") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert before == {name: (folder / "run" / name).read_bytes() for name in before}
    assert train("--steps", "1", "--out", "run", "--seed", "1", "--overwrite") == 0
    assert "overwriting the run in run" in capsys.readouterr().out
    assert json.loads((folder / "run" / "run.json").read_text())["config"]["train"]["seed"] == 1


def test_an_explicit_flag_beats_set_and_what_is_printed_is_what_is_used(folder, capsys):
    from dormouse.store import checkpoint

    assert train("--steps", "25", "--out", "run", "--lr", "0.0007", sets=["lr=0.5", "warmup_steps=1"]) == 0
    assert "lr=0.0007" in capsys.readouterr().out
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["config"]["train"]["lr"] == 0.0007
    state = checkpoint.load(checkpoint.latest(folder / "run" / "checkpoints"))
    assert state["optimizer"]["adamw"]["param_groups"][0]["lr"] == pytest.approx(0.0007 * 0.01)
    rows = [row for row in read_metrics(folder / "run" / "metrics.jsonl") if row["kind"] == "train"]
    assert rows[0]["lr"] == pytest.approx(0.0007)


@pytest.mark.parametrize(
    ("arguments", "sets", "named"),
    [
        (["--device", "cuda"], [], "train.device = cuda"),
        (["--preset", "tinny"], [], "preset = tinny"),
        ([], ["n_expert=8"], "n_experts"),
        ([], ["moe.topk=2"], "moe_topk"),
        ([], ["use_mor=true"], "use_mor"),
        (["--moe", "9"], [], "n_experts = 4"),
        (["--minutes", "1", "--set", "decay_fraction=1.0"], [], "decay_fraction"),
        (["--data", "nowhere.txt"], [], "nowhere.txt"),
        (["--data", "short.txt"], [], "short.txt"),
        (["--steps", "0"], [], "steps = 0"),
    ],
)
def test_what_cannot_be_done_as_asked_is_refused_before_anything_is_written(
    folder, capsys, monkeypatch, arguments, sets, named
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (folder / "short.txt").write_bytes(b"too short")
    before = files(folder)
    assert train("--out", "run", *arguments, sets=sets) == 2
    captured = capsys.readouterr()
    assert named in captured.err
    assert "Traceback" not in captured.err
    assert files(folder) == before


def test_a_mistyped_key_in_a_file_is_refused(folder, capsys):
    (folder / "my.toml").write_text("n_expert = 8\n")
    assert train("--config", "my.toml", "--out", "run") == 2
    assert "n_experts" in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_window_numbers_are_logged_and_the_audit_passes(folder, capsys):
    assert train("--steps", "3", "--out", "run", "--log-windows", "--audit") == 0
    assert "movement audit: all" in capsys.readouterr().out
    rows = [row for row in read_metrics(folder / "run" / "metrics.jsonl") if row["kind"] == "windows"]
    assert [row["step"] for row in rows] == [1, 2, 3]
    seen = [window for row in rows for window in row["windows"]]
    assert len(set(seen)) == 6


def test_eval_scores_the_whole_text_another_text_and_refuses_a_changed_one(folder, capsys):
    assert train("--steps", "2", "--out", "run", "--quiet") == 0
    capsys.readouterr()
    assert main(["eval", "run", "--tail", "--json", "--threads", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["scored_bytes"] == 1999
    (folder / "other.txt").write_bytes(np.random.default_rng(9).bytes(500))
    assert main(["eval", "run", "--eval", "other.txt", "--threads", "1"]) == 0
    assert "64 bytes (window 64) of other.txt" in capsys.readouterr().out
    (folder / "held.txt").write_bytes(np.random.default_rng(10).bytes(2000))
    assert main(["eval", "run", "--threads", "1"]) == 2
    assert "held_out_sha256" in capsys.readouterr().err


def test_eval_of_a_missing_run_or_checkpoint_is_refused(folder, capsys):
    assert main(["eval", "nothing"]) == 2
    assert train("--steps", "1", "--out", "run", "--quiet") == 0
    assert main(["eval", "run", "--checkpoint", "99", "--threads", "1"]) == 2
    assert "99" in capsys.readouterr().err


def test_an_untrained_head_scores_exactly_eight_bits(folder, capsys):
    """The head starts at zero, so before the first update all logits are equal."""
    assert train("--steps", "1", "--out", "run", "--json", sets=["lr=1e-30", "muon_lr=1e-30", "table_lr=1e-30"]) == 0
    assert json.loads(capsys.readouterr().out)["bpb"] == pytest.approx(8.0, abs=1e-12)


def test_the_demo_trains_scores_and_writes_in_a_new_directory_each_time(folder, capsys):
    small = [part for setting in SMALL for part in ("--set", setting)]
    for _ in range(2):
        assert main(["demo", "--out", "runs", "--steps", "2", "--threads", "1", *small]) == 0
    out = capsys.readouterr().out
    assert len(list((folder / "runs").iterdir())) == 2
    for expected in (
        "uniform",
        "experts: moe=[",
        "it writes:",
        "dormouse resume runs/demo-",
        "dormouse generate runs/demo-",
    ):
        assert expected in out


def test_the_demo_obeys_set(folder):
    small = [part for setting in (*SMALL, "steps=2", "seed=5") for part in ("--set", setting)]
    assert main(["demo", "--out", "runs", "--threads", "1", "--quiet", *small]) == 0
    [run] = (folder / "runs").iterdir()
    chosen = json.loads((run / "run.json").read_text())["config"]["train"]
    assert (chosen["seed"], chosen["steps"], chosen["minutes"]) == (5, 2, None)


def test_the_ranking_is_ordered_by_bits_and_marks_the_model():
    from dormouse.cli.results import ranking

    lines = ranking(2.1, {"uniform": 8.0, "5-gram": 2.135, "8-gram": 1.972}, name="dormouse")
    assert [line.split()[-2:] for line in lines] == [
        ["8-gram", "1.972"],
        ["dormouse", "2.100"],
        ["5-gram", "2.135"],
        ["uniform", "8.000"],
    ]
    assert lines[1].startswith("->")


def test_yardsticks_of_an_unknown_text_are_the_uniform_distribution_only():
    from dormouse.cli.results import yardsticks

    assert yardsticks(train_sha256="0" * 64, held_out_sha256="0" * 64, window_bytes=64) == {"uniform": 8.0}
    assert math.isclose(math.log2(256), 8.0)


def test_a_network_beyond_the_machine_s_memory_is_refused_before_anything_is_written(folder, capsys):
    fixed = ("--data", "train.txt", "--eval", "held.txt", "--steps", "1", "--out", "big")
    assert main(["train", *fixed, "--set", "engram_rows=100000000000"]) == 2
    said = capsys.readouterr().err
    assert "GiB of weights" in said
    assert "memory table" in said
    assert not (folder / "big").exists()


def test_an_audit_of_a_run_that_is_complete_judges_nothing_and_loses_nothing(folder):
    assert train("--steps", "2", "--out", "run", "--quiet", "--audit") == 0
    before = json.loads((folder / "run" / "run.json").read_text())["result"]
    assert main(["resume", "run", "--audit", "--quiet", "--sample-bytes", "0"]) == 0
    after = json.loads((folder / "run" / "run.json").read_text())["result"]
    assert {k: v for k, v in after.items() if k != "seconds"} == {k: v for k, v in before.items() if k != "seconds"}
