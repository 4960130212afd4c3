"""The part of the style sheet that depends on the record: a color for each class, a rule for each view.

A byte knows its color in every view by its classes; which of them is shown is decided by the radio buttons, through
`:has`, so the page needs no script to change its view. A browser without `:has` shows the first pass by expert.
"""

import numpy as np

from dormouse.instruments.byte_trace import ByteTrace
from dormouse.report.cells import PASS_LETTERS, TOP_SURPRISAL, code
from dormouse.report.palette import LIGHT, PATTERNS, expert_color, expert_pattern

_GAP, _LINE = 1, 3  # CSS pixels above the first stripe, and of each stripe


def record_rules(trace: ByteTrace) -> str:
    """All rules for a record; numbers and fixed names only, nothing from the text or the run."""
    rules = [*_surprisal_colors(), *_confidence_colors(trace), *_expert_colors(trace), *_views(trace)]
    return "\n".join([*rules, _room(trace), *_stripes(trace)])


def swatch(expert: int) -> str:
    """Inline style of an expert's sample of color."""
    return f"--x:var(--e{expert_color(expert)});--xp:{PATTERNS[expert_pattern(expert)]}"


def _expert_colors(trace: ByteTrace) -> list[str]:
    rules = []
    for i, chosen in enumerate(trace.ids):
        for slot in range(trace.top_k):
            name = code(i * trace.top_k + slot)
            for expert in np.unique(chosen[:, slot]).tolist():
                pattern = expert_pattern(expert)
                over = f";--{name}p:{PATTERNS[pattern]}" if pattern else ""
                rules.append(f'.{name}{expert}{{--{name}:var(--e{expert_color(expert)});--{name}l:"{expert}"{over}}}')
    return rules


def _confidence_colors(trace: ByteTrace) -> list[str]:
    names = [code(i, PASS_LETTERS) for i in range(trace.n_passes)]
    return [
        f'.{name}{tenth}{{--{name}:var(--q{tenth});--{name}l:"{tenth}"}}'
        for name in names
        for tenth in range(len(LIGHT.confidence))
    ]


def _surprisal_colors() -> list[str]:
    """Small surprisals get no number: they are most of a text, and the ramp is enough for them."""
    labels = [f';--sl:"{bits}"' if bits >= 2 else "" for bits in range(TOP_SURPRISAL + 1)]
    return [f"._{bits}{{--s:var(--s{bits}){label}}}" for bits, label in enumerate(labels)]


def _views(trace: ByteTrace) -> list[str]:
    """What is shown for each setting of the radio buttons."""
    rules = [_view(":root:has(#by-surprisal:checked)", "s", "b", pattern="--sp")]
    for i in range(trace.n_passes):
        chosen = f":root:has(#pass-{i + 1}:checked)"
        name = code(i, PASS_LETTERS)
        rules.append(_view(f"{chosen}:has(#by-confidence:checked)", name, f".{name}"))
        for slot in range(trace.top_k):
            name = code(i * trace.top_k + slot)
            which = f":has(#slot-{slot + 1}:checked)" if trace.top_k > 1 else ""
            rules.append(_view(f"{chosen}:has(#by-expert:checked){which}", name, f".{name}", pattern=f"--{name}p"))
        rules.append(f"{chosen} .of-pass:not(.of-pass-{i + 1}){{display:none}}")
    return rules


def _view(setting: str, name: str, labelled: str, pattern: str | None = None) -> str:
    over = f"var({pattern},none)" if pattern else "none"
    return (
        f"{setting} .text b{{--x:var(--{name});--xp:{over}}}"
        f'{setting}:has(#numbers:checked) .text {labelled}::before{{content:var(--{name}l,"");'
        f'content:var(--{name}l,"")/""}}'
    )


def _room(trace: ByteTrace) -> str:
    """Height for the stripes, and numbers small enough to stand above one byte."""
    digits = len(str(trace.n_columns - 1))
    return f".text{{--under:{_GAP + trace.n_passes * _LINE}px;--label:{0.56 if digits == 1 else 0.9 / digits:.2f}em}}"


def _stripes(trace: ByteTrace) -> list[str]:
    """Under each byte, one stripe a pass: shadows behind one another, each reaching further down."""
    rules = []
    for slot in range(trace.top_k):
        which = f":has(#slot-{slot + 1}:checked)" if trace.top_k > 1 else ""
        names = [code(i * trace.top_k + slot) for i in range(trace.n_passes)]
        shadows = [f"0 {_GAP + i * _LINE}px 0 var(--{name})" for i, name in enumerate(["page", *names])]
        rules.append(f":root:has(#stripes:checked){which} .text b{{box-shadow:{','.join(shadows)}}}")
    return rules
