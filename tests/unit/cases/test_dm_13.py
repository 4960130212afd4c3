"""DM-13: a NaN in the router, in its gradient or its weights, is caught before anything is counted or stored."""

import math

import pytest
import torch

from dormouse.errors import TrainingHalted
from dormouse.model.router import Router
from dormouse.store import checkpoint


@pytest.mark.parametrize("k", [1, 2])
def test_a_nan_among_the_logits_of_a_router_reaches_the_gates(k):
    """Logits (1, NaN, 2): whatever is selected, no gate may look healthy."""
    routing = Router(n_experts=3, top_k=k)(torch.tensor([[1.0, math.nan, 2.0]]))
    assert routing.gates.isnan().all()
    assert routing.ids.max() < 3


def test_a_router_gradient_of_nan_moves_no_weight_and_no_moment_and_is_never_saved(runs):
    """The gradient of its weights is NaN from step 3 on, under a finite loss; two skips end the run."""
    run = runs.begin(runs.config("max_skips=2", "save_every=1", steps=9))
    kept = {}

    def spoil(step, model):
        if step == 2:
            kept.update({name: value.clone() for name, value in model.state_dict().items()})
            kept["moments"] = [value.clone() for value in moments(run)]
        if step >= 2:
            model.loop.controller.weight.grad[0, 0] = math.nan

    with pytest.raises(TrainingHalted, match="2 non-finite steps in a row up to step 4") as halted:
        runs.finish(run, spoil)
    assert halted.value.exit_code == 3
    for name, value in run.state.model.state_dict().items():
        assert torch.equal(value, kept[name]), name
    assert all(torch.equal(old, new) for old, new in zip(kept["moments"], moments(run), strict=True))
    events = runs.rows("run", "event")
    assert [(row["step"], row["non_finite"]) for row in events] == [(step, {"grad_norm": "nan"}) for step in (3, 4)]
    assert all(math.isfinite(row["total"]) for row in events)
    state = checkpoint.load(checkpoint.latest(runs.folder / "run" / "checkpoints"))
    assert all(torch.isfinite(value).all() for value in state["model"].values() if value.is_floating_point())


def test_router_weights_of_nan_stop_the_run_before_a_selection_counts(runs):
    run = runs.begin(runs.config("max_skips=2", steps=9))
    run.state.model.loop.controller.weight.data.fill_(math.nan)
    with pytest.raises(TrainingHalted, match="2 non-finite steps in a row up to step 2"):
        runs.finish(run)
    assert run.state.tally.counts.sum() == 0
    assert checkpoint.steps(runs.folder / "run" / "checkpoints") == []


def moments(run):
    """Every tensor that the optimisers hold, step counters included."""

    def walk(value):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            for item in value.values():
                yield from walk(item)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from walk(item)

    return list(walk(run.state.optimizer.state_dict()))
