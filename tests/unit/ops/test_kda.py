"""The chunked delta rule against the recurrence in float64: outputs, states and every gradient."""

import sys

import pytest
import torch
import torch.nn.functional as F

from dormouse.ops import kda
from dormouse.ops.kda import tree
from dormouse.ops.kda.inverse import unit_lower_inverse


def make_inputs(length, *, decay=1.0, heads=3, key_dim=8, value_dim=12, batch=2, dtype=torch.float64):
    gen = torch.Generator().manual_seed(length)

    def normal(*shape):
        return torch.randn(*shape, generator=gen, dtype=dtype)

    q, k = (F.normalize(normal(batch, length, heads, key_dim), dim=-1) for _ in range(2))
    v = normal(batch, length, heads, value_dim)
    g = -decay * torch.rand(batch, length, heads, key_dim, generator=gen, dtype=dtype).pow(3)
    beta = torch.rand(batch, length, heads, generator=gen, dtype=dtype)
    state = normal(batch, heads, key_dim, value_dim)
    return [x.requires_grad_() for x in (q, k, v, g, beta, state)]


def results_and_gradients(function, inputs):
    o, state = function(*inputs)
    gen = torch.Generator().manual_seed(1)
    wo, ws = (torch.randn(x.shape, generator=gen, dtype=torch.float64).to(x.dtype) for x in (o, state))
    return [o, state, *torch.autograd.grad((o * wo).sum() + (state * ws).sum(), inputs)]


