"""The selection bias moves once a step, by everything that the step routed, and is part of every checkpoint."""

from dataclasses import replace

import pytest
import torch

from dormouse.model.records import RoutingRecord
from dormouse.model.router import Router
from dormouse.ops.balance import loss_free_bias, quantile_bias
from dormouse.store import checkpoint
from dormouse.train.balancer import Balancer

RULES = ("loss_free", "quantile")


def record(rows, *, passes=2, seed=0, router=None):
    """What a router did with `rows` sequences of 8 bytes; expert 0 is liked too well."""
    logits = torch.randn(passes, rows, 8, 4, generator=torch.Generator().manual_seed(seed))
    logits[..., 0] += 2
    routing = [(router or Router(4, 1))(x.flatten(0, 1)) for x in logits]
    ids = torch.stack([r.ids for r in routing]).view(passes, rows, 8, 1)
    return RoutingRecord(logits=logits, probs=logits.softmax(-1), ids=ids, gates=ids.double())


def part(whole, rows):
    return RoutingRecord(**{name: value[:, rows] for name, value in vars(whole).items() if value is not None})


def moved(rule, records, *, bias_sets=1, rate=None):
    balancer = Balancer(Router(4, 1, bias_sets=bias_sets), rule=rule, rate=rate)
    for seen in records:
        balancer.observe(seen)
    balancer.update()
    return balancer.router.selection_bias


@pytest.mark.parametrize("bias_sets", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_micro_batches_move_the_bias_like_one_big_batch(rule, bias_sets):
    whole = record(8)
    one = moved(rule, [whole], bias_sets=bias_sets)
    many = moved(rule, [part(whole, [i]) for i in range(8)], bias_sets=bias_sets)
    assert torch.equal(one, many)
    assert one[0, 0] < 0 < one[0, 3]


def test_the_bias_is_the_one_of_the_rule_on_pooled_passes():
    whole = record(8)
    counts = torch.bincount(whole.ids.flatten(), minlength=4)
    torch.testing.assert_close(
        moved("loss_free", [whole], rate=0.01)[0], loss_free_bias(torch.zeros(4), counts, rate=0.01)
    )
    scores = whole.probs.reshape(-1, 4)
    torch.testing.assert_close(
        moved("quantile", [whole], rate=1.0)[0], quantile_bias(torch.zeros(4), scores, 1, rate=1.0)
    )


@pytest.mark.parametrize("rule", RULES)
def test_each_pass_by_itself_sees_its_own_routing_alone(rule):
    both = record(8)
    for i in range(2):
        alone = RoutingRecord(**{name: value[i : i + 1] for name, value in vars(both).items() if value is not None})
        torch.testing.assert_close(moved(rule, [both], bias_sets=2)[i], moved(rule, [alone])[0])


def test_passes_that_do_not_run_yet_keep_their_bias():
    assert moved("loss_free", [record(8, passes=1)], bias_sets=2)[1].tolist() == [0.0] * 4


@pytest.mark.parametrize("rule", RULES)
def test_nothing_observed_and_nothing_kept_after_a_skip_changes_nothing(rule):
    balancer = Balancer(Router(4, 1, bias_sets=1), rule=rule)
    balancer.update()
    balancer.observe(None)
    balancer.observe(record(4))
    balancer.discard()
    balancer.update()
    assert balancer.router.selection_bias.tolist() == [[0.0] * 4]


@pytest.mark.parametrize("rule", RULES)
def test_a_step_that_is_skipped_leaves_the_bias_alone(runs, rule):
    run = runs.begin(runs.config(f"selection_bias={rule}", "moe_lb_coef=0", steps=3))
    seen, pending = [], []

    def poison(step, model):
        pending.append(len(run.state.balancer._seen))
        seen.append(model.loop.experts.router.selection_bias.clone())
        if step == 1:
            model.embedding.weight.grad.fill_(torch.nan)

    run.settings = replace(run.settings, gradient_hook=poison)
    runs.train(run)
    assert run.state.firewall.skipped == 1
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[1], seen[2])
    assert pending == [1, 1, 1]  # what the skipped step routed does not wait for the next one


@pytest.mark.parametrize("changes", [[], ["balance_per_pass=true"]], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_a_resumed_run_has_the_bias_of_one_that_was_never_stopped(runs, rule, changes):
    config = runs.config(f"selection_bias={rule}", "selection_bias_rate=0.1", "router_noise=0.2", *changes, steps=6)
    runs.train(runs.begin(config, "whole"), finish=True)
    runs.train(runs.begin(config, "parts"), stop_at=3)
    runs.train(runs.go_on(config, "parts"), finish=True)
    whole, parts = (
        checkpoint.load(runs.folder / name / "checkpoints" / "step_6")["model"] for name in ("whole", "parts")
    )
    name = "loop.experts.router.selection_bias"
    assert whole[name].abs().max() > 0
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_accumulation_moves_the_bias_once_a_step_and_not_once_a_micro_batch(runs):
    """The sign of the loss-free rule makes the size of a step visible: rate 0.1, one step."""
    for name, split in (("one", {"batch_size": 4}), ("four", {"batch_size": 1, "grad_accum": 4})):
        config = runs.config("selection_bias=loss_free", "selection_bias_rate=0.1", steps=1, **split)
        runs.train(runs.begin(config, name), finish=True)
    one, four = (
        checkpoint.load(runs.folder / name / "checkpoints" / "step_1")["model"]["loop.experts.router.selection_bias"]
        for name in ("one", "four")
    )
    assert 0 < four.abs().max() <= 0.2
    assert one.abs().max() > 0
