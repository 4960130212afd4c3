"""The training loop: settle what is due at this step, then take the next one.

Settling comes first and depends on the state alone: which step was last logged, evaluated and saved is part
of the checkpoint, so a run that was stopped between a step and its evaluation evaluates when it resumes, and
produces the same rows as a run that never stopped. The order within a step is log, probe, evaluate, save: a
checkpoint's rows are on disk before it is. A checkpoint is written at the save cadence, at the end, on a
signal, and whenever an evaluation is the best so far.
"""

import time
from dataclasses import dataclass

from dormouse.errors import TrainingHalted
from dormouse.store import checkpoint
from dormouse.train.audit import MovementAudit, unread_gates
from dormouse.train.cadence import Clock, is_due
from dormouse.train.evaluate import EvaluationAbandoned, evaluate
from dormouse.train.judge import judge_counters, judge_movement
from dormouse.train.probe import probe
from dormouse.train.progress import Display, eval_line, probe_line, train_line
from dormouse.train.rows import counter_columns, eval_row, smoothed, train_row
from dormouse.train.run import Run
from dormouse.train.signals import StopRequest
from dormouse.train.step import StepResult, train_step


@dataclass(frozen=True)
class Outcome:
    """How the loop ended."""

    step: int
    signal: int | None
    """Number of the signal that stopped it; None when the run is complete."""


def train(run: Run, display: Display, stop: StopRequest) -> Outcome:
    """Train until the run is complete or a signal asks to stop; the state is saved in both cases.

    Raises `TrainingHalted` on non-finite steps in a row, a non-finite evaluation, or a failed audit.
    """
    progress, clock = run.state.progress, Clock(run.state.elapsed_seconds)
    audit = _movement_audit(run) if run.options.audit else None
    run.state.model.train()
    begin = progress.step
    while True:
        _decide_length(run, display, clock)
        final = progress.step == progress.total_steps
        if progress.n_passes is not None:
            run.state.use_passes(progress.n_passes)
        _settle(run, display, clock, stop, final=final)
        if stop.requested:
            _save(run, clock)
            return Outcome(progress.step, stop.signal)
        if final:
            break
        _step(run, display, clock, audit)
    if progress.step > begin:
        judge_counters(run, display)
        if audit is not None:
            judge_movement(run, display, audit)
    return Outcome(progress.step, None)


def _movement_audit(run: Run) -> MovementAudit:
    config = run.config.model
    return MovementAudit(
        run.state.model, n_experts=config.n_experts, n_null=config.n_null_experts, unread=unread_gates(config)
    )


def _decide_length(run: Run, display: Display, clock: Clock) -> None:
    """Turn a time budget into a number of steps once its constant part has passed."""
    progress = run.state.progress
    if progress.total_steps is not None or not run.schedule.is_time_to_decide(progress.step, clock.elapsed()):
        return
    total = progress.total_steps = run.schedule.total_from(progress.step)
    values = {"event": "length_decided", "total_steps": total, "minutes": run.config.train.minutes}
    run.metrics.write("event", progress.step, values)
    display.say(f"length decided at step {progress.step}: {total} steps in all; the same run: --steps {total}")


def _step(run: Run, display: Display, clock: Clock, audit: MovementAudit | None) -> None:
    """One optimiser step and what it leaves in the metrics."""
    progress, count = run.state.progress, run.config.train.grad_accum
    begin = time.monotonic()
    batches = [run.stream.batch(progress.step * count + index) for index in range(count)]
    scale = run.schedule.scale(progress.step, progress.total_steps)
    place = (progress.step, progress.total_steps, run.config.model.max_iter)
    run.state.use_passes(run.schedule.drawn_passes(*place))
    result = train_step(run.state, batches, lr_scale=scale, settings=run.settings)
    run.state.use_passes(run.schedule.passes(*place))
    clock.count(time.monotonic() - begin, result.scored)
    if audit is not None and not result.skipped:
        audit.observe()
        audit.routed(run.state.tally.counts.sum(0)[: run.config.model.n_experts])
    if run.options.log_windows:
        windows = [window for batch in batches for window in batch.window_ids.tolist()]
        run.metrics.write("windows", progress.step, {"windows": windows})
    if result.skipped:
        _report_skip(run, display, result)
    # Between two retractions factors drift, which no format can help: the check waits for the next one.
    retracts = run.settings.retract_every > 0 or run.settings.retract_when > 0
    waits = retracts and progress.steps_since_retraction > 0
    if run.state.latch.is_due(progress.step, last=progress.latch_step) and not waits:
        _check_latch(run, display)


