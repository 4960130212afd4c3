from itertools import pairwise

import pytest

from dormouse.errors import ConfigError
from dormouse.train.schedule import Schedule

SCHEDULE = Schedule(warmup_steps=4, decay_fraction=0.6, final_lr_fraction=0.01)


def rates(total, steps=None):
    return [SCHEDULE.scale(step, total) for step in range(steps or total)]


def test_the_rate_rises_stays_and_falls_linearly_to_its_last_value():
    found = rates(100)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[4:40] == [1.0] * 36
    assert found[-1] == pytest.approx(0.01)
    falls = [before - after for before, after in pairwise(found[39:])]
    assert falls == pytest.approx([0.99 / 60] * 60)


def test_without_a_known_length_the_rate_stays_at_its_peak():
    assert rates(None, 50) == [0.25, 0.5, 0.75] + [1.0] * 47


@pytest.mark.parametrize("decided_at", [1, 2, 3, 4, 5, 7, 40, 41, 999, 12345])
def test_a_time_budget_and_its_step_count_have_the_same_rates(decided_at):
    total = SCHEDULE.total_from(decided_at)
    before = [SCHEDULE.scale(step, None) for step in range(decided_at)]
    after = [SCHEDULE.scale(step, total) for step in range(decided_at, total)]
    assert before + after == rates(total)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.5, 0.6, 0.9])
def test_the_decay_of_the_decided_length_begins_where_it_was_decided(fraction):
    schedule = Schedule(warmup_steps=0, decay_fraction=fraction, final_lr_fraction=0.0)
    for step in range(1, 400):
        assert schedule.decay_start(schedule.total_from(step)) == step


def test_the_length_is_decided_when_the_constant_share_of_the_minutes_has_passed():
    schedule = Schedule(0, 0.6, 0.01, minutes=5.0)
    assert not schedule.is_time_to_decide(10, 119.9)
    assert schedule.is_time_to_decide(10, 120.0)
    assert not schedule.is_time_to_decide(0, 500.0)
    assert not SCHEDULE.is_time_to_decide(10, 1e9)


def test_a_run_shorter_than_its_warm_up_only_rises():
    assert rates(3) == [0.25, 0.5, 0.75]
    assert rates(2) == rates(3)[:2] == rates(100)[:2]


def test_a_time_budget_without_a_constant_part_is_refused():
    from dormouse.config.schema import TrainConfig

    with pytest.raises(ConfigError, match=r"decay_fraction = 1\.0.*--steps"):
        Schedule.from_config(TrainConfig(minutes=3.0, decay_fraction=1.0))


def test_a_budget_given_late_fills_its_rest_at_the_speed_so_far():
    """100 steps took 5 minutes; of a budget of 6 minutes the constant part (40 %) is over, of 13 it is not."""
    in_six, in_thirteen = (Schedule(4, 0.6, 0.01, minutes) for minutes in (6.0, 13.0))
    assert in_six.total_for_rest(100, 300.0) == 120
    assert in_thirteen.total_for_rest(100, 300.0) is None
    assert SCHEDULE.total_for_rest(100, 300.0) is None
    assert in_six.total_for_rest(100, 359.99) == 101
