"""From the logits of one position to the next byte.

The order of work is fixed: forbidden bytes get no probability, logits are divided by the temperature, `top_k`
keeps the k most likely bytes, `top_p` keeps, of what is left and renormalised, the shortest run of most
likely bytes whose sum reaches p. One uniform number then picks by inverting the cumulative sum. Everything
happens in float64 on the CPU, after the largest logit is subtracted: no exponential can overflow, and a seed
gives the same bytes for the same logits on every device.

Ties: bytes are ordered by logit, equal logits by byte value, the lowest first. That one order decides the
greedy choice, the edge of `top_k` and the edge of `top_p`, so `top_k=1`, a tiny `top_p` and temperature 0
agree.

A temperature below `GREEDY_BELOW` means greedy: the first byte of that order, and no random number is drawn.
The limit is the resolution of fp32 logits; below it a difference that is rounding would decide the draw.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dormouse.errors import ConfigError, DormouseError

GREEDY_BELOW = 1e-6


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How the next byte is chosen; checked on construction.

    Raises `ConfigError` for a temperature that is negative or not finite, a `top_k` below 0, or a `top_p`
    outside (0, 1].
    """

    temperature: float = 0.8
    """Divides the logits; 1 is the model's own distribution, below `GREEDY_BELOW` is greedy."""
    top_k: int = 0
    """Only the k most likely bytes; 0 is off, more than there are symbols keeps all of them."""
    top_p: float = 1.0
    """Only the most likely bytes that together reach this sum, at least the most likely one; 1 is off."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(
                f"temperature = {self.temperature}: probabilities would be inverted or undefined; "
                "give a number from 0 (greedy) upwards, 1 for the model's own distribution."
            )
        if self.top_k < 0:
            raise ConfigError(
                f"top_k = {self.top_k}: a negative number of bytes would be kept; "
                "give 0 to switch it off or the number of bytes to keep."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(
                f"top_p = {self.top_p}: no byte or more than all of them would be kept; "
                "give a probability above 0 and at most 1 (1 switches it off)."
            )

    @property
    def greedy(self) -> bool:
        """True when the most likely byte is always taken and no random number is used."""
        return self.temperature < GREEDY_BELOW


def probabilities(logits: Tensor, settings: SamplingSettings, *, allowed: Tensor | None = None) -> Tensor:
    """Probability of every byte under the settings.

    logits [..., V] of any float dtype; `allowed` bool, broadcastable to them, False = never. Returns float64
    [..., V] on the CPU, rows sum to 1. Raises `DormouseError` for logits that `pick` refuses.
    """
    order, weights = _ranked(_checked(logits, allowed), settings)
    ranked = weights / weights.sum(-1, keepdim=True)
    return torch.zeros_like(ranked).scatter(-1, order, ranked)


def pick(
    logits: Tensor, settings: SamplingSettings, uniform: Tensor | None, *, allowed: Tensor | None = None
) -> Tensor:
    """The byte that the uniform numbers select; a pure function.

    logits [..., V]; `uniform` float64 [...] in [0, 1), not needed (None) when the settings are greedy;
    `allowed` as in `probabilities`. Returns int64 [...] on the CPU. Raises `DormouseError` when a logit is
    NaN or +inf or a row has no byte left to choose.
    """
    order, weights = _ranked(_checked(logits, allowed), settings)
    if settings.greedy:
        return order[..., 0]
    assert uniform is not None, "sampling above temperature 0 needs a uniform number per row"
    total = weights.cumsum(-1)
    aim = uniform.to("cpu", torch.float64)[..., None] * total[..., -1:]
    rank = torch.searchsorted(total, aim, right=True)
    # The product can round up to the whole sum, which is one past the last byte with any probability.
    last = (weights > 0).sum(-1, keepdim=True) - 1
    return order.gather(-1, torch.minimum(rank, last))[..., 0]


def sample(
    logits: Tensor,
    settings: SamplingSettings,
    generator: torch.Generator,
    *,
    allowed: Tensor | None = None,
) -> Tensor:
    """Draw one byte per row with the given CPU generator: one number per row, none when greedy.

    logits [..., V]; returns int64 [...] on the CPU. The global generator is never used. Errors as in `pick`.
    """
    uniform = None if settings.greedy else draw_uniform(generator, logits.shape[:-1])
    return pick(logits, settings, uniform, allowed=allowed)


def draw_uniform(generator: torch.Generator, shape: tuple[int, ...] | torch.Size = ()) -> Tensor:
    """Uniform numbers in [0, 1), float64, of the given shape."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _checked(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """The logits as float64 on the CPU with forbidden bytes at -inf, or an error; -inf itself is legal."""
    logits = logits.detach().to("cpu", torch.float64)
    broken = logits.isnan() | (logits == math.inf)
    if broken.any():
        where = broken.nonzero()[0]
        raise DormouseError(
            f"logit of byte {int(where[-1])} is {float(logits[tuple(where)])}: a byte drawn from it would "
            "mean nothing; the weights have diverged or are damaged, choose an earlier checkpoint."
        )
    if allowed is not None:
        logits = logits.masked_fill(~allowed.to("cpu"), -math.inf)
    if (logits.amax(-1) == -math.inf).any():
        raise DormouseError(
            "every byte that may follow has logit -inf: there is nothing to draw from; "
            "choose another checkpoint or lift the restriction on the output."
        )
    return logits


def _ranked(logits: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor]:
    """Bytes in order of preference and their unnormalised weights, both [..., V]; cut bytes weigh 0."""
    ranked, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    below_best = ranked - ranked[..., :1]
    if settings.greedy:
        weights = torch.zeros_like(ranked)
        weights[..., 0] = 1
        return order, weights
    weights = torch.exp(below_best / settings.temperature)
    if settings.top_k:
        weights[..., settings.top_k :] = 0
    if settings.top_p < 1:
        # Nothing stands before the most likely byte, which weighs 1: it stays for every p above 0.
        before = weights.cumsum(-1) - weights
        weights = weights * (before < settings.top_p * weights.sum(-1, keepdim=True))
    return order, weights
