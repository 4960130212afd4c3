"""The rows of metrics.jsonl that a run writes: one `train` row a log step, one `eval` row an evaluation."""

import math

from dormouse.instruments.counters import Ran
from dormouse.train.cadence import Clock
from dormouse.train.evaluate import EvalResult
from dormouse.train.retract import largest_error
from dormouse.train.run import Run
from dormouse.train.state import factors
from dormouse.train.tally import TallyReading

_KEPT = 0.8


def train_row(run: Run, reading: TallyReading, clock: Clock) -> dict:
    """Everything the progress line shows and more; losses in nats per byte, `bpb` in bits per byte.

    Losses are null when no byte was scored. `moe`, `moe_entropy`, `moe_dead` and `moe_gate` are about everything that
    was routed since the last row, and absent when nothing was; `moe_by_pass` comes on request, null for a pass that
    did not run.
    """
    progress, train, ce = run.state.progress, run.config.train, reading.ce
    scale = run.schedule.scale(max(progress.step - 1, 0), progress.total_steps)
    row: dict = {
        "total_steps": progress.total_steps,
        "ce": ce,
        "aux": reading.aux,
        "total": None if ce is None else ce + reading.aux,
        "bpb": None if ce is None else ce / math.log(2),
        "smooth_bpb": progress.smooth_bpb,
        "held_out_bpb": progress.held_out_bpb,
        "scored": reading.scored,
        "grad_norm": reading.grad_norm,
        "grad_norm_max": reading.grad_norm_max,
        "n_passes": progress.n_passes,
        "lr_scale": scale,
        "lr": scale * train.lr,
        "skipped": run.state.firewall.skipped,
        "empty_steps": progress.empty_steps,
        "trained_bytes": progress.trained_bytes,
        "epoch": run.stream.epoch(progress.step * train.grad_accum),
        "orthogonality_error": _orthogonality(run),
        "orthogonality_drift": reading.drift,
        "bytes_per_second": clock.bytes_per_second(),
        "elapsed_seconds": clock.elapsed(),
        "seconds_left": clock.seconds_left(step=progress.step, total=progress.total_steps, minutes=train.minutes),
    }
    if reading.utilization is not None:
        use = reading.utilization
        row |= {"moe": list(use.shares), "moe_entropy": use.entropy, "moe_dead": use.dead, "moe_gate": reading.gate}
        if run.config.model.n_null_experts:
            row["moe_null"] = reading.null
        if run.options.log_passes:
            row["moe_by_pass"] = [None if each is None else list(each.shares) for each in reading.by_pass]
    return row


def counter_columns(ran: Ran) -> dict:
    """What the last row of a run says of its mechanisms: [forwards, backwards] by name, and rows by expert."""
    columns: dict = {"ran": {name: [number, ran.backwards[name]] for name, number in ran.forwards.items() if number}}
    return columns | ({"expert_rows": list(ran.expert_rows)} if any(ran.expert_rows) else {})


def eval_row(run: Run, result: EvalResult, *, best: bool) -> dict:
    """A score with what it is a score of."""
    return {
        "bpb": result.bpb,
        "scored_bytes": result.scored_bytes,
        "window_bytes": result.window_bytes,
        "data_sha256": run.corpus.held_out_sha256,
        "by_register": result.by_register,
        "best": best,
        "trained_bytes": run.state.progress.trained_bytes,
        "tsct": run.state.latch.line(),
    }


def smoothed(old: float | None, ce: float | None) -> float | None:
    """Exponentially smoothed BPB after a log step of `ce` nats per byte (None: nothing was scored)."""
    if ce is None:
        return old
    bpb = ce / math.log(2)
    return bpb if old is None else _KEPT * old + (1 - _KEPT) * bpb


def _orthogonality(run: Run) -> float:
    """Largest ||X^T X - I||_F / r over the model's factors, as it is now."""
    return largest_error(factors(run.state.model)).item()
