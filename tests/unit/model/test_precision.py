"""The same model in float64, under autocast, and without numbers (meta): whole, in pieces, with gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F

from dormouse.model.experts import TsctExperts

BLEND = ("moe_topk=0", "moe_lb_coef=0")
ATTENTION = ("use_kda=false", "use_plain_attn=true")
ARMS = [(), ATTENTION, BLEND, ("moe_topk=2",), ("layout=parallel",), ("use_tsct=false",)]


def perturbed(model):
    gen = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=gen))
    return model


@pytest.mark.parametrize("arm", ARMS)
def test_in_float64_pieces_of_any_length_are_the_whole(make_model, make_bytes, arm):
    model, ids = perturbed(make_model(*arm)).double(), make_bytes(2, 40)
    with torch.no_grad():
        whole, state, parts = model(ids).logits, None, []
        for piece in ids.split([1, 2, 3, 33, 1], 1):
            out = model(piece, state=state)
            state = out.state
            parts.append(out.logits)
    assert whole.dtype == torch.float64
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)


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


def test_dispatch_under_autocast_is_the_masked_form():
    torch.manual_seed(0)
    experts, x = TsctExperts(d_model=16, d_ffn=32, n_experts=4, rank=4, top_k=2), torch.randn(30, 16)
    logits = torch.randn(30, 4)
    results = {}
    for path in ("dispatch", "masked"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, _ = experts(x, logits, path=path)
        (grad,) = torch.autograd.grad(y.float().square().sum(), experts.up_U)
        results[path] = y.float(), grad
    for a, b in zip(*results.values(), strict=True):
        assert (a - b).abs().max() < 3e-2 * b.abs().max()


@pytest.mark.parametrize("arm", [BLEND, (*BLEND, *ATTENTION), (*BLEND, "layout=parallel")])
def test_a_model_without_numbers_makes_every_tensor_on_its_own_device(make_model, make_bytes, arm):
    """On the meta device any tensor made elsewhere would be an error, as it would be on a GPU."""
    model, ids = make_model(*arm).to("meta"), make_bytes(2, 40).to("meta")
    bounds = torch.zeros(2, 40, dtype=torch.bool, device="meta")
    for given in (None, bounds):
        out = model(ids, bounds=given)
        assert out.logits.shape == (2, 40, 256)
        out.logits.sum().backward()
