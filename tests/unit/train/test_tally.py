import math

import pytest
import torch

from dormouse.model.records import RoutingRecord
from dormouse.train.tally import Tally

CPU = torch.device("cpu")


def add(tally, nats, scored, norm=1.0, aux=0.0, finite=True):
    tally.add(
        nats=torch.tensor(nats),
        aux=torch.tensor(aux),
        scored=scored,
        norm=torch.tensor(norm),
        finite=torch.tensor(finite),
    )


def test_loss_is_nats_over_bytes_and_not_a_mean_of_means():
    tally = Tally(CPU, n_experts=2)
    add(tally, 4.0, 1, aux=0.2)
    add(tally, 3.0, 3, aux=0.4)
    reading = tally.read()
    assert reading.ce == 7 / 4
    assert reading.aux == pytest.approx(0.3)
    assert reading.scored == 4


def test_the_last_and_the_largest_norm_are_kept_as_they_are():
    tally = Tally(CPU, n_experts=2)
    add(tally, 1.0, 1, norm=7.0)
    add(tally, float("nan"), 1, norm=float("inf"), finite=False)
    add(tally, 1.0, 1, norm=2.0)
    reading = tally.read()
    assert reading.grad_norm == 2.0
    assert math.isinf(reading.grad_norm_max)
    assert reading.ce == 1.0


def test_nothing_scored_has_no_loss():
    assert Tally(CPU, n_experts=2).read().ce is None


def test_a_saved_tally_goes_on_and_holds_no_non_finite_number():
    tally = Tally(CPU, n_experts=2)
    add(tally, 4.0, 1, norm=float("inf"), finite=True)
    tally.counts += torch.tensor([3, 1])
    state = tally.state_dict()
    assert torch.isfinite(state["sums"]).all()
    other = Tally(CPU, n_experts=2)
    other.load_state_dict(state)
    add(other, 3.0, 3)
    assert other.read().ce == 7 / 4
    assert other.read().utilization.shares == (0.75, 0.25)


def test_a_reset_tally_is_empty():
    tally = Tally(CPU, n_experts=2)
    add(tally, 4.0, 1)
    tally.counts += 1
    tally.reset()
    assert tally.read().scored == 0
    assert tally.read().utilization is None


def test_null_experts_have_a_share_of_their_own_and_none_in_the_load():
    tally = Tally(CPU, n_experts=2, n_null=2)
    ids = torch.tensor([0, 0, 1, 0, 3, 3, 2, 2, 3, 3]).view(1, 1, 10, 1)
    probs = torch.full((1, 1, 10, 4), 0.25)
    tally.route(RoutingRecord(probs, ids, probs.gather(-1, ids)))
    reading = tally.read()
    assert reading.null == 0.6
    assert reading.utilization.shares == (0.75, 0.25)
    assert reading.gate == 0.25
    assert Tally(CPU, n_experts=2, n_null=2).read().null is None
