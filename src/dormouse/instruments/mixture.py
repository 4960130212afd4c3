"""Mixture probe (M3): how alike the passes of the loop route the same byte, and how alike two texts are routed.

Measured over pairs of passes and averaged: cosine of the gate vectors, agreement of the strongest expert, share of
bytes whose sets of experts are equal or have nothing in common. None of these means anything without chance: two
independent uniform choices of 2 of 8 have equal sets for 3.6 % of the bytes and disjoint ones for 53.6 %, and uneven
loads raise agreement further. So each stands beside what independent draws with the observed loads give. For the
strongest expert, and for sets of one, that is c = sum_e p1(e) p2(e); for larger sets the bytes of one pass are dealt
out anew by seeded permutations. kappa = (agreement - c) / (1 - c) is 0 by chance and 1 for passes that always agree.

Published for a looped mixture with 2 of 8 experts (arXiv 2605.09165, table of its layers but one): disjoint 0.25-0.53,
equal 0.04-0.14, chance not subtracted.

Everything is computed on the device of the routing, outside its graph, and read by the host in one transfer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional

from dormouse.model.records import RoutingRecord
from dormouse.ops.selection import select_top_k

PERMUTATIONS = 16
"""Permutations that the chance of larger sets is averaged over; its error is about 0.5 / sqrt(16 positions)."""
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


_ACROSS = ("cosine", "agreement", "agreement_chance", "identical", "identical_chance", "disjoint", "disjoint_chance")
"""What is measured over pairs of passes, in the order of `_pair`."""


@dataclass(frozen=True)
class _Flat:
    """A routing record over N = B T positions, outside the graph."""

    best: Tensor  # [P, N] int64, strongest expert
    sets: Tensor  # [P, N, E] bool, chosen experts; all of them in a blend
    gates: Tensor  # [P, N, E], 0 where not chosen
    top_k: int  # 0 in a blend

    def loads(self) -> Tensor:
        """Share of positions whose strongest expert each is, ``[P, E]``."""
        return functional.one_hot(self.best, self.gates.shape[-1]).float().mean(1)


@torch.no_grad()
def mixture(record: RoutingRecord, *, seed: int = 0) -> Mixture:
    """Probe a record `[P, B, T]`; `seed` is that of the permutations. Texts are sequence b and sequence b + 1."""
    (n_passes, n_texts), flat = record.probs.shape[:2], _flat(record)
    pairs = list(combinations(range(n_passes), 2))
    across = [torch.stack([_pair(flat, i, j, seed) for i, j in pairs]).mean(0)] if pairs else []
    load = (flat.gates if flat.top_k == 0 else flat.sets).float().sum((0, 1))
    load = load / load.sum()
    numbers = torch.cat([torch.stack([*_sizes(flat, load), *_texts(flat, n_texts)]), load, *across]).tolist()
    (support, effective, differ, by_chance), rest = numbers[:4], numbers[4:]
    found = dict(zip(_ACROSS, rest[len(load) :] or [None] * len(_ACROSS), strict=True))
    return Mixture(
        positions=flat.best.shape[1],
        passes=n_passes,
        **found,
        kappa=_kappa(found["agreement"], found["agreement_chance"]),
        support=support,
        load=tuple(rest[: len(load)]),
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
        best = select_top_k(probs, 1)[1].squeeze(-1)
        return _Flat(best, torch.ones_like(probs, dtype=torch.bool), gates.to(probs.dtype), 0)
    ids = record.ids.flatten(1, 2)
    sets = torch.zeros_like(probs, dtype=torch.bool).scatter(-1, ids, True)
    spread = torch.zeros_like(probs).scatter(-1, ids, gates.to(probs.dtype))
    strongest = ids.gather(-1, select_top_k(gates, 1)[1]).squeeze(-1)  # a selection bias may have put another one first
    return _Flat(strongest, sets, spread, ids.shape[-1])


def _pair(flat: _Flat, i: int, j: int, seed: int) -> Tensor:
    """The numbers of `_ACROSS` for passes i and j, ``[7]``."""
    loads, a, b = flat.loads(), flat.sets[i], flat.sets[j]
    cosine = functional.cosine_similarity(flat.gates[i], flat.gates[j], dim=-1).float().mean()
    agreement, chance = (flat.best[i] == flat.best[j]).float().mean(), (loads[i] * loads[j]).sum()
    if flat.top_k > 1:
        draws = [_overlap(a, b[dealt]) for dealt in _permutations(b, seed)]
        by_chance = torch.stack(draws).mean(0)
    else:
        by_chance = torch.stack([chance, 1 - chance]) if flat.top_k else _overlap(a, b)
    own = _overlap(a, b)
    return torch.stack([cosine, agreement, chance, own[0], by_chance[0], own[1], by_chance[1]])


def _overlap(a: Tensor, b: Tensor) -> Tensor:
    """Share of positions with equal and with disjoint sets ``[N, E]``: ``[2]``."""
    return torch.stack([(a == b).all(-1).float().mean(), (~(a & b).any(-1)).float().mean()])


def _permutations(like: Tensor, seed: int) -> list[Tensor]:
    """Orders of the rows of ``like``, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(len(like), generator=generator).to(like.device) for _ in range(PERMUTATIONS)]


def _sizes(flat: _Flat, load: Tensor) -> tuple[Tensor, Tensor]:
    """Mean support, and the effective number of experts of a load ``[E]``."""
    return (flat.gates > 0).sum(-1).float().mean(), (-torch.xlogy(load, load).sum()).exp()


def _texts(flat: _Flat, n_texts: int) -> tuple[Tensor, Tensor]:
    """Disagreement of neighbouring sequences, and by chance."""
    texts = flat.best.view(len(flat.best), n_texts, -1)
    return (texts != texts.roll(1, 1)).float().mean(), 1 - flat.loads().square().sum(-1).mean()


def _kappa(agreement: float | None, chance: float | None) -> float | None:
    if agreement is None or chance is None or chance > 1 - 1e-6:
        return None
    return (agreement - chance) / (1 - chance)
