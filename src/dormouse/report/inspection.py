"""From a trace to the routing microscope: one HTML page that needs nothing but itself.

The page is made by one template with autoescape on; style and script are files beside it and are written into it. The
same record gives the same page, byte by byte. Everything on it can be read without a script: the script only adds the
panel that follows the pointer or the arrow keys. At two passes and k = 1 a text byte costs the page about 100 bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dormouse.instruments.byte_trace import ByteTrace
from dormouse.instruments.pass_agreement import Agreement, agreements
from dormouse.report import styles
from dormouse.report.cells import cells, visible
from dormouse.report.characters import characters
from dormouse.report.palette import DARK, LIGHT, declarations
from dormouse.report.reading import rows
from dormouse.report.sparkline import HEIGHT, sparkline
from dormouse.report.typical import CLASSES, class_shares, profiles

LARGEST_TABLE = 16
"""Experts with a row and column of their own in a transition table; the rest share one."""


@dataclass(frozen=True)
class Inspection:
    """What the page is about."""

    trace: ByteTrace
    run: str
    checkpoint: str
    step: int
    text: str
    """Name of the text."""
    cut: str | None
    """Sentence on what was left out; None when all of the text is there."""
    evenness: tuple[float | None, ...]
    """Entropy of the experts' shares over ln E, for each pass; None where null experts got everything."""
    settings: Mapping[str, str]
    """What a reader should know of the run, in words."""


def render(inspection: Inspection) -> str:
    """The page, as text to be stored in UTF-8."""
    trace = inspection.trace
    bits, shares = trace.bits[1:], trace.counts() / (len(trace.data) * trace.top_k)
    return (
        _environment()
        .get_template("inspect.html.j2")
        .render(
            inspection=inspection,
            trace=trace,
            cells=cells(trace),
            experts=_experts(trace),
            shares=shares,
            largest_share=shares.max(),
            unused=(trace.counts()[:, : trace.n_experts] == 0).sum(1),
            pairs=[_pair(agreement) for agreement in agreements(trace.ids, trace.n_columns)],
            classes=CLASSES,
            text_classes=class_shares(trace.data),
            rows=rows(trace),
            spark=sparkline(bits),
            spark_height=HEIGHT,
            hardest=int(bits.argmax()) + 1,
            hardest_bits=float(bits.max()),
            record=json.dumps(_record(trace), separators=(",", ":")),
            light=declarations(LIGHT),
            dark=declarations(DARK),
            rules=styles.record_rules(trace),
            swatch=styles.swatch,
            ramp_surprisal=range(len(LIGHT.surprisal)),
            ramp_confidence=range(len(LIGHT.confidence)),
            name_of=byte_name,
        )
    )


def byte_name(byte: int) -> str:
    """A byte value in words: a character where it has one, else its name or its number."""
    named = {0x0A: "newline", 0x20: "space", 0x09: "tab"}
    if byte in named:
        return named[byte]
    shown = next(characters(bytes([byte])))
    return visible(shown) if byte < 0x80 else f"0x{byte:02x}"


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("dormouse.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _experts(trace: ByteTrace) -> list[dict]:
    """A row of the tables of experts for each column of the router, the unused ones at their place."""
    found = profiles(trace.data, trace.ids, trace.n_columns)
    return [
        {"profile": profile, "swatch": styles.swatch(profile.expert), "null": profile.expert >= trace.n_experts}
        for profile in found
    ]


def _pair(agreement: Agreement) -> dict:
    """A transition table of at most `LARGEST_TABLE` experts, the most used ones, and one line for the rest."""
    counts = agreement.transitions
    use = counts.sum(0) + counts.sum(1)
    kept = np.flatnonzero(use)
    if len(kept) > LARGEST_TABLE:
        kept = np.sort(np.argsort(-use, kind="stable")[:LARGEST_TABLE])
    rest = np.setdiff1d(np.arange(len(counts)), kept)
    groups = [np.array([expert]) for expert in kept] + ([rest] if counts[rest].any() or counts[:, rest].any() else [])
    table = np.array([[counts[np.ix_(row, column)].sum() for column in groups] for row in groups])
    names = [str(expert) for expert in kept] + ["others"] * (len(groups) - len(kept))
    return {
        "agreement": agreement,
        "neighbors": agreement.second == agreement.first + 1,
        "names": names,
        "table": table.tolist(),
        "total": int(counts.sum()),
        "largest": int(table.max()),
    }


def _record(trace: ByteTrace) -> dict:
    """What the script shows for one byte, rounded; numbers and hexadecimal digits only."""
    return {
        "bytes": trace.data.tobytes().hex(),
        "bits": [None, *trace.bits[1:].round(2).tolist()],
        "ids": trace.ids.tolist(),
        "gates": _rounded(trace.gates),
        "confidence": _rounded(trace.confidence),
        "entropy": _rounded(trace.entropy),
    }


def _rounded(values: np.ndarray) -> list:
    return values.astype(np.float64).round(3).tolist()
