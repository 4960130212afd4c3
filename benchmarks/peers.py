"""Dormouse beside peers: bits per byte after the same minutes of training on the same machine.

    python -m benchmarks.peers --minutes 2 4 12 --models all --out benchmarks/results/peers.json
    python -m benchmarks.peers --minutes 4 --models dormouse lstm gpt-ngram-tuned
    python -m benchmarks.peers --smoke

Each pair of model and minutes is one run with its own schedule, annealed to that budget. All models of a budget train
in turns of some seconds (`peers_alternate.py`), so that a busy machine is equally busy for all of them; a budget counts
seconds of training only. Recipes are in `peers_recipes.py`, the rules of scoring in `peers_trial.py`. Finished pairs in
the results file are not run again. `--smoke` gives every model a few seconds and writes no file unless one is named:
its scores mean nothing, it shows that everything runs.

Exit codes: 0 all pairs finished, 1 a model failed, 2 refused.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.peers_alternate import TrialFailed, alternate
from benchmarks.peers_record import Results, make_head, table
from benchmarks.peers_trial import MODELS, Request

from dormouse.errors import DormouseError

OUT = Path(__file__).parent / "results" / "peers.json"
SMOKE_MINUTES = 0.05
SMOKE_SLICE = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Run what is not finished yet and print the table; the exit code."""
    options = parse(arguments)
    try:
        results = Results.open(options.out, make_head(threads=options.threads, slice_seconds=options.slice))
        for minutes in options.minutes:
            compare(results, minutes, options)
    except TrialFailed as error:
        print(f"{error}\nfinished runs are kept; the same command runs the others", file=sys.stderr)
        return 1
    except DormouseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(table(results.runs, with_lead=not options.smoke)))
    return 0


def compare(results: Results, minutes: float, options: argparse.Namespace) -> None:
    """All models of one budget that have no result yet, in turns."""
    missing = [model for model in options.models if not results.has(model, minutes)]
    if not missing:
        print(f"{minutes:g} minutes: every model has its result")
        return
    points = 1 if options.smoke else 8
    requests = [Request(model, minutes, options.threads, points) for model in missing]
    for record in alternate(requests, slice_seconds=options.slice):
        results.add(record)
        print(f"  {record['model']} is done: {record['bpb']:.4f} BPB after {record['trained_bytes'] / 1e6:.3f} MB")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, with what `--smoke` and `all` stand for filled in; exits with 2 when refused."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, nargs="+", default=None, help="budgets (default 2 4 12)")
    parser.add_argument("--models", nargs="+", default=["all"], choices=["all", *MODELS], metavar="MODEL")
    parser.add_argument("--out", type=Path, help="results file (default benchmarks/results/peers.json)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of the one model that is awake")
    parser.add_argument("--slice", type=float, help="seconds of a turn (default 15)")
    parser.add_argument("--smoke", action="store_true", help="a few seconds a model, no results file")
    options = parser.parse_args(arguments)
    options.models = list(MODELS) if "all" in options.models else list(dict.fromkeys(options.models))
    options.minutes = options.minutes or ([SMOKE_MINUTES] if options.smoke else [2.0, 4.0, 12.0])
    if options.slice is None:
        options.slice = SMOKE_SLICE if options.smoke else 15.0
    options.out = options.out or (None if options.smoke else OUT)
    if min(*options.minutes, options.slice, options.threads) <= 0:
        parser.error("--minutes, --slice and --threads must be above 0: nothing would have been trained")
    return options


if __name__ == "__main__":
    sys.exit(main())