def _check_latch(run: Run, display: Display) -> None:
    """Measure every factor, let those that left their number format fall back, and write both down."""
    latch, step = run.state.latch, run.state.progress.step
    run.state.progress.latch_step = step
    readings = latch.read()
    if readings:
        run.state.counters.count("latch")
    run.metrics.write("latch", step, {"readings": [vars(reading) for reading in readings]})
    for trip in latch.check(step, readings):
        run.metrics.write("event", step, {"event": "latch", **vars(trip)})
        display.say(str(trip))


def _report_skip(run: Run, display: Display, result: StepResult) -> None:
    """Say that the firewall held a step back, and stop the run after too many in a row."""
    step, firewall = run.state.progress.step, run.state.firewall
    loss, norm = result.total.item(), result.grad_norm.item()
    run.metrics.write("event", step, {"event": "skipped_step", "total": loss, "grad_norm": norm})
    counts = f"{firewall.in_a_row} in a row, {firewall.skipped} in all"
    display.say(f"step {step} skipped: loss {loss:.4g}, gradient norm {norm:.4g} ({counts})")
    firewall.check(step)


def _settle(run: Run, display: Display, clock: Clock, stop: StopRequest, *, final: bool) -> None:
    """Log, probe, evaluate and save, as far as they are due at this step and have not been done."""
    progress, cadence = run.state.progress, run.cadence
    if is_due(cadence.log_every, step=progress.step, last=progress.logged_step, final=final):
        _log(run, display, clock, final=final)
    if cadence.probe_every and is_due(cadence.probe_every, step=progress.step, last=progress.probed_step, final=final):
        _probe(run, display)
    improved = False
    if is_due(cadence.eval_every, step=progress.step, last=progress.evaluated_step, final=final):
        try:
            improved = _evaluate(run, display, stop)
        except EvaluationAbandoned:
            return
    if improved:
        progress.saved_step = -1
    if improved or is_due(cadence.save_every, step=progress.step, last=progress.saved_step, final=final):
        _save(run, clock)


def _log(run: Run, display: Display, clock: Clock, *, final: bool) -> None:
    """Write and show one `train` row; the only place where the tally leaves the device."""
    progress = run.state.progress
    reading = run.state.tally.read()
    run.state.tally.reset()
    progress.logged_step = progress.step
    progress.smooth_bpb = smoothed(progress.smooth_bpb, reading.ce)
    values = train_row(run, reading, clock) | (counter_columns(run.state.counters.read()) if final else {})
    row = run.metrics.write("train", progress.step, values)
    display.show(train_line(row), always=final)


def _probe(run: Run, display: Display) -> None:
    """Write and show one `probe` row."""
    state, progress = run.state, run.state.progress
    progress.probed_step = progress.step
    found = probe(state.model, run.window, state.device)  # pyrefly: ignore
    if found is not None:
        display.say(probe_line(run.metrics.write("probe", progress.step, vars(found))))


def _evaluate(run: Run, display: Display, stop: StopRequest) -> bool:
    """Score the held-out window; returns whether it is the best so far."""
    progress, registers = run.state.progress, run.corpus.registers
    try:
        result = evaluate(run.state.model, run.window, registers=registers, should_stop=lambda: stop.requested)
    except TrainingHalted as error:
        values = {"event": "non_finite_evaluation", "message": str(error)}
        run.metrics.write("event", progress.step, values)
        raise
    progress.evaluated_step = progress.step
    progress.held_out_bpb = result.bpb
    best = progress.best_bpb is None or result.bpb < progress.best_bpb
    if best:
        progress.best_bpb, progress.best_step = result.bpb, progress.step
    row = run.metrics.write("eval", progress.step, eval_row(run, result, best=best))
    display.say(eval_line(row))
    return best


def _save(run: Run, clock: Clock) -> None:
    """Write a checkpoint of this step, unless it has one, and let old ones go."""
    state, progress, root = run.state, run.state.progress, run.directory.checkpoints
    if progress.saved_step == progress.step:
        return
    progress.saved_step = progress.step
    state.elapsed_seconds = clock.elapsed()
    run.metrics.sync()
    fresh = progress.evaluated_step == progress.step
    extra = {"bpb": progress.held_out_bpb if fresh else None, "total_steps": progress.total_steps}
    checkpoint.save(root, progress.step, state.state_dict(), extra)
    checkpoint.retain(root, run.config.train.keep_checkpoints, upto=progress.step)
