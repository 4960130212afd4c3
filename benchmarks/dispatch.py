"""Milliseconds of routed experts, forward and backward: dispatch against computing all, against one, against others.

    python -m benchmarks.dispatch [--rounds 9] [--out FILE]
    python -m benchmarks.dispatch --smoke

4,096 tokens, d = 768, f = 2048, rank 64, fp32, random top-k routing; gradients of the input, the gates, every weight.
All forms take turns in one process, a fresh forward and backward each; ratios are taken within a round, their median
counts. glibc keeps freed memory, as in training.

*dispatch* is the library's path, *masked* computes every expert on every token and multiplies by zero, *loop* walks
over the experts with index_select and index_add, *one expert* is a single expert on all tokens without any routing (by
plain autograd). *Mixtral* is the block of Hugging Face's transformers with gated dense experts of the same d, f, E and
k, in its eager and its grouped form; *dense FFN* is one d-f-d layer. The share of the peak is the arithmetic of
dispatch (twelve thin products a token and expert, the one computed again left out) over its time, against a large
product in the same rounds. *Saved* is what stays in memory between forward and backward besides weights and input.

The step of `tiny` is timed with 4 and with 32 experts of the preset, 8,192 tokens a step (some 256 a segment), all
passes, on random bytes: routing is about even there.
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
from benchmarks.generation import ratio
from benchmarks.retraction import passed, random_batch
from torch import Tensor, nn

from dormouse.config.load import load_run_config
from dormouse.model.bank import ExpertBank
from dormouse.model.lm import Dormouse
from dormouse.ops.selection import select_top_k
from dormouse.store.provenance import provenance
from dormouse.train.machine import keep_large_blocks
from dormouse.train.optim import build_optimizer

N, D, F_WIDE, RANK = 4096, 768, 2048, 64
CASES = ((8, 1), (16, 1), (8, 2))
OUT = Path(__file__).parent / "results" / "dispatch.json"
ASKED = {
    "E=8 k=1: dispatch over masked": ("at most", 0.11),
    "E=16 k=1: dispatch over masked": ("at most", 0.06),
    "E=8 k=2: dispatch over masked": ("at most", 0.22),
    "E=8 k=1: dispatch over one expert": ("at most", 1.0),
    "E=8 k=1: Mixtral grouped over dispatch": ("at least", 8.0),
    "E=8 k=1: Mixtral eager over dispatch": ("at least", 11.0),
    "E=8 k=1: dense FFN over dispatch": ("at least", 4.5),
    "E=8 k=1: share of the peak": ("at least", 0.5),
    "tiny: step with 32 experts over 4": ("at most", 1.10),
}
Run = Callable[[], object]


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    keep_large_blocks()
    size = (64, 32, 48, 8) if options.smoke else (N, D, F_WIDE, RANK)
    cases = [measure(*case, size, options.rounds, compare=case == (8, 1)) for case in CASES]
    figures = {name: value for case in cases for name, value in case["figures"].items()}
    step = tiny_step(options.rounds, sequences=1 if options.smoke else 32)
    figures["tiny: step with 32 experts over 4"] = step.pop("ratio")
    result = {
        "benchmark": "dispatch",
        "tokens": size[0],
        "widths": {"d": size[1], "f": size[2], "rank": size[3]},
        "rounds": options.rounds,
        "cases": [{key: value for key, value in case.items() if key != "figures"} for case in cases],
        "tiny_step": step,
        "figures": figures,
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
        prog="python -m benchmarks.dispatch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help=f"results file (default {OUT.name} in benchmarks/results)")
    parser.add_argument("--smoke", action="store_true", help="two rounds of small shapes, no results file")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.rounds = 2
    elif options.out is None:
        options.out = OUT
    return options


def measure(n_experts: int, k: int, size: tuple[int, int, int, int], rounds: int, *, compare: bool) -> dict:
    """All forms at one number of experts; foreign ones only where they are compared."""
    forms = own_forms(n_experts, k, size)
    if compare:
        forms |= foreign_forms(n_experts, k, size)
    a = torch.randn(2048, 2048) if size[0] == N else torch.randn(64, 64)
    product = torch.empty_like(a)
    forms["peak"] = lambda: torch.mm(a, a, out=product)
    times = [{name: timed(run) for name, run in forms.items()} for _ in range(rounds + 1)][1:]
    label = f"E={n_experts} k={k}"
    figures = {f"{label}: dispatch over {other}": ratio(times, "dispatch", other) for other in ("masked", "loop")}
    if compare:
        figures[f"{label}: dispatch over one expert"] = ratio(times, "dispatch", "one expert")
        figures |= {f"{label}: {other} over dispatch": ratio(times, other, "dispatch") for other in FOREIGN}
        figures[f"{label}: share of the peak"] = share_of_peak(times, k, size, len(a))
    saved = {name: saved_bytes(run) for name, run in forms.items() if name != "peak"}
    milliseconds = {name: 1e3 * statistics.median(r[name] for r in times) for name in forms}
    return {"n_experts": n_experts, "top_k": k, "milliseconds": milliseconds, "saved_bytes": saved, "figures": figures}


def own_forms(n_experts: int, k: int, size: tuple[int, int, int, int]) -> dict[str, Run]:
    """The paths of the bank, and one expert without routing."""
    tokens, d, f, rank = size
    torch.manual_seed(0)
    bank, single = (ExpertBank(d_model=d, d_ffn=f, n_experts=e, rank=rank) for e in (n_experts, 1))
    x, seed = torch.randn(tokens, d, requires_grad=True), torch.randn(tokens, d)
    scores = torch.randn(tokens, n_experts).softmax(-1)
    gates, ids = select_top_k(scores, k)
    gates = gates.detach().requires_grad_()
    one = torch.ones(tokens, 1, requires_grad=True)

    def run(path: str) -> Run:
        return lambda: backward(bank(x, ids, gates, path=path), seed, [x, gates, *bank.parameters()])

    return {
        "dispatch": run("dispatch"),
        "masked": run("masked"),
        "loop": run("loop"),
        "one expert": lambda: backward(single.blend(x, one), seed, [x, one, *single.parameters()]),
    }


FOREIGN = ("Mixtral eager", "Mixtral grouped", "dense FFN")


def foreign_forms(n_experts: int, k: int, size: tuple[int, int, int, int]) -> dict[str, Run]:
    """Blocks that others offer, on inputs of the same size."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    tokens, d, f, _ = size
    x, seed = torch.randn(tokens, d, requires_grad=True), torch.randn(tokens, d)
    runs: dict[str, Run] = {}
    for name, implementation in (("Mixtral eager", "eager"), ("Mixtral grouped", "grouped_mm")):
        shape = {"hidden_size": d, "intermediate_size": f, "num_local_experts": n_experts, "num_experts_per_tok": k}
        config = MixtralConfig(**shape)
        config._experts_implementation = implementation
        block = MixtralSparseMoeBlock(config)
        for parameter in block.parameters():
            nn.init.normal_(parameter, std=0.02)
        runs[name] = block_run(block, x[None], seed[None], x)
    dense = nn.Sequential(nn.Linear(d, f, bias=False), nn.SiLU(), nn.Linear(f, d, bias=False))
    return runs | {"dense FFN": block_run(dense, x, seed, x)}


