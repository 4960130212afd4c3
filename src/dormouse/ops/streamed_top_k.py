"""Top-k of a low-rank router over very many experts, without ever holding the logits of all of them.

``logits = hidden @ up^T (+ bias)`` with ``hidden [N, r]`` and ``up [E, r]`` (MoRE's low-rank router). Experts are taken
block by block: the first round adds up the softmax's normaliser, the second scores a block and keeps the k best of the
block and of those kept so far. Memory is ``N x (block + k)`` instead of ``N x E``. The tie rule is that of
`selection.py`: blocks come in the order of their ids and those kept so far stand first. For routing without gradients;
in training the probabilities of all experts are needed anyway.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from dormouse.ops.selection import select_top_k

BLOCK = 512


@torch.no_grad()
def streamed_top_k(
    hidden: Tensor,
    up: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    score: Literal["softmax", "sigmoid"] = "softmax",
    selection_bias: Tensor | None = None,
    block: int = BLOCK,
) -> tuple[Tensor, Tensor]:
    """Scores and ids of the k best experts a token, both ``[N, k]``.

    Args:
        hidden: ``[N, r]``.
        up: ``[E, r]``.
        k: experts a token, ``1 <= k <= E``.
        bias: ``[E]``, added to the logits.
        score: what the logits become.
        selection_bias: ``[E]``, added to the scores for the selection alone.
        block: experts at a time.

    Raises:
        ValueError: k is outside ``1 .. E``.
    """
    n_experts = len(up)
    if not 1 <= k <= n_experts:
        raise ValueError(f"top_k = {k} with {n_experts} experts: k must lie between 1 and the number of experts")
    total = _normaliser(hidden, up, bias, block) if score == "softmax" else None
    kept, ids, wanted = hidden.new_empty(len(hidden), 0), hidden.new_empty(len(hidden), 0, dtype=torch.int64), None
    for start, logits in _blocks(hidden, up, bias, block):
        scores = logits.sigmoid() if total is None else (logits - total).exp()
        prefer = scores if selection_bias is None else scores + selection_bias[start : start + block]
        own = torch.arange(start, start + scores.shape[1], device=ids.device).expand(len(hidden), -1)
        kept, ids = torch.cat([kept, scores], 1), torch.cat([ids, own], 1)
        wanted = prefer if wanted is None else torch.cat([wanted, prefer], 1)
        wanted, best = select_top_k(wanted, min(k, wanted.shape[1]))
        kept, ids = kept.gather(1, best), ids.gather(1, best)
    return kept, ids


def streamed_top_k_reference(
    hidden: Tensor,
    up: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    score: Literal["softmax", "sigmoid"] = "softmax",
    selection_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same from the logits of all experts at once."""
    logits = hidden @ up.T if bias is None else hidden @ up.T + bias
    scores = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
    return select_top_k(scores, k, prefer=None if selection_bias is None else scores + selection_bias)


def _blocks(hidden: Tensor, up: Tensor, bias: Tensor | None, block: int) -> Iterator[tuple[int, Tensor]]:
    """First id and logits ``[N, <= block]`` of every block."""
    for start in range(0, len(up), block):
        logits = hidden @ up[start : start + block].T
        yield start, logits if bias is None else logits + bias[start : start + block]


def _normaliser(hidden: Tensor, up: Tensor, bias: Tensor | None, block: int) -> Tensor:
    """Log of the sum of exponentials over all experts, ``[N, 1]``."""
    parts = [logits.logsumexp(-1) for _, logits in _blocks(hidden, up, bias, block)]
    return torch.stack(parts, -1).logsumexp(-1, keepdim=True)
