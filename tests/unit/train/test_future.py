"""The future-byte head: its targets and its loss by hand, and that it changes no logit."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from dormouse.config.load import load_preset, load_run_config
from dormouse.config.sizes import count_parts
from dormouse.data.batch import Batch
from dormouse.errors import ConfigError
from dormouse.model.lm import Dormouse
from dormouse.store import checkpoint
from dormouse.train.future import counted, future_loss
from dormouse.train.step import StepSettings, forward_backward

SMALL = (
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "engram_rows=64", "engram_dim=4"),
    *("kda_decay_rank=4", "kda_gate_rank=4", "moe_lb_coef=0"),
)


def text_batch(rows=3, length=12, *, bounds=None, mask=None):
    text = torch.randint(256, (rows, length + 1), generator=torch.Generator().manual_seed(1))
    kept = torch.ones(rows, length, dtype=torch.bool) if mask is None else mask
    return Batch(text[:, :-1], text[:, 1:], kept, bounds, torch.arange(rows))


def by_hand(logits, batch, horizon):
    """Position by position."""
    total, number = 0.0, 0
    for b in range(len(batch.inputs)):
        for t in range(batch.inputs.shape[1] - horizon):
            started = batch.bounds is not None and bool(batch.bounds[b, t + 1 : t + horizon + 1].any())
            if batch.mask[b, t + horizon] and not started:
                total += -functional.log_softmax(logits[b, t].double(), -1)[batch.targets[b, t + horizon]].item()
                number += 1
    return total, number


@pytest.mark.parametrize("horizon", [1, 2, 5, 11, 12, 40])
def test_targets_lie_ahead_in_the_same_document_and_are_scored(horizon):
    generator = torch.Generator().manual_seed(2)
    bounds, mask = (torch.rand(3, 12, generator=generator) < p for p in (0.15, 0.8))
    logits = torch.randn(3, 12, 256, generator=generator)
    for batch in (text_batch(), text_batch(mask=mask), text_batch(bounds=bounds, mask=mask)):
        total, number = by_hand(logits, batch, horizon)
        assert counted(batch, horizon).sum() == number
        assert future_loss(logits, batch, horizon).item() == pytest.approx(total, rel=1e-5)


def model_of(*more):
    torch.manual_seed(0)
    model = Dormouse(load_preset("tiny", [*SMALL, *more])).train()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return model


def test_the_head_changes_no_logit_and_is_absent_outside_of_training():
    plain, more = model_of(), model_of("aux_fb_weight=0.5")
    shared = {name: value for name, value in more.state_dict().items() if not name.startswith("future_head")}
    plain.load_state_dict(shared)
    ids = text_batch().inputs
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, more(ids).logits)
        assert more(ids).future_logits.shape == (3, 12, 256)
        assert more.eval()(ids).future_logits is None
    assert plain(ids).future_logits is None


@pytest.mark.parametrize("split", [[3], [1, 2], [1, 1, 1]])
def test_the_gradient_is_that_of_one_mean_however_the_window_is_split(tools, split):
    mask = torch.rand(3, 12, generator=torch.Generator().manual_seed(4)) < 0.6
    whole, settings = text_batch(mask=mask), StepSettings(1.0, aux_fb_weight=0.5, aux_fb_horizon=2)
    rows = torch.arange(3).split(split)
    batches = [
        replace(whole, **{k: getattr(whole, k)[r] for k in ("inputs", "targets", "mask", "window_ids")}) for r in rows
    ]
    model = model_of("aux_fb_weight=0.5")
    _, aux, _ = forward_backward(tools.state(model), batches, settings)
    total, number = by_hand(model(whole.inputs).future_logits.detach(), whole, 2)
    assert aux.item() == pytest.approx(0.5 * total / number, rel=1e-4)
    assert model.future_head.weight.grad.abs().sum() > 0
    found = model.loop.experts.bank.up_V.grad.clone()
    for p in model.parameters():
        p.grad = None
    forward_backward(tools.state(model), [whole], settings)
    torch.testing.assert_close(found, model.loop.experts.bank.up_V.grad, rtol=1e-4, atol=1e-7)


def test_the_closed_form_is_what_is_built():
    assert {p.name: p.parameters for p in count_parts(load_preset("small", ["aux_fb_weight=0.1"]))}[
        "future-byte head"
    ] == 196_864
    config = load_preset("tiny", [*SMALL, "aux_fb_weight=0.1"])
    assert sum(p.numel() for p in Dormouse(config).parameters()) == sum(
        part.parameters for part in count_parts(config) if part.built
    )


def test_weight_and_horizon_change_what_is_trained_and_a_resumed_run_is_the_same(runs):
    found = {}
    for name, sets in {
        "off": [],
        "on": ["aux_fb_weight=0.5"],
        "far": ["aux_fb_weight=0.5", "aux_fb_horizon=5"],
    }.items():
        runs.train(runs.begin(runs.config(*sets), name), finish=True)
        found[name] = checkpoint.load(runs.folder / name / "checkpoints" / "step_6")["model"]["embedding.weight"]
    assert not torch.equal(found["off"], found["on"])
    assert not torch.equal(found["far"], found["on"])
    config = runs.config("aux_fb_weight=0.5")
    runs.train(runs.begin(config, "parts"), stop_at=3)
    runs.train(runs.go_on(config, "parts"), finish=True)
    assert runs.content("parts", 6) == runs.content("on", 6)
    assert runs.rows("on", "train")[-1]["ran"]["future_byte"] == [6, 6]


def test_a_horizon_beyond_every_window_is_refused():
    with pytest.raises(ConfigError, match=r"model\.aux_fb_horizon = 300 with train\.seq_len = 256: no window"):
        load_run_config("tiny", None, ["aux_fb_weight=0.1", "aux_fb_horizon=300"], {"steps": 1})
