"""Passes that grow late: which steps train how many, what is saved, and what a time budget makes of it."""

import pytest
import torch

from dormouse.config.flops import full_pass_cost
from dormouse.config.inert import inert_settings
from dormouse.config.load import load_preset
from dormouse.errors import ConfigError
from dormouse.model.decode import ByteStep
from dormouse.model.lm import Dormouse
from dormouse.train.load import load_run
from dormouse.train.schedule import Schedule

SMALL = ("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "engram_rows=64", "engram_dim=4")
SMALL = (*SMALL, "kda_decay_rank=4", "kda_gate_rank=4")
GROWING = Schedule(2, 0.6, 0.01, minutes=None, single_pass_fraction=0.5)


def test_the_first_share_of_the_steps_trains_one_pass():
    assert [GROWING.passes(step, 7, 3) for step in range(7)] == [1, 1, 1, 1, 3, 3, 3]  # round(3.5) = 4
    assert GROWING.passes(1000, None, 3) == 1
    assert Schedule(2, 0.6, 0.01).passes(0, None, 3) == 3


def test_a_time_budget_decides_by_the_mean_cost_of_a_step():
    """Steps of 1 s and, in the last fifth, 2 s: 100 steps take 120 s, and 40 of them (the constant part) 40 s."""
    schedule = Schedule(2, 0.6, 0.01, minutes=2.0, single_pass_fraction=0.8, full_cost=2.0)
    assert not schedule.is_time_to_decide(39, 39.9)
    assert schedule.is_time_to_decide(40, 40.01)
    assert schedule.total_from(40) == 100
    seconds = sum(2 if schedule.passes(step, 100, 2) == 2 else 1 for step in range(100))
    assert seconds == 120


def test_the_cost_of_all_passes_counts_what_is_done_once_once():
    """tiny, a byte: 4 d (P + ...) in each pass against projections of the memory, out_proj and head done once."""
    one, two, four = (load_preset("tiny", [f"max_iter={n}"]) for n in (1, 2, 4))
    assert full_pass_cost(one) == 1.0
    grown = full_pass_cost(two) - 1
    assert full_pass_cost(four) - 1 == pytest.approx(3 * grown)
    assert 0.5 < grown < 1.0


def test_growing_while_the_length_is_measured_is_refused(runs):
    with pytest.raises(ConfigError, match=r"single_pass_fraction = 0\.3 with train\.minutes = 1\.0: .* at least 0\.4"):
        runs.config(steps=None, minutes=1.0, single_pass_fraction=0.3)
    assert runs.config(steps=10, single_pass_fraction=0.3).train.single_pass_fraction == 0.3


def test_a_run_grows_its_passes_and_a_checkpoint_knows_how_many_it_trained(runs):
    config = runs.config(steps=6, single_pass_fraction=0.5, save_every=1, keep_checkpoints=9)
    runs.train(runs.begin(config))
    assert [row["n_passes"] for row in runs.rows("run", "train")] == [1, 1, 1, 2, 2, 2]
    for step in (3, 4):
        model, _ = load_run(runs.folder / "run", checkpoint=str(step))
        assert model.n_passes == (1 if step == 3 else 2)
        assert (model.loop.iter_embed[1].abs().sum() > 0) == (step == 4)


def test_the_score_of_a_step_is_that_of_the_passes_it_trained(runs):
    """Step 3 is the last with one pass; its evaluation and a later one of its checkpoint agree."""
    from dormouse.train.evaluate import evaluate
    from dormouse.train.run import make_window

    config = runs.config(steps=6, single_pass_fraction=0.5, eval_every=3)
    run = runs.begin(config)
    runs.train(run)
    model, _ = load_run(runs.folder / "run", checkpoint="3")
    assert evaluate(model, make_window(run.corpus, config)).bpb == runs.rows("run", "eval")[0]["bpb"]


@pytest.mark.parametrize("stop_at", [2, 3, 4])
def test_a_growing_run_resumes_to_the_bit(runs, stop_at):
    config = runs.config(steps=6, single_pass_fraction=0.5)
    runs.train(runs.begin(config, "whole"))
    runs.train(runs.begin(config, "parts"), stop_at=stop_at)
    runs.train(runs.go_on(config, "parts"))
    assert runs.content("parts", 6) == runs.content("whole", 6)


def test_fewer_passes_are_those_of_a_smaller_model():
    config, smaller = (load_preset("tiny", [*SMALL, f"max_iter={n}"]) for n in (3, 2))
    torch.manual_seed(0)
    model, ids = Dormouse(config).eval(), torch.randint(256, (2, 30))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    small = Dormouse(smaller).eval()
    small.load_state_dict(model.state_dict() | {"loop.iter_embed": model.loop.iter_embed[:2]})
    model.n_passes = 2
    with torch.no_grad():
        out, expected = model(ids), small(ids)
        assert torch.equal(out.logits, expected.logits)
        assert len(out.state.passes) == 3
        step = ByteStep(model)(ids[:, 0], model.initial_state(2))[0]
        torch.testing.assert_close(step, expected.logits[:, 0], rtol=1e-4, atol=1e-4)
    for number in (0, 4):
        with pytest.raises(ValueError, match="max_iter = 3"):
            model.n_passes = number


def test_random_depth_draws_by_seed_and_step_alone_and_every_number_as_often():
    schedule = Schedule(2, 0.6, 0.01, depth_seed=5)
    drawn = [schedule.drawn_passes(step, 3000, 3) for step in range(3000)]
    assert drawn == [Schedule(2, 0.6, 0.01, depth_seed=5).drawn_passes(step, None, 3) for step in range(3000)]
    assert drawn != [Schedule(2, 0.6, 0.01, depth_seed=6).drawn_passes(step, None, 3) for step in range(3000)]
    assert all(abs(drawn.count(n) - 1000) < 4 * (3000 * 2 / 9) ** 0.5 for n in (1, 2, 3))
    growing = Schedule(2, 0.6, 0.01, single_pass_fraction=0.5, depth_seed=5)
    assert {growing.drawn_passes(step, 100, 3) for step in range(50)} == {1}
    assert {growing.drawn_passes(step, 100, 3) for step in range(50, 100)} == {1, 2, 3}


def test_a_run_of_random_depth_trains_what_it_draws_scores_all_and_resumes_to_the_bit(runs):
    config = runs.config(max_iter=3, random_depth=True, steps=6)
    run = runs.begin(config, "whole")
    drawn = [run.schedule.drawn_passes(step, 6, 3) for step in range(6)]
    runs.train(run)
    assert len(set(drawn)) > 1
    assert runs.rows("whole", "train")[-1]["ran"]["kda"] == [sum(drawn)] * 2
    assert {row["n_passes"] for row in runs.rows("whole", "train")} == {3}
    runs.train(runs.begin(config, "parts"), stop_at=3)
    runs.train(runs.go_on(config, "parts"))
    assert runs.content("parts", 6) == runs.content("whole", 6)
    assert load_run(runs.folder / "whole", checkpoint="6").model.n_passes == 3


def test_random_depth_without_a_number_of_steps_is_refused_and_with_one_pass_announced(runs):
    with pytest.raises(ConfigError, match=r"random_depth = true with train\.minutes = 1\.0"):
        runs.config(steps=None, minutes=1.0, random_depth=True)
    said = inert_settings(runs.config(max_iter=1, random_depth=True))
    assert [line for line in said if line.startswith("random_depth = true has no effect: max_iter = 1")]
