"""metrics.jsonl: one JSON object a line, in the order things happened, and nothing that is not JSON.

Every row has `schema`, `kind` ("train", "eval", "probe", "latch", "event", "windows") and `step` (optimiser steps
finished). JSON has no NaN and no infinity: such a value is taken out of its row, counted, and its text kept under
`non_finite`, so the row still says that the gradient norm was `inf`. A kill can leave half a line at the end;
it is dropped when the file is next opened for writing and ignored by the reader. Resuming at step N first
removes the rows after N, because the run is about to produce them again.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from dormouse.errors import RunDirError
from dormouse.store.files import write_atomic

SCHEMA = 1


class MetricsWriter:
    """Appends rows; each is on its way to the disk before `write` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dropped = 0
        """Non-finite values taken out of rows so far."""
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, step: int, values: Mapping[str, object]) -> dict:
        """Append one row and return it; `values` may hold numbers, strings, lists and mappings of them."""
        texts: dict[str, str] = {}
        clean = {key: value for key, value in values.items() if not _take_non_finite(key, value, texts)}
        if texts:
            self.dropped += len(texts)
            clean["non_finite"] = texts
        row = {"schema": SCHEMA, "kind": kind, "step": step, **clean}
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        return row

    def sync(self) -> None:
        """Force what was written to disk (before a checkpoint that relies on it)."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def truncate_after(self, step: int, *, seen: Mapping[str, int] | None = None) -> int:
        """Remove the rows with a larger step; returns how many. The file changes completely or not at all.

        `seen` gives an earlier limit for a kind of row: a checkpoint written between an evaluation's step and the
        evaluation itself has seen all rows of its step but that one.
        """
        rows, limits = read_metrics(self.path), seen or {}
        kept = [row for row in rows if row["step"] <= min(step, limits.get(row["kind"], step))]
        if len(kept) < len(rows):
            self._file.close()
            write_atomic(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())
            self._file = self.path.open("a", encoding="utf-8")
        return len(rows) - len(kept)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict]:
    """All complete rows of the file (none if it does not exist); raises `RunDirError` on a damaged line."""
    if not path.exists():
        return []
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise RunDirError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); restore it.") from None
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise RunDirError(f"{path}, line {number}: is not JSON ({error}); restore the file.") from None
    return rows


def _cut_torn_line(path: Path) -> None:
    """Drop what follows the last line end."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def _take_non_finite(name: str, value: object, texts: dict[str, str]) -> bool:
    """True when `value` is, or holds, a non-finite number; its text goes to `texts` under a dotted name."""
    if isinstance(value, float) and not math.isfinite(value):
        texts[name] = str(value)
        return True
    if isinstance(value, Mapping):
        found = [_take_non_finite(f"{name}.{key}", item, texts) for key, item in value.items()]
        return any(found)
    if isinstance(value, (list, tuple)):
        found = [_take_non_finite(f"{name}.{index}", item, texts) for index, item in enumerate(value)]
        return any(found)
    return False
