"""Retraction of a whole model: every factor, in place, as the run's own loop calls it."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from dormouse import ExpertBank, SpectralLinear
from dormouse.config.load import load_preset
from dormouse.model.lm import Dormouse
from dormouse.ops.polar import orthogonality_error
from dormouse.ops.retraction import RetractionErrors
from dormouse.train.retract import largest_error, retract
from dormouse.train.state import factors

KDA = ("kda_decay_rank=4", "kda_gate_rank=4")
SMALL = ("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "engram_rows=64", "engram_dim=4", *KDA)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Dormouse(load_preset("tiny", SMALL))


def test_every_drifted_factor_becomes_its_polar_factor(model):
    names = [name for name, _ in model.spectral_factors()]
    assert len(names) == 4
    expected = {}
    with torch.no_grad():
        for name, p in model.spectral_factors():
            p.add_(0.02 * torch.randn_like(p))
            U, _, Vh = torch.linalg.svd(p.double(), full_matrices=False)
            expected[name] = (U @ Vh).float()
    drift = largest_error(factors(model)).item()
    retract(model, iters=2)
    assert drift > 1e-3
    assert largest_error(factors(model)).item() < 1e-6
    for name, p in model.spectral_factors():
        torch.testing.assert_close(p.detach(), expected[name], atol=1e-5, rtol=0)


def test_layers_in_a_strangers_model_are_retracted_and_nothing_else_is_touched():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 8), SpectralLinear(8, 8, 4), ExpertBank(d_model=8, d_ffn=16, n_experts=3, rank=4)
    )
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))
    before = copy.deepcopy(model)
    retract(model, iters=2)
    for (name, now), (_, then) in zip(model.named_parameters(), before.named_parameters(), strict=True):
        if name.endswith(("U", "V")):
            assert orthogonality_error(now.detach()).max() < 1e-6
        else:
            assert torch.equal(now, then)


def test_a_factor_that_two_layers_share_is_retracted_once():
    torch.manual_seed(0)
    model = nn.ModuleList([SpectralLinear(32, 32, 8), SpectralLinear(32, 32, 8)])
    model[1].U = model[0].U
    with torch.no_grad():
        model[0].U.add_(0.02 * torch.randn(32, 8))
    expected = torch.linalg.svd(model[0].U.detach().double(), full_matrices=False)
    retract(model, iters=2)
    torch.testing.assert_close(model[0].U.detach(), (expected.U @ expected.Vh).float(), rtol=0, atol=1e-5)


@torch.no_grad()
def touched(model):
    """A retraction that writes every factor back as it is: one that writes nothing fails the counter audit."""
    for _, factor in model.spectral_factors():
        factor.mul_(1.0)
    return RetractionErrors(None, None)


def retracting_steps(runs, name, *settings, steps=8, **more):
    """Numbers of the steps after which a run retracts, with a rate that is constant from the first step."""
    run = runs.begin(runs.config("warmup_steps=0", "decay_fraction=0", *settings, steps=steps, **more), name)
    seen = []

    def note(model):
        seen.append(run.state.progress.step + 1)
        return touched(model)

    run.settings = replace(run.settings, retract=note)
    runs.train(run)
    return seen


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("retract_every=3",), [3, 6]),
        (("retract_when=0.055", "muon_lr=0.02", "lr=1e-9"), [3, 6]),
        (("retract_when=0.035", "muon_lr=0.01"), [4, 8]),
        (("retract_when=0.055", "optimizer=adamw", "lr=0.02", "muon_lr=1e-9"), [3, 6]),
        (("retract_when=9",), []),
    ],
)
def test_factors_are_retracted_by_steps_or_by_the_rate_they_moved_at(runs, settings, expected):
    assert retracting_steps(runs, "run", *settings) == expected


def test_a_skipped_step_moves_nothing_and_is_not_counted(runs):
    run = runs.begin(runs.config("retract_every=3", steps=8))
    seen = []

    def spoil(step, model):
        if step == 2:
            next(model.parameters()).grad.fill_(float("nan"))

    def note(model):
        seen.append(run.state.progress.step + 1)
        return touched(model)

    run.settings = replace(run.settings, gradient_hook=spoil, retract=note)
    runs.train(run)
    assert seen == [4, 7]


@pytest.mark.parametrize("setting", ["retract_when=0.05", "retract_every=4"])
def test_the_cadence_goes_on_after_a_resume(runs, setting):
    config = runs.config(setting, "warmup_steps=0", "decay_fraction=0", steps=8)
    runs.train(runs.begin(config, "whole"))
    runs.train(runs.begin(config, "parts"), stop_at=5)
    runs.train(runs.go_on(config, "parts"))
    assert runs.content("parts", 8) == runs.content("whole", 8)


def test_a_row_says_how_far_off_the_factors_were_before_and_after(runs):
    run = runs.begin(runs.config(steps=2))

    def disturb(step, model):
        if step == 1:
            with torch.no_grad():
                model.loop.experts.bank.up_U[0] *= 1.05  # X^T X = 1.1025 I: 0.1025 * sqrt(4) / 4

    run.settings = replace(run.settings, gradient_hook=disturb)
    runs.train(run)
    first, second = runs.rows("run", "train")
    assert first["orthogonality_drift"] < 0.01
    assert second["orthogonality_drift"] == pytest.approx(0.05125, rel=0.1)
    assert second["orthogonality_error"] < 1e-3


def test_the_largest_error_is_that_of_the_worst_matrix(model):
    with torch.no_grad():
        factors(model)[2][1].mul_(1.1)  # X^T X = 1.21 I: error 0.21 * sqrt(4) / 4
    assert largest_error(factors(model)).item() == pytest.approx(0.105, rel=1e-4)
    assert orthogonality_error(factors(model)[2])[1].item() == pytest.approx(0.105, rel=1e-4)
    assert largest_error([]).item() == 0.0


@pytest.mark.parametrize("method", ["polar", "qr", "cholesky_qr"])
def test_the_errors_of_every_factor_are_reported(model, method):
    with torch.no_grad():
        factors(model)[2][1].mul_(1.1)
    errors = retract(model, method=method, measure=True)
    assert sum(len(e) for e in errors.before) == sum(p.shape[:-2].numel() for p in factors(model))
    assert errors.largest_before.item() == pytest.approx(0.105, rel=1e-4)
    assert errors.largest_after.item() == largest_error(factors(model)).item() < 1e-3


@pytest.mark.parametrize(("every", "low", "high"), [(1, 0.0, 1e-6), (0, 1e-4, 1.0)])
def test_a_run_keeps_its_factors_orthonormal_only_by_retracting(runs, every, low, high):
    run = runs.begin(runs.config(retract_every=every, steps=6))
    runs.train(run)
    error = largest_error(factors(run.state.model)).item()
    assert low <= error <= high
    assert runs.rows("run", "train")[-1]["orthogonality_error"] == pytest.approx(error)


def test_the_cadence_counts_steps(runs):
    """Retraction after steps 3 and 6 only: the factors have drifted after step 5."""
    run = runs.begin(runs.config(retract_every=3, steps=6))
    runs.train(run)
    drifted = [row["orthogonality_error"] > 1e-5 for row in runs.rows("run", "train")]
    assert drifted == [True, True, False, True, True, False]
