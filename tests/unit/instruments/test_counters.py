"""Execution counters on the real model: calls counted by hand, recompute, compile, and rows against FLOPs."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from dormouse.config.load import load_preset
from dormouse.errors import CheckpointError
from dormouse.instruments.counters import Counters
from dormouse.model.lm import Dormouse

SMALL = [
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "max_iter=2", "kda_decay_rank=4"),
    *("kda_gate_rank=4", "engram_rows=64", "engram_dim=4", "n_experts=4", "moe_topk=1"),
]
CPU = torch.device("cpu")
IDS = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(3))


def model_of(*overrides):
    torch.manual_seed(0)
    chosen = {text.split("=")[0]: text for text in [*SMALL, *overrides]}
    model = Dormouse(load_preset("tiny", overrides=list(chosen.values()))).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def counted(model, ids=IDS, times=1, **how):
    counters = Counters()
    counters.attach(model, CPU)
    outputs = [model(ids, **how) for _ in range(times)]
    sum(output.logits.square().mean() for output in outputs).backward()
    return counters.read(), outputs[0]


def seen(kind):
    return {name: number for name, number in kind.items() if number}


ARMS = {
    (): {"kda": 2, "engram": 2, "experts.dispatch": 2},
    ("use_plain_attn=true", "use_kda=false"): {"plain_attention": 2, "engram": 2, "experts.dispatch": 2},
    ("use_engram=false", "max_iter=3"): {"kda": 3, "experts.dispatch": 3},
    ("moe_topk=0", "moe_lb_coef=0"): {"kda": 2, "engram": 2, "experts.blend": 2},
    ("use_tsct=false", "moe_topk=2"): {"kda": 2, "engram": 2, "dense_experts.dispatch": 2},
    ("quant=fp4",): {"kda": 2, "engram": 2, "experts.dispatch": 2, "weight_format": 4},  # four stacks, once a forward
    ("act_quant=8",): {"kda": 2, "engram": 2, "experts.dispatch": 2, "activation_format": 4},
}


@pytest.mark.parametrize(("arm", "expected"), ARMS.items(), ids=str)
def test_every_mechanism_counts_its_passes_forward_and_backward(arm, expected):
    ran, _ = counted(model_of(*arm), times=3)
    assert seen(ran.forwards) == {name: 3 * number for name, number in expected.items()}
    assert seen(ran.backwards) == seen(ran.forwards)


@pytest.mark.parametrize("path", ["dispatch", "masked", "loop"])
def test_the_paths_of_the_experts_are_told_apart(path):
    ran, out = counted(model_of("moe_topk=2"), path=path)
    assert ran.forwards[f"experts.{path}"] == ran.backwards[f"experts.{path}"] == 2
    chosen = torch.bincount(out.routing.ids.flatten(), minlength=4).tolist()
    assert list(ran.expert_rows) == (chosen if path != "masked" else [2 * IDS.numel()] * 4)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_rows_are_the_products_that_ran_and_unselected_experts_did_not_run(top_k):
    """Operations of the bank, counted by torch: 4 r (d + f) a row; not-a-number in an idle expert stays there."""
    model = model_of(f"moe_topk={top_k}")
    bank = model.loop.experts.bank
    x, logits = torch.randn(40, 16), torch.randn(40, 4) + torch.tensor([3.0, 2.0, 1.0, -99.0])
    with torch.no_grad():
        for factor in (bank.up_U, bank.up_V, bank.down_U, bank.down_V):
            factor[3] = float("nan")
    counters = Counters()
    counters.attach(model, CPU)
    with FlopCounterMode(display=False) as operations:
        y, _ = model.loop.experts(x, logits)
    rows = counters.read().expert_rows
    assert (sum(rows), rows[3]) == (40 * top_k, 0)
    assert operations.get_total_flops() == sum(rows) * 4 * 4 * (16 + 32)
    assert torch.isfinite(y).all()
    y.sum().backward()
    assert bank.up_U.grad[3].abs().max() == 0


def test_evaluation_and_the_reading_of_formats_do_not_count():
    from dormouse.train.latch import Latch

    model = model_of("quant=fp4")
    counters = Counters()
    counters.attach(model, CPU)
    with torch.no_grad():
        model.eval()(IDS)
    Latch(model.train(), every=1, ratio=2.0).read()
    assert seen(counters.read().forwards) == {}


def test_a_forward_without_its_backward_shows():
    model = model_of()
    model.loop.mixer.out.weight.requires_grad_(False)
    counters = Counters()
    counters.attach(model, CPU)
    model(IDS).logits.detach().sum()
    ran = counters.read()
    assert (ran.forwards["kda"], ran.backwards["kda"]) == (2, 0)


def test_counting_changes_no_bit():
    plain, watched = model_of("moe_topk=2", "quant=fp4"), model_of("moe_topk=2", "quant=fp4")
    Counters().attach(watched, CPU)
    for model in (plain, watched):
        model(IDS).logits.square().mean().backward()
    assert torch.equal(plain(IDS).logits, watched(IDS).logits)
    for (name, a), b in zip(plain.named_parameters(), watched.parameters(), strict=True):
        assert a.grad is None or torch.equal(a.grad.to_dense(), b.grad.to_dense()), name


class Checkpointed(nn.Module):
    """A model whose whole forward is computed again in the backward."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return checkpoint(lambda: self.model(ids), use_reentrant=False)


