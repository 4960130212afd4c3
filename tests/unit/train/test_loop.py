import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from dormouse.errors import TrainingHalted

TIMES = {"bytes_per_second", "elapsed_seconds", "seconds_left"}


def without_times(rows):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows if row["kind"] != "event"]


def poison(*steps):
    def hook(step, model):
        if step in steps:
            model.embedding.weight.grad[0, 0] = float("inf")

    return hook


def with_hook(run, hook):
    run.settings = replace(run.settings, gradient_hook=hook)
    return run


def noise(step, model):
    """Draws from all three generators and changes the step by what it drew, as a noisy router would."""
    drawn = torch.rand(256, 16) + random.random() + np.random.rand()
    model.embedding.weight.grad += 0.01 * drawn


@pytest.mark.parametrize("log_every", [1, 4])
def test_six_steps_are_three_plus_three_to_the_bit(runs, log_every):
    config = runs.config(log_every=log_every)
    runs.train(with_hook(runs.begin(config, "whole"), noise))
    assert runs.train(with_hook(runs.begin(config, "parts"), noise), stop_at=3).signal == 2
    assert runs.train(with_hook(runs.go_on(config, "parts"), noise)).step == 6
    assert runs.content("parts", 6) == runs.content("whole", 6)
    assert without_times(runs.rows("parts")) == without_times(runs.rows("whole"))


def test_resuming_after_every_step_is_the_same_run(runs):
    config = runs.config(steps=4, grad_accum=2)
    runs.train(runs.begin(config, "whole"))
    runs.train(runs.begin(config, "parts"), stop_at=1)
    for step in (2, 3, None):
        runs.train(runs.go_on(config, "parts"), stop_at=step)
    assert runs.content("parts", 4) == runs.content("whole", 4)
    assert without_times(runs.rows("parts")) == without_times(runs.rows("whole"))


def test_a_skipped_step_survives_the_resume(runs):
    config = runs.config()

    def poisoned(run):
        return with_hook(run, poison(1))

    runs.train(poisoned(runs.begin(config, "whole")))
    runs.train(poisoned(runs.begin(config, "parts")), stop_at=3)
    runs.train(runs.go_on(config, "parts"))
    assert runs.content("parts", 6) == runs.content("whole", 6)
    row = runs.rows("parts", "train")[-1]
    assert row["skipped"] == 1
    [event] = [row for row in runs.rows("parts", "event") if row["event"] == "skipped_step"]
    assert event["step"] == 2
    assert event["non_finite"] == {"grad_norm": "inf"}
    assert math.isfinite(event["total"])


def test_the_row_of_a_skipped_step_has_no_loss_and_no_use_of_experts(runs):
    run = with_hook(runs.begin(runs.config()), poison(1))
    runs.train(run)
    row = runs.rows("run", "train")[1]
    assert (row["step"], row["scored"]) == (2, 0)
    assert (row["ce"], row["total"], row["bpb"]) == (None, None, None)
    assert "moe" not in row


def test_training_goes_on_unchanged_whatever_is_evaluated(runs):
    """Evaluation after 2 and 4, never before the end, and on windows of 1 and 10 batches (DM-34)."""
    ways = {
        "often": {"eval_every": 2},
        "at_the_end": {"eval_every": 0},
        "long": {"eval_every": 2, "eval_batches": 10},
    }
    found = []
    for name, flags in ways.items():
        runs.train(runs.begin(runs.config(**flags), name))
        parts = runs.content(name, 6)
        found.append([parts[key] for key in ("model", "optimizer", "random", "tally", "firewall")])
    assert found[0] == found[1] == found[2]
    assert [row["step"] for row in runs.rows("often", "eval")] == [2, 4, 6]
    assert [row["step"] for row in runs.rows("at_the_end", "eval")] == [6]


def test_a_time_budget_is_reproduced_to_the_bit_by_the_steps_it_announces(runs, monkeypatch):
    from dormouse.train import loop

    seconds = iter(range(0, 10**6, 10))
    monkeypatch.setattr(loop.Clock, "elapsed", lambda self: float(next(seconds)))
    timed = runs.config(steps=None, minutes=2.0, warmup_steps=2, eval_every=10_000, log_every=10_000)
    outcome = runs.train(runs.begin(timed, "timed"))
    [event] = [row for row in runs.rows("timed", "event") if row["event"] == "length_decided"]
    assert event["total_steps"] == outcome.step
    assert 2 < event["step"] < outcome.step
    counted = runs.config(steps=outcome.step, warmup_steps=2, eval_every=10_000, log_every=10_000)
    runs.train(runs.begin(counted, "counted"))
    assert runs.content("timed", outcome.step) == runs.content("counted", outcome.step)


def test_a_decided_length_is_kept_on_resume(runs, monkeypatch):
    from dormouse.train import loop

    seconds = iter(range(0, 10**6, 10))
    monkeypatch.setattr(loop.Clock, "elapsed", lambda self: float(next(seconds)))
    timed = runs.config(steps=None, minutes=2.0, eval_every=10_000, log_every=10_000)
    runs.train(runs.begin(timed, "timed"), stop_at=6)
    [event] = [row for row in runs.rows("timed", "event") if row["event"] == "length_decided"]
    assert event["step"] < 6
    assert runs.train(runs.go_on(timed, "timed")).step == event["total_steps"]


