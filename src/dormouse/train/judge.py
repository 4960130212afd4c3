"""The two audits at the end of a run: did every mechanism run (always), did every tensor move (on request).

A failed audit ends the run with exit code 3 after its state was saved; what was found is an event in metrics.jsonl.
"""

from dormouse.errors import TrainingHalted
from dormouse.train.audit import MovementAudit, inert
from dormouse.train.progress import Display, ran_text
from dormouse.train.ran import idle
from dormouse.train.run import Run


def judge_counters(run: Run, display: Display) -> None:
    """Raise `TrainingHalted` naming what is on and did not run; the counts are in the last train row."""
    ran = run.state.counters.read()
    lost = idle(run, ran)
    if lost:
        values = {"event": "idle_mechanisms", "idle": lost, "forwards": ran.forwards, "backwards": ran.backwards}
        run.metrics.write("event", run.state.progress.step, values)
        raise TrainingHalted(
            f"counter audit failed: on by configuration, but not run in this training: {', '.join(lost)}. Its score is "
            "not the score of the mechanism. The last train row of metrics.jsonl has all counts."
        )
    if run.options.audit:
        display.say(f"counter audit: every mechanism ran, forward/backward {ran_text(ran.forwards, ran.backwards)}")


def judge_movement(run: Run, display: Display, audit: MovementAudit) -> None:
    """Judge the movement of every tensor; raises `TrainingHalted` naming those that should have moved."""
    movements = audit.report()
    still = inert(movements)
    rows = [vars(movement) for movement in movements]
    values = {"event": "audit", "inert": still, "movements": rows}
    run.metrics.write("event", run.state.progress.step, values)
    if still:
        raise TrainingHalted(
            f"movement audit failed: {len(still)} of {len(movements)} tensors did not move or had no gradient: "
            f"{', '.join(still[:8])}. They were saved and counted but not trained; metrics.jsonl has the audit event."
        )
    display.say(f"movement audit: all {sum(m.expected for m in movements)} tensors that should have moved did")
