#!/usr/bin/env python3
"""Copy the figures of a completed run into the repository as one JSON file.

    python tools/record_run.py runs/first tiny-3-minutes    # writes benchmarks/results/tiny-3-minutes.json
    python tools/record_run.py runs/second tiny-3-minutes --overwrite

A run directory is not committed; this file is. It holds what a number needs to be compared with another one:
the effective configuration, commit and machine, data hashes, the scored window, and every evaluation with the
bytes trained on until then. Weights, samples and the training curve stay in the run directory. A result that is
there already is replaced only with --overwrite, and a file of another benchmark never.
"""

import argparse
import json
import sys
from pathlib import Path

from dormouse.errors import DataError, DormouseError, RunDirError
from dormouse.store.files import write_json
from dormouse.store.metrics import read_metrics
from dormouse.store.rundir import RunDir

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
KIND = "training"
OTHERS = ("peers", "generation", "retraction")
"""Names that the programs in benchmarks/ write."""
_EVALUATION = ("step", "trained_bytes", "bpb", "by_register")
_RESULT = ("step", "bpb", "scored_bytes", "window_bytes", "total_steps", "trained_bytes", "seconds", "skipped")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Copy the figures of a run to benchmarks/results/NAME.json.")
    parser.add_argument("run", type=Path, help="directory of a completed run")
    parser.add_argument("name", help="name of the result, without .json")
    parser.add_argument("--overwrite", action="store_true", help="replace the recorded run of that name")
    options = parser.parse_args(arguments)
    try:
        target = free_target(options.name, overwrite=options.overwrite)
        figures = collect(RunDir.open(options.run))
    except DormouseError as error:
        print(f"record_run: {error}", file=sys.stderr)
        return error.exit_code
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_json(target, figures)
    print(f"{target.name}: {figures['result']['bpb']:.4f} bits per byte after {figures['result']['total_steps']} steps")
    return 0


def free_target(name: str, *, overwrite: bool) -> Path:
    """The file of the result `name`; raises `DataError` where something would be lost that is not to be."""
    target = RESULTS / f"{name}.json"
    if target.parent != RESULTS or name in OTHERS:
        raise DataError(
            f"name = {name}: {target.name} is not a place for a run ({', '.join(OTHERS)} belong to benchmarks/); "
            "nothing was written. Choose another name, without a folder."
        )
    if not target.exists():
        return target
    if kind_of(target) != KIND:
        raise DataError(
            f"name = {name}: {target.name} holds the result of another program, which would have been lost. "
            "Choose another name."
        )
    if not overwrite:
        raise DataError(
            f"name = {name}: {target.name} exists, and its figures would have been lost. "
            "Choose another name, or replace them with --overwrite."
        )
    return target


def kind_of(file: Path) -> object:
    """What a result says it is; None for a file that says nothing of the sort."""
    try:
        figures = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return figures.get("benchmark") if isinstance(figures, dict) else None


def collect(run: RunDir) -> dict:
    """What is worth keeping of a run; raises `RunDirError` if it is not complete."""
    record = run.read_run()
    if "result" not in record:
        raise RunDirError(f"{run.path} is not complete and has no result; go on with it: dormouse resume {run.path}")
    scores = [row for row in read_metrics(run.metrics) if row["kind"] == "eval"]
    return {
        "benchmark": KIND,
        **{key: record[key] for key in ("config", "provenance", "data", "window", "parameters")},
        "resumed": record.get("resumed", []),
        "result": {key: record["result"][key] for key in _RESULT},
        "evaluations": [{key: row.get(key) for key in _EVALUATION} for row in scores],
    }


if __name__ == "__main__":
    sys.exit(main())