def block_run(block: nn.Module, x: Tensor, seed: Tensor, leaf: Tensor) -> Run:
    return lambda: backward(block(x), seed, [leaf, *block.parameters()])


def backward(y: Tensor, seed: Tensor, leaves: list[Tensor]) -> None:
    torch.autograd.grad(y, leaves, seed)


def timed(run: Run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def saved_bytes(run: Run) -> int:
    """Bytes of different storages that the forward keeps for the backward, inputs and parameters left out."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not (tensor.is_leaf and tensor.requires_grad):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(kept.values())


def share_of_peak(times: list[dict[str, float]], k: int, size: tuple[int, int, int, int], side: int) -> dict:
    """Arithmetic a second of dispatch over that of a large product."""
    tokens, d, f, rank = size
    work = 12 * 2 * tokens * k * rank * (d + f) / 2  # four products forward, eight backward, two of them a width each
    each = [(work / r["dispatch"]) / (2 * side**3 / r["peak"]) for r in times]
    return {"median": statistics.median(each), "min": min(each), "max": max(each)}


def tiny_step(rounds: int, *, sequences: int) -> dict:
    """A whole training step of `tiny` with 4 and 32 experts, in turns."""
    steps = {n: step_of(n, sequences) for n in (4, 32)}
    times = [{str(n): timed(step) for n, step in steps.items()} for _ in range(rounds + 1)][1:]
    return {
        "tokens": 256 * sequences,
        "milliseconds": {name: 1e3 * statistics.median(r[name] for r in times) for name in times[0]},
        "ratio": ratio(times, "32", "4"),
    }


def step_of(n_experts: int, sequences: int) -> Run:
    config = load_run_config("tiny", None, [f"n_experts={n_experts}"], {"steps": 1})
    torch.manual_seed(0)
    model = Dormouse(config.model)
    optimizer, batch = build_optimizer(model, config.train), random_batch(sequences, 256)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(batch.inputs).logits
        nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        optimizer.step(0.0)

    return step


def show(result: dict) -> None:
    for case in result["cases"]:
        print(f"E={case['n_experts']} k={case['top_k']}")
        for name, value in case["milliseconds"].items():
            kept = "" if name == "peak" else f"{case['saved_bytes'][name] / 2**20:8.1f} MiB saved"
            print(f"  {name:>16} {value:8.1f} ms {kept}")
    for name, value in result["figures"].items():
        line = f"{name:>42} {value['median']:.3f} (from {value['min']:.3f} to {value['max']:.3f})"
        if name in ASKED:
            how, target = ASKED[name]
            good = value["median"] <= target if how == "at most" else value["median"] >= target
            line += f", asked {how} {target:g}: {passed(good)}"
        print(line)
    step = result["tiny_step"]
    print(f"tiny, {step['tokens']} tokens a step: {step['milliseconds']}")
    if result["load_average"] > result["provenance"]["threads"] + 0.5:
        print(f"busy machine (load {result['load_average']:.1f}): the ratios may be those of the other processes")


if __name__ == "__main__":
    sys.exit(main())
