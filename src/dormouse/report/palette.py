"""Colors of a page in a light and a dark scheme, chosen so that ink on any of them can be read.

The first sixteen experts have a color each; the first eight lie further apart than the rest. After that the colors
come again with another pattern on top, so an expert is its color and its pattern, and always its number as well.
The ramps go from the page's own color to a strong one.
"""

from dataclasses import dataclass

PATTERNS = (
    "none",
    "repeating-linear-gradient(135deg,var(--hatch) 0 1px,#0000 1px 4px)",
    "repeating-linear-gradient(0deg,var(--hatch) 0 1px,#0000 1px 4px)",
    "repeating-linear-gradient(45deg,var(--hatch) 0 1px,#0000 1px 4px)",
)
"""CSS images laid over a color; expert e has `PATTERNS[e // 16 % 4]`."""


@dataclass(frozen=True)
class Scheme:
    """Colors as `#rrggbb`."""

    ink: str
    page: str
    experts: tuple[str, ...]
    surprisal: tuple[str, ...]
    """0, 1, .. 9 bits; the last one stands for more, too."""
    confidence: tuple[str, ...]
    """Tenths: 0 to 0.1, .. 0.9 to 1."""


LIGHT = Scheme(
    ink="#14171c",
    page="#ffffff",
    experts=(
        *("#88cdfd", "#fc9e47", "#7cdd93", "#f786be", "#f4ea68", "#ab93ed", "#65d2d2", "#f2716a"),
        *("#5294e6", "#c0851f", "#54a058", "#f5bdf0", "#e5ddd0", "#d4dcff", "#d2f6af", "#979fab"),
    ),
    surprisal=(
        *("#fdfaf3", "#fdf2d9", "#fee6b1", "#fed98a", "#fec470"),
        *("#fea04d", "#f9843f", "#f77342", "#f4644a", "#f05653"),
    ),
    confidence=(
        *("#f2fafd", "#dbf3fb", "#c3ecf8", "#aae5f5", "#90def1"),
        *("#79d4ee", "#68c8eb", "#5abbe9", "#4fade6", "#499fe3"),
    ),
)

DARK = Scheme(
    ink="#f7f8fa",
    page="#14171c",
    experts=(
        *("#0d5c91", "#915108", "#0b5d2a", "#93285c", "#7c6d12", "#4f3189", "#0e7272", "#8d1b19"),
        *("#0f3072", "#563503", "#033816", "#90558b", "#6c6863", "#5c5fab", "#4b7f28", "#35383d"),
    ),
    surprisal=(
        *("#1e1a16", "#2c2016", "#3f2a14", "#54360b", "#693a04"),
        *("#7d3d02", "#913f0a", "#9e3a10", "#aa301b", "#b32228"),
    ),
    confidence=(
        *("#161c1e", "#17252c", "#162f3a", "#133a48", "#0c4457"),
        *("#024e66", "#005676", "#025f86", "#0c6697", "#196ea9"),
    ),
)


def expert_color(expert: int) -> int:
    """Index of an expert's color in `Scheme.experts`."""
    return expert % len(LIGHT.experts)


def expert_pattern(expert: int) -> int:
    """Index of an expert's pattern in `PATTERNS`; 0 is none."""
    return expert // len(LIGHT.experts) % len(PATTERNS)


def declarations(scheme: Scheme) -> str:
    """The scheme as CSS custom properties: `--ink`, `--page`, `--e0`, `--s0`, `--q0` and so on."""
    named = {"ink": scheme.ink, "page": scheme.page}
    for letter, colors in (("e", scheme.experts), ("s", scheme.surprisal), ("q", scheme.confidence)):
        named |= {f"{letter}{number}": color for number, color in enumerate(colors)}
    return ";".join(f"--{name}:{color}" for name, color in named.items())
