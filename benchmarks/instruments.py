"""What looking costs: utilisation, selected gate and execution counters as a share of a training step.

    python -m benchmarks.instruments [--preset tiny] [--rounds 15] [--threads 2] [--out FILE]
    python -m benchmarks.instruments --smoke

Two training states of one preset with the same weights take turns in one process, a whole step each: *watched* as in a
run (counters attached, selections tallied, the tally read as often as a log line wants it), *blind* with both taken
out. Their ratio is what a user pays, but a step of a busy machine varies by more than a hundredth; so the watched steps
are timed a second time from inside: every call of the instruments, their part of the backward included, each with the
clock's own cost. That sum over the step is an upper bound, and it is what is judged. The mixture probe is timed on a
batch of the scored window's size; it runs only when asked for.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from benchmarks.generation import matmul_gflops, ratio
from benchmarks.retraction import passed, random_batch
from torch import Tensor

from dormouse.config.load import load_run_config
from dormouse.config.schema import RunConfig
from dormouse.data.batch import Batch
from dormouse.instruments import counters as counting
from dormouse.instruments.counters import Counters
from dormouse.instruments.mixture import mixture
from dormouse.model.lm import Dormouse
from dormouse.store.provenance import provenance
from dormouse.train.firewall import Firewall
from dormouse.train.latch import Latch
from dormouse.train.optim import build_optimizer
from dormouse.train.retract import retract
from dormouse.train.state import TrainState
from dormouse.train.step import StepSettings, train_step
from dormouse.train.tally import Tally

TARGET = 0.01
"""Largest share of a step that the instruments may take."""
OUT = Path(__file__).parent / "results" / "instruments.json"


class BlindTally(Tally):
    """A tally that counts no selection."""

    def route(self, record) -> None:
        pass


class BlindCounters(Counters):
    """Counters that are not attached and count nothing."""

    def attach(self, model, device) -> list:
        return []

    def watch(self, name, term) -> Tensor:
        return term

    def count(self, name) -> None:
        pass


class Stopwatch:
    """Seconds spent in some functions since the last reset."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def around(self, function: Callable) -> Callable:
        def timed(*arguments, **named):
            begin = time.perf_counter()
            result = function(*arguments, **named)
            self.seconds += time.perf_counter() - begin
            self.calls += 1
            return result

        return timed


class TimedCounters(Counters):
    """Counters whose every call runs under a stopwatch."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._hook = watch.around(self._hook)
        self.watch = watch.around(self.watch)
        self.count = watch.around(self.count)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    result = measure(options)
    show(result)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instruments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help=f"results file (default {OUT.name} in benchmarks/results)")
    parser.add_argument("--smoke", action="store_true", help="two rounds, no results file")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.rounds = 2
    elif options.out is None:
        options.out = OUT
    return options


def measure(options: argparse.Namespace) -> dict:
    """Rounds of one watched and one blind step, and the probe."""
    config = load_run_config(options.preset, None, [], {"steps": 1})
    batch, inside = random_batch(config.train.batch_size, config.train.seq_len), Stopwatch()
    watched, blind = watched_state(config, inside), state_of(config, BlindCounters(), BlindTally)
    settings = StepSettings.from_config(config, partial(retract, iters=config.train.retract_iters))
    rounds = [one_round(watched, blind, batch, settings, inside, turn) for turn in range(options.rounds + 1)][1:]
    reading = log_read(watched, config.train.log_every)
    shares = [(r["inside"] + reading) / r["watched"] for r in rounds]
    return {
        "benchmark": "instruments",
        "preset": options.preset,
        "rounds": options.rounds,
        "bytes_a_step": batch.inputs.numel(),
        "passes": config.model.max_iter,
        "calls_a_step": rounds[-1]["calls"],
        "step_milliseconds": 1e3 * statistics.median(r["watched"] for r in rounds),
        "inside_milliseconds": 1e3 * statistics.median(r["inside"] for r in rounds),
        "log_line_milliseconds_a_step": 1e3 * reading,
        "share_inside": {"median": statistics.median(shares), "min": min(shares), "max": max(shares)},
        "watched_over_blind": ratio(rounds, "watched", "blind"),
        "probe": probe_cost(watched.model, config, options.rounds),
        "matmul_gflops": matmul_gflops(),
        "load_average": os.getloadavg()[0],
        "provenance": provenance(threads=torch.get_num_threads()),
    }


def state_of(config: RunConfig, counters: Counters, tally: type[Tally]) -> TrainState:
    """A training state at step 0 with weights that depend on nothing but the preset."""
    torch.manual_seed(0)
    model, device = Dormouse(config.model).train(), torch.device("cpu")
    return TrainState(
        model=model,
        optimizer=build_optimizer(model, config.train),
        device=device,
        firewall=Firewall(config.train.max_skips),
        latch=Latch(model, every=0, ratio=2.0),
        tally=tally(device, n_experts=config.model.n_experts, n_passes=config.model.max_iter),
        counters=counters,
    )


def watched_state(config: RunConfig, inside: Stopwatch) -> TrainState:
    """A state like a run's whose instruments are timed from inside."""
    state = state_of(config, TimedCounters(inside), Tally)
    for name in ("route", "use", "put_back"):
        setattr(state.tally, name, inside.around(getattr(state.tally, name)))
    counting._Backward.backward = staticmethod(inside.around(counting._Backward.backward))
    return state


