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
ROUTING = ("moe_entropy", "moe_dead", "moe_gate")
"""Of the last log line: entropy of the shares, experts without a byte, mean selected gate; empty without routing."""
PROBE = ("kappa", "identical", "identical_chance", "disjoint", "disjoint_chance")
"""Of the last probe (`probe_every`): how alike the passes route, and what chance alone gives; empty without one."""
COLUMNS = (
    *("arm", "preset", "changes", "seed", "steps", "trained_bytes", "parameters", "bpb", "seconds", "tsct"),
    *("master_error", "effective_error", "scored_bytes", "held_out_sha256", "train_sha256", "commit", "changed_tree"),
    *("torch", "cpu", "threads", "date"),
    *ROUTING,
    *PROBE,
    "curve",
)


class TrialError(DormouseError):
    """A run of an arm did not end well; its directory stays for a look."""


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
        plan = read_plan(options.folder)
        variants = read_variants(options.folder, plan)
        left = missing(plan, options)
        for trial in [] if options.list else left:
            place = options.runs / f"{options.folder.resolve().name}-{trial.arm}-{trial.seed}"
            row = run(plan, trial, variants, place)
            append(options.folder / "runs.csv", row)
            print(f"{trial.arm:>20} seed {trial.seed}: {row['bpb']} BPB, {row['seconds']} s, {row['tsct']}", flush=True)
    except DormouseError as error:
        print(f"run_arms: {error}", file=sys.stderr)
        return error.exit_code
    if options.list:
        print("\n".join(f"left: {trial.arm} seed {trial.seed}" for trial in left))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train every arm of an experiment with every seed.")
    parser.add_argument("folder", type=Path, help="folder of the experiment, with plan.toml")
    parser.add_argument("--arms", nargs="+", default=[], help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="only these")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where run directories live for a while")
    parser.add_argument("--list", action="store_true", help="run nothing")
    return parser.parse_args(arguments)


def read_plan(folder: Path) -> Plan:
    """The plan of an experiment; raises `ConfigError` where it cannot be read or has other keys."""
    try:
        plan = Plan(**tomllib.loads((folder / "plan.toml").read_text(encoding="utf-8")))
        lists = (plan.seeds, plan.shared, *plan.arms.values())
        if not all(isinstance(value, list) for value in lists):
            raise TypeError("seeds, shared and every arm are lists")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{folder / 'plan.toml'} is not a plan ({error}); it has preset, steps, threads, seeds, shared, arms."
        ) from None
    return plan