def test_recomputation_counts_once_dm_10():
    """4 experts, k = 2: rows sum to 2 a byte and pass, and not to twice that."""
    model = model_of("moe_topk=2")
    plain, _ = counted(model_of("moe_topk=2"))
    again, _ = counted(Checkpointed(model))
    assert again == plain
    assert sum(again.expert_rows) == 2 * 2 * IDS.numel()


def test_reentrant_recomputation_shows_as_no_forward():
    model = model_of()
    counters = Counters()
    counters.attach(model, CPU)
    part = model.loop.engram.dense_half or model.loop.experts
    x = torch.randn(5, 16, requires_grad=True)
    checkpoint(lambda x: part(x, x[:, :4])[0], x, use_reentrant=True).sum().backward()
    ran = counters.read()
    assert (ran.forwards["experts.dispatch"], ran.backwards["experts.dispatch"]) == (0, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler's own doing
def test_a_compiled_model_counts_the_same():
    torch._dynamo.reset()
    model = model_of("moe_topk=0", "moe_lb_coef=0", "use_engram=false")
    counters = Counters()
    counters.attach(model, CPU)
    compiled = torch.compile(model, backend="aot_eager")
    for number in range(3):
        compiled((IDS + number) % 256).logits.square().mean().backward()
    ran = counters.read()
    assert seen(ran.forwards) == seen(ran.backwards) == {"kda": 6, "experts.blend": 6}
    assert ran.expert_rows == (6 * IDS.numel(),) * 4
    torch._dynamo.reset()


def test_a_term_is_counted_with_its_backward_and_a_constant_is_not():
    counters, weight = Counters(), torch.ones(3, requires_grad=True)
    term = counters.watch("balance", weight.sum())
    assert counters.watch("deep_supervision", torch.zeros(())).item() == 0
    assert counters.read().backwards == {"balance": 0}
    (2 * term).backward()
    assert (counters.read().forwards, counters.read().backwards) == ({"balance": 1}, {"balance": 1})
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_saved_counters_go_on_and_other_experts_are_refused():
    model = model_of()
    first, _ = counted(model)
    counters = Counters()
    counters.attach(model_of(), CPU)
    donor = Counters()
    donor.attach(again := model_of(), CPU)
    again(IDS).logits.mean().backward()
    donor.count("retraction")
    counters.load_state_dict(donor.state_dict())
    assert counters.read() == donor.read()
    counters.count("retraction")
    assert (counters.read().forwards["retraction"], donor.read().forwards["retraction"]) == (2, 1)
    assert donor.read().expert_rows == first.expert_rows
    other = Counters()
    other.attach(model_of("n_experts=5"), CPU)
    with pytest.raises(CheckpointError, match="has 4 experts, the model has 5"):
        other.load_state_dict(donor.state_dict())


def test_detached_counters_stop():
    model, counters = model_of(), Counters()
    for handle in counters.attach(model, CPU):
        handle.remove()
    model(IDS).logits.mean().backward()
    assert seen(counters.read().forwards) == {}
