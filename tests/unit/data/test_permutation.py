"""The keyed order: a bijection for every n, different for every epoch and seed, computed point by point."""

import numpy as np
import pytest

from dormouse.data.permutation import permute

SIZES = [*range(1, 70), 97, 100, 255, 256, 257, 1000, 4096, 47_190, 65_536, 65_537]


@pytest.mark.parametrize("n", SIZES)
def test_every_number_comes_exactly_once(n):
    image = permute(np.arange(n), n, seed=3, epoch=1)
    assert image.dtype == np.int64
    assert np.array_equal(np.sort(image), np.arange(n))


def test_a_single_position_has_the_image_it_has_among_all():
    n = 1003
    whole = permute(np.arange(n), n, seed=0, epoch=0)
    alone = [int(permute(np.array([position]), n, seed=0, epoch=0)[0]) for position in range(0, n, 50)]
    assert alone == whole[::50].tolist()


def test_seeds_and_epochs_give_unrelated_orders():
    n = 10_000
    orders = [permute(np.arange(n), n, seed=s, epoch=e) for s, e in ((0, 0), (0, 1), (1, 0), (1, 1), (10, 0), (0, 10))]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            # Two independent orders agree at Poisson(1) many places; 12 or more has probability below 1e-9.
            assert (one == other).sum() < 12


def test_the_order_looks_shuffled():
    n = 20_000
    image = permute(np.arange(n), n, seed=5, epoch=2)
    neighbours = np.abs(np.diff(image)).mean() / n
    # The mean distance of two random points of [0, 1] is 1/3; its standard error here is about 0.0017.
    assert abs(neighbours - 1 / 3) < 0.01
    assert abs(np.corrcoef(np.arange(n), image)[0, 1]) < 0.04


def test_a_billion_positions_need_no_memory_for_them():
    n = 10**12 + 39
    image = permute(np.array([0, 1, n - 1]), n, seed=0, epoch=0)
    assert len(set(image.tolist())) == 3
    assert ((image >= 0) & (image < n)).all()


def test_the_order_of_a_seed_never_changes():
    # Written down once; a changed order would silently give old runs other data on resume.
    assert permute(np.arange(10), 10, seed=0, epoch=0).tolist() == [8, 0, 4, 9, 6, 7, 5, 1, 3, 2]
