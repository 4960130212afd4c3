"""Load-balancing terms, computed from the router's probabilities before selection.

Switch form (arXiv 2101.03961, eq. 4): ``E * sum_e f_e P_e`` with ``f_e`` the share of assignments of expert ``e``
and ``P_e`` its mean probability over the counted tokens. It is 1 at uniform routing and tends to E as everything
collapses on one expert. ``f`` carries no gradient; a token that is padding counts neither in ``f`` nor in ``P``.
"""

import torch
from torch import Tensor


def switch_term(probs: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Switch load-balancing term.

    Args:
        probs: probabilities over all experts ``[..., E]``, before selection.
        ids: selected experts ``[..., k]``.
        mask: ``[...]`` bool, tokens that count; all of them if absent.

    Returns:
        Scalar; 0 (with zero gradient) if no token counts.
    """
    n_experts, top_k = probs.shape[-1], ids.shape[-1]
    probs, ids = probs.reshape(-1, n_experts), ids.reshape(-1, top_k)
    weight = torch.ones_like(probs[:, 0]) if mask is None else mask.reshape(-1).to(probs.dtype)
    total = weight.sum().clamp(min=1)
    load = probs.new_zeros(n_experts).index_add(0, ids.flatten(), weight.repeat_interleave(top_k))
    share = load / (total * top_k)
    mean = (probs * weight.unsqueeze(-1)).sum(0) / total
    return n_experts * (share * mean).sum()
