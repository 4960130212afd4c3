"""Small perturbed models: a freshly initialised head is zero and would pass every test vacuously."""

import pytest
import torch

from dormouse.config.load import load_preset
from dormouse.model.lm import Dormouse

SMALL = [
    "d_model=16",
    "n_heads=2",
    "head_dim=8",
    "d_ffn=24",
    "rank=4",
    "max_seq_len=512",
    "kda_decay_rank=4",
    "kda_gate_rank=4",
    "engram_rows=64",
    "engram_dim=4",
    "engram_orders=[2,3,4]",
]


def perturbed(*overrides, seed=0, preset="tiny"):
    """A small model whose every parameter is away from its initial value."""
    torch.manual_seed(seed)
    chosen = {text.split("=")[0]: text for text in [*SMALL, *overrides]}
    model = Dormouse(load_preset(preset, overrides=list(chosen.values()))).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def random_bytes(batch, length, seed=0):
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def make_model():
    return perturbed


@pytest.fixture
def make_bytes():
    return random_bytes
