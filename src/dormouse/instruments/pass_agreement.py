"""Do two passes send a byte to the same experts, and is that more than chance?

Two passes that choose independently of one another still agree on some bytes, the more often the more unequal their
shares are. Chance is what independent passes with these very shares would show: for the first expert
c = sum_e p1(e) p2(e), and kappa = (a - c) / (1 - c) is 0 there and 1 for passes that always agree. For the sets of k
experts chance is taken over all pairs of sets, each with its own frequency. Where c is 1 (both passes use one and the
same expert throughout) there is nothing to correct, and kappa does not exist.
"""

from dataclasses import dataclass

import numpy as np

_BLOCK = 1 << 22  # elements of the largest array in a comparison of sets


@dataclass(frozen=True)
class Agreement:
    """How pass `first` and pass `second` (numbers from 0) routed the same n bytes."""

    first: int
    second: int
    raw: float
    """Part of the bytes whose first expert is the same."""
    chance: float
    """The same for independent passes with these shares."""
    kappa: float | None
    """(raw - chance) / (1 - chance); None when chance is 1."""
    identical: float
    """Part of the bytes whose sets of k experts are equal."""
    identical_chance: float
    disjoint: float
    """Part of the bytes whose sets have no expert in common."""
    disjoint_chance: float
    transitions: np.ndarray
    """int64 [E, E], bytes by first expert in pass `first` (row) and in pass `second` (column)."""


def agreements(ids: np.ndarray, n_experts: int) -> list[Agreement]:
    """Every pair of passes i < j of the selections `ids`, int [P, n, k]."""
    passes = range(len(ids))
    return [_compare(ids, i, j, n_experts) for i in passes for j in passes if i < j]


def _compare(ids: np.ndarray, i: int, j: int, n_experts: int) -> Agreement:
    n = ids.shape[1]
    transitions = np.zeros((n_experts, n_experts), dtype=np.int64)
    np.add.at(transitions, (ids[i, :, 0], ids[j, :, 0]), 1)
    raw = np.trace(transitions) / n
    together = int(transitions.sum(1) @ transitions.sum(0))  # in whole numbers, so that a chance of 1 is exactly 1
    chance = together / n**2
    first, second = _members(ids[i], n_experts), _members(ids[j], n_experts)
    shared = (first & second).sum(1)
    identical_chance, disjoint_chance = _chance_of_sets(first, second, ids.shape[2])
    return Agreement(
        first=i,
        second=j,
        raw=float(raw),
        chance=chance,
        kappa=None if together == n**2 else float((raw - chance) / (1 - chance)),
        identical=float((shared == ids.shape[2]).mean()),
        identical_chance=identical_chance,
        disjoint=float((shared == 0).mean()),
        disjoint_chance=disjoint_chance,
        transitions=transitions,
    )


def _members(chosen: np.ndarray, n_experts: int) -> np.ndarray:
    """bool [n, E], True for each of the k experts of `chosen`, int [n, k]."""
    members = np.zeros((len(chosen), n_experts), dtype=bool)
    np.put_along_axis(members, chosen, True, axis=1)
    return members


def _chance_of_sets(first: np.ndarray, second: np.ndarray, k: int) -> tuple[float, float]:
    """Chance of equal and of disjoint sets when members [n, E] of both passes are drawn independently."""
    sets, weights = np.unique(first, axis=0, return_counts=True)
    others, other_weights = np.unique(second, axis=0, return_counts=True)
    equal = apart = 0
    rows = max(1, _BLOCK // len(others))
    for start in range(0, len(sets), rows):
        shared = sets[start : start + rows].astype(np.float32) @ others.T.astype(np.float32)
        pairs = weights[start : start + rows]
        equal += int(pairs @ ((shared == k) @ other_weights))
        apart += int(pairs @ ((shared == 0) @ other_weights))
    return equal / len(first) ** 2, apart / len(first) ** 2
