"""The same model in float64 and under autocast: whole, in pieces, byte by byte, with gradients."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from dormouse.model.attention import rotate
from dormouse.model.decode import ByteStep
from dormouse.model.experts import TsctExperts
from dormouse.model.generate import generate
from dormouse.model.router import Router
from dormouse.model.sampling import SamplingSettings

BLEND = ("moe_topk=0", "moe_lb_coef=0")
ATTENTION = ("use_kda=false", "use_plain_attn=true")
ARMS = [(), ATTENTION, BLEND, ("moe_topk=2",), ("layout=parallel",), ("use_tsct=false",)]


def in_pieces(model, ids, lengths):
    """Logits of all bytes, read piece by piece with the state carried inside the autograd graph."""
    state, parts = None, []
    for piece in ids.split(lengths, 1):
        out = model(piece, state=state)
        state = out.state
        parts.append(out.logits)
    return torch.cat(parts, 1)


def gradients(model, loss):
    """Dense gradients of a scalar by parameter name."""
    found = torch.autograd.grad(loss, list(model.parameters()))
    names = (name for name, _ in model.named_parameters())
    return {name: g.to_dense() if g.is_sparse else g for name, g in zip(names, found, strict=True)}


def perturbed(model):
    gen = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=gen))
    return model


@pytest.mark.parametrize("cuts", [[1, 2, 3, 33, 1], [1] * 40], ids=["pieces", "bytes"])
@pytest.mark.parametrize("arm", ARMS)
def test_in_float64_pieces_of_any_length_are_the_whole_with_the_same_gradients(make_model, make_bytes, arm, cuts):
    model, ids = perturbed(make_model(*arm)).double(), make_bytes(2, 40)
    weight = torch.randn(2, 40, 256, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole, pieces = model(ids).logits, in_pieces(model, ids, cuts)
    assert whole.dtype == pieces.dtype == torch.float64
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-10)
    expected, found = (gradients(model, (logits * weight).mean()) for logits in (whole, pieces))
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != ATTENTION])
@torch.no_grad()
def test_in_float64_the_fast_step_gives_the_whole(make_model, make_bytes, arm):
    model, ids = perturbed(make_model(*arm)).double(), make_bytes(2, 40)
    whole, advance, state = model(ids).logits, ByteStep(model), model.initial_state(2)
    for t in range(40):
        logits, state = advance(ids[:, t], state)
        torch.testing.assert_close(logits, whole[:, t], rtol=0, atol=1e-10)


@pytest.mark.parametrize("arm", [(), ATTENTION])
@torch.no_grad()
def test_greedy_text_in_float64_is_the_argmax_of_the_whole(make_model, arm):
    model = perturbed(make_model(*arm)).double()
    text = b"hello" + b"".join(generate(model, b"hello", 12, settings=SamplingSettings(temperature=0.0)))
    predicted = model(torch.tensor([list(text)])).logits[0].argmax(-1)
    assert list(text[5:]) == predicted[4:-1].tolist()


def test_a_rotation_in_float64_has_all_its_digits():
    position, half = 100_000, 4
    x = torch.zeros(1, 2 * half, dtype=torch.float64)
    x[0, :half] = 1
    angles = [position * 10_000 ** (-j / half) for j in range(half)]
    expected = [*map(math.cos, angles), *map(math.sin, angles)]
    assert rotate(x, torch.tensor([position]))[0].tolist() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("change", "expected"),
    [("bfloat16", torch.float32), ("half", torch.float32), ("float", torch.float32), ("double", torch.float64)],
)
def test_the_state_of_kda_is_of_the_parameters_dtype_but_never_below_fp32(make_model, change, expected):
    state = getattr(make_model(), change)().initial_state(3).passes[0]
    assert state.memory.dtype == state.conv_tail.dtype == expected
    assert state.memory.shape == (3, 2, 8, 8)
    assert state.conv_tail.shape == (3, 3, 48)


def test_float32_agrees_with_float64(make_model, make_bytes):
    single, ids = perturbed(make_model()), make_bytes(2, 40)
    double = copy.deepcopy(single).double()
    for model in (single, double):
        F.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten()).backward()
    for (name, a), b in zip(single.named_parameters(), double.parameters(), strict=True):
        x, y = (p.grad.to_dense() if p.grad.is_sparse else p.grad for p in (a, b))
        assert (x - y).abs().max() <= 1e-3 * y.abs().max(), name


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("inside", [False, True])
def test_under_autocast_the_loss_is_close_and_every_gradient_finite(make_model, make_bytes, arm, inside):
    """`inside`: backward is called within the autocast region too."""
    model, ids = perturbed(make_model(*arm)), make_bytes(2, 40)
    expected = F.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = F.cross_entropy(model(ids).logits.flatten(0, 1).float(), ids.flatten())
        if inside:
            found.backward()
    if not inside:
        found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=5e-2)
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        grad = p.grad.coalesce().values() if p.grad.is_sparse else p.grad
        assert grad.isfinite().all(), name


@pytest.mark.parametrize("top_k", [0, 1, 2])
def test_the_router_decides_in_the_logits_format_but_never_below_fp32(top_k):
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    for dtype, digits in ((torch.float64, 1e-15), (torch.float32, 1e-7), (torch.bfloat16, 1e-7)):
        probs = Router(4, top_k)(logits.to(dtype)).probs
        total = sum(math.exp(x) for x in (2, 1, 0, -1))
        assert probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert probs[0].tolist() == pytest.approx([math.exp(x) / total for x in (2, 1, 0, -1)], abs=digits)


def test_dispatch_under_autocast_is_the_masked_form():
    torch.manual_seed(0)
    experts, x = TsctExperts(d_model=16, d_ffn=32, n_experts=4, rank=4, top_k=2), torch.randn(30, 16)
    logits = torch.randn(30, 4)
    results = {}
    for path in ("dispatch", "masked"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, _ = experts(x, logits, path=path)
        (grad,) = torch.autograd.grad(y.float().square().sum(), experts.bank.up_U)
        results[path] = y.float(), grad
    for a, b in zip(*results.values(), strict=True):
        assert (a - b).abs().max() < 3e-2 * b.abs().max()
