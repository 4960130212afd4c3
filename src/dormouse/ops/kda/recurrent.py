"""The recurrence itself, one token at a time: the oracle of the chunked form and the decoding step.

It runs in the dtype of its inputs, so float64 inputs give a float64 reference. Training never takes this path
(one Python step and about six small kernels a token).
"""

import torch
from torch import Tensor


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gated delta rule, token by token.

    Args:
        q: queries ``[B, T, H, K]``; multiplied by ``K ** -0.5`` here.
        k: keys ``[B, T, H, K]``, of norm at most one.
        v: values ``[B, T, H, V]``.
        g: log decay per key channel ``[B, T, H, K]``, at most 0; ``-inf`` forgets everything before this token.
        beta: write strength ``[B, T, H]`` in ``[0, 1]``.
        state: ``[B, H, K, V]`` before the first token; zeros if absent.

    Returns:
        Outputs ``[B, T, H, V]`` and the state after the last token ``[B, H, K, V]``.
    """
    batch, _, heads, key_dim = q.shape
    q = q * key_dim**-0.5
    S = q.new_zeros(batch, heads, key_dim, v.shape[-1]) if state is None else state
    outputs = []
    for q_t, k_t, v_t, a_t, beta_t in zip(
        q.unbind(1), k.unbind(1), v.unbind(1), g.exp().unbind(1), beta.unbind(1), strict=True
    ):
        S = S * a_t.unsqueeze(-1)
        read = (k_t.unsqueeze(-2) @ S).squeeze(-2)
        error = beta_t.unsqueeze(-1) * (v_t - read)
        S = S + k_t.unsqueeze(-1) * error.unsqueeze(-2)
        outputs.append((q_t.unsqueeze(-2) @ S).squeeze(-2))
    o = torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v)
    return o, S
