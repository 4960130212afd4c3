import math
from dataclasses import replace

import pytest
import torch

from dormouse.model.records import RoutingRecord
from dormouse.ops.balance import switch_term, z_loss
from dormouse.ops.retraction import RetractionErrors
from dormouse.train.step import StepSettings, forward_backward, train_step
from dormouse.train.tally import Tally

SETTINGS = StepSettings(grad_clip=1e9)


def logits_with_losses(losses):
    """A table in which predicting byte i+1 after byte i costs `losses[i]` nats."""
    rows = torch.zeros(256, 256)
    for byte, nats in enumerate(losses):
        keep = math.exp(-nats)
        rows[byte] = math.log((1 - keep) / 255)
        rows[byte, byte + 1] = math.log(keep)
    return rows


def test_a_byte_weighs_the_same_in_a_short_micro_batch_and_in_a_long_one(tools):
    """Losses (4) and (1, 1, 1): 7/4, not the mean of means 2.5."""
    model = tools.Table(logits=logits_with_losses([4.0, 1.0, 1.0, 1.0]))
    short = tools.batch([[0, 0, 0]], [[1, 0, 0]], [[1, 0, 0]])
    long = tools.batch([[1, 2, 3]], [[2, 3, 4]])
    state = tools.state(model)
    nats, _, scored = forward_backward(state, [short, long], SETTINGS)
    assert nats.item() / scored == pytest.approx(1.75, abs=1e-6)
    split = model.rows.grad.clone()

    model.rows.grad = None
    joined = tools.batch([[0, 0, 0], [1, 2, 3]], [[1, 0, 0], [2, 3, 4]], [[1, 0, 0], [1, 1, 1]])
    forward_backward(state, [joined], SETTINGS)
    torch.testing.assert_close(split, model.rows.grad, atol=1e-6, rtol=1e-6)


def test_five_micro_batches_in_pairs_are_three_updates_and_the_last_divides_by_its_own_bytes(tools):
    model = tools.Table(logits=logits_with_losses([4.0, 1.0, 1.0, 1.0, 2.0]))
    micro = [tools.batch([[byte]], [[byte + 1]]) for byte in (0, 1, 2, 3)] + [tools.batch([[4]], [[5]])]
    state = tools.state(model, tools.PlainAdamW(model, lr=0.0))
    windows = [micro[first : first + 2] for first in range(0, 5, 2)]
    results = [train_step(state, window, lr_scale=1.0, settings=SETTINGS) for window in windows]
    assert [result.scored for result in results] == [2, 2, 1]
    assert [result.ce.item() for result in results] == pytest.approx([2.5, 1.0, 2.0], abs=1e-5)
    assert state.progress.step == 3


def test_a_window_without_a_scored_byte_has_no_loss_no_gradient_and_changes_nothing(tools):
    model = tools.Table(routed=True)
    state = tools.state(model)
    train_step(state, [tools.batch([[1, 2]], [[3, 4]])], lr_scale=1.0, settings=SETTINGS)
    state.tally.reset()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    retractions = []
    result = train_step(
        state,
        [tools.batch([[1, 2]], [[3, 4]], [[0, 0]])],
        lr_scale=1.0,
        settings=StepSettings(1.0, moe_lb_coef=0.1, retract_every=1, retract=retractions.append),
    )
    assert (result.ce.item(), result.total.item(), result.grad_norm.item(), result.scored) == (0, 0, 0, 0)
    assert not result.skipped
    assert retractions == []
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert state.firewall.skipped == 0
    assert state.progress.empty_steps == 1
    assert state.tally.read().scored == 0


@pytest.mark.parametrize("split", [[4], [2, 2], [1, 1, 1, 1], [1, 3]])
def test_the_balance_gradient_does_not_depend_on_the_split_into_micro_batches(tools, split):
    """Identical sequences, so that every split has equal statistics (DM-03)."""

    def router_gradient(sizes, coefficient):
        model = tools.Table(routed=True)
        batches = [tools.batch([[7, 8, 9]] * size, [[8, 9, 10]] * size) for size in sizes]
        settings = StepSettings(1.0, moe_lb_coef=coefficient)
        _, aux, _ = forward_backward(tools.state(model), batches, settings)
        gradient = torch.zeros_like(model.router) if model.router.grad is None else model.router.grad
        return gradient, aux.item()

    (with_term, value), (without, nothing) = router_gradient(split, 0.01), router_gradient(split, 0.0)
    (reference, expected), (base, _) = router_gradient([4], 0.01), router_gradient([4], 0.0)
    assert (reference - base).norm() > 1e-4
    torch.testing.assert_close(with_term - without, reference - base, rtol=1e-6, atol=1e-9)
    assert value == pytest.approx(expected, rel=1e-6)
    assert nothing == 0.0