def read_variants(folder: Path, plan: Plan) -> ModuleType | None:
    """The module variants.py, None if no arm needs it; raises `ConfigError` for a variant that is not there."""
    names = [c.removeprefix(VARIANT) for t in plan.trials() for c in t.changes if c.startswith(VARIANT)]
    if not names:
        return None
    path = folder / "variants.py"
    spec = spec_from_file_location("variants", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not there, but an arm names the variant {names[0]}; nothing was run.")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in names:
        if not hasattr(module, name):
            raise ConfigError(f"variant:{name}: {path} has no such variant; nothing was run.")
    return module


def missing(plan: Plan, options: argparse.Namespace) -> list[Trial]:
    """Trials that were asked for and have no line; raises `ConfigError` for arms or seeds that are not in the plan."""
    for key, known in (("arms", list(plan.arms)), ("seeds", plan.seeds)):
        if strange := [value for value in getattr(options, key) if value not in known]:
            raise ConfigError(f"{key} = {strange[0]}: not in the plan, nothing would have been run; it has {known}.")
    done = finished(options.folder / "runs.csv", plan)
    arms, seeds = options.arms or list(plan.arms), options.seeds or plan.seeds
    wanted = [trial for trial in plan.trials() if trial.arm in arms and trial.seed in seeds]
    left = [trial for trial in wanted if (trial.arm, trial.seed) not in done]
    print(f"{len(wanted) - len(left)} of {len(wanted)} runs are done", flush=True)
    return left


def finished(results: Path, plan: Plan) -> set[tuple[str, int]]:
    """Arms and seeds with a line; raises `ConfigError` for a line of the same name that was made otherwise."""
    if not results.exists():
        return set()
    with results.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["arm"] not in plan.arms:
            continue
        changes = " ".join((*plan.shared, *plan.arms[row["arm"]]))
        planned = {"preset": plan.preset, "changes": changes, "steps": str(plan.steps), "threads": str(plan.threads)}
        if other := [key for key, value in planned.items() if row[key] != value]:
            raise ConfigError(
                f"{results}: arm {row['arm']} has {other[0]} = {row[other[0]]}, the plan {planned[other[0]]}; unlike "
                "runs would have been compared. Rename the arm, or start a new folder."
            )
    return {(row["arm"], int(row["seed"])) for row in rows}


def run(plan: Plan, trial: Trial, variants: ModuleType | None, place: Path) -> dict:
    """Train one arm with one seed and read its figures; raises `TrialError` if the program did not end with 0."""
    arguments = ["train", "--preset", plan.preset, "--steps", str(plan.steps), "--seed", str(trial.seed)]
    arguments += ["--threads", str(plan.threads), "--out", str(place), "--quiet", "--sample-bytes", "0"]
    with ExitStack() as stack:
        for change in trial.changes:
            if change.startswith(VARIANT):
                stack.enter_context(getattr(variants, change.removeprefix(VARIANT))())
            else:
                arguments += ["--set", change]
        shutil.rmtree(place, ignore_errors=True)
        code = dormouse(arguments)
    if code:
        raise TrialError(f"arm {trial.arm}, seed {trial.seed}: training ended with exit code {code}; see {place}")
    row = figures(RunDir.open(place), plan, trial)
    shutil.rmtree(place)
    return row


def figures(directory: RunDir, plan: Plan, trial: Trial) -> dict:
    """The line of a completed run."""
    record, rows = directory.read_run(), read_metrics(directory.metrics)
    result, place = record["result"], record["provenance"]
    last = [row for row in rows if row["kind"] == "latch"][-1:]
    errors = [reading for row in last for reading in row["readings"]]
    scored = [row for row in rows if row["kind"] == "eval"]
    logged = [row for row in rows if row["kind"] == "train"][-1]
    probed = ([row for row in rows if row["kind"] == "probe"] or [{}])[-1]
    return {
        "arm": trial.arm,
        "preset": plan.preset,
        "changes": " ".join(trial.changes),
        "seed": trial.seed,
        "steps": result["total_steps"],
        "trained_bytes": result["trained_bytes"],
        "parameters": record["parameters"]["total"],
        "bpb": f"{scored[-1]['bpb']:.4f}",
        "seconds": f"{result['seconds']:.0f}",
        "tsct": scored[-1]["tsct"],
        "master_error": largest(errors, "master"),
        "effective_error": largest(errors, "effective"),
        "scored_bytes": result["scored_bytes"],
        "held_out_sha256": record["data"]["held_out_sha256"][:16],
        "train_sha256": record["data"]["train_sha256"][:16],
        "commit": (place["commit"] or "")[:12],
        "changed_tree": place["dirty"],
        "torch": place["versions"]["torch"],
        "cpu": place["cpu"],
        "threads": place["threads"],
        "date": place["date"][:10],
        **{key: rounded(logged.get(key)) for key in ROUTING},
        **{key: rounded(probed.get(key)) for key in PROBE},
        "curve": " ".join(f"{row['trained_bytes']}:{row['bpb']:.4f}" for row in scored),
    }


def rounded(value: float | None) -> str:
    """Four digits, or nothing where nothing was measured."""
    return "" if value is None else f"{value:.4g}"


def largest(readings: list[dict], key: str) -> str:
    """Largest error over all factors of the last check of the latch; empty if it never looked."""
    return f"{max(max(reading[key]) for reading in readings):.2e}" if readings else ""


def append(results: Path, row: dict) -> None:
    """Add one line, with the header first if the file is new; a file keeps the columns it has."""
    columns = header(results) or COLUMNS
    fresh = not results.exists()
    with results.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def header(results: Path) -> list[str]:
    """Columns of a file that is there."""
    if not results.exists():
        return []
    with results.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])


if __name__ == "__main__":
    sys.exit(main())
