"""Milliseconds of Kimi Delta Attention, forward and backward: chunked, token by token, and softmax attention.

    python -m benchmarks.kda [--rounds 7] [--out FILE]
    python -m benchmarks.kda --smoke

Heads of 64 channels, 12 of them, fp32; gradients of every input. *chunked* is the library's form, *recurrent* one
Python step a token, *SDPA* torch's causal scaled_dot_product_attention on q, k, v of that shape. Forms take turns in
one process, ratios are taken within a round. At 8 sequences of 512 all three; at one sequence of 4,096 two of them; at
one sequence of 32,768 the chunked form alone, against itself at 4,096. *Saved* is what stays in memory between forward
and backward besides the inputs. glibc keeps freed memory, as in training.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.dispatch import saved_bytes, timed
from benchmarks.generation import matmul_gflops, ratio
from benchmarks.retraction import passed
from torch import Tensor

from dormouse.ops import kda
from dormouse.store.provenance import provenance
from dormouse.train.machine import keep_large_blocks

HEADS, WIDTH = 12, 64
OUT = Path(__file__).parent / "results" / "kda.json"
ASKED = {
    "recurrent over chunked, 8 x 512": ("at least", 15.0),
    "SDPA over chunked, 8 x 512": ("at least", 1.0),
    "SDPA over chunked, 1 x 4096": ("at least", 3.0),
    "chunked, 1 x 32768 over 1 x 4096": ("at most", 10.5),
    "saved bytes, 1 x 32768 over 1 x 4096": ("at most", 8.1),
}
Run = Callable[[], object]


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    keep_large_blocks()
    lengths = (32, 64, 128) if options.smoke else (512, 4096, 32_768)
    batched, long, longest = (forms(batch, length) for batch, length in zip((8, 1, 1), lengths, strict=True))
    del longest["recurrent"], longest["SDPA"], long["recurrent"]
    first = turns(batched, options.rounds)
    second = turns(long | {"longest": longest["chunked"]}, options.rounds)
    memory = {"8 x 512": saved_bytes(batched["chunked"])}
    memory |= {"1 x 4096": saved_bytes(long["chunked"]), "1 x 32768": saved_bytes(longest["chunked"])}
    growth = memory["1 x 32768"] / memory["1 x 4096"]
    result = {
        "benchmark": "kda",
        "heads": HEADS,
        "head_dim": WIDTH,
        "lengths": lengths,
        "rounds": options.rounds,
        "milliseconds": {f"{name}, 8 x 512": median(first, name) for name in batched}
        | {f"{name}, 1 x 4096": median(second, name) for name in long}
        | {"chunked, 1 x 32768": median(second, "longest")},
        "saved_bytes": memory,
        "figures": {
            "recurrent over chunked, 8 x 512": ratio(first, "recurrent", "chunked"),
            "SDPA over chunked, 8 x 512": ratio(first, "SDPA", "chunked"),
            "SDPA over chunked, 1 x 4096": ratio(second, "SDPA", "chunked"),
            "chunked, 1 x 32768 over 1 x 4096": ratio(second, "longest", "chunked"),
            "saved bytes, 1 x 32768 over 1 x 4096": {"median": growth, "min": growth, "max": growth},
        },
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
        prog="python -m benchmarks.kda", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help=f"results file (default {OUT.name} in benchmarks/results)")
    parser.add_argument("--smoke", action="store_true", help="two rounds of short sequences, no results file")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.rounds = 2
    elif options.out is None:
        options.out = OUT
    return options


def forms(batch: int, length: int) -> dict[str, Run]:
    """All forms on the same inputs."""
    torch.manual_seed(0)
    shape = (batch, length, HEADS, WIDTH)
    q, k = (F.normalize(torch.randn(shape), dim=-1).requires_grad_() for _ in range(2))
    v, seed = torch.randn(shape, requires_grad=True), torch.randn(shape)
    g = (-0.1 * torch.rand(shape)).requires_grad_()
    beta = torch.rand(shape[:3], requires_grad=True)

    def run(o: Callable[[], Tensor], leaves: list[Tensor]) -> Run:
        return lambda: torch.autograd.grad(o(), leaves, seed)

    def softmax_attention() -> Tensor:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)

    return {
        "chunked": run(lambda: kda.chunked(q, k, v, g, beta)[0], [q, k, v, g, beta]),
        "recurrent": run(lambda: kda.recurrent(q, k, v, g, beta)[0], [q, k, v, g, beta]),
        "SDPA": run(softmax_attention, [q, k, v]),
    }


def turns(runs: dict[str, Run], rounds: int) -> list[dict[str, float]]:
    """Seconds of every form, round by round; the first round warms up."""
    return [{name: timed(run) for name, run in runs.items()} for _ in range(rounds + 1)][1:]


def median(times: list[dict[str, float]], name: str) -> float:
    """In milliseconds."""
    return 1e3 * statistics.median(r[name] for r in times)


def show(result: dict) -> None:
    for name, value in result["milliseconds"].items():
        print(f"{name:>24} {value:9.1f} ms")
    for name, value in result["saved_bytes"].items():
        print(f"{'saved, ' + name:>24} {value / 2**20:9.1f} MiB")
    for name, value in result["figures"].items():
        how, target = ASKED[name]
        good = value["median"] <= target if how == "at most" else value["median"] >= target
        spread = f"(from {value['min']:.2f} to {value['max']:.2f})"
        print(f"{name:>40} {value['median']:.2f} {spread}, asked {how} {target:g}: {passed(good)}")
    if result["load_average"] > result["provenance"]["threads"] + 0.5:
        print(f"busy machine (load {result['load_average']:.1f}): the ratios may be those of the other processes")


if __name__ == "__main__":
    sys.exit(main())
