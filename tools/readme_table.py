#!/usr/bin/env python3
"""Write the results table of README.md from the figures in the repository.

    python tools/readme_table.py            # rewrite the table between its two markers
    python tools/readme_table.py --check    # change nothing; exit code 1 if the table is out of date

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
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
PEER_MINUTES = 4
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
    old = README.read_text(encoding="utf-8")
    new = with_table(old)
    if options.check:
        if old != new:
            print("README.md: the results table is out of date; run python tools/readme_table.py", file=sys.stderr)
        return int(old != new)
    README.write_text(new, encoding="utf-8")
    return 0


def with_table(text: str) -> str:
    """The README with a fresh table between its markers; raises `ValueError` if a marker is missing."""
    before, _, rest = text.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"README.md needs the two markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


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
    """The score of a recorded run (tools/record_run.py)."""
    result = figures["result"]
    what = f"**dormouse**, {file.stem}: {result['trained_bytes']:,} bytes read, {result['seconds']:.0f} s"
    bpb = result["bpb"]
    yield Row(what, f"**{bpb:.3f} BPB**", machine(figures["provenance"]), file, "/result/bpb", bpb)


def peer_rows(file: Path, figures: dict) -> Iterator[Row]:
    """Every network of a comparison at the budget of `PEER_MINUTES`, or the longest below it.

    As in the comparison itself, a peer is judged by the better of its scores, dormouse by the one at 512.
    """
    runs = [*enumerate(figures["runs"])]
    budget = max((run["minutes"] for _, run in runs if run["minutes"] <= PEER_MINUTES), default=None)
    for index, run in runs:
        if run["minutes"] != budget:
            continue
        is_own = run["model"] == "dormouse"
        key = "bpb" if is_own else min(("bpb", "bpb_at_256"), key=run.__getitem__)
        mark, bpb = "**" if is_own else "", run[key]
        what = f"{mark}{run['model']}{mark}: {budget:g} minutes, {run['trained_bytes']:,} bytes read"
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
