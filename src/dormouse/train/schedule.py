"""The learning rate over a run: warm-up, stable, linear decay; by steps or by minutes.

The rate is a pure function of (step, total), written as a factor of each group's peak rate. It rises linearly
over `warmup_steps`, stays at 1, and falls linearly over the last `decay_fraction` of the run to
`final_lr_fraction`. The warm-up is never shortened: in a run that ends before it does, the rate only rises.

A time budget has no total at first. The rate stays at 1 until 1 - decay_fraction of the minutes has passed;
the step s at which that is noticed fixes the total to round(s / (1 - decay_fraction)), and from there on the
run is counted in steps. As |total * (1 - decay_fraction) - s| < 1/2, the decay of a run of that many steps
begins at exactly the same s: `--steps total` is the same run to the bit.

The passes through the shared block can grow late: for the first `single_pass_fraction` of the steps one pass
trains, then all. Later steps then cost more than those that were measured, so a time budget decides earlier, by
the mean cost of a step over the run. With random depth every step draws its number, from 1 to all of those that would
train then, by seed and step alone; evaluation and checkpoints have all of them.
"""

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from dormouse.errors import ConfigError

if TYPE_CHECKING:
    from dormouse.config.schema import TrainConfig


@dataclass(frozen=True)
class Schedule:
    """Warm-up, stable, decay."""

    warmup_steps: int
    decay_fraction: float
    final_lr_fraction: float
    minutes: float | None = None
    single_pass_fraction: float = 0.0
    """First share of the run that trains with one pass through the block."""
    full_cost: float = 1.0
    """Cost of a step with all passes over that of a step with one; only a time budget reads it."""
    depth_seed: int | None = None
    """Seed of the numbers of passes; None trains all of them in every step."""

    @classmethod
    def from_config(cls, train: "TrainConfig", *, full_cost: float = 1.0) -> Self:
        """The schedule of a run; raises `ConfigError` for a time budget without a constant part."""
        if train.minutes is not None and train.decay_fraction >= 1:
            raise ConfigError(
                f"train.decay_fraction = {train.decay_fraction} with train.minutes = {train.minutes}: the length in "
                "steps is measured while the rate is constant, and no such part would have run. Set decay_fraction "
                "below 1, or give --steps."
            )
        return cls(
            train.warmup_steps,
            train.decay_fraction,
            train.final_lr_fraction,
            train.minutes,
            train.single_pass_fraction,
            full_cost if train.single_pass_fraction else 1.0,
            train.seed if train.random_depth else None,
        )

    def passes(self, step: int, total: int | None, max_iter: int) -> int:
        """Passes that train at `step` (from 0) of `total` steps (None: not known yet)."""
        if self.single_pass_fraction == 0:
            return max_iter
        is_first_part = total is None or step < round(total * self.single_pass_fraction)
        return 1 if is_first_part else max_iter

    def drawn_passes(self, step: int, total: int | None, max_iter: int) -> int:
        """Passes of the step itself: `passes`, or with random depth a number from 1 to that many."""
        number = self.passes(step, total, max_iter)
        if self.depth_seed is None:
            return number
        return random.Random(f"passes {self.depth_seed} {step}").randint(1, number)

    def decay_start(self, total: int) -> int:
        """First step (counted from 0) whose rate is below the peak, the warm-up aside."""
        return round(total * (1 - self.decay_fraction))

    def scale(self, step: int, total: int | None) -> float:
        """Factor on the peak rate at `step` (from 0) of `total` steps (None: not known yet)."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if total is None:
            return 1.0
        start = max(self.decay_start(total), self.warmup_steps)
        if step < start:
            return 1.0
        done = min((step - start + 1) / max(total - start, 1), 1.0)
        return 1.0 - (1.0 - self.final_lr_fraction) * done

    def total_from(self, step: int) -> int:
        """Length of a run whose decay begins at `step` >= 1."""
        return max(round(step / (1 - self.decay_fraction)), step)

    def total_for_rest(self, step: int, elapsed_seconds: float) -> int | None:
        """Length of a run of which `step` steps took `elapsed_seconds`, for a time budget given only then.

        None while the constant part of the budget lasts: the loop decides at its end. After that the rest of the
        budget is filled with steps at the speed so far, one at least.
        """
        if self.minutes is None or not self.is_time_to_decide(step, elapsed_seconds):
            return None
        rest = max(self.minutes * 60 - elapsed_seconds, 0.0)
        return step + max(1, round(rest * step / elapsed_seconds))

    def is_time_to_decide(self, step: int, elapsed_seconds: float) -> bool:
        """True once the constant part of a time budget has passed (at least one step must be done)."""
        if self.minutes is None or step < 1:
            return False
        mean_cost = self.single_pass_fraction + (1 - self.single_pass_fraction) * self.full_cost
        return elapsed_seconds >= (1 - self.decay_fraction) * self.minutes * 60 / mean_cost
