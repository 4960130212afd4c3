"""KDA in fp32 at awkward lengths and decays against the recurrence as Flash Linear Attention defines it, in float64.

That library's reference (`fla.ops.kda.naive`) in words: scale q by ``K^-0.5``; per token decay the state by ``exp(g)``,
read with k what it holds, write ``beta (v - read)`` under k, read with q. Here it is einsum over whole tensors, apart
from our own recurrence.
"""

import pytest
import torch

from dormouse.ops import kda

LENGTHS = (1, 3, 5, 7, 17, 31, 33, 65, 127, 129, 255, 257, 511, 513)
DECAYS = {"slow": -1e-4, "one": -1.0, "strong": -30.0, "mixed": None}


def as_flash_linear_attention_defines_it(q, k, v, g, beta, state):
    S, out = state, []
    for t in range(q.shape[1]):
        S = torch.einsum("bhkv,bhk->bhkv", S, g[:, t].exp())
        read = torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        S = S + torch.einsum("bhk,bhv,bh->bhkv", k[:, t], v[:, t] - read, beta[:, t])
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * q.shape[-1] ** -0.5, S))
    return torch.stack(out, 1), S


def inputs(length, decay, beta, *, zero=()):
    generator = torch.Generator().manual_seed(length)
    shape = (2, length, 2, 8)

    def draw(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(draw(*shape), dim=-1) for _ in range(2))
    g = -30 * torch.rand(shape, generator=generator, dtype=torch.float64).pow(6) if decay is None else draw(*shape) * 0
    g = g if decay is None else g + decay
    beta = (
        torch.rand(shape[:3], generator=generator, dtype=torch.float64) if beta is None else draw(*shape[:3]) * 0 + beta
    )
    named = {"q": q, "k": k, "v": draw(*shape), "g": g, "beta": beta, "state": draw(2, 2, 8, 8)}
    for name in zero:
        named[name] = torch.zeros_like(named[name])
    return list(named.values())


def outcome(function, values, dtype):
    leaves = [x.to(dtype).requires_grad_() for x in values]
    o, state = function(*leaves)
    seeds = [torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) for x in (o, state)]
    total = (o * seeds[0].to(dtype)).sum() + (state * seeds[1].to(dtype)).sum()
    return [o, state], torch.autograd.grad(total, leaves)


def compare(values):
    found, slopes = outcome(kda.chunked, values, torch.float32)
    exact, exact_slopes = outcome(as_flash_linear_attention_defines_it, values, torch.float64)
    for a, b in zip(found, exact, strict=True):
        assert a.isfinite().all()
        assert (a - b).abs().max() < 1e-4
    for a, b in zip(slopes, exact_slopes, strict=True):
        assert a.isfinite().all()
        assert (a - b).abs().max() <= 1e-3 * max(b.abs().max().item(), 1e-3)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_and_decay(length, decay):
    compare(inputs(length, DECAYS[decay], None))


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("decay", DECAYS)
def test_nothing_or_everything_is_written(beta, decay):
    compare(inputs(77, DECAYS[decay], beta))


@pytest.mark.parametrize("zero", [("q",), ("k",), ("v",), ("state",), ("q", "k"), ("q", "k", "v", "state")], ids=str)
@pytest.mark.parametrize("decay", ["slow", "strong"])
def test_vectors_of_zeros(zero, decay):
    compare(inputs(45, DECAYS[decay], None, zero=zero))
