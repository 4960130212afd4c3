"""The fast single step against the model itself, for every part that can be switched."""

import pytest
import torch

from dormouse.config.load import load_preset, preset_names
from dormouse.config.unbuilt import unbuilt
from dormouse.model.decode import ByteStep, fits
from dormouse.model.lm import Dormouse

SMALL = [
    "d_model=32",
    "n_heads=2",
    "head_dim=16",
    "d_ffn=48",
    "rank=8",
    "kda_decay_rank=8",
    "kda_gate_rank=8",
    "engram_rows=256",
    "engram_dim=8",
]
VARIANTS = {
    "tiny": [],
    "parallel": ["layout=parallel"],
    "four passes": ["max_iter=4"],
    "one pass": ["max_iter=1"],
    "no convolution": ["kda_conv_width=1"],
    "full gate": ["kda_gate_rank=full"],
    "no attention": ["use_kda=false"],
    "no memory": ["use_engram=false"],
    "no attention, no memory": ["use_kda=false", "use_engram=false"],
    "dense half of memory": ["engram_dense_half=true", "engram_lam_max=0.5"],
    "original hash": ["engram_hash=original"],
    "two experts a byte": ["moe_topk=2"],
    "renormalised": ["moe_topk=2", "moe_renormalize=true"],
    "blend": ["moe_topk=0", "moe_lb_coef=0"],
    "one expert": ["n_experts=1", "moe_topk=0", "moe_lb_coef=0"],
    "dense experts": ["use_tsct=false"],
    "spectral head": ['tsct_parts=["experts", "out_proj", "head"]'],
    "bias by pass": ["router_per_pass=bias"],
    "columns by pass": ["router_per_pass=columns", "max_iter=3"],
    "low-rank router": ["router_rank=2", "router_per_pass=columns"],
    "sigmoid and its bias by pass": ["router_score=sigmoid", "selection_bias=quantile", "balance_per_pass=true"],
    "null experts": ["n_null_experts=3", "moe_topk=2"],
    "null experts, dense": ["n_null_experts=3", "use_tsct=false"],
    "shared expert": ["n_shared_experts=2"],
    "shared dense expert": ["n_shared_experts=1", "use_tsct=false"],
    "plain controller": ["controller_norm=false"],
}


@pytest.fixture(autouse=True)
def _one_thread():
    """Products this small only wait for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(*overrides):
    """Preset tiny at a width that is quick, with some settings replaced."""
    keys = {text.partition("=")[0] for text in overrides}
    return load_preset("tiny", [text for text in SMALL if text.partition("=")[0] not in keys] + [*overrides])


def perturbed(config):
    """A model whose zero-initialised parts are not zero."""
    torch.manual_seed(0)
    model = Dormouse(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if model.loop.experts.router.selection_bias is not None:
            model.loop.experts.router.selection_bias.normal_(std=0.2)
    return model


def tensors(state):
    """Every tensor of a state by name."""
    named = {"history": state.history, "age": state.age, "position": torch.tensor(state.position)}
    for i, mixer in enumerate(state.passes):
        named |= {f"pass {i} {name}": value for name, value in vars(mixer).items() if value is not None}
    return named


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
@torch.no_grad()
def test_a_fast_step_gives_the_logits_and_the_state_of_the_model(overrides, rows):
    model = perturbed(small(*overrides))
    assert fits(model)
    advance = ByteStep(model)
    ids = torch.randint(256, (rows, 40), generator=torch.Generator().manual_seed(1))
    state = model(ids[:, :20]).state
    fast = state
    for t in range(20, 40):
        whole = model(ids[:, t : t + 1], state=state)
        logits, fast = advance(ids[:, t], fast)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, whole.logits[:, 0], rtol=0, atol=1e-4)
        state = whole.state
    reference, mine = tensors(state), tensors(fast)
    assert reference.keys() == mine.keys()
    for name in reference:
        torch.testing.assert_close(mine[name], reference[name], rtol=0, atol=1e-4, msg=name)


@torch.no_grad()
def test_a_fast_step_from_the_very_first_byte_gives_the_logits_of_the_whole_text():
    model = perturbed(small())
    advance, state = ByteStep(model), model.initial_state(2)
    ids = torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(2))
    whole = model(ids).logits
    for t in range(12):
        logits, state = advance(ids[:, t], state)
        torch.testing.assert_close(logits, whole[:, t], rtol=0, atol=1e-4)


@pytest.mark.parametrize("start", [15, 18, 19])
@torch.no_grad()
def test_a_fast_step_reads_nothing_from_before_its_document(start):
    model = perturbed(small())
    ids = torch.randint(256, (1, 24), generator=torch.Generator().manual_seed(3))
    bounds = torch.zeros(1, 20, dtype=torch.bool)
    bounds[0, start] = True
    state = model(ids[:, :20], bounds=bounds).state
    alone = model(ids[:, start:]).logits
    advance = ByteStep(model)
    for t in range(20, 24):
        logits, state = advance(ids[:, t], state)
        torch.testing.assert_close(logits, alone[:, t - start], rtol=0, atol=1e-4)


@torch.no_grad()
def test_the_state_that_goes_in_is_not_changed():
    model = perturbed(small())
    state = model(torch.tensor([[1, 2, 3]])).state
    before = {name: value.clone() for name, value in tensors(state).items()}
    ByteStep(model)(torch.tensor([4]), state)
    for name, value in tensors(state).items():
        assert torch.equal(value, before[name]), name


def test_every_preset_with_built_parts_and_without_plain_attention_takes_the_fast_step():
    configs = {name: load_preset(name) for name in preset_names()}
    built = {name: c for name, c in configs.items() if not unbuilt(c) and not c.use_plain_attn}
    assert "tiny" in built
    for name, config in built.items():
        with torch.device("meta"):
            assert fits(Dormouse(config)), name


def test_models_of_unknown_parts_are_not_taken():
    class Wrapped(Dormouse):
        pass

    config = small()
    assert not fits(Wrapped(config))
    assert not fits(Dormouse(config).bfloat16())
    assert not fits(torch.nn.Linear(2, 2))
    assert not fits(Dormouse(small("use_plain_attn=true", "use_kda=false")))
