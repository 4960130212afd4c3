"""The counters' audit of a run: a mechanism that is on and did not run ends it, and the counts survive a resume."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dormouse.errors import TrainingHalted
from dormouse.ops.retraction import RetractionErrors
from dormouse.train.progress import ran_text

EVERYTHING = {
    "quant": "fp8",
    "act_quant": "8",
    "deep_supervision": 0.1,
    "latch_every": 2,
    "moe_topk": 2,
    "moe_lb_coef": 0.01,
    "retract_every": 2,
    "moe_z_coef": 0.001,
    "n_shared_experts": 1,
    "selection_bias": "quantile",
}


def test_the_last_row_has_every_mechanism_with_its_runs(runs):
    """Six steps of two passes: eight stacks rounded a forward, two activations a pass, a retraction every other."""
    runs.train(runs.begin(runs.config(**EVERYTHING)))
    *before, last = runs.rows("run", "train")
    assert not [row for row in before if "ran" in row]
    assert last["ran"] == {
        "activation_format": [24, 24],
        "balance": [6, 6],
        "deep_supervision": [6, 6],
        "engram": [12, 12],
        "experts.dispatch": [12, 12],
        "kda": [12, 12],
        "latch": [3, 0],
        "retraction": [3, 0],
        "router_z": [6, 6],
        "selection_bias": [6, 0],
        "shared_experts": [12, 12],
        "weight_format": [48, 48],
    }
    assert sum(last["expert_rows"]) == 6 * 2 * 2 * 32  # steps, passes, experts a byte, bytes


def test_a_resumed_run_goes_on_counting(runs):
    config = runs.config(**EVERYTHING)
    runs.train(runs.begin(config, "whole"))
    runs.train(runs.begin(config, "parts"), stop_at=3)
    runs.train(runs.go_on(config, "parts"))
    whole, parts = (runs.rows(name, "train")[-1] for name in ("whole", "parts"))
    assert (parts["ran"], parts["expert_rows"]) == (whole["ran"], whole["expert_rows"])
    assert runs.content("parts", 6) == runs.content("whole", 6)


def lose(run, mechanism):
    """Break one mechanism the way a refactoring might: still configured, no longer in the graph."""
    loop = run.state.model.loop
    if mechanism == "kda":
        loop._mix = lambda x, gate, context, state: (None, state)
    elif mechanism == "engram":
        loop.engram.forward = lambda memory, query, x, gate: torch.zeros_like(query)
    elif mechanism == "experts.dispatch":
        loop._route = _routed_by_mask(loop)
    elif mechanism == "activation_format":
        loop.expert_input = loop.mixer_input = nn.Identity()
    elif mechanism == "weight_format":
        loop.experts.bank.weight_format = loop.experts.shared.weight_format = nn.Identity()
    elif mechanism == "balance":
        run.settings = replace(run.settings, moe_lb_coef=0.0)
    elif mechanism == "deep_supervision":
        run.settings = replace(run.settings, deep_supervision=0.0)
    elif mechanism == "retraction":
        run.settings = replace(run.settings, retract=lambda model: RetractionErrors(None, None))
    elif mechanism == "router_z":
        run.settings = replace(run.settings, moe_z_coef=0.0)
    elif mechanism == "shared_experts":
        loop.experts.shared = None
    elif mechanism == "selection_bias":
        run.state.balancer.update = lambda: False
    else:
        run.state.latch.read = list


def _routed_by_mask(loop):
    def route(i, x, control, context):
        return type(loop)._route(loop, i, x, control, replace(context, path="masked"))

    return route


LOST = {
    "kda": "kda (no forward)",
    "engram": "engram (no backward)",
    "experts.dispatch": "experts.dispatch (no forward)",
    "activation_format": "activation_format (no forward)",
    "weight_format": "weight_format (no forward)",
    "balance": "balance (no forward)",
    "deep_supervision": "deep_supervision (no forward)",
    "retraction": "retraction (was due)",
    "latch": "latch (was due)",
    "router_z": "router_z (no forward)",
    "shared_experts": "shared_experts (no forward)",
    "selection_bias": "selection_bias (was due)",
}


@pytest.mark.parametrize("mechanism", LOST)
def test_a_mechanism_that_is_on_and_did_not_run_ends_the_run_by_name(runs, mechanism):
    run = runs.begin(runs.config(**EVERYTHING, steps=2))
    lose(run, mechanism)
    with pytest.raises(TrainingHalted) as failure:
        runs.train(run)
    assert failure.value.exit_code == 3
    assert LOST[mechanism] in str(failure.value)
    [event] = [row for row in runs.rows("run", "event") if row["event"] == "idle_mechanisms"]
    assert LOST[mechanism] in event["idle"]


@pytest.mark.parametrize("every", [0, 9])
@pytest.mark.parametrize("setting", ["retract_every", "latch_every"])
def test_what_is_off_or_was_not_due_is_not_missed(runs, setting, every):
    runs.train(runs.begin(runs.config(**{**EVERYTHING, setting: every, "steps": 2})))


def test_the_audit_says_what_ran(runs):
    assert ran_text({"kda": 12, "latch": 3, "engram": 0}, {"kda": 12, "latch": 0, "engram": 0}) == "kda 12/12, latch 3"


def test_the_probe_writes_rows_at_its_cadence_and_moves_no_bit(runs):
    settings = {"moe_topk": 2, "max_iter": 3}
    runs.train(runs.begin(runs.config(**settings, probe_every=2), "probed"))
    runs.train(runs.begin(runs.config(**settings), "plain"))
    rows = runs.rows("probed", "probe")
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert runs.rows("plain", "probe") == []
    for row in rows:
        assert (row["positions"], row["passes"], row["support"]) == (32, 3, 2.0)
        assert sum(row["load"]) == pytest.approx(1.0)
        assert row["disagreement"] is not None
    parts = ("model", "optimizer", "tally", "counters", "random")
    probed, plain = runs.content("probed", 6), runs.content("plain", 6)
    assert {part: probed[part] for part in parts} == {part: plain[part] for part in parts}


def test_the_probe_goes_on_after_a_resume(runs):
    config = runs.config(moe_topk=2, probe_every=2)
    runs.train(runs.begin(config, "whole"))
    runs.train(runs.begin(config, "parts"), stop_at=4)
    runs.train(runs.go_on(config, "parts"))
    assert runs.rows("parts", "probe") == runs.rows("whole", "probe")


def test_a_probe_after_its_checkpoint_is_written_once(runs):
    """A new cadence probes the step a resume begins at; a kill right after repeats that step's row, once."""
    runs.train(runs.begin(runs.config(eval_every=0)), stop_at=4)
    probed = runs.config(eval_every=0, probe_every=2)
    run = runs.go_on(probed)

    def kill(step, model):
        raise RuntimeError("killed")

    run.settings = replace(run.settings, gradient_hook=kill)
    with pytest.raises(RuntimeError, match="killed"):
        runs.train(run)
    assert [row["step"] for row in runs.rows("run", "probe")] == [4]
    runs.train(runs.go_on(probed))
    assert [row["step"] for row in runs.rows("run", "probe")] == [4, 6]
