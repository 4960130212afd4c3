"""DM-08: what should move and did not is named; every knob changes something observable, or is announced."""

import pytest
import torch

from dormouse.config.inert import inert_settings
from dormouse.config.load import load_run_config
from dormouse.errors import TrainingHalted
from dormouse.model.lm import Dormouse
from dormouse.store import checkpoint
from dormouse.store.metrics import read_metrics
from dormouse.train.run import build_model

FORMATS = ("bf16", "fp16", "fp8", "int8", "fp4", "int4", "ternary")
SPECTRAL = 'tsct_parts=["experts","out_proj","head"]'


@pytest.fixture
def model_of(runs):
    def build(*overrides) -> Dormouse:
        model = build_model(runs.config(SPECTRAL, *overrides).model, seed=3)
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.05 * torch.randn(p.shape, generator=generator))
        return model

    return build


@torch.no_grad()
def logits(model):
    return model(torch.arange(64).view(2, 32) * 3 % 256).logits


@pytest.mark.parametrize("fmt", FORMATS)
def test_each_weight_format_changes_the_forward(model_of, fmt):
    assert not torch.equal(logits(model_of(f"quant={fmt}")), logits(model_of()))


def test_each_pair_of_weight_formats_differs(model_of):
    found = [logits(model_of(f"quant={fmt}")) for fmt in FORMATS]
    assert not [1 for i, a in enumerate(found) for b in found[:i] if torch.equal(a, b)]


@pytest.mark.parametrize("fmt", ["8", "4", "fp4"])
def test_each_activation_format_changes_the_forward(model_of, fmt):
    plain = model_of()
    seen = logits(model_of(f"act_quant={fmt}"))
    assert not torch.equal(seen, logits(plain))
    assert not torch.equal(seen, logits(model_of(f"act_quant={fmt}", "act_group=4")))


def test_attention_never_reads_below_eight_bits(model_of, monkeypatch):
    from dormouse.model import activation_format

    asked = []
    rounded = activation_format.fake_quant_activations
    monkeypatch.setattr(
        activation_format, "fake_quant_activations", lambda x, f, g: asked.append(f) or rounded(x, f, g)
    )
    for fmt in ("none", "8", "4", "fp4"):
        asked.clear()
        logits(model_of(f"act_quant={fmt}"))
        assert asked == [{"none": "none"}.get(fmt, "8"), fmt] * 2  # attention, then experts, in each of two passes


@pytest.mark.parametrize("fmt", ["fp8", "int8", "fp4", "int4", "ternary"])
def test_the_group_of_a_scale_changes_the_forward(model_of, fmt):
    assert not torch.equal(logits(model_of(f"quant={fmt}", "quant_group=2")), logits(model_of(f"quant={fmt}")))


def factors_after(runs, name, *overrides, steps=4):
    config = runs.config(SPECTRAL, *overrides, steps=steps)
    assert inert_settings(config) == [line for line in inert_settings(config) if "warmup" in line]
    runs.finish(runs.begin(config, name))
    return checkpoint.load(runs.folder / name / "checkpoints" / f"step_{steps}")["model"]["loop.experts.bank.up_V"]


RETRACTION = {
    "retract_every": ("retract_every=2",),
    "never": ("retract_every=0",),
    "retract_when": ("retract_when=0.004",),
    "retract_iters": ("retract_iters=3", "muon_lr=0.3"),
    "qr": ("retraction=qr", "muon_lr=0.3"),
    "cholesky_qr": ("retraction=cholesky_qr", "muon_lr=0.3"),
}


@pytest.mark.parametrize("knob", RETRACTION)
def test_each_knob_of_the_retraction_changes_the_trained_factors(runs, knob):
    plain = [change for change in RETRACTION[knob] if change.startswith("muon_lr")]
    changed = factors_after(runs, "changed", *RETRACTION[knob], steps=3)
    assert not torch.equal(changed, factors_after(runs, "plain", *plain, steps=3))


def test_retraction_repairs_a_disturbed_factor_and_without_it_nothing_does(runs):
    """A factor disturbed to 1e-2 reads below 1e-3 after the step's retraction, and as before without one."""
    for every, repaired in ((1, True), (0, False)):
        config = runs.config(f"retract_every={every}", "muon_lr=1e-6", "latch_every=1", "latch_ratio=2", steps=1)

        def disturb(step, model):
            with torch.no_grad():
                model.loop.experts.bank.up_U[0] *= 1.02

        runs.finish(runs.begin(config, f"every{every}"), disturb)
        [row] = [r for r in read_metrics(runs.folder / f"every{every}" / "metrics.jsonl") if r["kind"] == "latch"]
        error = next(r["master"][0] for r in row["readings"] if r["factor"] == "up_U")
        assert (error < 1e-3) == repaired
        assert repaired or error > 1e-2