def test_too_many_skips_in_a_row_end_the_run_and_no_checkpoint_is_poisoned(runs):
    from dormouse.store import checkpoint

    run = runs.begin(runs.config(steps=50, max_skips=4))
    with_hook(run, poison(*range(7, 50)))
    with pytest.raises(TrainingHalted, match="4 non-finite steps in a row up to step 11"):
        runs.train(run)
    path = checkpoint.latest(runs.folder / "run" / "checkpoints")
    state = checkpoint.load(path)
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def test_a_non_finite_evaluation_stops_the_run_and_keeps_the_checkpoints(runs):
    from dormouse.store import checkpoint

    def spoil(step, model):
        if step == 3:
            model.lm_head.bias.data[7] = float("nan")
            for parameter in model.parameters():
                parameter.grad = None

    run = runs.begin(runs.config())
    with_hook(run, spoil)
    with pytest.raises(TrainingHalted, match="evaluation is not finite"):
        runs.train(run)
    root = runs.folder / "run" / "checkpoints"
    assert checkpoint.steps(root) == [2, 3]
    assert runs.rows("run", "event")[-1]["event"] == "non_finite_evaluation"


def test_a_state_that_is_not_finite_is_never_saved(runs):
    from dormouse.store import checkpoint

    def spoil(step, model):
        if step == 1:
            model.lm_head.bias.data[7] = float("nan")
            for parameter in model.parameters():
                parameter.grad = None

    run = runs.begin(runs.config(eval_every=10_000, save_every=1, max_skips=100))
    with_hook(run, spoil)
    with pytest.raises(TrainingHalted, match=r"non-finite numbers \(model\.lm_head\.bias"):
        runs.train(run)
    assert checkpoint.steps(runs.folder / "run" / "checkpoints") == [1]


def test_the_movement_audit_passes_a_healthy_run_and_names_a_part_that_stands_still(runs):
    runs.train(runs.begin(runs.config(steps=3), "healthy", audit=True))
    [event] = [row for row in runs.rows("healthy", "event") if row["event"] == "audit"]
    assert event["inert"] == []
    assert any(movement["name"].endswith("experts.bank.up_U[2]") for movement in event["movements"])

    def freeze(step, model):
        model.loop.mixer.q.weight.grad = None

    run = runs.begin(runs.config(steps=3), "broken", audit=True)
    with_hook(run, freeze)
    with pytest.raises(TrainingHalted, match=r"loop\.mixer\.q\.weight"):
        runs.train(run)


def test_rows_hold_what_the_line_shows(runs):
    runs.train(runs.begin(runs.config()))
    rows = runs.rows("run", "train")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        assert row["scored"] == 32
        assert row["total"] == pytest.approx(row["ce"] + row["aux"])
        assert row["bpb"] == pytest.approx(row["ce"] / math.log(2))
        assert sum(row["moe"]) == pytest.approx(1.0)
        assert 0 <= row["moe_entropy"] <= 1
        assert row["lr"] == pytest.approx(row["lr_scale"] * 3e-3)
    assert [row["lr_scale"] for row in rows] == pytest.approx([step / 20 for step in range(1, 7)])
    assert rows[-1]["held_out_bpb"] == runs.rows("run", "eval")[1]["bpb"]


def test_the_dense_blend_logs_no_utilisation(runs):
    runs.train(runs.begin(runs.config(moe_topk=0, moe_lb_coef=0.0, steps=1)))
    assert "moe" not in runs.rows("run", "train")[0]


def test_retention_keeps_the_newest_and_the_best(runs):
    from dormouse.store import checkpoint

    runs.train(runs.begin(runs.config(steps=9, save_every=1, keep_checkpoints=2)))
    root = runs.folder / "run" / "checkpoints"
    best = min(runs.rows("run", "eval"), key=lambda row: row["bpb"])
    assert set(checkpoint.steps(root)) == {8, 9, best["step"]}
    assert checkpoint.best(root).name == f"step_{best['step']}"


def test_the_router_gets_a_gradient_without_any_balance_term(runs):
    """DM-07: one step at k = 1 with coefficient 0 moves the router's columns."""
    run = runs.begin(runs.config(moe_lb_coef=0.0, steps=3, seed=1))
    before = run.state.model.loop.controller.weight.detach().clone()
    runs.train(run)
    moved = (run.state.model.loop.controller.weight.detach() - before)[3:7]
    assert (moved.abs().amax(1) > 0).all()


def test_memory_does_not_grow_over_log_steps(runs):
    import gc

    run = runs.begin(runs.config(steps=60, eval_every=10_000, save_every=10_000))
    counts = []

    def count(step, model):
        if step in (20, 58):
            gc.collect()
            counts.append(sum(1 for item in gc.get_objects() if issubclass(type(item), torch.Tensor)))

    with_hook(run, count)
    runs.train(run)
    assert counts[1] <= counts[0] + 2
