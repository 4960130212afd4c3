#!/usr/bin/env python3
"""Copy the figures of a completed run into the repository as one JSON file.

    python tools/record_run.py runs/first tiny-3-minutes    # writes benchmarks/results/tiny-3-minutes.json

A run directory is not committed; this file is. It holds what a number needs to be compared with another one:
the effective configuration, commit and machine, data hashes, the scored window, and every evaluation with the
bytes trained on until then. Weights, samples and the training curve stay in the run directory.
"""

import argparse
import sys
from pathlib import Path

from dormouse.errors import DormouseError, RunDirError
from dormouse.store.files import write_json
from dormouse.store.metrics import read_metrics
from dormouse.store.rundir import RunDir

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
_EVALUATION = ("step", "trained_bytes", "bpb", "by_register")
_RESULT = ("step", "bpb", "scored_bytes", "window_bytes", "total_steps", "trained_bytes", "seconds", "skipped")


def main() -> int:
    parser = argparse.ArgumentParser(description="Copy the figures of a run to benchmarks/results/NAME.json.")
    parser.add_argument("run", type=Path, help="directory of a completed run")
    parser.add_argument("name", help="name of the result, without .json")
    options = parser.parse_args()
    try:
        figures = collect(RunDir.open(options.run))
    except DormouseError as error:
        print(f"record_run: {error}", file=sys.stderr)
        return error.exit_code
    RESULTS.mkdir(parents=True, exist_ok=True)
    target = RESULTS / f"{options.name}.json"
    write_json(target, figures)
    print(f"{target.name}: {figures['result']['bpb']:.4f} bits per byte after {figures['result']['total_steps']} steps")
    return 0


def collect(run: RunDir) -> dict:
    """What is worth keeping of a run; raises `RunDirError` if it is not complete."""
    record = run.read_run()
    if "result" not in record:
        raise RunDirError(f"{run.path} is not complete and has no result; go on with it: dormouse resume {run.path}")
    scores = [row for row in read_metrics(run.metrics) if row["kind"] == "eval"]
    return {
        "benchmark": "training",
        **{key: record[key] for key in ("config", "provenance", "data", "window", "parameters")},
        "resumed": record.get("resumed", []),
        "result": {key: record["result"][key] for key in _RESULT},
        "evaluations": [{key: row.get(key) for key in _EVALUATION} for row in scores],
    }


if __name__ == "__main__":
    sys.exit(main())
