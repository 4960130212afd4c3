import io

from dormouse.train.progress import PlainDisplay, duration, eval_line, make_display, train_line

ROW = {
    "step": 40,
    "total_steps": 900,
    "bpb": 2.5,
    "smooth_bpb": 3.5,  # lags behind; the line shows the window since the last one
    "held_out_bpb": 2.4321,
    "bytes_per_second": 5120.4,
    "seconds_left": 185.2,
    "grad_norm": 0.734,
    "scored": 10_240,
    "skipped": 0,
    "moe": [0.5625, 0.4375, 0.0, 0.0],
    "moe_entropy": 0.4943,
    "moe_dead": 2,
    "moe_gate": 0.5118,
}


def test_the_line_shows_everything_the_user_waits_for():
    assert train_line(ROW) == (
        "step 40/900  train 2.500 BPB  held-out 2.432  5,120 B/s  3m05s left  grad 0.73  "
        "moe=[0.562,0.438,0.000,0.000] H=0.494 dead=2 gate=0.512"
    )


def test_what_is_unknown_is_absent_and_not_zero():
    row = {"step": 1, "total_steps": None, "grad_norm": 1.0, "scored": 5, "skipped": 0}
    assert train_line(row) == "step 1/?  grad 1.00"


def test_trouble_is_on_the_line():
    row = {"step": 1, "total_steps": 5, "scored": 0, "skipped": 3, "non_finite": {"grad_norm": "inf"}}
    assert train_line(row) == "step 1/5  grad inf  scored=0  skipped=3"


def test_an_evaluation_names_its_bytes_and_its_file():
    row = {
        "step": 250,
        "bpb": 2.44731,
        "scored_bytes": 40_960,
        "window_bytes": 40_960,
        "best": True,
        "data_sha256": "3f98673d6ddbb10d" * 4,
        "by_register": {"novel": 2.5, "drama": 2.7},
        "tsct": "tsct=fp4 latched=1/4",
    }
    assert eval_line(row) == (
        "eval at step 250: held-out 2.4473 BPB on 40,960 bytes (window 40,960, sha256 3f98673d6ddb)  "
        "novel 2.500  drama 2.700  tsct=fp4 latched=1/4  best so far"
    )


def test_plain_lines_come_at_intervals_but_important_ones_always():
    stream = io.StringIO()
    display = PlainDisplay(stream, interval_seconds=1000.0)
    display.show("first")
    display.show("second")
    display.say("event")
    display.show("last", always=True)
    assert stream.getvalue().split() == ["first", "event", "last"]


def test_a_stream_that_is_no_terminal_gets_plain_lines_and_quiet_gets_none():
    stream = io.StringIO()
    assert isinstance(make_display(stream), PlainDisplay)
    make_display(stream, quiet=True).say("nothing")
    assert stream.getvalue() == ""


def test_a_terminal_gets_one_line_that_is_redrawn_and_kept_at_the_end():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    display = make_display(stream)
    display.show("step 1")
    display.say("eval")
    display.show("step 2 [brackets stay]")
    display.close()
    assert stream.getvalue().rstrip().endswith("step 2 [brackets stay]")
    assert "eval" in stream.getvalue()


def test_durations_read_naturally():
    assert [duration(seconds) for seconds in (0.4, 59, 61, 3599, 7800)] == [
        "0s",
        "59s",
        "1m01s",
        "59m59s",
        "2h10m",
    ]


def test_a_reader_that_goes_away_does_not_stop_the_run():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    display = PlainDisplay(Broken())
    display.say("one")
    display.say("two")
