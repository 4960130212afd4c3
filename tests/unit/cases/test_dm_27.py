"""DM-27: no logit reads a later byte; the routed arms and each memory order, to the bit, at bytes 20 and 31 of 32."""

import pytest
import torch
import torch.nn.functional as F

from dormouse.config.load import load_preset
from dormouse.model.lm import Dormouse

SMALL = ("d_model=16", "n_heads=2", "head_dim=8", "d_ffn=24", "rank=4", "kda_decay_rank=4", "kda_gate_rank=4")
ARMS = {
    "top-1": [],
    "top-2": ["moe_topk=2"],
    "top-2 renormalised": ["moe_topk=2", "moe_renormalize=true"],
    "top-1 without attention": ["use_kda=false"],
    "top-1 plain attention": ["use_kda=false", "use_plain_attn=true"],
    "top-1 without memory": ["use_engram=false"],
    "memory order 2": ["engram_orders=[2]"],
    "memory order 3": ["engram_orders=[3]"],
    "memory order 4": ["engram_orders=[4]"],
    "memory orders 2 to 4": ["engram_orders=[2,3,4]"],
}


def model_of(*overrides):
    """A model whose parts at zero are not zero."""
    torch.manual_seed(0)
    memory = [] if "use_engram=false" in overrides else ["engram_rows=64", "engram_dim=4"]
    model = Dormouse(load_preset("tiny", overrides=[*SMALL, *memory, *overrides])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def text():
    return torch.randint(256, (1, 32), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("place", [20, 31])
@pytest.mark.parametrize("arm", ARMS)
def test_logits_before_a_changed_byte_keep_their_bits(arm, place):
    """On the masked path, where every row goes through the same products whatever the others chose."""
    model, ids = model_of(*ARMS[arm]), text()
    changed = ids.clone()
    changed[0, place] ^= 0x55
    with torch.no_grad():
        before, after = (model(x, path="masked").logits for x in (ids, changed))
    assert torch.equal(before[:, :place], after[:, :place])
    assert not torch.equal(before[:, place], after[:, place])


@pytest.mark.parametrize("arm", ARMS)
def test_the_loss_before_byte_20_has_no_gradient_in_the_embedding_of_byte_20(arm):
    model, ids = model_of(*ARMS[arm]), text()
    ids[ids == 7] = 8
    ids[0, 20] = 7  # the only place of byte 7: its row of the embedding is the embedding at 20
    logits = model(ids).logits
    loss = F.cross_entropy(logits[0, :19], ids[0, 1:20])
    (gradient,) = torch.autograd.grad(loss, model.embedding.weight)
    assert torch.equal(gradient[7], torch.zeros(16))
    assert gradient.abs().sum() > 0
