#!/usr/bin/env python3
"""Write the table of number formats of README.md from the runs of the format ladder.

    python tools/format_table.py            # rewrite the table between its two markers
    python tools/format_table.py --check    # change nothing; exit code 1 if the table is out of date

A rung is a format, a row its runs: mean held-out BPB with the standard deviation over seeds, the mean difference to
fp32 with the same seeds and its 95 % interval (paired t), parts that fell back, the largest orthogonality error of what
the forward saw. *Alive* is yes when no part fell back with any seed and the interval ends below +0.02 BPB, no when a
part fell back or the interval begins above that, and undecided between. Nothing is typed in by hand.
"""

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t as student

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RUNS = ROOT / "experiments" / "0004-format-ladder" / "runs.csv"
BEGIN, END = "<!-- formats: begin -->", "<!-- formats: end -->"
CONTROL = "fp32"
TOLERANCE_BPB = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the table of number formats of README.md.")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if the table is out of date")
    options = parser.parse_args()
    old = README.read_text(encoding="utf-8")
    try:
        new = with_table(old, table(read_runs()))
    except (OSError, ValueError) as error:
        print(f"format_table: {error}", file=sys.stderr)
        return 2
    if options.check:
        if old != new:
            print("README.md: the format table is out of date; run python tools/format_table.py", file=sys.stderr)
        return int(old != new)
    README.write_text(new, encoding="utf-8")
    return 0


def with_table(text: str, lines: list[str]) -> str:
    """The README with a fresh table between its markers; raises `ValueError` if a marker is missing."""
    before, _, rest = text.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"README.md needs the two markers {BEGIN} and {END}")
    return "\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"])


def read_runs() -> dict[str, dict[int, dict[str, str]]]:
    """Lines of the ladder by arm and seed."""
    rungs: dict[str, dict[int, dict[str, str]]] = defaultdict(dict)
    with RUNS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rungs[row["arm"]][int(row["seed"])] = row
    return dict(rungs)


def table(rungs: dict[str, dict[int, dict[str, str]]]) -> list[str]:
    """Header and one line a rung, in the order of the file."""
    head = "| format | seeds | BPB | over fp32 (95 % interval) | fell back | effective error | alive |"
    if CONTROL not in rungs:
        raise ValueError(f"{RUNS.name} has no run of {CONTROL}, with which every format is compared")
    control = rungs[CONTROL]
    return [head, "|---|---|---|---|---|---|---|", *(line(arm, runs, control) for arm, runs in rungs.items())]


def line(arm: str, runs: dict[int, dict[str, str]], control: dict[int, dict[str, str]]) -> str:
    """One rung."""
    scores = [float(row["bpb"]) for row in runs.values()]
    spread = f" ± {stdev(scores):.3f}" if len(scores) > 1 else ""
    latched = [row["tsct"].partition("latched=")[2] for row in runs.values()]
    fallen = ", ".join(text for text in latched if text) or "none"
    error = max(
        (float(row["effective_error"]) for row in runs.values() if row["effective_error"]), default=float("nan")
    )
    difference, ends = against(runs, control)
    shown = "control" if arm == CONTROL else f"{difference:+.4f} ({ends[0]:+.4f} to {ends[1]:+.4f})"
    verdict = "yes" if arm == CONTROL or ends[1] < TOLERANCE_BPB else "undecided"
    if fallen != "none" or ends[0] > TOLERANCE_BPB:
        verdict = "no"
    return f"| {arm} | {len(runs)} | {fmean(scores):.4f}{spread} | {shown} | {fallen} | {error:.1e} | {verdict} |"


def against(runs: dict[int, dict[str, str]], control: dict[int, dict[str, str]]) -> tuple[float, tuple[float, float]]:
    """Mean difference over common seeds and its 95 % interval; without two seeds the interval is everything."""
    gaps = [float(runs[seed]["bpb"]) - float(control[seed]["bpb"]) for seed in runs.keys() & control.keys()]
    mean = fmean(gaps) if gaps else float("nan")
    if len(gaps) < 2:
        return mean, (float("-inf"), float("inf"))
    half = float(student.ppf(0.975, len(gaps) - 1)) * stdev(gaps) / len(gaps) ** 0.5
    return mean, (mean - half, mean + half)


if __name__ == "__main__":
    sys.exit(main())
