"""Mixture probe (M3): how alike the passes of the loop route the same byte, and how alike two texts are routed.

Measured over pairs of passes and averaged: cosine of the gate vectors, agreement of the strongest expert, share of
bytes whose sets of experts are equal or have nothing in common. None of these means anything without chance: two
independent uniform choices of 2 of 8 have equal sets for 3.6 % of the bytes and disjoint ones for 53.6 %, and uneven
loads raise agreement further. So each stands beside what independent draws with the observed frequencies give, and
kappa = (agreement - chance) / (1 - chance) is 0 by chance and 1 for passes that always agree (`pass_agreement.py`).

Published for a looped mixture with 2 of 8 experts (arXiv 2605.09165, table of its layers but one): disjoint 0.25-0.53,
equal 0.04-0.14, chance not subtracted.

It works outside the graph; the choices go to the host once, where sets of experts are counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional

from dormouse.instruments.pass_agreement import Agreement, agreements
from dormouse.model.records import RoutingRecord
from dormouse.ops.selection import select_top_k

BAND = {"experts": 8, "top_k": 2, "disjoint": (0.25, 0.53), "identical": (0.04, 0.14)}
"""Published range of a looped mixture of experts."""


@dataclass(frozen=True)
class Mixture:
    """What the probe saw; shares are of positions and lie in [0, 1]."""

    positions: int
    """Bytes looked at, each in every pass."""
    passes: int
    cosine: float | None
    """Of the gate vectors of two passes; None, like all pairs of passes, where there is one pass."""
    agreement: float | None
    """The strongest expert is the same in two passes."""
    agreement_chance: float | None
    kappa: float | None
    """Agreement above chance; None also where chance is 1, as with one expert for everything."""
    identical: float | None
    """Two passes chose the same set."""
    identical_chance: float | None
    disjoint: float | None
    """Two passes chose sets without a common expert."""
    disjoint_chance: float | None
    support: float
    """Mean number of experts with a gate above 0."""
    load: tuple[float, ...]
    """Share of the assignments by expert, passes pooled; of the gates in a blend."""
    effective: float
    """exp(entropy of the load): as many equally used experts have this entropy."""
    disagreement: float | None
    """The strongest expert differs between two texts at the same position and pass; None with one sequence."""
    disagreement_chance: float | None
    """The same for independent draws with the observed loads of each pass."""


@dataclass(frozen=True)
class _Flat:
    """A routing record over N = B T positions, outside the graph."""

    ids: Tensor  # [P, N, k] int64, the strongest first; in a blend all experts
    gates: Tensor  # [P, N, C], 0 where not chosen
    blend: bool

    def loads(self) -> Tensor:
        """Share of positions whose strongest expert each is, ``[P, C]``."""
        return functional.one_hot(self.ids[..., 0], self.gates.shape[-1]).double().mean(1)


@torch.no_grad()
def mixture(record: RoutingRecord) -> Mixture:
    """Probe a record `[P, B, T]`. Texts are sequence b and sequence b + 1."""
    (n_passes, n_texts), flat = record.probs.shape[:2], _flat(record)
    pairs = agreements(flat.ids.cpu().numpy(), flat.gates.shape[-1])
    load = _load(flat)
    support, effective = (flat.gates > 0).sum(-1).double().mean(), (-torch.xlogy(load, load).sum()).exp()
    texts = flat.ids[..., 0].view(n_passes, n_texts, -1)
    differ, by_chance = (texts != texts.roll(1, 1)).double().mean(), 1 - flat.loads().square().sum(-1).mean()
    numbers = torch.stack([support, effective, differ, by_chance, _cosine(flat)])
    support, effective, differ, by_chance, cosine = numbers.tolist()
    chance, agreement = _mean(pairs, "chance"), _mean(pairs, "raw")
    return Mixture(
        positions=flat.ids.shape[1],
        passes=n_passes,
        cosine=cosine if pairs else None,
        agreement=agreement,
        agreement_chance=chance,
        kappa=None if agreement is None or chance is None or chance == 1 else (agreement - chance) / (1 - chance),
        identical=_mean(pairs, "identical"),
        identical_chance=_mean(pairs, "identical_chance"),
        disjoint=_mean(pairs, "disjoint"),
        disjoint_chance=_mean(pairs, "disjoint_chance"),
        support=support,
        load=tuple(load.tolist()),
        effective=effective,
        disagreement=differ if n_texts > 1 else None,
        disagreement_chance=by_chance if n_texts > 1 else None,
    )


def joined(records: Sequence[RoutingRecord]) -> RoutingRecord:
    """Records of several batches of equally long sequences as one."""
    ids = [record.ids for record in records if record.ids is not None]
    return RoutingRecord(
        probs=torch.cat([record.probs for record in records], 1),
        ids=torch.cat(ids, 1) if ids else None,
        gates=torch.cat([record.gates for record in records], 1),
    )


def _flat(record: RoutingRecord) -> _Flat:
    probs, gates = record.probs.detach().flatten(1, 2), record.gates.detach().flatten(1, 2)
    if record.ids is None:
        return _Flat(select_top_k(probs, probs.shape[-1])[1], gates.to(probs.dtype), blend=True)
    ids = record.ids.flatten(1, 2)
    spread = torch.zeros_like(probs).scatter(-1, ids, gates.to(probs.dtype))
    order = select_top_k(gates, gates.shape[-1])[1]  # a selection bias may have put another one first
    return _Flat(ids.gather(-1, order), spread, blend=False)


def _load(flat: _Flat) -> Tensor:
    """Share of the assignments by column, of the gates in a blend, ``[C]``."""
    load = flat.gates.double().sum((0, 1)) if flat.blend else _counts(flat).double()
    return load / load.sum()


def _counts(flat: _Flat) -> Tensor:
    return torch.bincount(flat.ids.flatten(), minlength=flat.gates.shape[-1])


def _cosine(flat: _Flat) -> Tensor:
    """Of the gate vectors, mean over positions and pairs of passes; 1 with a single pass, where nobody reads it."""
    pairs = combinations(flat.gates.double(), 2)
    found = [functional.cosine_similarity(a, b, dim=-1).mean() for a, b in pairs]
    return torch.stack(found).mean() if found else flat.gates.new_ones((), dtype=torch.float64)


def _mean(pairs: Sequence[Agreement], name: str) -> float | None:
    """Mean over the pairs of passes; None with a single pass."""
    return sum(getattr(pair, name) for pair in pairs) / len(pairs) if pairs else None
