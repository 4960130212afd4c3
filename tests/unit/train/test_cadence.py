from dormouse.train import cadence
from dormouse.train.cadence import Clock, is_due


def test_it_is_due_at_multiples_at_the_end_and_once_a_step():
    assert [step for step in range(8) if is_due(3, step=step, last=0, final=False)] == [3, 6]
    assert is_due(3, step=7, last=6, final=True)
    assert not is_due(3, step=6, last=6, final=False)
    assert not is_due(3, step=6, last=6, final=True)


def test_never_means_only_at_the_end():
    assert not any(is_due(0, step=step, last=0, final=False) for step in range(10))
    assert is_due(0, step=9, last=0, final=True)


def test_time_goes_on_from_what_was_spent_before(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(cadence.time, "monotonic", lambda: now[0])
    clock = Clock(50.0)
    now[0] = 110.0
    assert clock.elapsed() == 60.0
    assert clock.seconds_left(step=5, total=None, minutes=2.0) == 60.0
    assert clock.seconds_left(step=5, total=9, minutes=None) is None
    clock.count(2.0, 1000)
    clock.count(2.0, 3000)
    assert clock.bytes_per_second() == 1000.0
    assert clock.seconds_left(step=5, total=9, minutes=2.0) == 8.0
    assert clock.bytes_per_second() is None
