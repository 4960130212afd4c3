#!/usr/bin/env python3
"""Train every arm of an experiment with every seed and write one line a run.

    python tools/run_arms.py experiments/0004-format-ladder            # reads plan.toml there, appends to runs.csv
    python tools/run_arms.py experiments/0004-format-ladder --list     # what is done and what is left
    python tools/run_arms.py experiments/0004-format-ladder --arms fp32 fp4 --seeds 0

The plan names a preset, the number of steps, the seeds, settings that all arms share, and the settings of each arm. An
arm that the program has no setting for names a variant instead, `variant:NAME`: a context manager in the folder's
variants.py, entered around the run.
Seeds go first: after any interruption every arm has the same number of runs, give or take one. A run that has its line
is not made again; a line whose settings are not the plan's is refused. Run directories go to runs/ and are removed.
"""

import argparse
import csv
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from dormouse.cli.main import main as dormouse
from dormouse.errors import ConfigError, DormouseError
from dormouse.store.metrics import read_metrics
from dormouse.store.rundir import RunDir

ROOT = Path(__file__).resolve().parents[1]
VARIANT = "variant:"
COLUMNS = (
    *("arm", "changes", "seed", "steps", "trained_bytes", "parameters", "bpb", "seconds", "tsct", "master_error"),
    *("effective_error", "scored_bytes", "held_out_sha256", "train_sha256", "commit", "changed_tree", "torch", "cpu"),
    *("threads", "date"),
)


@dataclass(frozen=True)
class Trial:
    """One arm with one seed."""

    arm: str
    changes: tuple[str, ...]
    seed: int


@dataclass(frozen=True)
class Plan:
    """What an experiment consists of."""

    preset: str
    steps: int
    threads: int
    seeds: list[int]
    shared: list[str]
    arms: dict[str, list[str]]

    def trials(self) -> Iterator[Trial]:
        """All trials, seed by seed."""
        for seed in self.seeds:
            for arm, changes in self.arms.items():
                yield Trial(arm, (*self.shared, *changes), seed)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        plan, results = read_plan(options.folder / "plan.toml"), options.folder / "runs.csv"
        done = finished(results, plan)
        wanted = [
            t for t in plan.trials() if t.arm in (options.arms or plan.arms) and t.seed in (options.seeds or plan.seeds)
        ]
        left = [trial for trial in wanted if (trial.arm, trial.seed) not in done]
        print(f"{len(wanted) - len(left)} of {len(wanted)} runs are done", flush=True)
        for trial in [] if options.list else left:
            row = run(
                plan, trial, options.folder, options.runs / f"{options.folder.resolve().name}-{trial.arm}-{trial.seed}"
            )
            append(results, row)
            print(f"{trial.arm:>16} seed {trial.seed}: {row['bpb']} BPB, {row['seconds']} s, {row['tsct']}", flush=True)
    except DormouseError as error:
        print(f"run_arms: {error}", file=sys.stderr)
        return error.exit_code
    if options.list:
        print("\n".join(f"left: {trial.arm} seed {trial.seed}" for trial in left))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train every arm of an experiment with every seed.")
    parser.add_argument("folder", type=Path, help="folder of the experiment, with plan.toml")
    parser.add_argument("--arms", nargs="+", help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, help="only these")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where run directories live for a while")
    parser.add_argument("--list", action="store_true", help="run nothing")
    return parser.parse_args(arguments)


def read_plan(path: Path) -> Plan:
    """The plan; raises `ConfigError` where it cannot be read or has other keys."""
    try:
        return Plan(**tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a plan ({error}); it has preset, steps, threads, seeds, shared, arms."
        ) from None


def finished(results: Path, plan: Plan) -> set[tuple[str, int]]:
    """Arms and seeds with a line; raises `ConfigError` for a line of the same name with other settings."""
    if not results.exists():
        return set()
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        planned = " ".join((*plan.shared, *plan.arms.get(row["arm"], [])))
        if row["arm"] in plan.arms and (row["changes"], int(row["steps"])) != (planned, plan.steps):
            raise ConfigError(
                f"{results}: arm {row['arm']} was run with '{row['changes']}' for {row['steps']} steps, the plan says "
                f"'{planned}' for {plan.steps}; unlike runs would have been compared. Rename the arm."
            )
    return {(row["arm"], int(row["seed"])) for row in rows}


def run(plan: Plan, trial: Trial, folder: Path, place: Path) -> dict:
    """Train one arm with one seed and read its figures; raises `ConfigError` if the program refused."""
    settings = [part for change in trial.changes if not change.startswith(VARIANT) for part in ("--set", change)]
    fixed = [
        "--preset",
        plan.preset,
        "--steps",
        str(plan.steps),
        "--threads",
        str(plan.threads),
        "--seed",
        str(trial.seed),
    ]
    shutil.rmtree(place, ignore_errors=True)
    with ExitStack() as stack:
        for name in [change.removeprefix(VARIANT) for change in trial.changes if change.startswith(VARIANT)]:
            stack.enter_context(getattr(load_variants(folder), name)())
        code = dormouse(["train", *fixed, *settings, "--out", str(place), "--quiet", "--sample-bytes", "0"])
    if code:
        raise ConfigError(f"arm {trial.arm}, seed {trial.seed}: training ended with exit code {code}")
    row = figures(RunDir.open(place), trial)
    shutil.rmtree(place)
    return row


def load_variants(folder: Path) -> ModuleType:
    """The module variants.py of an experiment's folder."""
    spec = spec_from_file_location("variants", folder / "variants.py")
    if spec is None or spec.loader is None:
        raise ConfigError(f"{folder} has no variants.py, which one of its arms names.")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(directory: RunDir, trial: Trial) -> dict:
    """The line of a completed run."""
    record, rows = directory.read_run(), read_metrics(directory.metrics)
    result, place = record["result"], record["provenance"]
    last = [row for row in rows if row["kind"] == "latch"][-1:]
    errors = [reading for row in last for reading in row["readings"]]
    values = {
        "arm": trial.arm,
        "changes": " ".join(trial.changes),
        "seed": trial.seed,
        "steps": result["total_steps"],
        "trained_bytes": result["trained_bytes"],
        "parameters": record["parameters"]["total"],
        "bpb": f"{result['bpb']:.4f}",
        "seconds": f"{result['seconds']:.0f}",
        "tsct": [row["tsct"] for row in rows if row["kind"] == "eval"][-1],
        "master_error": largest(errors, "master"),
        "effective_error": largest(errors, "effective"),
        "scored_bytes": result["scored_bytes"],
        "held_out_sha256": record["data"]["held_out_sha256"][:16],
        "train_sha256": record["data"]["train_sha256"][:16],
    }
    return values | machine(place)


def largest(readings: list[dict], key: str) -> str:
    """Largest error over all factors of the last check of the latch; empty if it never looked."""
    return f"{max(max(reading[key]) for reading in readings):.2e}" if readings else ""


def machine(place: dict) -> dict:
    """Where and by what a run was made."""
    return {
        "commit": place["commit"][:12],
        "changed_tree": place["dirty"],
        "torch": place["versions"]["torch"],
        "cpu": place["cpu"],
        "threads": place["threads"],
        "date": place["date"][:10],
    }


def append(results: Path, row: dict) -> None:
    """Add one line, with the header first if the file is new."""
    fresh = not results.exists()
    with results.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if fresh:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    sys.exit(main())
