"""Top-k selection of experts with one tie rule.

The k largest scores win; among equal scores the lower expert index wins, and the chosen ids are
listed in that order. `torch.topk` and `torch.argmax` break ties differently from each other, so every path that
selects calls this one function: a stable descending sort, which is the rule.
"""

import torch
from torch import Tensor


def select_top_k(scores: Tensor, k: int, *, prefer: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Select exactly k different experts a token.

    Args:
        scores: ``[..., E]``.
        k: number of experts, ``1 <= k <= E``.
        prefer: ``[..., E]``, what to select by where that is not the scores themselves.

    Returns:
        Scores of the selected experts (differentiable, not renormalised) and their ids, both ``[..., k]``.

    Raises:
        ValueError: k is outside ``1 .. E``.
    """
    n_experts = scores.shape[-1]
    if not 1 <= k <= n_experts:
        raise ValueError(f"top_k = {k} with {n_experts} experts: k must lie between 1 and the number of experts")
    by = scores.detach() if prefer is None else prefer
    ids = torch.argsort(by, dim=-1, descending=True, stable=True)[..., :k]
    return scores.gather(-1, ids), ids
