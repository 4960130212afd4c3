"""DM-05: the edges of dispatch; here, that without a capacity no byte is ever left out."""

import pytest
import torch

from dormouse.model.experts import TsctExperts


@pytest.mark.parametrize("top_k", [1, 2])
def test_every_byte_is_served_k_times_however_crowded_an_expert_is(top_k):
    """Five tokens that all want expert 2 first, where a capacity of factor 1 would keep two of them."""
    torch.manual_seed(0)
    experts = TsctExperts(d_model=8, d_ffn=20, n_experts=4, rank=4, top_k=top_k).double()
    x = torch.randn(5, 8, dtype=torch.float64)
    logits = torch.tensor([[0.0, 1.0, 9.0, -1.0]] * 5, dtype=torch.float64)
    y, routing = experts(x, logits)
    counts = torch.bincount(routing.ids.flatten(), minlength=4)
    assert counts.tolist() == ([0, 0, 5, 0] if top_k == 1 else [0, 5, 5, 0])
    assert counts.sum() == 5 * top_k
    alone = torch.cat([experts(x[i : i + 1], logits[i : i + 1])[0] for i in range(5)])
    torch.testing.assert_close(y, alone, rtol=0, atol=1e-12)
    assert (y.abs().amax(1) > 0).all()
