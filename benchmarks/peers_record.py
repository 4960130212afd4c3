"""The results file: what has been run, what has not, and the table.

One JSON file holds a head, which says what all its runs have in common (text, window, threads, length of a slice), and
one record for every finished pair of model and minutes. The file is replaced as a whole whenever a run ends, so a
comparison that is interrupted keeps every finished pair and runs only the others the next time. Runs made under
another head are not comparable, and a file that holds such runs is refused.

A peer is judged by the better of its two scores (sequences of 512, and of the 256 that the GPTs train at); dormouse by
the one at 512.
"""

import json
import os
from pathlib import Path

from benchmarks.peers_trial import DORMOUSE, WINDOW_BYTES, corpus, window

from dormouse.cli.waiting import SPIN_COUNT
from dormouse.errors import ConfigError
from dormouse.store.files import write_json

SCHEMA = 1


class Results:
    """The content of one results file."""

    def __init__(self, head: dict, runs: list[dict], path: Path | None) -> None:
        self.head, self.runs, self.path = head, runs, path

    @classmethod
    def open(cls, path: Path | None, head: dict) -> "Results":
        """The file at `path` (None: kept in memory), or an empty one; raises `ConfigError` for another head."""
        if path is None or not path.exists():
            return cls(head, [], path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found, runs = content["head"], content["runs"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"out = {path}: is not a results file of this benchmark and would have been replaced; name another"
            ) from None
        other = [key for key in head.keys() | found.keys() if head.get(key) != found.get(key)]
        if other:
            raise ConfigError(
                f"out = {path}: its runs were made with other settings ({', '.join(sorted(other))}) and would have "
                "been listed beside runs they cannot be compared with; name another file with --out"
            )
        return cls(head, runs, path)

    def has(self, model: str, minutes: float) -> bool:
        """Whether this pair is finished."""
        return any(run["model"] == model and run["minutes"] == minutes for run in self.runs)

    def add(self, record: dict) -> None:
        """Keep a finished run, on disk at once."""
        self.runs.append(record)
        self.runs.sort(key=lambda run: (run["minutes"], run["bpb"]))
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, {"benchmark": "peers", "schema": SCHEMA, "head": self.head, "runs": self.runs})


def make_head(*, threads: int, slice_seconds: float) -> dict:
    """What the runs of one file have in common."""
    data = corpus()
    return {
        "data": data.name,
        "train_bytes": len(data.train),
        "train_sha256": data.train_sha256,
        "held_out_sha256": data.held_out_sha256,
        "window_bytes": WINDOW_BYTES,
        "scored_bytes": window(data).scored_bytes,
        "threads": threads,
        "slice_seconds": slice_seconds,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "gomp_spincount": os.environ.get("GOMP_SPINCOUNT", SPIN_COUNT),
        "budget": "seconds of training; evaluations, checkpoints and waiting are not counted for any model",
    }


def table(runs: list[dict], *, with_lead: bool = True) -> list[str]:
    """Lines for people: all runs by budget, best first, with dormouse's lead under each budget, then the curves."""
    lines = []
    for minutes in sorted({run["minutes"] for run in runs}):
        group = [run for run in runs if run["minutes"] == minutes]
        speeds = [run["matmul_gflops"]["median"] for run in group]
        lines += ["", f"{minutes:g} minutes (matrix product {min(speeds):.0f} to {max(speeds):.0f} GFLOP/s)", _HEADER]
        lines += [_row(run) for run in sorted(group, key=lambda run: run["bpb"])]
        lines += lead(group) if with_lead else []
    return [*lines, *curves(runs)]


_HEADER = (
    f"{'model':<18} {'BPB':>6} {'at 256':>6} {'seconds':>7} {'steps':>6} {'MB':>6} {'kB/s':>6} "
    f"{'parameters':>10} {'in tables':>10}"
)


def _row(run: dict) -> str:
    return (
        f"{run['model']:<18} {run['bpb']:6.3f} {run['bpb_at_256']:6.3f} {run['seconds']:7.1f} {run['steps']:6d} "
        f"{run['trained_bytes'] / 1e6:6.3f} {run['bytes_per_second'] / 1e3:6.2f} {run['parameters']:10,} "
        f"{run['table_parameters']:10,}"
    )


def lead(group: list[dict]) -> list[str]:
    """By how much dormouse is below the best peer of one budget (negative: above); nothing without both."""
    own = [run["bpb"] for run in group if run["model"] == DORMOUSE]
    peers = {run["model"]: min(run["bpb"], run["bpb_at_256"]) for run in group if run["model"] != DORMOUSE}
    if not own or not peers:
        return []
    best = min(peers, key=peers.__getitem__)
    gap, side = peers[best] - own[0], "below" if own[0] <= peers[best] else "ABOVE"
    return [f"dormouse is {abs(gap):.3f} BPB {side} the best peer ({best}, {peers[best]:.3f})"]


def curves(runs: list[dict]) -> list[str]:
    """Every run's points, seconds / MB / BPB; only the last of a run is annealed."""
    lines = ["", "curves (seconds / MB / BPB; the rate has fallen only at the last point)"]
    for run in runs:
        points = "  ".join(f"{p['seconds']:.0f}/{p['bytes'] / 1e6:.2f}/{p['bpb']:.3f}" for p in run["curve"])
        lines.append(f"{run['model']:<18} {run['minutes']:g} min: {points}")
    return lines
