"""When the loop logs, evaluates and saves, and how fast it runs."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from dormouse.config.schema import TrainConfig


@dataclass(frozen=True)
class Cadence:
    """Steps between two of each; 0 means only at the end of the run (of a probe: never)."""

    log_every: int
    eval_every: int
    save_every: int
    probe_every: int = 0

    @classmethod
    def from_config(cls, train: "TrainConfig") -> Self:
        """The cadence of a run."""
        return cls(train.log_every, train.eval_every, train.save_every, train.probe_every)


def is_due(every: int, *, step: int, last: int, final: bool) -> bool:
    """True at multiples of `every` and at the final step, unless done there already (`last`)."""
    return step > last and (final or (every > 0 and step % every == 0))


class Clock:
    """Wall time of a run over several starts, and the speed of its steps since the last reading."""

    def __init__(self, spent_seconds: float) -> None:
        self._zero = time.monotonic() - spent_seconds
        self._bytes = 0
        self._steps = 0
        self._seconds = 0.0
        self._step_seconds: float | None = None

    def elapsed(self) -> float:
        """Seconds in the loop so far, evaluations and saves included."""
        return time.monotonic() - self._zero

    def count(self, seconds: float, scored_bytes: int) -> None:
        """Add one step."""
        self._seconds += seconds
        self._bytes += scored_bytes
        self._steps += 1

    def bytes_per_second(self) -> float | None:
        """Training speed since the last call (evaluations and saves not counted); None when no step ran."""
        if self._steps == 0:
            return None
        speed = self._bytes / max(self._seconds, 1e-9)
        self._step_seconds = self._seconds / self._steps
        self._bytes, self._steps, self._seconds = 0, 0, 0.0
        return speed

    def seconds_left(self, *, step: int, total: int | None, minutes: float | None) -> float | None:
        """Time to the end: steps left at the latest speed, or what a time budget still holds."""
        if total is None:
            return None if minutes is None else max(minutes * 60 - self.elapsed(), 0.0)
        return None if self._step_seconds is None else (total - step) * self._step_seconds
