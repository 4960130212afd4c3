"""Milliseconds to make all spectral factors of a model orthonormal again: batched, one by one, by QR.

    python -m benchmarks.retraction [--presets small moe-cap-16] [--rounds 15] [--out FILE]
    python -m benchmarks.retraction --smoke

Per preset the factors (of the model on the meta device) are drawn orthonormal, thrown off by one optimiser step of
relative size 0.02, and given to every method in turn, round by round in one process; each method gets a fresh copy
whose cost is not counted. *loop* is the original system's: per factor, five power iterations for the norm, then three
Newton-Schulz steps on the factor itself. *batched* takes the number of steps that reaches the loop's error, or what the
rounding of fp32 hides. Ratios are taken within a round; their median, smallest and largest are printed. The share of a
training step is the time of one batched step (the preset's) over that of a whole step of the same preset; the step of
`small` is one sequence, since more would not change its retraction.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.generation import matmul_gflops, ratio
from torch import Tensor

from dormouse.config.load import load_preset, load_run_config
from dormouse.data.batch import Batch
from dormouse.model.lm import Dormouse
from dormouse.model.roles import spectral_factors
from dormouse.ops.polar import COEFFICIENTS, orthogonality_error
from dormouse.ops.retraction import retract_stacks
from dormouse.store.provenance import provenance
from dormouse.train.optim import OptimizerBundle, build_optimizer

STEP = 0.02
TARGETS = {
    ("small", "loop"): 8.0,
    ("moe-cap-16", "loop"): 4.0,
    ("small", "batched QR"): 2.0,
    ("moe-cap-16", "batched QR"): 2.0,
}
"""How many times faster than that the batched form is asked to be."""
SHARE_TARGET = 0.015
ROUNDING = 6e-8
"""Error below which two results in fp32 are equally good: half a unit in the last place of 1."""
OUT = Path(__file__).parent / "results" / "retraction.json"
Stacks = list[Tensor]


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    presets = {name: compare(name, options.rounds) for name in options.presets}
    shares = {name: share(name, options.rounds) for name in options.share_of}
    result = {
        "benchmark": "retraction",
        "step": STEP,
        "rounds": options.rounds,
        "presets": presets,
        "share_of_step": shares,
        "matmul_gflops": matmul_gflops(),
        "load_average": os.getloadavg()[0],
        "provenance": provenance(threads=torch.get_num_threads()),
    }
    show(result)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retraction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--presets", nargs="+", default=["small", "moe-cap-16"])
    parser.add_argument(
        "--share-of", nargs="*", default=["tiny", "small"], help="presets whose whole step is timed too"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help=f"results file (default {OUT.name} in benchmarks/results)")
    parser.add_argument("--smoke", action="store_true", help="two rounds of tiny, no results file")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.presets, options.share_of, options.rounds = ["tiny"], ["tiny"], 2
    elif options.out is None:
        options.out = OUT
    return options


def compare(preset: str, rounds: int) -> dict:
    """All methods on the factors of a preset."""
    drifted = drifted_factors(preset)
    enough = max(after(power_loop, drifted), ROUNDING)
    steps = next(n for n in range(1, 5) if after(batched(n), drifted) <= enough or n == 4)
    methods = {
        "batched": batched(steps),
        "batched, one step": batched(1),
        "loop": power_loop,
        "batched QR": by("qr"),
        "CholeskyQR2": by("cholesky_qr"),
        "tangent projection": tangent,
    }
    times = [{name: timed(method, drifted) for name, method in methods.items()} for _ in range(rounds + 2)][2:]
    return {
        "factors": sum(len(X) for X in drifted),
        "shapes": sorted({tuple(X.shape[-2:]) for X in drifted}),
        "steps": steps,
        "error_before": worst(drifted),
        "error_after": {name: after(method, drifted) for name, method in methods.items() if method is not tangent},
        "milliseconds": {name: 1e3 * statistics.median(r[name] for r in times) for name in methods},
        "times_faster": {name: ratio(times, name, "batched") for name in methods if name != "batched"},
    }


def drifted_factors(preset: str) -> Stacks:
    """Stacks [n, m, r] of the preset's shapes, orthonormal and then one step away."""
    with torch.device("meta"):
        shapes = [p.shape for _, p in spectral_factors(Dormouse(load_preset(preset)))]
    torch.manual_seed(0)
    stacks = [torch.linalg.qr(torch.randn(*shape).view(-1, *shape[-2:]))[0].contiguous() for shape in shapes]
    return [X + STEP * torch.linalg.qr(torch.randn_like(X))[0] for X in stacks]


def batched(steps: int) -> Callable[[Stacks], None]:
    return lambda stacks: retract_stacks(stacks, iters=steps)


def by(method: str) -> Callable[[Stacks], None]:
    return lambda stacks: retract_stacks(stacks, method=method)  # pyrefly: ignore


