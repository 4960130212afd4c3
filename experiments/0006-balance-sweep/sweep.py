"""A hostile router against the Switch term and the two rules of the selection bias; see question.md.

    python experiments/0006-balance-sweep/sweep.py

Writes critical.csv, shares.csv and rules.csv beside itself; a draw's seed is its number.
"""

import csv
import sys
from pathlib import Path

import torch
from torch import Tensor

from dormouse.ops.balance import loss_free_bias, quantile_bias, switch_term
from dormouse.ops.selection import select_top_k
from dormouse.store.provenance import provenance

HERE = Path(__file__).parent
TOKENS = (64, 256, 1024, 4096)
EXPERTS = 4
PUSH = torch.tensor([1.0, -0.25, -0.25, -0.25], dtype=torch.float64)
COEFFICIENTS = (0.01, 1.0, 4.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0)
DRAWS = 20
RULES = {"none": 0.0, "loss_free": 0.001, "loss_free, fast": 0.01, "quantile": 0.5}


def main() -> int:
    """All three tables."""
    torch.set_num_threads(1)
    write("critical.csv", [critical(tokens, how) for how in ("sum", "mean") for tokens in TOKENS])
    write("shares.csv", [shares(tokens, how) for how in ("sum", "mean") for tokens in TOKENS])
    write("rules.csv", [settle(tokens, rule) for rule in RULES for tokens in TOKENS])
    return 0


def critical(tokens: int, reduction: str) -> dict:
    """Length of the task's gradient over that of the Switch term, in the router's logits."""
    found = torch.tensor([ratio(tokens, reduction, seed) for seed in range(DRAWS)])
    return {
        "task_loss": reduction,
        "tokens": tokens,
        "critical_mean": round(found.mean().item(), 2),
        "critical_min": round(found.min().item(), 2),
        "critical_max": round(found.max().item(), 2),
        "draws": DRAWS,
    }


def ratio(tokens: int, reduction: str, seed: int) -> float:
    """One draw of `critical`."""
    logits = led(tokens, torch.Generator().manual_seed(seed)).requires_grad_()
    (gradient,) = torch.autograd.grad(term(logits), logits)
    task = PUSH.expand(tokens, EXPERTS) / (tokens if reduction == "mean" else 1)
    return (task.norm() / gradient.norm()).item()


def led(tokens: int, generator: torch.Generator) -> Tensor:
    """Logits in which expert 0 leads by 0.30."""
    logits = 0.3 * torch.randn(tokens, EXPERTS, generator=generator, dtype=torch.float64)
    logits[:, 0] += 0.3
    return logits


def term(logits: Tensor) -> Tensor:
    """The Switch term of top-1 routing by these logits."""
    probs = logits.softmax(-1)
    return switch_term(probs, select_top_k(probs, 1)[1])


def shares(tokens: int, reduction: str, steps: int = 300) -> dict:
    """Share of expert 0 after training four offsets with each coefficient (Adam, rate 0.05)."""
    row: dict = {"task_loss": reduction, "tokens": tokens}
    for coefficient in COEFFICIENTS:
        generator, offsets = torch.Generator().manual_seed(0), torch.zeros(EXPERTS, dtype=torch.float64)
        offsets.requires_grad_()
        optimizer, last = torch.optim.Adam([offsets], lr=0.05), []
        for step in range(steps):
            logits = led(tokens, generator) + offsets
            task = -(logits @ PUSH)
            task = task.mean() if reduction == "mean" else task.sum()
            optimizer.zero_grad()
            (task + coefficient * term(logits)).backward()
            optimizer.step()
            if step >= steps - 50:
                last.append((logits.argmax(-1) == 0).double().mean().item())
        row[f"coef_{coefficient:g}"] = round(sum(last) / len(last), 3)
    return row


def settle(tokens: int, rule: str, steps: int = 1500) -> dict:
    """How fast and how far a rule evens out fresh tokens of a skewed router (sigmoid scores)."""
    generator, bias, floor = torch.Generator().manual_seed(0), torch.zeros(EXPERTS), random_floor(tokens)
    violations, gates = [], []
    for _ in range(steps):
        logits = torch.randn(tokens, EXPERTS, generator=generator) + torch.tensor([3.0, 1.0, 0.0, 0.0])
        scores = logits.sigmoid()
        kept, ids = select_top_k(scores, 1, prefer=scores + bias)
        counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
        violations.append(violation(counts))
        gates.append(kept.mean().item())
        if rule == "quantile":
            bias = quantile_bias(bias, scores, 1, rate=RULES[rule])
        else:
            bias = loss_free_bias(bias, counts, rate=RULES[rule])
    window = [sum(violations[i : i + 10]) / 10 for i in range(steps - 10)]
    reached = next((i for i, value in enumerate(window) if value <= 1.6 * floor), None)
    return {
        "rule": rule,
        "rate": RULES[rule],
        "tokens": tokens,
        "floor": round(floor, 3),
        "steps_to_1.6_floors": "never" if reached is None else reached,
        "violation_at_end": round(sum(violations[-100:]) / 100, 3),
        "over_floor": round(sum(violations[-100:]) / 100 / floor, 2),
        "selected_gate_at_end": round(sum(gates[-100:]) / 100, 3),
    }


def random_floor(tokens: int, draws: int = 400) -> float:
    """Mean (max - mean) / mean of the loads of random routing."""
    generator = torch.Generator().manual_seed(1)
    found = [torch.randint(EXPERTS, (tokens,), generator=generator) for _ in range(draws)]
    return sum(violation(torch.bincount(ids, minlength=EXPERTS)) for ids in found) / draws


def violation(counts: Tensor) -> float:
    """How far the largest load lies above the mean, over the mean."""
    return (counts.max() / counts.double().mean() - 1).item()


def write(name: str, rows: list[dict]) -> None:
    """Print a table and save it with where it comes from."""
    origin = provenance(threads=1)
    extra = {key: origin[key] for key in ("commit", "date") if key in origin}
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0], *extra], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | extra for row in rows)
    for row in rows:
        print(row)


if __name__ == "__main__":
    sys.exit(main())
