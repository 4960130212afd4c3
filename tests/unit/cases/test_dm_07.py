"""DM-07: with one expert a byte the router learns from the language loss alone, and from nothing if gates are 1."""

import torch

from dormouse.model.experts import TsctExperts


def test_the_gradient_of_the_router_is_that_of_finite_differences_and_clearly_above_zero():
    """Four experts, width 4, eight tokens, k = 1, mean square of the output, no balance term."""
    torch.manual_seed(0)
    experts = TsctExperts(d_model=4, d_ffn=8, n_experts=4, rank=4, top_k=1).double()
    x = torch.randn(8, 4, dtype=torch.float64)
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)

    def loss(router):
        return experts(x, x @ router.T)[0].square().mean()

    (gradient,) = torch.autograd.grad(loss(weight), weight)
    measured = torch.zeros_like(weight)
    for index in range(16):
        nudge = torch.zeros(16, dtype=torch.float64)
        nudge[index] = 1e-6
        with torch.no_grad():
            up, down = loss(weight + nudge.view(4, 4)), loss(weight - nudge.view(4, 4))
        measured.view(-1)[index] = (up - down) / 2e-6
    torch.testing.assert_close(gradient, measured, rtol=1e-5, atol=1e-8)
    assert gradient.norm() > 0.05 * loss(weight)
