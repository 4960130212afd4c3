"""Even use of the experts: two terms for the loss, two rules for a bias that selects.

*Switch term* (arXiv 2101.03961, eq. 4): ``E * sum_e f_e P_e`` with ``f_e`` the share of assignments of expert ``e``
and ``P_e`` its mean probability, before selection, over the counted tokens. It is 1 at uniform routing and tends to E
as everything collapses on one expert. ``f`` carries no gradient. *z-loss* (arXiv 2202.08906): the mean square of
``logsumexp(logits)``; it keeps logits small and says nothing about balance.

The rules change a bias ``b`` that is added to the scores for selection alone, after a step, from what was routed in it.
*Loss-free* (arXiv 2408.15664): ``b_e`` goes up by a fixed rate where the count is below the mean and down where it is
above. *Quantile*: token ``i`` lets in whatever beats its (k+1)-th largest biased score, so expert ``e`` would get its
fair ``q = kT/E`` tokens if its margins' q-th and (q+1)-th largest lay on either side of zero; ``b_e`` goes down by a
share of the (q+1)-th. No coefficient has to fit the task loss, and the number of tokens does not enter.

A token that is padding counts nowhere.
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


def z_loss(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean square of ``logsumexp`` of the logits ``[..., E]`` over the counted tokens (``mask`` as above), a scalar.

    It is ``(ln E)^2`` where all logits are zero.
    """
    squares = logits.logsumexp(-1).square()
    if mask is None:
        return squares.mean() if squares.numel() else squares.sum()
    weight = mask.to(squares.dtype)
    return (squares * weight).sum() / weight.sum().clamp(min=1)


@torch.no_grad()
def loss_free_bias(bias: Tensor, counts: Tensor, *, rate: float = 1e-3) -> Tensor:
    """The bias ``[E]`` after a step in which expert ``e`` got ``counts[e]`` assignments; its mean is zero.

    Only differences of biases select anything, so the mean is taken out. Without assignments nothing changes.
    """
    counts = counts.to(bias.dtype)
    moved = bias + rate * torch.sign(counts.mean() - counts)
    return moved - moved.mean()


@torch.no_grad()
def quantile_bias(bias: Tensor, scores: Tensor, top_k: int, *, rate: float = 0.5) -> Tensor:
    """The bias ``[E]`` after a step with these scores; its mean is zero.

    Args:
        bias: what the step selected with.
        scores: ``[T, E]``, unbiased, all tokens of the step.
        top_k: experts a token, below E (with all of them selected there is nothing to balance).
        rate: share of the way to the quantile that this step suggests; 1 goes all of it and follows the noise too.
    """
    tokens, n_experts = scores.shape
    if not 1 <= top_k < n_experts:
        raise ValueError(f"top_k = {top_k} with {n_experts} experts: balance by quantiles needs 1 to {n_experts - 1}")
    if tokens == 0:
        return bias.clone()
    biased = scores.to(bias.dtype) + bias
    bar = biased.topk(top_k + 1, dim=-1).values[:, -1:]
    fair = min(tokens * top_k // n_experts, tokens - 1)
    edge = torch.kthvalue(biased - bar, tokens - fair, dim=0).values  # the (fair + 1)-th largest
    moved = bias - rate * edge
    return moved - moved.mean()
