"""DM-08: every knob of routing and balance changes what is trained, or is announced."""

import pytest
import torch

from dormouse.config.inert import inert_settings
from dormouse.config.load import load_run_config
from dormouse.store import checkpoint

PLAIN = ("n_experts=4", "moe_topk=2")
KNOBS = {
    "moe_topk": (PLAIN, ("moe_topk=1",)),
    "moe_lb_coef": (PLAIN, ("moe_lb_coef=0.5",)),
    "moe_z_coef": (PLAIN, ("moe_z_coef=0.5",)),
    "moe_renormalize": (PLAIN, ("moe_renormalize=true",)),
    "moe_gate_scale": (PLAIN, ("moe_gate_scale=one",)),
    "moe_gate_scale unit": (("router_score=sigmoid",), ("moe_gate_scale=unit",)),
    "router_score": (PLAIN, ("router_score=sigmoid",)),
    "router_rank": (PLAIN, ("router_rank=2",)),
    "router_noise": (PLAIN, ("router_noise=1",)),
    "router_per_pass bias": (PLAIN, ("router_per_pass=bias",)),
    "router_per_pass columns": (("router_per_pass=bias",), ("router_per_pass=columns",)),
    "selection_bias": (PLAIN, ("selection_bias=loss_free",)),
    "selection_bias quantile": (("selection_bias=loss_free",), ("selection_bias=quantile",)),
    "selection_bias_rate": (("selection_bias=loss_free",), ("selection_bias_rate=0.2",)),
    "selection_bias_rate quantile": (("selection_bias=quantile",), ("selection_bias_rate=1",)),
    "balance_per_pass term": (PLAIN, ("balance_per_pass=true",)),
    "balance_per_pass bias": (("selection_bias=quantile", "moe_lb_coef=0"), ("balance_per_pass=true",)),
    "n_null_experts": (PLAIN, ("n_null_experts=2",)),
    "n_shared_experts": (PLAIN, ("n_shared_experts=1",)),
}


def trained(runs, name, *settings):
    """Everything of the model after four steps; nothing that was set may be without effect."""
    config = runs.config("moe_lb_coef=0.1", *settings, steps=4)
    assert not [line for line in inert_settings(config) if "no effect" in line]
    runs.finish(runs.begin(config, name))
    return checkpoint.load(runs.folder / name / "checkpoints" / "step_4")["model"]


@pytest.mark.parametrize("knob", KNOBS)
def test_each_knob_changes_the_trained_model(runs, knob):
    settings, change = KNOBS[knob]
    before, after = trained(runs, "before", *settings), trained(runs, "after", *settings, *change)
    common = before.keys() & after.keys()
    shapes_differ = any(before[name].shape != after[name].shape for name in common)
    assert shapes_differ or any(not torch.equal(before[name], after[name]) for name in common)
    assert not torch.equal(before["embedding.weight"], after["embedding.weight"])


def test_every_path_trains_the_same_model(runs):
    """T17: computing all experts and masking, or one by one, is the same function and the same gradient."""
    found = {path: trained(runs, path, f"moe_path={path}", *PLAIN) for path in ("dispatch", "masked", "loop")}
    for path in ("masked", "loop"):
        for name, value in found["dispatch"].items():
            torch.testing.assert_close(found[path][name], value, rtol=1e-4, atol=1e-5, msg=f"{path}: {name}")


INERT = {
    ("moe_topk=0", "moe_lb_coef=0", "moe_path=masked"): "moe_path",
    ("selection_bias_rate=0.1",): "selection_bias_rate",
    ("balance_per_pass=true", "moe_lb_coef=0"): "balance_per_pass",
    ("router_per_pass=bias", "max_iter=1", "single_pass_fraction=0"): "router_per_pass",
    ("balance_per_pass=true", "max_iter=1", "single_pass_fraction=0"): "balance_per_pass",
    ("n_experts=1", "router_noise=0.1"): "router_noise",
    ("n_experts=1", "router_score=sigmoid"): "router_score",
    ("moe_topk=0", "moe_lb_coef=0", "moe_renormalize=true"): "moe_renormalize",
}


@pytest.mark.parametrize(("settings", "key"), INERT.items(), ids=str)
def test_a_knob_without_effect_is_announced(settings, key):
    said = inert_settings(load_run_config("tiny", None, list(settings), {"steps": 100}))
    assert [line for line in said if line.startswith(f"{key} = ") and "has no effect" in line]


def test_even_shares_over_softmax_gates_come_with_a_warning():
    """The known trap: the bias selects experts whose gate may be next to nothing."""
    for score, warned in (("softmax", True), ("sigmoid", False)):
        settings = ["selection_bias=loss_free", f"router_score={score}"]
        said = inert_settings(load_run_config("tiny", None, settings, {"steps": 100}))
        assert any("gates of experts that the bias pushes may go to zero" in line for line in said) == warned
