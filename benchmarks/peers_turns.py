"""Turns: who may compute when, and how many seconds of training that makes.

The machine is shared and its speed drifts, so the models of a comparison take turns: each trains for a slice of some
seconds, then waits on a pipe until it is called again, and only one of them is awake at any time. Every model meets the
same mixture of fast and slow minutes. A run's clock is the sum of its own training time: batches, steps and (for
dormouse) log rows are inside; waiting, evaluations and checkpoints are outside, for every model alike.
"""

import time
from collections.abc import Callable

MARKED_BYTES = (1_000_000, 2_000_000, 4_000_000, 8_000_000)
"""Training bytes at which a point of the curve is taken, beside those at equal shares of the budget."""


class Turns:
    """One run's clock, its slices, and the points of its curve."""

    def __init__(
        self,
        ask: Callable[[dict], float],
        score: Callable[[], float],
        *,
        budget_seconds: float,
        points: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask(report)` hands the turn back and blocks until the next one, whose seconds it returns.

        `score()` gives bits per byte; it is called with the clock stopped, `points` times at equal shares of the
        budget (the last share is left to the final score) and once at each of `MARKED_BYTES`.
        """
        self._ask, self._score, self._now = ask, score, now
        self._marks = [budget_seconds * k / points for k in range(1, points)]
        self._byte_marks = list(MARKED_BYTES) if points > 1 else []
        self._spent, self._since = 0.0, None
        self._slice = (0.0, 0.0, 0)  # seconds granted; clock and bytes at its start
        self.slices: list[tuple[float, int]] = []
        """(seconds, bytes) trained in every slice."""
        self.curve: list[dict] = []
        """Points {"seconds", "bytes", "steps", "bpb"}, in order."""

    def begin(self) -> None:
        """Wait for the first turn and start the clock."""
        self._slice = (self._ask({"kind": "ready"}), 0.0, 0)
        self._since = self._now()

    def active(self) -> float:
        """Seconds of training so far."""
        return self._spent + (0.0 if self._since is None else self._now() - self._since)

    def halt(self) -> None:
        """Stop the clock; `between_steps` starts it again."""
        self._spent, self._since = self.active(), None

    def between_steps(self, steps: int, trained_bytes: int) -> None:
        """Take a point of the curve and pass the turn on, where due. Call after every step."""
        self.halt()
        if self._is_due(trained_bytes):
            self.take_point(steps, trained_bytes)
        granted, start, _ = self._slice
        if self._spent - start >= granted:
            self._pass_on(trained_bytes)
        self._since = self._now()

    def take_point(self, steps: int, trained_bytes: int) -> None:
        """Score the model as it is; the clock must be stopped."""
        point = {"seconds": self._spent, "bytes": trained_bytes, "steps": steps, "bpb": self._score()}
        self.curve.append(point)

    def close_slice(self, trained_bytes: int) -> None:
        """Note what the current slice held; the clock must be stopped."""
        _, start, before = self._slice
        if trained_bytes > before:
            self.slices.append((self._spent - start, trained_bytes - before))

    def _pass_on(self, trained_bytes: int) -> None:
        self.close_slice(trained_bytes)
        last = self.curve[-1]["bpb"] if self.curve else None
        report = {"kind": "slice", "seconds": self._spent, "bytes": trained_bytes, "bpb": last}
        self._slice = (self._ask(report), self._spent, trained_bytes)

    def _is_due(self, trained_bytes: int) -> bool:
        due = False
        while self._marks and self._spent >= self._marks[0]:
            self._marks.pop(0)
            due = True
        while self._byte_marks and trained_bytes >= self._byte_marks[0]:
            self._byte_marks.pop(0)
            due = True
        return due
