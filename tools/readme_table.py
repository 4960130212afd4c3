#!/usr/bin/env python3
"""Write the results tables of README.md and benchmarks/README.md from the figures in the repository.

    python tools/readme_table.py            # rewrite the tables between their markers
    python tools/readme_table.py --check    # change nothing; exit code 1 if one is out of date

A row exists when its file exists: the packaged yardsticks of the built-in corpus, and whatever lies in
benchmarks/results/ and says what it is (`"benchmark": "training"`, `"peers"` or `"generation"`). Each row links
to its file, and the link's fragment is the JSON pointer (RFC 6901) of the row's figure, so that a program can
follow it. Nothing is typed in by hand.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
ANCHORS = ROOT / "src" / "dormouse" / "lab" / "anchors" / "shelf.json"
BENCHMARKS = ROOT / "benchmarks" / "README.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
MARKS_BYTES = (1_000_000, 2_000_000, 4_000_000, 8_000_000)
"""Where the table of BPB against bytes looks at a curve: the first score at or after each."""
PEER_MINUTES = (4, 12)
SHOWN_ANCHORS = ("order-0", "Kneser-Ney 4-gram", "Kneser-Ney 5-gram", "Kneser-Ney 8-gram", "gzip -9", "xz -9e")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    figure: str
    machine: str
    file: Path
    pointer: str
    bpb: float | None = None
    """Sorts the rows that are scores; the others follow."""

    def __str__(self) -> str:
        path = self.file.relative_to(ROOT).as_posix()
        return f"| {self.what} | {self.figure} | {self.machine} | [{self.file.name}]({path}#{quote(self.pointer)}) |"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the results table of README.md.")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if the table is out of date")
    options = parser.parse_args()
    stale = 0
    for page, fresh in ((README, table()), (BENCHMARKS, curve_table())):
        old = page.read_text(encoding="utf-8")
        new = with_table(old, fresh)
        if options.check and old != new:
            print(f"{page.relative_to(ROOT)} is out of date; run python tools/readme_table.py", file=sys.stderr)
            stale = 1
        elif not options.check:
            page.write_text(new, encoding="utf-8")
    return stale


def with_table(text: str, fresh: str) -> str:
    """The page with a fresh table between its markers; raises `ValueError` if a marker is missing."""
    before, _, rest = text.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"the page needs the two markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{fresh}\n{END}{after}"


def curve_table() -> str:
    """BPB against bytes read, of every network in its longest run of the comparison."""
    runs = json.loads((RESULTS / "peers.json").read_text(encoding="utf-8"))["runs"]
    longest = max(run["minutes"] for run in runs)
    head = ["network", *(f"{mark / 1e6:g} MB" for mark in MARKS_BYTES), f"after {longest:g} minutes", "bytes read"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for run in sorted((run for run in runs if run["minutes"] == longest), key=lambda run: run["bpb"]):
        marks = [next((f"{p['bpb']:.3f}" for p in run["curve"] if p["bytes"] >= mark), "-") for mark in MARKS_BYTES]
        score, read = f"{run['bpb']:.3f}", f"{run['trained_bytes']:,}"
        lines.append(f"| {' | '.join([run['model'], *marks, score, read])} |")
    return "\n".join(lines)


def table() -> str:
    """Scores from best to worst, then the rest."""
    rows = [*anchor_rows()]
    for file in sorted(RESULTS.glob("*.json")):
        rows += result_rows(file)
    scores = sorted((row for row in rows if row.bpb is not None), key=lambda row: row.bpb or 0.0)
    others = [row for row in rows if row.bpb is None]
    head = ["| what | figure | machine, date, commit | file |", "|---|---|---|---|"]
    return "\n".join([*head, *(str(row) for row in (*scores, *others))])


def anchor_rows() -> Iterator[Row]:
    """The packaged yardsticks that are shown."""
    figures = json.loads(ANCHORS.read_text(encoding="utf-8"))
    for index, anchor in enumerate(figures["rows"]):
        if anchor["name"] in SHOWN_ANCHORS:
            pointer, bpb = f"/rows/{index}/window", anchor["window"]
            yield Row(anchor["name"], f"{bpb:.3f} BPB", machine(figures["provenance"]), ANCHORS, pointer, bpb)


def result_rows(file: Path) -> Iterator[Row]:
    """Rows of one file in benchmarks/results; none if it is of no kind that is known here."""
    figures = json.loads(file.read_text(encoding="utf-8"))
    kinds = {"training": training_rows, "peers": peer_rows, "generation": generation_rows}
    kind = kinds.get(figures.get("benchmark")) if isinstance(figures, dict) else None
    if kind is not None:
        yield from kind(file, figures)


def training_rows(file: Path, figures: dict) -> Iterator[Row]:
    """The score a recorded run (tools/record_run.py) ended with, and its best on the way if that is another one."""
    last = len(figures["evaluations"]) - 1
    end, result = figures["evaluations"][last], figures["result"]
    what = f"**dormouse**, {file.stem}: {end['trained_bytes']:,} bytes read, {result['seconds']:.0f} s"
    place = machine(figures["provenance"])
    yield Row(what, f"**{end['bpb']:.3f} BPB**", place, file, f"/evaluations/{last}/bpb", end["bpb"])


def peer_rows(file: Path, figures: dict) -> Iterator[Row]:
    """Every network of a comparison at the budgets of `PEER_MINUTES`.

    As in the comparison itself, a peer is judged by the better of its scores, dormouse by the one at 512.
    """
    for index, run in enumerate(figures["runs"]):
        if run["minutes"] not in PEER_MINUTES:
            continue
        is_own = run["model"] == "dormouse"
        key = "bpb" if is_own else min(("bpb", "bpb_at_256"), key=run.__getitem__)
        mark, bpb = "**" if is_own else "", run[key]
        what = f"{mark}{run['model']}{mark}: {run['trained_bytes']:,} bytes read, {run['seconds']:.0f} s"
        place = machine(run["provenance"])
        yield Row(what, f"{mark}{bpb:.3f} BPB{mark}", place, file, f"/runs/{index}/{key}", bpb)


def generation_rows(file: Path, figures: dict) -> Iterator[Row]:
    """How much the carried state is worth when text is written."""
    name = "speedup at 512"
    value = figures["ratios"][name]["median"]
    what = "speed of writing at position 512: carried state over reading the window again for every byte"
    yield Row(what, f"{value:.1f} x", machine(figures["provenance"]), file, f"/ratios/{name}/median")


def machine(provenance: dict) -> str:
    """Processor, threads or cores, date and commit of a result; a star marks a changed working tree."""
    place = provenance.get("machine", provenance)
    threads = provenance.get("threads")
    share = f"{threads} thread{'s' * (threads > 1)}" if threads else f"{place['cores']} cores"
    commit = (provenance["commit"] or "no commit")[:9] + ("*" if provenance.get("dirty") else "")
    return ", ".join([str(place["cpu"]), share, provenance["date"][:10], commit])


if __name__ == "__main__":
    sys.exit(main())
