"""DM-34: a look at the held-out text in mid-run leaves no trace in what is trained, drawn, counted or kept."""

import gc
import random

import numpy as np
import torch

from dormouse.train.evaluate import evaluate


def generators():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def test_a_score_of_the_real_model_leaves_flags_generators_counters_and_weights(runs):
    run = runs.begin(runs.config(steps=2))
    try:
        model = run.state.model.train()
        before = [module.training for module in model.modules()]
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        drawn, counts = generators(), run.state.tally.counts.clone()
        evaluate(model, run.window)
        assert [module.training for module in model.modules()] == before
        assert generators() == drawn
        assert torch.equal(run.state.tally.counts, counts)
        assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
    finally:
        run.close()


def test_a_hundred_log_steps_keep_no_tensor_more(runs):
    run = runs.begin(runs.config("max_iter=1", "eval_every=25", steps=104))
    counts = []

    def count(step, model):
        if step in (3, 103):
            gc.collect()
            counts.append(sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects()))

    runs.finish(run, count)
    assert counts[1] <= counts[0] + 2
