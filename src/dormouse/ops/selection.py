"""Top-k selection of experts with one tie rule.

The k largest scores win; among equal scores the lower expert index wins, and the chosen ids are listed in that order.
`torch.topk` does not promise it, so every path that selects calls this one function. A stable descending sort is the
rule; k rounds of `argmax`, which promises the first of equal values, choose the same and read each row k times instead
of sorting it. For many experts a selection need not hold the scores of all of them at once: see `streamed_top_k.py`.
"""

import torch
from torch import Tensor

_ROUNDS = 8
"""Up to this many rounds are quicker than a sort."""


def select_top_k(scores: Tensor, k: int, *, prefer: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Select exactly k different experts a token.

    Args:
        scores: ``[..., E]``.
        k: number of experts, ``1 <= k <= E``.
        prefer: ``[..., E]``, what to select by where that is not the scores themselves; above minus infinity.

    Returns:
        Scores of the selected experts (differentiable, not renormalised) and their ids, both ``[..., k]``.

    Raises:
        ValueError: k is outside ``1 .. E``.
    """
    n_experts = scores.shape[-1]
    if not 1 <= k <= n_experts:
        raise ValueError(f"top_k = {k} with {n_experts} experts: k must lie between 1 and the number of experts")
    by = scores.detach() if prefer is None else prefer
    ids = largest(by, k) if k <= _ROUNDS else largest_reference(by, k)
    return scores.gather(-1, ids), ids


def largest(values: Tensor, k: int) -> Tensor:
    """Positions ``[..., k]`` of the k largest of ``values [..., E]``, by k rounds of argmax."""
    if k == 1:
        return values.argmax(-1, keepdim=True)
    left, found = values.clone(), []
    for _ in range(k):
        found.append(left.argmax(-1, keepdim=True))
        left.scatter_(-1, found[-1], -torch.inf)
    return torch.cat(found, -1)


def largest_reference(values: Tensor, k: int) -> Tensor:
    """The same by a stable descending sort."""
    return torch.argsort(values, dim=-1, descending=True, stable=True)[..., :k]
