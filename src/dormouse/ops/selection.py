"""Top-k selection of experts with one tie rule.

The k largest probabilities win; among equal probabilities the lower expert index wins, and the chosen ids are
listed in that order. `torch.topk` and `torch.argmax` break ties differently from each other, so every path that
selects calls this one function: a stable descending sort, which is the rule.
"""

import torch
from torch import Tensor


def select_top_k(probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Select exactly k different experts a token.

    Args:
        probs: ``[..., E]``.
        k: number of experts, ``1 <= k <= E``.

    Returns:
        Probabilities of the selected experts (differentiable, not renormalised) and their ids, both ``[..., k]``.

    Raises:
        ValueError: k is outside ``1 .. E``.
    """
    n_experts = probs.shape[-1]
    if not 1 <= k <= n_experts:
        raise ValueError(f"top_k = {k} with {n_experts} experts: k must lie between 1 and the number of experts")
    ids = torch.argsort(probs.detach(), dim=-1, descending=True, stable=True)[..., :k]
    return probs.gather(-1, ids), ids