def power_loop(stacks: Stacks) -> None:
    """The original's retraction, factor by factor."""
    a, b, c = COEFFICIENTS
    for stack in stacks:
        for X in stack:
            M = X.T
            gram = M @ M.T
            v = gram.sum(1)
            for _ in range(5):
                v = gram @ (v / v.norm().clamp(min=1e-12))
            M = M / (1.05 * ((v @ (gram @ v)) / (v @ v)).sqrt())
            for _ in range(3):
                A = M @ M.T
                M = a * M + (b * A + c * A @ A) @ M
            X.copy_(M.T)


def tangent(stacks: Stacks) -> None:
    """Projection of a step of the factors' size on the tangent space: what it would cost on top."""
    for X in stacks:
        A = X.mT @ X
        X.sub_(X @ ((A + A.mT) / 2))


def timed(method: Callable[[Stacks], None], drifted: Stacks) -> float:
    """Seconds of one call on a fresh copy."""
    stacks = [X.clone() for X in drifted]
    begin = time.perf_counter()
    method(stacks)
    return time.perf_counter() - begin


def after(method: Callable[[Stacks], None], drifted: Stacks) -> float:
    """Largest orthogonality error that a method leaves."""
    stacks = [X.clone() for X in drifted]
    method(stacks)
    return worst(stacks)


def worst(stacks: Stacks) -> float:
    return max(orthogonality_error(X.double()).max().item() for X in stacks)


def share(preset: str, rounds: int) -> dict:
    """The batched retraction's part of a training step of a preset, two passes or more included."""
    config = load_run_config(preset, None, [], {"steps": 1})
    torch.manual_seed(0)
    model = Dormouse(config.model)
    optimizer = build_optimizer(model, config.train)
    stacks = [p.detach() for _, p in spectral_factors(model)]
    batch = random_batch(config.train.batch_size if preset == "tiny" else 1, config.train.seq_len)
    times = [timed_step(model, optimizer, batch, stacks) for _ in range(max(rounds // 3, 2) + 1)][1:]
    return {
        "bytes_a_step": batch.inputs.numel(),
        "passes": config.model.max_iter,
        "step_milliseconds": 1e3 * statistics.median(t["step"] for t in times),
        "retraction_milliseconds": 1e3 * statistics.median(t["retraction"] for t in times),
        "share": ratio(times, "retraction", "step"),
    }


def random_batch(sequences: int, length: int) -> Batch:
    ids = torch.randint(256, (sequences, length + 1))
    return Batch(ids[:, :-1], ids[:, 1:], torch.ones_like(ids[:, 1:], dtype=torch.bool), None, torch.zeros(len(ids)))


def timed_step(model: Dormouse, optimizer: OptimizerBundle, batch: Batch, stacks: Stacks) -> dict[str, float]:
    """Seconds of one training step, and of the retraction at its end."""
    begin = time.perf_counter()
    optimizer.zero_grad()
    logits = model(batch.inputs).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
    optimizer.step(0.0)
    middle = time.perf_counter()
    retract_stacks(stacks)
    end = time.perf_counter()
    return {"step": end - begin, "retraction": end - middle}


def show(result: dict) -> None:
    for preset, found in result["presets"].items():
        print(f"{preset}: {found['factors']} factors, error before {found['error_before']:.1e}, {found['steps']} steps")
        for name in found["milliseconds"]:
            print(method_line(preset, found, name))
    for preset, found in result["share_of_step"].items():
        r = found["share"]
        verdict = f", asked {SHARE_TARGET:.1%}: {passed(r['median'] <= SHARE_TARGET)}" if preset == "tiny" else ""
        spread = f"(from {r['min']:.2%} to {r['max']:.2%})"
        print(f"{preset}: {r['median']:.2%} {spread} of a step of {found['step_milliseconds']:.0f} ms{verdict}")
    threads = result["provenance"]["threads"]
    print(f"threads {threads}, matrix product {result['matmul_gflops']:.0f} GFLOP/s")
    if result["load_average"] > threads + 0.5:
        print(f"busy machine (load {result['load_average']:.1f}): the ratios may be those of the other processes")


def method_line(preset: str, found: dict, name: str) -> str:
    """Time, error left, and how many times the batched form's time that is."""
    line = f"  {name:>18} {found['milliseconds'][name]:8.2f} ms"
    if name in found["error_after"]:
        line += f"  error {found['error_after'][name]:.1e}"
    if name in found["times_faster"]:
        r = found["times_faster"][name]
        line += f"  {r['median']:.1f} times batched (from {r['min']:.1f} to {r['max']:.1f})"
        target = TARGETS.get((preset, name))
        line += "" if target is None else f", asked {target:g}: {passed(r['median'] >= target)}"
    return line


def passed(fulfilled: bool) -> str:
    return "PASS" if fulfilled else "FAIL"


if __name__ == "__main__":
    sys.exit(main())
