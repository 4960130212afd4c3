"""Operations with hand-written backward passes under autocast: what they give on the same numbers in fp32, bit for bit.

Their inputs come in bf16, as the products of an autocast region do; weights are in fp32.
"""

import pytest
import torch

from dormouse.ops import kda
from dormouse.ops.conv import short_conv
from dormouse.ops.norm import l2_norm, rms_norm
from dormouse.ops.spectral_ffn import routed_ffn

GEN = torch.Generator()
IDS = torch.tensor([[0, 2], [2, 0], [2, 0], [0, 2], [2, 3], [3, 0], [0, 2]])


def draw(*shape):
    """Numbers that bf16 holds exactly, so that its widening loses nothing."""
    return torch.randn(shape, generator=GEN).bfloat16()


def kda_inputs():
    shape = (2, 40, 2, 8)
    q, k = (draw(*shape) * 0.25 for _ in range(2))
    return [q, k, draw(*shape), -draw(*shape).abs(), draw(*shape[:3]).sigmoid(), draw(2, 2, 8, 8).float()]


OPERATIONS = {
    "routed_ffn": (
        lambda x, gates, *w: routed_ffn(x, IDS, gates, *w),
        lambda: [draw(7, 6), draw(7, 2), *(draw(3, n, 4).float() for n in (6, 10, 10, 6))],
    ),
    "kda": (kda.chunked, kda_inputs),
    "rms_norm": (lambda x, w: rms_norm(x, w, 1e-5), lambda: [draw(5, 8), draw(8).float()]),
    "l2_norm": (l2_norm, lambda: [draw(5, 8)]),
    "short_conv": (short_conv, lambda: [draw(2, 9, 6), draw(4, 6).float(), draw(2, 3, 6)]),
}


def outputs_and_gradients(operation, inputs, *, autocast):
    """The gradients are taken inside the region too: nothing may depend on where backward is called."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        outputs = operation(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = sum(out.square().sum() for out in outputs)
        gradients = torch.autograd.grad(loss, inputs)
    return outputs, gradients


@pytest.mark.parametrize("name", OPERATIONS)
def test_autocast_and_half_inputs_change_nothing_but_the_gradients_format(name):
    operation, make = OPERATIONS[name]
    GEN.manual_seed(5)
    inputs = make()
    expected, slopes = outputs_and_gradients(operation, [x.float() for x in inputs], autocast=False)
    found, gradients = outputs_and_gradients(operation, inputs, autocast=True)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)
    for x, a, b in zip(inputs, gradients, slopes, strict=True):
        assert a.dtype == x.dtype
        assert torch.equal(a, b.to(x.dtype))


def test_a_single_token_of_kda_is_read_in_fp32_too():
    GEN.manual_seed(5)
    inputs = [x[:, :1] for x in kda_inputs()[:5]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = kda.chunked(*inputs)
    expected, _ = kda.chunked(*(x.float() for x in inputs))
    assert torch.equal(found, expected)
