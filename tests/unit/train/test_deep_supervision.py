"""Deep supervision: every pass through the one readout, averaged over passes, as written out by hand."""

import pytest
import torch
from torch.nn import functional

from dormouse.config.load import load_preset
from dormouse.data.batch import Batch
from dormouse.model.lm import Dormouse
from dormouse.train.step import StepSettings, forward_backward

KDA = ("kda_decay_rank=4", "kda_gate_rank=4")
SMALL = ("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "engram_rows=64", "engram_dim=4", *KDA)


def test_the_term_is_the_mean_over_passes_of_their_cross_entropy(tools):
    torch.manual_seed(0)
    model = Dormouse(load_preset("tiny", [*SMALL, "max_iter=3", "deep_supervision=0.3", "moe_lb_coef=0.0"]))
    with torch.no_grad():
        model.lm_head.weight.normal_()
    text = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.rand(2, 8, generator=torch.Generator().manual_seed(2)) < 0.7
    batch = Batch(text[:, :-1], text[:, 1:], mask, None, torch.arange(2))
    _, aux, scored = forward_backward(tools.state(model), [batch], StepSettings(grad_clip=1.0, deep_supervision=0.3))
    passes = model(batch.inputs).pass_logits
    each = [functional.cross_entropy(logits[mask].double(), batch.targets[mask]).item() for logits in passes]
    assert len(each) == 3
    assert max(each) - min(each) > 1e-2
    assert scored == int(mask.sum())
    assert aux.item() == pytest.approx(0.3 * sum(each) / 3, rel=1e-5)