@pytest.mark.parametrize(("every", "checks"), [(0, 0), (1, 4), (2, 2), (3, 1)])
def test_the_latch_looks_as_often_as_it_is_told(runs, every, checks):
    runs.finish(runs.begin(runs.config(f"latch_every={every}", steps=4)))
    assert len([row for row in read_metrics(runs.folder / "run" / "metrics.jsonl") if row["kind"] == "latch"]) == checks


def test_the_ratio_of_the_latch_decides(runs):
    def disturb(step, model):
        with torch.no_grad():
            model.loop.experts.bank.up_U[0] *= 1.5

    for ratio, trips in ((1.5, True), (90.0, False)):
        config = runs.config("quant=fp4", "retract_every=0", "latch_every=1", f"latch_ratio={ratio}", steps=1)
        runs.finish(runs.begin(config, f"ratio{ratio}"), disturb)
        rows = read_metrics(runs.folder / f"ratio{ratio}" / "metrics.jsonl")
        assert any(row.get("event") == "latch" for row in rows) == trips


INERT = {
    ("quant=fp4", "use_tsct=false"): "quant",
    ("quant=bf16", "quant_group=16"): "quant_group",
    ("quant_group=16",): "quant_group",
    ("act_group=4",): "act_group",
    ("retract_every=0", "retraction=qr"): "retraction",
    ("retraction=qr", "retract_iters=3"): "retract_iters",
    ("retract_when=0.1", "retract_every=7"): "retract_every",
    ("use_tsct=false", "retract_when=0.1"): "retract_when",
    ("use_tsct=false", "latch_every=7"): "latch_every",
    ("latch_ratio=3",): "latch_ratio",
    ("quant=fp4", "latch_every=0", "latch_ratio=3"): "latch_ratio",
}


@pytest.mark.parametrize(("settings", "key"), INERT.items(), ids=str)
def test_a_knob_without_effect_is_announced(settings, key):
    said = inert_settings(load_run_config("tiny", None, list(settings), {"steps": 100}))
    assert [line for line in said if line.startswith(f"{key} = ") and "has no effect" in line]


def audit_of(runs, name, hook=None):
    runs.finish(runs.begin(runs.config("moe_topk=2", "moe_lb_coef=0.01", steps=3), name, audit=True), hook)
    [event] = [row for row in runs.rows(name, "event") if row["event"] == "audit"]
    return event


def test_the_audit_lists_every_tensor_expert_by_expert_and_column_by_column(runs):
    listed = {movement["name"]: movement for movement in audit_of(runs, "healthy")["movements"]}
    model = build_model(runs.config("moe_topk=2").model, seed=0)
    whole = {name for name, value in model.named_parameters() if value.requires_grad}
    assert {name.split("[")[0] for name in listed} == whole
    bank = [f"loop.experts.bank.{part}[{e}]" for part in ("up_U", "up_s", "up_V", "down_U", "down_V") for e in range(4)]
    columns = [f"loop.controller.weight[{row}]" for row in ("w_attn", "w_mem", "w_ffn", "router 0", "router 3")]
    for name in (*bank, *columns, "embedding.weight", "loop.engram.table"):
        assert listed[name]["largest_change"] > 0, name
        assert listed[name]["largest_gradient"] > 0, name
    assert not listed["loop.controller.weight[padding 7]"]["expected"]


STILL = {
    "loop.experts.bank.up_U[2]": ("loop.experts.bank.up_U", 2),
    "loop.experts.bank.down_s[1]": ("loop.experts.bank.down_s", 1),
    "loop.controller.weight[router 1]": ("loop.controller.weight", 4),
    "loop.controller.weight[w_mem]": ("loop.controller.weight", 1),
    "lm_head.bias": ("lm_head.bias", slice(None)),
}


@pytest.mark.parametrize("name", STILL)
def test_a_part_that_got_bytes_and_did_not_move_fails_the_run_and_is_named(runs, name):
    tensor, part = STILL[name]

    def hold(step, model):
        model.get_parameter(tensor).grad[part] = 0.0

    with pytest.raises(TrainingHalted) as failure:
        audit_of(runs, "held", hold)
    assert failure.value.exit_code == 3
    assert name in str(failure.value)
    assert "1 of" in str(failure.value)