def one_round(
    watched: TrainState, blind: TrainState, batch: Batch, settings: StepSettings, inside: Stopwatch, turn: int
) -> dict[str, float]:
    """Seconds of one step of each, the order changing from round to round."""
    found: dict[str, float] = {}
    arms = [("watched", watched), ("blind", blind)]
    inside.seconds, inside.calls = 0.0, 0
    for name, state in arms if turn % 2 else reversed(arms):
        begin = time.perf_counter()
        train_step(state, [batch], lr_scale=0.01, settings=settings)
        found[name] = time.perf_counter() - begin
    return found | {"inside": inside.seconds, "calls": inside.calls}


def log_read(state: TrainState, log_every: int) -> float:
    """Seconds a step of reading and resetting the tally at every log line."""
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        state.tally.read()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) / log_every


@torch.no_grad()
def probe_cost(model: Dormouse, config: RunConfig, rounds: int) -> dict[str, float]:
    """Seconds of a probe and of the forward it looks at, in turns, on one evaluation batch."""
    ids = random_batch(config.train.eval_batch_size, config.train.eval_seq_len).inputs
    times = []
    for _ in range(max(rounds // 3, 2) + 1):
        begin = time.perf_counter()
        record = model(ids).routing
        middle = time.perf_counter()
        if record is not None:
            mixture(record)
        times.append({"forward": middle - begin, "probe": time.perf_counter() - middle})
    seconds = statistics.median(t["probe"] for t in times[1:])
    over = ratio(times[1:], "probe", "forward")
    return {"positions": ids.numel(), "milliseconds": 1e3 * seconds, "over_forward": over}


def show(result: dict) -> None:
    share, both, probe = result["share_inside"], result["watched_over_blind"], result["probe"]
    print(
        f"{result['preset']}: step of {result['step_milliseconds']:.0f} ms ({result['bytes_a_step']:,} bytes, "
        f"{result['passes']} passes), {result['calls_a_step']} calls of instruments"
    )
    print(
        f"utilisation, gate and counters, timed inside: {share['median']:.3%} of the step (from {share['min']:.3%} to "
        f"{share['max']:.3%}), asked at most {TARGET:.0%}: {passed(share['median'] <= TARGET)}"
    )
    print(
        f"whole step watched over blind: {both['median']:.4f} (from {both['min']:.4f} to {both['max']:.4f}, of the "
        f"fastest {both['of_fastest']:.4f})"
    )
    over = probe["over_forward"]
    print(
        f"mixture probe of {probe['positions']:,} bytes, when asked for: {probe['milliseconds']:.1f} ms, "
        f"{over['median']:.1%} of the forward it looks at (from {over['min']:.1%} to {over['max']:.1%})"
    )
    threads = result["provenance"]["threads"]
    print(f"threads {threads}, matrix product {result['matmul_gflops']:.0f} GFLOP/s")
    if result["load_average"] > threads + 0.5:
        print(f"busy machine (load {result['load_average']:.1f}): the ratio of whole steps may be that of the others")


if __name__ == "__main__":
    sys.exit(main())
