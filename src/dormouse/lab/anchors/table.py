"""The table of yardsticks for one pair of training and held-out text, measured or packaged.

All rows score the same bytes as a model: the window held_out[1 .. W] and the tail held_out[1 ..]. `window`
and `tail` are the fair figures (n-grams fitted on the training text, compressors primed with it);
`window_alone` and `tail_alone` exist for compressors only. Measuring the shelf takes about two minutes,
nearly all of it xz and zstd, so its figures are kept in `shelf.json` and used whenever the hashes of both
texts and the window agree; `dormouse anchors --fresh` measures again. A row that is not in the file is
measured.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from time import perf_counter
from typing import Any

import numpy as np

from dormouse.errors import DataError
from dormouse.lab.anchors.compressors import COMPRESSORS, compress_anchor
from dormouse.lab.anchors.kneser_ney import KneserNey

KINDS = ("uniform", "order0", "ngram", "gzip", "bzip2", "xz", "zstd")
ORDERS = (2, 3, 4, 5, 6, 7, 8)
NGRAM_LIMIT = 256 << 20
"""Longest training text, in bytes, on which n-grams are fitted; their tables take about 45 times that."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class AnchorRow:
    """One yardstick; all figures in bits per byte."""

    name: str
    kind: str
    """One of `KINDS`."""
    window: float
    tail: float
    window_alone: float | None = None
    tail_alone: float | None = None
    seconds: float = 0.0
    """Wall-clock time of the measurement; for n-grams, of all orders together."""


@dataclass(frozen=True)
class AnchorTable:
    """Rows and the bytes they are about."""

    rows: tuple[AnchorRow, ...]
    train_bytes: int
    train_sha256: str
    held_out_sha256: str
    window_bytes: int
    """Bytes asked for."""
    scored_bytes: int
    """Bytes scored in the window column; less than asked for when the text is short."""
    tail_bytes: int
    """Bytes scored in the tail column."""
    provenance: dict[str, Any] | None = None
    """Where the packaged figures were measured; None when every row was measured just now."""

    def row(self, name: str) -> AnchorRow:
        """The row of that name; KeyError when there is none."""
        return {row.name: row for row in self.rows}[name]

    def as_json(self) -> dict[str, Any]:
        """Plain types only."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}


def row_names(kinds: Sequence[str], orders: Sequence[int]) -> list[tuple[str, str]]:
    """(row name, kind) of every row that these kinds and n-gram orders ask for, in the order of the table."""
    every = [("uniform", "uniform"), ("order-0", "order0")]
    every += [(f"Kneser-Ney {order}-gram", "ngram") for order in orders]
    every += [(name, kind) for name, (kind, _) in COMPRESSORS.items()]
    return [(name, kind) for name, kind in every if kind in kinds]


def anchors_for(
    train: np.ndarray,
    held_out: np.ndarray,
    *,
    train_sha256: str,
    held_out_sha256: str,
    window_bytes: int,
    kinds: Sequence[str] = KINDS,
    orders: Sequence[int] = ORDERS,
    fresh: bool = False,
    progress: Progress = lambda message: None,
) -> AnchorTable:
    """The yardsticks of two uint8 streams; packaged figures are used where they are about these very bytes.

    `fresh` measures every row. `progress` is told what is being measured. Raises `DataError` when the held-out
    text has no scored byte or the training text is too long for n-grams.
    """
    if len(held_out) < 2:
        raise DataError(f"held-out text of {len(held_out)} bytes holds no scored byte; 2 bytes are the least")
    wanted = row_names(kinds, orders)
    known = None if fresh else packaged(train_sha256, held_out_sha256, window_bytes)
    rows = {} if known is None else {row.name: row for row in known.rows}
    rows["uniform"] = AnchorRow("uniform", "uniform", 8.0, 8.0)
    missing = [name for name, _ in wanted if name not in rows]
    if missing:
        rows |= _measure(train, held_out, window_bytes, missing, progress)
    chosen = tuple(rows[name] for name, _ in wanted)
    return AnchorTable(
        rows=chosen,
        train_bytes=len(train),
        train_sha256=train_sha256,
        held_out_sha256=held_out_sha256,
        window_bytes=window_bytes,
        scored_bytes=min(window_bytes, len(held_out) - 1),
        tail_bytes=len(held_out) - 1,
        provenance=None if known is None else known.provenance,
    )


def packaged(train_sha256: str, held_out_sha256: str, window_bytes: int) -> AnchorTable | None:
    """The packaged table if it is about these texts and this window, else None. Needs no text at hand."""
    table = read_table((resources.files("dormouse.lab.anchors") / "shelf.json").read_text("utf-8"))
    found = (table.train_sha256, table.held_out_sha256, table.window_bytes)
    return table if found == (train_sha256, held_out_sha256, window_bytes) else None


def read_table(text: str) -> AnchorTable:
    """The table in a JSON text that has at least the fields of `AnchorTable.as_json`."""
    found = json.loads(text)
    kept: dict[str, Any] = {part.name: found[part.name] for part in fields(AnchorTable)}
    kept["rows"] = tuple(AnchorRow(**row) for row in found["rows"])
    return AnchorTable(**kept)


def _measure(
    train: np.ndarray, held_out: np.ndarray, window_bytes: int, names: list[str], progress: Progress
) -> dict[str, AnchorRow]:
    orders = {name: _order_of(name) for name in names if name not in COMPRESSORS}
    rows = _measure_grams(train, held_out, window_bytes, orders, progress) if orders else {}
    for name in names:
        if name in COMPRESSORS:
            kind, compress = COMPRESSORS[name]
            progress(f"{name}: compressing {len(train) + len(held_out):,} bytes three times")
            start = perf_counter()
            figures = compress_anchor(compress, train, held_out, window_bytes=window_bytes)
            rows[name] = AnchorRow(name, kind, **asdict(figures), seconds=perf_counter() - start)
    return rows


def _measure_grams(
    train: np.ndarray, held_out: np.ndarray, window_bytes: int, orders: dict[str, int], progress: Progress
) -> dict[str, AnchorRow]:
    if len(train) > NGRAM_LIMIT:
        raise DataError(
            f"training text of {len(train):,} bytes is too long to count n-grams in memory "
            f"(limit {NGRAM_LIMIT:,}); leave them out with --skip order0,ngram, or name less text"
        )
    highest = max(orders.values())
    progress(f"n-grams: counting strings of up to {highest} bytes in {len(train):,} bytes")
    start = perf_counter()
    model = KneserNey(train, max_order=highest)
    progress(f"n-grams: scoring {len(held_out) - 1:,} bytes")
    bits = model.bits(held_out, sorted(orders.values()))
    rows = {}
    for name, order in orders.items():
        window, tail = float(bits[order][:window_bytes].mean()), float(bits[order].mean())
        rows[name] = AnchorRow(name, "order0" if order == 1 else "ngram", window, tail)
    return {name: replace(row, seconds=perf_counter() - start) for name, row in rows.items()}


def _order_of(name: str) -> int:
    return 1 if name == "order-0" else int(name.split()[1].removesuffix("-gram"))
