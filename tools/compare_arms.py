#!/usr/bin/env python3
"""Compare the arms of an experiment with a control: a table from runs.csv, printed or put into notes.md.

    python tools/compare_arms.py experiments/0005-retraction-arms --control none            # print it
    python tools/compare_arms.py experiments/0005-retraction-arms --control none --write    # between the notes' markers

A row is an arm: its number of seeds, the mean held-out BPB with the standard deviation over seeds, the mean difference
to the control with the same seeds and its 95 % interval (paired t), the p-value of that difference, corrected by Holm
for all arms of the table, the median seconds of a run, and the means of further columns of the file that `--columns`
names. *better* and *worse* are said where the corrected p-value is below 0.05; everything else is *undecided*, which is
not *equal*.
"""

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median, stdev

from scipy.stats import t as student

Runs = dict[int, dict[str, str]]
LEVEL = 0.05


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        lines = table(read(options.folder / "runs.csv"), options.control, options.columns)
        if options.write:
            notes = options.folder / "notes.md"
            notes.write_text(placed(notes.read_text(encoding="utf-8"), options.control, lines), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"compare_arms: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the arms of an experiment with a control.")
    parser.add_argument("folder", type=Path, help="folder of the experiment, with runs.csv")
    parser.add_argument("--control", required=True, help="arm that the others are compared with")
    parser.add_argument("--columns", nargs="*", default=[], help="further columns of runs.csv to show the mean of")
    parser.add_argument("--write", action="store_true", help="put the table into notes.md, between its markers")
    return parser.parse_args(arguments)


def read(path: Path) -> dict[str, Runs]:
    """Lines by arm and seed, in the order of the file."""
    arms: dict[str, Runs] = defaultdict(dict)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            arms[row["arm"]][int(row["seed"])] = row
    return dict(arms)


def table(arms: dict[str, Runs], control: str, columns: list[str]) -> list[str]:
    """Header, the control, then the others from the lowest mean on."""
    if control not in arms:
        raise ValueError(f"runs.csv has no arm {control}, with which the others are compared; it has {', '.join(arms)}")
    others = sorted((arm for arm in arms if arm != control), key=lambda arm: fmean(scores(arms[arm])))
    found = {arm: paired(arms[arm], arms[control]) for arm in others}
    corrected = dict(zip(others, holm([found[arm][2] for arm in others]), strict=True))
    head = ["arm", "seeds", "BPB", f"over {control} (95 % interval)", "p (Holm)", "verdict", "seconds", *columns]
    rows = [row(control, arms[control], ["control", "", ""], columns)]
    for arm in others:
        mean, (low, high), _ = found[arm]
        judged = "undecided" if not corrected[arm] < LEVEL else "better" if mean < 0 else "worse"
        shown = [f"{mean:+.4f} ({low:+.4f} to {high:+.4f})", f"{corrected[arm]:.2g}", judged]
        rows.append(row(arm, arms[arm], shown, columns))
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows]


def row(arm: str, runs: Runs, judged: list[str], columns: list[str]) -> str:
    """One line of the table."""
    found = scores(runs)
    spread = f" ± {stdev(found):.4f}" if len(found) > 1 else ""
    seconds = f"{median(float(run['seconds']) for run in runs.values()):.0f}"
    cells = [arm, str(len(runs)), f"{fmean(found):.4f}{spread}", *judged, seconds]
    return f"| {' | '.join([*cells, *(average(runs, column) for column in columns)])} |"


def average(runs: Runs, column: str) -> str:
    """Mean of a column over the seeds that have it."""
    values = [float(run[column]) for run in runs.values() if run.get(column)]
    return f"{fmean(values):.4g}" if values else ""


def scores(runs: Runs) -> list[float]:
    return [float(run["bpb"]) for run in runs.values()]


def paired(runs: Runs, control: Runs) -> tuple[float, tuple[float, float], float]:
    """Mean difference over common seeds, its 95 % interval, its two-sided p; with one seed nothing is known."""
    gaps = [float(runs[seed]["bpb"]) - float(control[seed]["bpb"]) for seed in sorted(runs.keys() & control.keys())]
    if len(gaps) < 2:
        return (fmean(gaps) if gaps else float("nan")), (float("-inf"), float("inf")), 1.0
    mean, error, freedom = fmean(gaps), stdev(gaps) / len(gaps) ** 0.5, len(gaps) - 1
    half = float(student.ppf(1 - LEVEL / 2, freedom)) * error
    p = 2 * float(student.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    return mean, (mean - half, mean + half), p


def holm(values: list[float]) -> list[float]:
    """Holm's correction: the i-th smallest of n times n - i, never below a smaller one's, at most 1."""
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, largest = [0.0] * len(values), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, values[i] * (len(values) - place)))
        corrected[i] = largest
    return corrected


def placed(text: str, control: str, lines: list[str]) -> str:
    """The notes with a fresh table between its markers; raises `ValueError` if a marker is missing."""
    begin, end = f"<!-- against {control}: begin -->", f"<!-- against {control}: end -->"
    before, _, rest = text.partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise ValueError(f"notes.md needs the two markers {begin} and {end}")
    return "\n".join([f"{before}{begin}", *lines, f"{end}{after}"])


if __name__ == "__main__":
    sys.exit(main())
