"""Ink can be read on every color (WCAG 2.2), and no two experts look alike (distance in OKLab)."""

from itertools import combinations
from math import dist

import pytest

from dormouse.report.palette import DARK, LIGHT, PATTERNS, expert_color, expert_pattern


def linear(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def contrast(one, other):
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(one), linear(other)))
    return (high + 0.05) / (low + 0.05)


def oklab(color):
    r, g, b = linear(color)
    l, m, s = (  # noqa: E741
        (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3),
        (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3),
        (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3),
    )
    return (
        0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
    )


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_ink_has_a_contrast_of_4_5_on_every_color(scheme):
    colors = (scheme.page, *scheme.experts, *scheme.surprisal, *scheme.confidence)
    assert min(contrast(scheme.ink, color) for color in colors) >= 4.5


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_sixteen_experts_differ_and_the_first_eight_more(scheme):
    """A difference of 0.02 can be seen side by side."""
    places = [oklab(color) for color in (*scheme.experts, scheme.page)]
    assert len(scheme.experts) == 16
    assert min(dist(a, b) for a, b in combinations(places, 2)) > 0.06
    assert min(dist(a, b) for a, b in combinations(places[:8], 2)) > 0.07


@pytest.mark.parametrize("ramp", [LIGHT.surprisal, LIGHT.confidence, DARK.surprisal, DARK.confidence])
def test_a_ramp_leaves_the_page_step_by_step(ramp):
    start = oklab(ramp[0])
    ways = [dist(start, oklab(color)) for color in ramp]
    assert ways == sorted(ways)
    assert len(set(ramp)) == len(ramp) == 10


def test_up_to_sixty_four_experts_have_a_color_and_pattern_of_their_own():
    assert len({(expert_color(expert), expert_pattern(expert)) for expert in range(16 * len(PATTERNS))}) == 64
    assert [expert_pattern(expert) for expert in (0, 15, 16, 47)] == [0, 0, 1, 2]
