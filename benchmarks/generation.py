"""Bytes per second of generation, with the carried state and with the whole window read again for every byte.

    python benchmarks/generation.py [--preset tiny] [--run RUN] [--rounds 9] [--out FILE]

Five things take turns in one process, so that a change of the machine's speed meets all of them: continuing a text
at positions 64, 512 and 4096 with `generate` (prefill not counted), and continuing it at position 512 by a forward
pass over the last 512 bytes for every new one, on one thread and on all of torch's. Generation runs on one thread, as
the command does. All choose the byte with the same sampler. Ratios are taken within a round; median, smallest and
largest are printed and written with the provenance and with the speed of a large matrix product in the same process.
On a busy machine the arm with all threads measures mostly how threads wait for one another; the load is recorded and
said. The weights are random unless a run is named: the cost does not depend on them.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from pathlib import Path

import torch

from dormouse.config.load import load_preset
from dormouse.model.generate import generate
from dormouse.model.lm import Dormouse
from dormouse.model.sampling import SamplingSettings, sample
from dormouse.store.provenance import provenance
from dormouse.train.load import load_run

POSITIONS = (64, 512, 4096)
WINDOW = 512
CARRIED_BYTES = 64
RECOMPUTED_BYTES = 6
RATIOS = {
    "speedup at 512": ("recomputed at 512", "carried at 512"),
    "speedup over all threads": ("recomputed, all threads", "carried at 512"),
    "cost at 512 over 64": ("carried at 512", "carried at 64"),
    "cost at 4096 over 64": ("carried at 4096", "carried at 64"),
}
SETTINGS = SamplingSettings(temperature=1.0)


def main() -> None:
    options = parse()
    model = load_run(options.run).model if options.run else random_model(options.preset)
    threads = torch.get_num_threads()
    rounds = [one_round(model, seed, threads) for seed in range(options.rounds + 1)][1:]  # the first one warms up
    result = {
        "benchmark": "generation",
        "preset": None if options.run else options.preset,
        "parameters": sum(p.numel() for p in model.parameters()),
        "rounds": options.rounds,
        "window": WINDOW,
        "bytes_per_second": {name: statistics.median(1 / r[name] for r in rounds) for name in rounds[0]},
        "ratios": {name: ratio(rounds, *arms) for name, arms in RATIOS.items()},
        "matmul_gflops": matmul_gflops(),
        "load_average": os.getloadavg()[0],
        "provenance": provenance(threads=threads),
    }
    show(result)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--run", help="a trained run instead of random weights")
    parser.add_argument("--rounds", type=int, default=9)
    default = Path(__file__).parent / "results" / "generation.json"
    parser.add_argument("--out", type=Path, default=default)
    return parser.parse_args()


def random_model(preset: str) -> Dormouse:
    """A model in which no part is zero."""
    torch.manual_seed(0)
    model = Dormouse(load_preset(preset)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def one_round(model: Dormouse, seed: int, threads: int) -> dict[str, float]:
    """Seconds per byte of every form, in turn."""
    text = bytes(torch.randint(32, 127, (max(POSITIONS),)).tolist())
    torch.set_num_threads(1)
    seconds = {f"carried at {p}": carried(model, text[:p], seed) for p in POSITIONS}
    seconds[f"recomputed at {WINDOW}"] = recomputed(model, text[:WINDOW], seed)
    torch.set_num_threads(threads)
    seconds["recomputed, all threads"] = recomputed(model, text[:WINDOW], seed)
    return seconds


def carried(model: Dormouse, prompt: bytes, seed: int) -> float:
    """Seconds per byte of `generate` behind the prompt."""
    stream = generate(model, prompt, CARRIED_BYTES + 1, settings=SETTINGS, seed=seed)
    next(stream)
    ticks = [time.perf_counter()]
    ticks += [time.perf_counter() for _ in stream]
    return typical(ticks)


@torch.inference_mode()
def recomputed(model: Dormouse, window: bytes, seed: int) -> float:
    """Seconds per byte when every byte costs a forward pass over the window."""
    ids = torch.tensor([list(window)])
    generator = torch.Generator().manual_seed(seed)
    ticks = [time.perf_counter()]
    for _ in range(RECOMPUTED_BYTES):
        byte = sample(model(ids).logits[:, -1], SETTINGS, generator)
        ids = torch.cat([ids[:, 1:], byte[:, None]], 1)
        ticks.append(time.perf_counter())
    return typical(ticks)


def typical(ticks: list[float]) -> float:
    """Median distance of neighbouring times: one byte that another process interrupted does not count."""
    return statistics.median(after - before for before, after in itertools.pairwise(ticks))


def ratio(rounds: list[dict[str, float]], above: str, below: str) -> dict[str, float]:
    """Quotient of two arms' seconds: over the rounds, and of the fastest rounds of each."""
    each = [r[above] / r[below] for r in rounds]
    fastest = min(r[above] for r in rounds) / min(r[below] for r in rounds)
    return {"median": statistics.median(each), "min": min(each), "max": max(each), "of_fastest": fastest}


def matmul_gflops(size: int = 1024, repeats: int = 8) -> float:
    """Best speed of a square fp32 product in this process, 10^9 operations a second."""
    a = torch.randn(size, size)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - begin)
    return 2e-9 * size**3 / min(times)


def show(result: dict) -> None:
    for name, speed in result["bytes_per_second"].items():
        print(f"{name:>25}: {speed:8.1f} bytes/s")
    for name, r in result["ratios"].items():
        spread = f"from {r['min']:.2f} to {r['max']:.2f}, of the fastest {r['of_fastest']:.2f}"
        print(f"{name:>25}: {r['median']:.2f} ({spread})")
    print(f"threads {result['provenance']['threads']}, matrix product {result['matmul_gflops']:.0f} GFLOP/s")
    if result["load_average"] > result["provenance"]["threads"] + 0.5:
        print(f"busy machine (load {result['load_average']:.1f}): read the arms on one thread only")


if __name__ == "__main__":
    main()
