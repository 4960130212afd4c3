import random

import numpy as np
import pytest
import torch
from torch import nn

from dormouse.store import checkpoint
from dormouse.train.state import random_state, set_random_state

CPU = torch.device("cpu")


def draw():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()


def test_the_three_generators_continue_where_they_were(tmp_path):
    random.gauss(0, 1)  # python and numpy keep a second normal number in store
    np.random.randn()
    saved = random_state(CPU)
    expected = draw()
    loaded = checkpoint.load(checkpoint.save(tmp_path, 1, saved, {}))
    draw()
    set_random_state(loaded, CPU)
    assert draw() == expected


class OneNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))


class Constant:
    """Subtracts 0.001 a step, as an optimiser with a constant gradient would."""

    def __init__(self, model):
        self.model, self.moment = model, torch.zeros(1)

    def step(self, lr_scale):
        self.moment += 1
        with torch.no_grad():
            self.model.w -= 0.001

    def zero_grad(self):
        pass

    def state_dict(self):
        return {"moment": self.moment}

    def load_state_dict(self, state):
        self.moment = state["moment"]


def test_a_hundred_small_updates_move_a_weight_of_one_and_survive_a_resume(tools, tmp_path):
    """In bf16 the weight would still be exactly 1: half a step below it is 2**-9."""
    whole = tools.state(OneNumber(), Constant(OneNumber()))
    whole.optimizer = Constant(whole.model)
    first = tools.state(OneNumber())
    first.optimizer = Constant(first.model)
    for _ in range(100):
        whole.optimizer.step(1.0)
    for _ in range(50):
        first.optimizer.step(1.0)
    saved = checkpoint.load(checkpoint.save(tmp_path, 50, first.state_dict(), {}))
    second = tools.state(OneNumber())
    second.optimizer = Constant(second.model)
    second.load_state_dict(saved)
    for _ in range(50):
        second.optimizer.step(1.0)
    assert whole.model.w.item() == pytest.approx(0.9, abs=1e-5)
    assert torch.equal(second.model.w, whole.model.w)
    assert second.optimizer.moment.item() == 100


def test_masters_that_are_not_fp32_are_refused(tools):
    with pytest.raises(TypeError, match=r"masters are fp32, but w is torch\.bfloat16"):
        tools.state(OneNumber().bfloat16())


def test_moments_and_masters_of_a_real_run_are_fp32(runs):
    run = runs.begin(runs.config(steps=1))
    runs.train(run)

    def tensors(node):
        if isinstance(node, torch.Tensor):
            yield node
        elif isinstance(node, dict):
            for item in node.values():
                yield from tensors(item)

    state = run.state.state_dict()
    found = [*tensors(state["model"]), *tensors(state["optimizer"])]
    assert len(found) > 50
    assert {value.dtype for value in found if value.is_floating_point()} == {torch.float32}