@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 63, 65, 129])
@pytest.mark.parametrize("decay", [0.0, 1e-4, 1.0, 30.0])
def test_chunks_equal_the_recurrence_in_float64(length, decay):
    inputs = make_inputs(length, decay=decay)
    for fast, slow in zip(
        results_and_gradients(kda.chunked, inputs), results_and_gradients(kda.recurrent, inputs), strict=True
    ):
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk", [4, 32])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 16, 17, 20, 31, 32, 33, 64, 65])
def test_one_head_of_one_sequence_is_the_recurrence_too(length, chunk):
    """A single matrix, whose slices are contiguous where those of several are not."""
    inputs = make_inputs(length, heads=1, batch=1)
    fast = results_and_gradients(lambda *a: kda.chunked(*a, chunk=chunk), inputs)
    for f, slow in zip(fast, results_and_gradients(kda.recurrent, inputs), strict=True):
        torch.testing.assert_close(f, slow, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk", [4, 16, 32, 64])
def test_fp32_stays_within_1e_5_of_float64_at_every_chunk_size(chunk):
    inputs = make_inputs(150, decay=5.0, key_dim=64, value_dim=64)
    small = [x.detach().float().requires_grad_() for x in inputs]
    fast = results_and_gradients(lambda *a: kda.chunked(*a, chunk=chunk), small)
    for f, slow in zip(fast, results_and_gradients(kda.recurrent, inputs), strict=True):
        assert (f - slow).abs().max() < 1e-5 * max(1.0, slow.abs().max().item())


def test_a_decay_of_minus_infinity_separates_documents_to_the_bit():
    q, k, v, g, beta, state = (x.detach() for x in make_inputs(40))
    g[:, 17] = float("-inf")
    o, final = kda.chunked(q, k, v, g, beta, state)
    alone, alone_final = kda.recurrent(q[:, 17:], k[:, 17:], v[:, 17:], g[:, 17:] * 1, beta[:, 17:], state * 0)
    torch.testing.assert_close(o[:, 17:], alone, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(final, alone_final, rtol=1e-10, atol=1e-12)
    changed = v.clone()
    changed[:, :17] += 1
    assert torch.equal(kda.chunked(q, k, changed, g, beta, state)[0][:, 17:], o[:, 17:])


def test_minus_infinity_gives_finite_gradients():
    inputs = make_inputs(40)
    with torch.no_grad():
        inputs[3][:, 17] = float("-inf")
    assert all(x.isfinite().all() for x in results_and_gradients(kda.chunked, inputs))


def test_later_tokens_leave_earlier_outputs_bit_identical():
    inputs = [x.detach().float() for x in make_inputs(96, decay=3.0, key_dim=16, value_dim=16)]
    o, _ = kda.chunked(*inputs)
    for t in (1, 7, 16, 31, 32, 50, 95):
        changed = [x.clone() for x in inputs]
        for x in changed[:4]:
            x[:, t:] *= 0.5
        assert torch.equal(kda.chunked(*changed)[0][:, :t], o[:, :t])


def test_nearly_equal_keys_do_not_blow_up():
    q, k, v, g, beta, state = (x.detach().clone() for x in make_inputs(64, decay=0.0))
    k[:] = F.normalize(k[:, :1] + 1e-3 * k, dim=-1)
    beta.fill_(1.0)
    exact, _ = kda.recurrent(q, k, v, g, beta, state)
    small, _ = kda.chunked(*(x.float() for x in (q, k, v, g, beta, state)))
    assert (small - exact).abs().max() < 1e-4 * exact.abs().max()


def test_state_is_carried_over_a_cut_at_any_place():
    inputs = [x.detach() for x in make_inputs(70)]
    o, final = kda.chunked(*inputs)
    for cut in (1, 31, 33, 69):
        first, state = kda.chunked(*(x[:, :cut] for x in inputs[:5]), inputs[5])
        second, last = kda.chunked(*(x[:, cut:] for x in inputs[:5]), state)
        torch.testing.assert_close(torch.cat([first, second], 1), o, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(last, final, rtol=1e-10, atol=1e-12)


def test_one_token_by_hand():
    q = k = torch.tensor([[[[0.6, 0.8]]]], dtype=torch.float64)
    v = torch.tensor([[[[2.0]]]], dtype=torch.float64)
    g = torch.tensor([[[[0.5, 0.25]]]], dtype=torch.float64).log()
    beta = torch.tensor([[[0.5]]], dtype=torch.float64)
    state = torch.tensor([[[[1.0], [2.0]]]], dtype=torch.float64)
    o, final = kda.recurrent(q, k, v, g, beta, state)
    # decayed state (0.5, 0.5); read 0.7; error 0.5 * (2 - 0.7) = 0.65; written (0.89, 1.02)
    torch.testing.assert_close(final.flatten(), torch.tensor([0.89, 1.02], dtype=torch.float64))
    torch.testing.assert_close(o.item(), (0.6 * 0.89 + 0.8 * 1.02) / 2**0.5)


def test_tree_scores_equal_pairwise_decays():
    gen = torch.Generator().manual_seed(0)
    kq = torch.randn(5, 2, 32, 8, generator=gen, dtype=torch.float64)
    g = -torch.rand(5, 32, 8, generator=gen, dtype=torch.float64)
    fast = tree.scores(tree.grow(kq, g.exp()), kq)
    torch.testing.assert_close(fast, tree.scores_reference(kq, g), rtol=1e-12, atol=1e-13)


def test_block_inverse_equals_the_general_inverse():
    gen = torch.Generator().manual_seed(0)
    L = torch.randn(7, 32, 32, generator=gen, dtype=torch.float64).tril(-1) * 0.3
    eye = torch.eye(32, dtype=torch.float64)
    torch.testing.assert_close(unit_lower_inverse(L), torch.linalg.inv(eye + L), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize("length", [5, 33, 70])
def test_sequences_in_groups_are_sequences_together(length, sequences, monkeypatch):
    inputs = make_inputs(length, batch=5)
    together = results_and_gradients(kda.chunked, inputs)
    one = inputs[0][:1].numel() * 8
    monkeypatch.setattr(sys.modules["dormouse.ops.kda.chunked"], "GROUP_BYTES", sequences * one)
    for a, b in zip(results_and_gradients(kda.chunked, inputs), together, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_no_sequence_at_all_has_outputs_and_gradients_without_rows():
    for x in results_and_gradients(kda.chunked, make_inputs(40, batch=0)):
        assert x.shape[0] == 0
