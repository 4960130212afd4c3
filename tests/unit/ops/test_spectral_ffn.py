"""Dispatch against a row-by-row reference: outputs and all gradients, odd shapes, empty experts, ties, null experts."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from dormouse.ops import spectral_ffn
from dormouse.ops.dispatch import plan_dispatch
from dormouse.ops.selection import select_top_k
from dormouse.ops.spectral_ffn import routed_ffn, routed_ffn_loop, routed_ffn_reference


def weights(n_experts, d, f, r, *, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(n_experts, rows, r) for rows in (d, f, f, d)]
    return [
        (torch.randn(shape, generator=generator, dtype=dtype) / shape[1] ** 0.5).requires_grad_() for shape in shapes
    ]


def case(n, n_experts, k, *, d=5, f=11, r=3, dtype=torch.float64, scores=None, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=dtype).requires_grad_()
    scores = torch.rand(n, n_experts, generator=generator, dtype=dtype) if scores is None else scores.to(dtype)
    gates, ids = select_top_k(scores, k)
    return x, ids, gates.detach().requires_grad_(), weights(n_experts, d, f, r, dtype=dtype)


def outcome(run, x, ids, gates, w):
    """Output and the gradients of input, gates and all weights; an unused one is zero."""
    y = run(x, ids, gates, *w)
    seed = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(y.dtype)
    leaves = [x, gates, *w]
    found = torch.autograd.grad((y * seed).sum(), leaves, allow_unused=True)
    return [y, *(torch.zeros_like(p) if g is None else g for p, g in zip(leaves, found, strict=True))]


def agree(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(
            a, b, rtol=tolerance, atol=tolerance * (b.detach().abs().max().item() if b.numel() else 0.0)
        )


@pytest.mark.parametrize("other", [routed_ffn_loop, routed_ffn_reference])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [0, 1, 3, 17, 61])
def test_dispatch_equals_the_references_in_float64(n, k, other):
    inputs = case(n, 5, k)
    agree(outcome(routed_ffn, *inputs), outcome(other, *inputs), 1e-10)


@pytest.mark.parametrize(("n", "k", "d", "f", "r"), [(257, 1, 33, 65, 7), (129, 3, 16, 48, 8), (64, 4, 31, 17, 1)])
def test_dispatch_equals_the_reference_in_fp32(n, k, d, f, r):
    inputs = case(n, 4, k, d=d, f=f, r=r, dtype=torch.float32)
    agree(outcome(routed_ffn, *inputs), outcome(routed_ffn_reference, *inputs), 1e-5)


@pytest.mark.parametrize("piece_bytes", [1, 8 * 11 * 40])
@pytest.mark.parametrize("k", [1, 2])
def test_segments_in_many_pieces_are_segments_in_one(monkeypatch, k, piece_bytes):
    inputs = case(300, 3, k)
    whole = outcome(routed_ffn, *inputs)
    monkeypatch.setattr(spectral_ffn, "PIECE_BYTES", piece_bytes)
    assert len(list(spectral_ffn._pieces([200, 0, 100], 11, inputs[0]))) > 6
    agree(outcome(routed_ffn, *inputs), whole, 1e-12)


def test_pieces_cover_every_place_once_in_order_and_are_of_one_size():
    x = torch.empty(1, 4)
    segments = [0, 1, 700, 0, 33, 5000]
    found = list(spectral_ffn._pieces(segments, 2048, x))
    limit = spectral_ffn._piece_rows(2048, x)
    assert [place for _, s, _ in found for place in range(s.start, s.stop)] == list(range(sum(segments)))
    assert [e for e, _, first in found if first] == [1, 2, 4, 5]
    assert max(s.stop - s.start for _, s, _ in found) <= limit
    sizes = [s.stop - s.start for e, s, _ in found if e == 5]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("k", [1, 2])
def test_all_rows_on_one_expert_leave_the_others_a_gradient_of_exactly_zero(k):
    scores = torch.zeros(9, 4)
    scores[:, 2], scores[:, 3] = 2, 1
    inputs = case(9, 4, k, scores=scores)
    found = outcome(routed_ffn, *inputs)
    agree(found, outcome(routed_ffn_reference, *inputs), 1e-10)
    for gradient in found[3:]:
        assert torch.equal(gradient[: 4 - k - (k == 1)], torch.zeros_like(gradient[: 4 - k - (k == 1)]))
        assert gradient[2].abs().max() > 0


@pytest.mark.parametrize("k", [1, 2, 4])
def test_ties_choose_the_same_experts_on_every_path(k):
    inputs = case(7, 4, k, scores=torch.full((7, 4), 0.25))
    agree(outcome(routed_ffn, *inputs), outcome(routed_ffn_reference, *inputs), 1e-10)


@pytest.mark.parametrize("ids", [[[3], [0], [4], [1], [3]], [[3, 0], [0, 1], [4, 3], [1, 4], [2, 0]], [[3, 4]]])
def test_a_null_expert_adds_nothing_and_has_no_gradient(ids):
    ids = torch.tensor(ids)
    x, gates = (torch.randn(len(ids), n, dtype=torch.float64).requires_grad_() for n in (5, ids.shape[1]))
    inputs = (x, ids, gates, weights(3, 5, 11, 3))
    found = outcome(routed_ffn, *inputs)
    for other in (routed_ffn_loop, routed_ffn_reference):
        agree(found, outcome(other, *inputs), 1e-10)
    null = ids >= 3
    assert torch.equal(found[2][null], torch.zeros_like(found[2][null]))
    assert torch.equal(found[0][null.all(1)], torch.zeros_like(found[0][null.all(1)]))


@pytest.mark.parametrize("k", [1, 2])
def test_numerical_derivatives(k):
    x, ids, gates, w = case(5, 3, k, d=3, f=4, r=2)
    assert torch.autograd.gradcheck(lambda x, gates, *w: routed_ffn(x, ids, gates, *w), (x, gates, *w))


def test_the_operators_keep_the_rules_of_the_library():
    x, ids, gates, w = case(9, 3, 2)
    plan = plan_dispatch(ids, 3)
    inputs = (x, gates, plan.order, plan.counts, *w)
    torch.library.opcheck(spectral_ffn._forward, inputs, test_utils=("test_schema", "test_faketensor"))
    _, t1, t2 = (z.detach() for z in spectral_ffn._forward(*inputs))
    detached = [z.detach() for z in (x, gates, plan.order, plan.counts, t1, t2, *w)]
    torch.library.opcheck(
        spectral_ffn._backward, (torch.ones_like(x), *detached), test_utils=("test_schema", "test_faketensor")
    )


def test_a_second_derivative_is_refused_instead_of_wrong():
    x, ids, gates, w = case(5, 3, 1)
    (dx,) = torch.autograd.grad(routed_ffn(x, ids, gates, *w).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(dx.sum(), x)


@pytest.mark.parametrize("k", [1, 2])
def test_equal_runs_are_equal_to_the_bit(k):
    inputs = case(500, 4, k, d=16, f=64, r=8, dtype=torch.float32)
    first, second = outcome(routed_ffn, *inputs), outcome(routed_ffn, *inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("ties", [False, True])
def test_recomputation_changes_nothing(ties):
    """DM-10: 64 tokens, k = 2 of 4; selection and dispatch run twice under checkpointing, and count once."""
    logits = torch.zeros(64, 4, dtype=torch.float64) if ties else torch.randn(64, 4, dtype=torch.float64)
    logits.requires_grad_()
    x, w = torch.randn(64, 16, dtype=torch.float64).requires_grad_(), weights(4, 16, 32, 4)

    def block(x, logits, *w):
        gates, ids = select_top_k(logits.softmax(-1), 2)
        return routed_ffn(x, ids, gates, *w), torch.bincount(ids.flatten(), minlength=4)

    def gradients(run):
        y, counts = run(x, logits, *w)
        assert counts.sum() == 128
        return torch.autograd.grad(y.square().sum(), [x, logits, *w])

    plain = gradients(block)
    recomputed = gradients(lambda *a: checkpoint(block, *a, use_reentrant=False))
    agree(recomputed, plain, 1e-12)


def test_compiled_dispatch_agrees_over_twenty_loads_without_a_break_or_a_recompilation():
    """DM-10: one of the loads leaves experts empty."""
    w = weights(4, 16, 32, 4, dtype=torch.float32)

    def block(x, logits, *w):
        gates, ids = select_top_k(logits.softmax(-1), 2)
        return routed_ffn(x, ids, gates, *w)

    torch._dynamo.reset()
    seen = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, backend=seen, fullgraph=True)
    for load in range(20):
        generator = torch.Generator().manual_seed(load)
        x = torch.randn(64, 16, generator=generator).requires_grad_()
        logits = torch.randn(64, 4, generator=generator) * 3
        logits[:, 2:] -= 100 * (load == 7)
        logits.requires_grad_()
        found, expected = (run(x, logits, *w) for run in (compiled, block))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        slopes = [torch.autograd.grad(y.square().sum(), [x, logits, *w]) for y in (found, expected)]
        agree(slopes[0], slopes[1], 1e-5)
    assert seen.frame_count == 1
