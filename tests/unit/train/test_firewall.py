import pytest
import torch
from torch import nn

from dormouse.errors import TrainingHalted
from dormouse.train.firewall import Firewall, clip, global_norm, is_finite
from dormouse.train.step import StepSettings, train_step

INF, NAN = float("inf"), float("nan")


class TwoNumbers(nn.Module):
    """The parameter (1, 2) with a loss that stays finite whatever the gradient."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, ids, bounds=None, state=None):
        from dormouse.model.records import LoopOutput

        logits = torch.zeros(*ids.shape, 256) + 0.0 * self.w.sum()
        return LoopOutput(logits=logits, state=None, routing=None)


def inject(gradient):
    def hook(step, model):
        model.w.grad = torch.tensor(gradient)

    return hook


def bits(state):
    inner = state.optimizer.inner.state[state.model.w]
    return [
        state.model.w.detach().clone(),
        *(inner[key].clone() for key in ("exp_avg", "exp_avg_sq", "step")),
    ]


def step(tools, state, gradient):
    settings = StepSettings(grad_clip=1.0, gradient_hook=inject(gradient), retract_every=1)
    return train_step(state, [tools.batch([[1]], [[2]])], lr_scale=1.0, settings=settings)


@pytest.mark.parametrize(("gradient", "norm"), [((INF, 1.0), "inf"), ((NAN, 1.0), "nan"), ((1e20, 1e20), "inf")])
def test_a_non_finite_norm_under_a_finite_loss_leaves_every_bit(tools, gradient, norm):
    state = tools.state(TwoNumbers())
    step(tools, state, (0.3, 0.4))
    before = bits(state)
    result = step(tools, state, gradient)
    assert torch.isfinite(result.total)
    assert str(result.grad_norm.item()) == norm
    assert result.skipped
    assert all(torch.equal(old, new) for old, new in zip(before, bits(state), strict=True))
    assert state.firewall.skipped == 1
    assert state.progress.step == 2


def test_a_non_finite_loss_is_skipped_too(tools):
    model = tools.Table(logits=torch.full((256, 256), NAN))
    state = tools.state(model)
    result = train_step(state, [tools.batch([[1]], [[2]])], lr_scale=1.0, settings=StepSettings(1.0))
    assert result.skipped
    assert not state.optimizer.inner.state


def test_a_skipped_step_does_not_enter_the_logged_loss(tools):
    state = tools.state(TwoNumbers())
    step(tools, state, (0.3, 0.4))
    step(tools, state, (NAN, 0.4))
    reading = state.tally.read()
    assert reading.scored == 1
    assert reading.grad_norm != reading.grad_norm  # logged as it is


def test_after_a_skip_training_goes_on_as_if_the_step_had_not_been(tools):
    skipping, plain = tools.state(TwoNumbers()), tools.state(TwoNumbers())
    for gradient in ((0.3, 0.4), (INF, 1.0), (0.1, 0.2)):
        step(tools, skipping, gradient)
    for gradient in ((0.3, 0.4), (0.1, 0.2)):
        step(tools, plain, gradient)
    assert torch.equal(skipping.model.w, plain.model.w)


def test_a_row_of_skips_ends_the_run_and_a_good_step_breaks_the_row():
    firewall = Firewall(max_skips=3)
    for good in (False, False, True, False, False):
        firewall.admit(torch.tensor(good))
        firewall.check(1)
    firewall.admit(torch.tensor(False))
    with pytest.raises(TrainingHalted, match=r"3 non-finite steps in a row up to step 6 \(5 in all"):
        firewall.check(6)
    assert TrainingHalted.exit_code != 0


def test_the_norm_covers_sparse_and_dense_gradients_and_clipping_scales_both():
    dense = torch.tensor([3.0, 0.0])
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[5, 5, 1]]), torch.tensor([1.0, 1.0, 0.0]), (9,), check_invariants=True
    ).coalesce()
    other = torch.tensor([[12.0]])
    norm = global_norm([dense, sparse, other])
    assert norm.item() == pytest.approx((9 + 4 + 144) ** 0.5)
    clip([dense, sparse, other], norm, 1.0)
    assert global_norm([dense, sparse, other]).item() == pytest.approx(1.0, rel=1e-5)
    assert global_norm([]).item() == 0.0


def test_small_gradients_are_not_scaled_up():
    gradient = torch.tensor([0.3, 0.4])
    clip([gradient], torch.tensor(0.5), 1.0)
    assert torch.equal(gradient, torch.tensor([0.3, 0.4]))


def test_finite_means_every_value():
    assert is_finite(torch.tensor(1.0), torch.tensor(2.0)).item()
    assert not is_finite(torch.tensor(1.0), torch.tensor(INF)).item()