def test_cross_entropy_auxiliary_and_total_are_separate_numbers(tools):
    state = tools.state(tools.Table(routed=True))
    batch = tools.batch([[1, 2, 3, 4]], [[2, 3, 4, 5]])
    result = train_step(state, [batch], lr_scale=1.0, settings=StepSettings(1.0, moe_lb_coef=0.5))
    assert result.ce.item() == pytest.approx(math.log(256), abs=1e-5)
    assert result.aux.item() >= 0.5 * (1 - 1e-6)  # the balance term is at least 1
    assert result.total.item() == pytest.approx(result.ce.item() + result.aux.item())
    reading = state.tally.read()
    assert reading.ce == pytest.approx(math.log(256), abs=1e-5)
    assert reading.aux == pytest.approx(result.aux.item())


def test_the_logged_norm_is_the_one_before_clipping_over_all_tensors(tools):
    model = tools.Table()
    state = tools.state(model)

    def set_gradients(step, module):
        module.rows.grad = torch.zeros_like(module.rows)
        module.rows.grad[0, 0] = 3.0
        module.router.grad = torch.zeros_like(module.router)
        module.router.grad[0, 0] = 4.0

    settings = StepSettings(grad_clip=1.0, gradient_hook=set_gradients)
    result = train_step(state, [tools.batch([[1]], [[2]])], lr_scale=1.0, settings=settings)
    assert result.grad_norm.item() == pytest.approx(5.0)
    assert model.rows.grad[0, 0].item() == pytest.approx(0.6, rel=1e-5)
    assert model.router.grad[0, 0].item() == pytest.approx(0.8, rel=1e-5)


def test_selections_are_counted_once_a_position(tools):
    state = tools.state(tools.Table(routed=True))
    train_step(state, [tools.batch([[1, 2, 3], [4, 5, 6]], [[2, 3, 4], [5, 6, 7]])], lr_scale=1.0, settings=SETTINGS)
    assert state.tally.counts.sum().item() == 6
    assert not state.tally.counts.requires_grad
    assert state.tally.sums.grad_fn is None


def test_without_routing_there_is_no_utilisation(tools):
    state = tools.state(tools.Table(routed=False))
    train_step(state, [tools.batch([[1]], [[2]])], lr_scale=1.0, settings=SETTINGS)
    assert state.tally.read().utilization is None


def test_retraction_comes_every_so_many_steps(tools):
    calls = []

    def note(model):
        calls.append(model)
        return RetractionErrors(None, None)

    settings = StepSettings(1.0, retract_every=3, retract=note)
    state = tools.state(tools.Table())
    for _ in range(7):
        train_step(state, [tools.batch([[1]], [[2]])], lr_scale=1.0, settings=settings)
    assert len(calls) == 2


def test_a_skipped_step_counts_no_expert(tools):
    """A NaN in the readout after routing has happened: nothing was trained, so nothing was used."""
    logits = torch.full((256, 256), float("nan"))
    state = tools.state(tools.Table(routed=True, logits=logits))
    state.tally.counts += torch.tensor([5, 0, 0, 1])
    result = train_step(
        state, [tools.batch([[0, 1, 5]], [[1, 2, 3]])], lr_scale=1.0, settings=StepSettings(grad_clip=1.0)
    )
    assert result.skipped
    assert state.tally.counts.tolist() == [[5, 0, 0, 1]]
    assert state.tally.selected.item() == 0.0


@pytest.mark.parametrize("per_pass", [False, True])
def test_auxiliary_terms_are_their_coefficient_times_the_term(tools, per_pass):
    """Two passes that route differently: by themselves their terms are averaged, together their statistics are."""

    class TwoPasses(tools.Table):
        def forward(self, ids, bounds=None, state=None):
            out = super().forward(ids)
            both = {
                name: torch.cat([value, value.roll(1, -1) if name in ("logits", "probs") else (value + 1) % 4])
                for name, value in vars(out.routing).items()
                if value is not None and name != "gates"
            }
            return replace(out, routing=RoutingRecord(**both, gates=both["ids"].float()))

    model = TwoPasses(routed=True)
    batch = tools.batch([[1, 2, 3, 4]], [[2, 3, 4, 5]])
    settings = StepSettings(1.0, moe_lb_coef=0.5, moe_z_coef=0.25, balance_per_pass=per_pass)
    state = tools.state(model)
    state.tally = Tally(torch.device("cpu"), n_experts=4, n_passes=2)
    aux = train_step(state, [batch], lr_scale=0.0, settings=settings).aux.item()
    routing = model(batch.inputs).routing
    pairs = zip(routing.probs, routing.ids, strict=True)
    switch = sum(switch_term(p, i) for p, i in pairs) / 2 if per_pass else switch_term(routing.probs, routing.ids)
    assert aux == pytest.approx(0.5 * switch.item() + 0.25 * z_loss(routing.logits).item(), rel=1e-5)
