"""The latch on real runs: one drifted expert falls back alone, is written down, and stays so after a resume."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from dormouse import ExpertBank, SpectralLinear
from dormouse.config.load import load_run_config
from dormouse.model.factor_format import formatted_layers
from dormouse.model.lm import Dormouse
from dormouse.ops.retraction import RetractionErrors
from dormouse.quant import round_to
from dormouse.quant.latch import FLOOR, rounding_error, threshold
from dormouse.train.latch import Latch
from dormouse.train.load import load_run
from dormouse.train.packed import pack_model

SMALL = ("d_model=16", "n_heads=1", "head_dim=16", "rank=8", "d_ffn=32", "kda_decay_rank=4", "kda_gate_rank=4")
EXPERTS = "loop.experts.bank"


def model_of(*overrides):
    torch.manual_seed(0)
    settings = [*SMALL, "engram_rows=64", "engram_dim=4", 'tsct_parts=["experts","out_proj","head"]', *overrides]
    return Dormouse(load_run_config("tiny", None, settings, {}).model)


def bank(model):
    return model.loop.experts.bank


def drift(model, expert, factor="up_U", by=1.3):
    with torch.no_grad():
        getattr(bank(model), factor)[expert, :, 0] *= by


def effective(model):
    return {
        (layer.name, part, name): layer.effective(name)[part].clone()
        for layer in formatted_layers(model)
        for name in layer.factors
        for part in range(layer.format.n_parts)
    }


@pytest.mark.parametrize("fmt", ["bf16", "fp16", "fp8", "int8", "fp4", "int4", "ternary"])
def test_a_drifted_factor_takes_its_expert_to_fp32_and_nothing_else(fmt):
    model = model_of(f"quant={fmt}")
    latch = Latch(model, every=1, ratio=2.0)
    assert latch.check(1, latch.read()) == []
    drift(model, 2, by=4.0)
    before = effective(model)
    [trip] = latch.check(2, latch.read())
    assert (trip.layer, trip.part, trip.factor, trip.step, trip.format) == (EXPERTS, 2, "up_U", 2, fmt)
    assert trip.error > trip.threshold
    for (layer, part, name), seen in effective(model).items():
        if (layer, part) == (EXPERTS, 2):
            assert torch.equal(seen, getattr(bank(model), name)[2])
        else:
            assert torch.equal(seen, before[layer, part, name])
    assert latch.check(3, latch.read()) == []
    assert latch.line() == f"tsct={fmt} latched=1/6"


def test_the_threshold_knows_format_and_width():
    """Published readings of rounded orthonormal 768 x 64 factors: bf16 8.9e-5, E4M3 about 1.5e-3, E2M1 about 6.6e-3."""
    assert rounding_error(768, 64, "bf16", 32) == pytest.approx(8.9e-5, rel=0.1)
    assert rounding_error(2048, 64, "bf16", 32) == pytest.approx(5.3e-5, rel=0.1)
    assert rounding_error(768, 64, "fp16", 32) == pytest.approx(1.1e-5, rel=0.1)
    assert rounding_error(768, 64, "fp8", 32) == pytest.approx(1.56e-3, rel=0.25)
    assert rounding_error(768, 64, "fp4", 32) == pytest.approx(6.6e-3, rel=0.25)
    for fine in ("fp32", "fp16", "bf16"):
        assert threshold(768, 64, fine, 32, 2.0) == FLOOR
    assert threshold(768, 64, "fp4", 32, 3.0) == pytest.approx(3 * 6.6e-3, rel=0.25)


def error_of(X):
    """||X^T X - I||_F / r of one matrix, in float64 by numpy."""
    X = X.detach().double().numpy()
    return float(np.linalg.norm(X.T @ X - np.eye(X.shape[1])) / X.shape[1])


def test_readings_are_the_errors_of_masters_and_of_what_the_forward_sees():
    model = model_of("quant=int4")
    drift(model, 1)
    for reading in Latch(model, every=1, ratio=2.0).read():
        layer = next(layer for layer in formatted_layers(model) if layer.name == reading.layer)
        master = layer.factors[reading.factor].detach()
        seen = round_to(master, "int4", 32)
        parts = [(master, seen)] if master.ndim == 2 else list(zip(master, seen, strict=True))
        assert reading.master == pytest.approx([error_of(x) for x, _ in parts], abs=1e-6)
        assert reading.effective == pytest.approx([error_of(x) for _, x in parts], abs=1e-6)


@pytest.mark.parametrize("layer", ["out_proj", "lm_head"])
def test_a_plain_layer_falls_back_as_a_whole(layer):
    model = model_of("quant=fp4")
    own = getattr(model, layer)
    with torch.no_grad():
        own.V[:, 0] *= 4
    latch = Latch(model, every=1, ratio=2.0)
    [trip] = latch.check(1, latch.read())
    assert (trip.layer, trip.part, trip.factor) == (layer, 0, "V")
    x = torch.randn(3, 16)
    assert torch.equal(own(x), ((x @ own.U) * own.s) @ own.V.T)
    assert [name for name in (EXPERTS, "out_proj", "lm_head") if fell_back(model, name)] == [layer]


def fell_back(model, name):
    return next(layer for layer in formatted_layers(model) if layer.name == name).format.fell_back


def test_parts_that_fell_back_survive_what_tensors_go_through():
    layer = SpectralLinear(16, 16, 4, weight_format="fp4")
    layer.weight_format.fell_back.add(0)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer).double()):
        assert twin.weight_format.fell_back == {0}


def test_a_layer_made_without_numbers_has_nothing_fallen_back():
    """Meta device, then real memory: no flag may come from whatever lay there."""
    with torch.device("meta"):
        bank_ = ExpertBank(d_model=16, d_ffn=32, n_experts=4, rank=4, weight_format="fp4")
    real = ExpertBank(d_model=16, d_ffn=32, n_experts=4, rank=4, weight_format="fp4")
    empty, assigned = copy.deepcopy(bank_).to_empty(device="cpu"), copy.deepcopy(bank_)
    empty.load_state_dict(real.state_dict())
    assigned.load_state_dict(real.state_dict(), assign=True)
    for twin in (empty, assigned):
        assert torch.equal(twin.prepare().U2, round_to(real.down_U.detach(), "fp4", 32))


def test_an_alert_in_fp32_takes_nothing_back():
    model = model_of()
    drift(model, 1)
    latch = Latch(model, every=1, ratio=2.0)
    assert len(latch.check(1, latch.read())) == 1
    assert latch.line() == "tsct=fp32 alerts=1/6"
    assert pack_model(model, "fp4", 32)[1].kept == ()


@pytest.mark.parametrize(("settings", "alerts"), [((), 1), (("retract_every=0",), 0), (("retract_when=1e-9",), 1)])
def test_a_run_in_fp32_is_watched_only_where_somebody_retracts(runs, settings, alerts):
    run = runs.begin(runs.config(*settings, "latch_every=2", "muon_lr=1e-6", steps=3))

    def disturb(step, model):
        if step == 1:
            drift(model, 0)

    @torch.no_grad()
    def write_back(model):
        for _, factor in model.spectral_factors():
            factor.mul_(1.0)
        return RetractionErrors(None, None)

    run.settings = replace(run.settings, gradient_hook=disturb, retract=write_back)
    runs.train(run)
    assert len([row for row in runs.rows("run") if row.get("event") == "latch"]) == alerts


def test_not_a_number_trips():
    model = model_of("quant=fp8")
    with torch.no_grad():
        bank(model).down_V[0, 0, 0] = float("nan")
    latch = Latch(model, every=1, ratio=2.0)
    assert [(trip.part, trip.factor) for trip in latch.check(1, latch.read())] == [(0, "down_V")]


@pytest.mark.parametrize("watch", [True, False])
def test_in_fp32_a_trip_is_an_alert_where_somebody_retracts(watch):
    model = model_of()
    drift(model, 3)
    before = effective(model)
    latch = Latch(model, every=1, ratio=2.0, watch_fp32=watch)
    trips = latch.check(1, latch.read())
    assert [(trip.part, trip.format) for trip in trips] == ([(3, "fp32")] if watch else [])
    assert all(torch.equal(seen, before[key]) for key, seen in effective(model).items())
    assert latch.check(2, latch.read()) == []


def test_a_saved_latch_restores_exactly_its_parts():
    model = model_of("quant=fp4")
    latch = Latch(model, every=1, ratio=2.0)
    drift(model, 0, by=2.0)
    latch.check(1, latch.read())
    twin = copy.deepcopy(model)
    bank(twin).weight_format.fell_back.update(range(4))
    other = Latch(twin, every=1, ratio=2.0)
    other.load_state_dict(latch.state_dict())
    assert other.trips == latch.trips
    assert bank(twin).weight_format.fell_back == {0}


def test_an_expert_that_fell_back_learns_in_fp32_and_the_others_through_their_rounding():
    model = model_of("quant=int4")
    bank(model).weight_format.fell_back.add(1)
    weight = torch.randn(4, 16, 8)
    seen = bank(model).weight_format(bank(model).up_U)
    (gradient,) = torch.autograd.grad((seen * weight).sum(), bank(model).up_U)
    assert torch.equal(gradient, weight)


def test_weights_of_a_checkpoint_do_not_depend_on_the_format():
    assert list(model_of("quant=fp4").state_dict()) == list(model_of().state_dict())


def test_a_run_with_a_drifted_expert_goes_on_and_a_resume_keeps_the_latch(runs):
    assert disturbed(runs, "whole", steps=6).step == 6
    disturbed(runs, "parts", steps=4)
    runs.train(runs.go_on(drifting(runs, steps=6), "parts"))
    [trip] = [row for row in runs.rows("parts") if row.get("event") == "latch"]
    assert (trip["layer"], trip["part"], trip["step"], trip["format"]) == (EXPERTS, 1, 4, "fp4")
    assert [row["tsct"] for row in runs.rows("parts", "eval")] == ["tsct=fp4", *["tsct=fp4 latched=1/4"] * 2]
    assert runs.content("parts", 6)["latch"] == runs.content("whole", 6)["latch"]
    assert runs.content("parts", 6)["model"] == runs.content("whole", 6)["model"]
    model = load_run(runs.folder / "parts", checkpoint="latest").model
    assert bank(model).weight_format.fell_back == {1}


def drifting(runs, *, steps):
    settings = ("quant=fp4", "latch_every=2", "retract_every=0", "latch_ratio=20", "muon_lr=0.0001", "eval_every=2")
    return runs.config(*settings, steps=steps)


def disturbed(runs, name, *, steps):
    """Expert 1 is thrown off in step 3, before the check after step 4; without retraction it stays so."""
    run = runs.begin(drifting(runs, steps=steps), name)

    def disturb(step, model):
        if step == 3:
            drift(model, 1, by=9.0)

    run.settings = replace(run.settings, gradient_hook=disturb)
    return runs.train(run)


@pytest.mark.parametrize(
    ("retract_every", "latch_every", "checks"),
    [(1, 3, [3, 6, 9]), (4, 3, [4, 8]), (0, 3, [3, 6, 9]), (5, 1, [5, 10]), (2, 4, [4, 8])],
)
def test_a_check_waits_for_the_next_retraction(runs, retract_every, latch_every, checks):
    runs.train(runs.begin(runs.config(f"latch_every={latch_every}", retract_every=retract_every, steps=10)))
    assert [row["step"] for row in runs.rows("run", "latch")] == checks


def test_drift_between_retractions_trips_nothing(runs):
    """At a rate that throws factors far off within three steps, a coarse format is judged after they are back."""
    settings = ("quant=int8", "latch_every=1", "retract_every=3", "muon_lr=0.05", "warmup_steps=0")
    runs.train(runs.begin(runs.config(*settings, steps=9)))
    assert max(row["orthogonality_drift"] or 0 for row in runs.rows("run", "train")) > 0.02
    assert [row for row in runs.rows("run") if row.get("event") == "latch"] == []


@pytest.mark.parametrize("fmt", ["bf16", "fp16", "fp8", "int8", "fp4", "int4", "ternary"])
def test_five_hundred_healthy_steps_never_trip(runs, fmt):
    quiet = ("latch_every=50", "log_every=500", "eval_every=0", "save_every=0")
    runs.train(runs.begin(runs.config(f"quant={fmt}", *quiet, steps=500), fmt))
    assert len(runs.rows(fmt, "latch")) == 10
    assert [row for row in runs.rows(fmt) if row.get("event") == "latch"] == []
