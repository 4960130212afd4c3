"""DM-12: every scored byte weighs the same; a short last window divides by its own bytes; nothing scored is 0."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dormouse.data.batch import Batch
from dormouse.model.records import LoopOutput
from dormouse.train.firewall import Firewall
from dormouse.train.latch import Latch
from dormouse.train.state import TrainState
from dormouse.train.step import StepSettings, forward_backward, train_step
from dormouse.train.tally import Tally

SETTINGS = StepSettings(grad_clip=1e9)


class Rows(nn.Module):
    """One row of logits for every input byte, in which byte i costs `losses[i]` nats."""

    def __init__(self, losses):
        super().__init__()
        rows = torch.zeros(256, 256, dtype=torch.float64)
        for byte, nats in enumerate(losses):
            rows[byte] = math.log((1 - math.exp(-nats)) / 255)
            rows[byte, byte + 1] = -nats
        self.rows = nn.Parameter(rows)

    def forward(self, ids, bounds=None, state=None):
        return LoopOutput(logits=self.rows[ids], state=None, routing=None)


class Plain:
    """Gradient descent at rate 1 that keeps the gradients it was given."""

    def __init__(self, model):
        self.model, self.seen = model, []

    def step(self, lr_scale):
        self.seen.append(self.model.rows.grad.clone())

    def zero_grad(self):
        self.model.rows.grad = None


def state_of(losses):
    device, model = torch.device("cpu"), Rows(losses)
    return TrainState(
        model=model,
        optimizer=Plain(model),
        device=device,
        firewall=Firewall(8),
        latch=Latch(model, every=0, ratio=2.0),
        tally=Tally(device, n_experts=4),
    )


def batch(first, number, scored=True):
    inputs = torch.arange(first, first + number)[None]
    return Batch(inputs, inputs + 1, torch.full_like(inputs, scored, dtype=torch.bool), None, torch.zeros(1))


def test_the_gradient_of_a_short_last_window_is_that_of_its_own_bytes():
    """Five micro-batches in pairs: the third update has one of one byte, its gradient is softmax minus target."""
    state = state_of([4.0, 1.0, 1.0, 1.0, 2.0])
    micro = [batch(byte, 1) for byte in range(5)]
    for first in (0, 2, 4):
        train_step(state, micro[first : first + 2], lr_scale=1.0, settings=SETTINGS)
    assert len(state.optimizer.seen) == state.progress.step == 3
    last = state.optimizer.seen[2]
    expected = state.model.rows[4].detach().softmax(-1)
    expected[5] -= 1
    torch.testing.assert_close(last[4], expected, atol=1e-6, rtol=0)
    assert last[:4].abs().sum() == 0
    torch.testing.assert_close(state.optimizer.seen[1][3, 4], torch.tensor(math.exp(-1) - 1).double() / 2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_unscored_micro_batch_beside_a_scored_one_adds_nothing(order):
    state = state_of([4.0, 1.0, 1.0, 1.0])
    parts = [batch(0, 4), batch(1, 3, scored=False)]
    nats, _, scored = forward_backward(state, [parts[i] for i in order], SETTINGS)
    mixed = state.model.rows.grad.clone()
    state.optimizer.zero_grad()
    forward_backward(state, parts[:1], SETTINGS)
    assert (scored, nats.item() / scored) == (4, pytest.approx(1.75, abs=1e-6))
    torch.testing.assert_close(mixed, state.model.rows.grad, atol=1e-12, rtol=0)


def test_the_log_of_a_run_says_that_a_step_scored_nothing(runs):
    """Step 2 of four reads a batch in which every target is left out."""
    run = runs.begin(runs.config(steps=4))
    real = run.stream.batch

    def batch_of(step):
        whole = real(step)
        return replace(whole, mask=whole.mask & (step != 1))

    run.stream.batch = batch_of
    runs.finish(run)
    rows = runs.rows("run", "train")
    assert [row["scored"] for row in rows] == [32, 0, 32, 32]
    assert [row["empty_steps"] for row in rows] == [0, 1, 1, 1]
    assert (rows[1]["ce"], rows[1]["total"], rows[1]["skipped"]) == (None, None, 0)
    assert "moe" not in rows[1]
    assert runs.rows("run", "event") == []
