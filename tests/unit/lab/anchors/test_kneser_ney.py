"""Modified Kneser-Ney: hand-computed values, a plain re-implementation, and always a distribution."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from dormouse.lab.anchors.kneser_ney import KneserNey, estimate_discounts

TEXT = (b"the cat sat on the mat; the cat ate the rat. " * 3 + b"a man, a plan, a canal: panama! banana bandana ") * 4
HELD = b"the man sat on a banana; \x00\xff the rat ran"


def as_bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, dtype=np.uint8)


def plain_probability(text: bytes, context: bytes, byte: int, order: int) -> float:
    """The textbook recursion with dictionaries, one string at a time (Chen and Goodman 1998, section 3)."""

    def table(n: int, top: bool) -> dict[bytes, int]:
        if top:
            return Counter(text[i : i + n] for i in range(len(text) - n + 1))
        before = defaultdict(set)
        for i in range(len(text) - n):
            before[text[i + 1 : i + 1 + n]].add(text[i])
        return {gram: len(seen) for gram, seen in before.items()}

    def level(n: int, top: bool) -> float:
        if n == 0:
            return 1 / 256
        counts = table(n, top)
        history = context[len(context) - (n - 1) :]
        following = {gram[-1]: c for gram, c in counts.items() if gram[:-1] == history}
        if not following:
            return level(n - 1, False)
        n1, n2, n3, n4 = (sum(c == k for c in counts.values()) for k in (1, 2, 3, 4))
        discounts = [0.5, 1.0, 1.5]
        if n1 and n2 and n3:
            y = n1 / (n1 + 2 * n2)
            discounts = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
            discounts = [min(max(d, 0.0), k + 1.0) for k, d in enumerate(discounts)]
        total = sum(following.values())
        count = following.get(byte, 0)
        direct = (count - discounts[min(count, 3) - 1]) / total if count else 0.0
        gamma = sum(discounts[min(c, 3) - 1] for c in following.values()) / total
        return direct + gamma * level(n - 1, False)

    return level(order, True)


def test_order_one_of_three_bytes_is_the_value_computed_by_hand():
    # a twice, b once; too few counts of counts, so D(1) = 0.5 and D(2) = 1; 1.5 of 3 goes to the uniform.
    p = KneserNey(as_bytes(b"aab"), max_order=1).distribution(b"", 1)
    assert p[ord("a")] == pytest.approx(1 / 3 + 0.5 / 256, abs=1e-15)
    assert p[ord("b")] == pytest.approx(0.5 / 3 + 0.5 / 256, abs=1e-15)
    assert p[ord("z")] == pytest.approx(0.5 / 256, abs=1e-15)


def test_order_two_of_three_bytes_is_the_value_computed_by_hand():
    # After a: a once, b once, so each gives 0.25 directly and half is left. Below, each has one predecessor.
    p = KneserNey(as_bytes(b"aab"), max_order=2).distribution(b"a", 2)
    below = 0.5 / 2 + 0.5 / 256
    assert p[ord("b")] == pytest.approx(0.5 / 2 + 0.5 * below, abs=1e-15)
    assert p[ord("z")] == pytest.approx(0.5 * 0.5 / 256, abs=1e-15)


def test_discounts_follow_from_the_counts_of_counts():
    # n1 = 4, n2 = 2, n3 = 1, n4 = 1: Y = 1/2, D = 1 - 1/2, 2 - 3/4, 3 - 2
    assert estimate_discounts(np.array([1, 1, 1, 1, 2, 2, 3, 4, 9])) == pytest.approx((0.5, 1.25, 1.0))
    assert estimate_discounts(np.array([1, 1, 3])) == (0.5, 1.0, 1.5)
    # n1 = 10, n2 = 1, n3 = 9, n4 = 0: D(2) would be 2 - 22.5, and no discount is negative
    assert estimate_discounts(np.array([1] * 10 + [2] + [3] * 9)) == pytest.approx((5 / 6, 0.0, 3.0))


def test_all_orders_agree_with_the_plain_recursion():
    bits = KneserNey(as_bytes(TEXT)).bits(as_bytes(HELD), range(1, 9))
    for order in range(1, 9):
        for place in range(1, len(HELD)):
            reach = min(order, place + 1)  # near the start, the order that fits
            expected = plain_probability(TEXT, HELD[:place], HELD[place], reach)
            assert bits[order][place - 1] == pytest.approx(-math.log2(expected), abs=1e-9)


@pytest.mark.parametrize("context", [b"", b"t", b"the ca", b"banana", b"\x00\xff\x00", b"q" * 20, TEXT[-9:], TEXT[:3]])
def test_the_probabilities_of_every_context_sum_to_one(context):
    model = KneserNey(as_bytes(TEXT))
    for order in range(1, 9):
        p = model.distribution(context, order)
        assert p.shape == (256,)
        assert abs(p.sum() - 1) < 1e-9
        assert (p > 0).all()


def test_scores_are_the_logarithms_of_the_distribution():
    model = KneserNey(as_bytes(TEXT))
    bits = model.bits(as_bytes(HELD), [3, 8])
    for order in (3, 8):
        for place in range(1, len(HELD)):
            p = model.distribution(HELD[:place], order)[HELD[place]]
            assert bits[order][place - 1] == pytest.approx(-math.log2(p), abs=1e-12)


def test_the_future_does_not_matter():
    model = KneserNey(as_bytes(TEXT))
    one, other = as_bytes(HELD), as_bytes(HELD[:20] + b"zzzzzz")
    assert np.array_equal(model.bits(one, [8])[8][:19], model.bits(other, [8])[8][:19])


def test_an_untrained_byte_costs_at_least_eight_bits():
    model = KneserNey(as_bytes(TEXT))
    assert (model.bits(as_bytes(b"\xf0\xf1\xf2\xf3"), [1, 5])[5] >= 8).all()


@pytest.mark.parametrize(("text", "order"), [(b"abc", 4), (b"abc", 0), (b"a" * 20, 9), (b"", 1)])
def test_impossible_orders_are_refused(text, order):
    with pytest.raises(ValueError, match="max_order"):
        KneserNey(as_bytes(text), max_order=order)
