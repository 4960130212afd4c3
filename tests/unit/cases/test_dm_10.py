"""DM-10: recomputation routes as the first time did, also with router noise and equal tokens, and counts once.

Dispatch by itself, under checkpointing and compiled over twenty loads, is in `tests/unit/ops/test_spectral_ffn.py`.
"""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from dormouse.instruments.counters import Counters
from dormouse.model.experts import TsctExperts


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("options", [{}, {"noise": 1.0}, {"score": "sigmoid", "noise": 0.5, "bias_sets": 1}], ids=str)
def test_gradients_with_and_without_recomputation_agree(options, equal):
    torch.manual_seed(0)
    experts = TsctExperts(d_model=16, d_ffn=32, n_experts=4, rank=4, top_k=2, **options).double().train()
    counters = Counters()
    counters.attach(experts, torch.device("cpu"))
    x, logits = torch.randn(64, 16, dtype=torch.float64), torch.randn(64, 4, dtype=torch.float64)
    if equal:
        x, logits = x[:1].repeat(64, 1), torch.zeros_like(logits)
    x, logits = x.requires_grad_(), logits.requires_grad_()
    leaves = [x, logits, *experts.parameters()]

    def gradients(run):
        torch.manual_seed(7)
        return torch.autograd.grad(run(x, logits).square().sum(), leaves)

    plain = gradients(lambda x, logits: experts(x, logits)[0])
    again = gradients(lambda *a: checkpoint(lambda x, logits: experts(x, logits)[0], *a, use_reentrant=False))
    for a, b in zip(again, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert sum(counters.read().expert_rows) == 2 * 128


def test_noise_draws_anew_in_every_step_but_not_in_a_recomputation():
    torch.manual_seed(0)
    experts = TsctExperts(d_model=16, d_ffn=32, n_experts=4, rank=4, top_k=1, noise=1.0).train()
    x, logits = torch.randn(64, 16), torch.randn(64, 4)
    first, second = (experts(x, logits)[1].ids for _ in range(2))
    assert not torch.equal(first, second)
