"""The conductor: one process a model, exactly one of them awake.

Every model lives in a process of its own, so that threads, allocator and generators are its own. Between slices a
process blocks on its end of a pipe and uses no processor time; no signal is involved. The conductor starts the
processes one after another, waits until each is ready, and then goes round: it grants a slice of seconds, waits for the
report, goes on to the next. The order is turned by one place every round, so that nobody always follows the same
neighbour. Before every round it measures a matrix product; these figures say how fast the machine was while the runs
were made.

All processes start with `GOMP_SPINCOUNT` as the program itself sets it, unless the caller has chosen otherwise: threads
that spin for long keep the cores from whoever else wants them.
"""

import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

import torch
from benchmarks.peers_trial import Request, run_trial

from dormouse.cli.waiting import SPIN_COUNT
from dormouse.train.machine import set_threads

_SIZE = 1024
_REPEATS = 8
_FAREWELL_SECONDS = 10.0


class TrialFailed(Exception):  # noqa: N818 - the name says what is wrong
    """A model's process ended without a result; the message holds its traceback."""


def work(link: Connection, request: Request) -> None:
    """Body of a model's process: messages {"kind": "ready" | "slice" | "done" | "failed", ...} out, seconds in."""

    def ask(report: dict) -> float:
        link.send(report)
        return link.recv()

    try:
        link.send({"kind": "done", "record": run_trial(request, ask)})
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the conductor is gone
    except Exception:
        link.send({"kind": "failed", "traceback": traceback.format_exc()})


class Player:
    """A model's process as the conductor sees it."""

    def __init__(self, request: Request) -> None:
        """Start the process and wait until it is ready to train."""
        self.request = request
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read when a process loads the library
        context = multiprocessing.get_context("spawn")
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, request), daemon=True)
        self.process.start()
        theirs.close()
        self.receive()

    def receive(self) -> dict:
        """The next message; raises `TrialFailed` if the process reports a failure or is gone."""
        try:
            message = self.link.recv()
        except EOFError:
            raise TrialFailed(f"{self.request.model}: the process ended without a word") from None
        if message["kind"] == "failed":
            raise TrialFailed(f"{self.request.model}:\n{message['traceback']}")
        return message

    def play(self, seconds: float) -> dict:
        """One slice; the message that ends it."""
        self.link.send(seconds)
        return self.receive()

    def close(self) -> None:
        """Hang up; the process ends by itself, or is ended if it does not."""
        self.link.close()
        self.process.join(_FAREWELL_SECONDS)
        if self.process.is_alive():
            with suppress(OSError):
                self.process.terminate()


def alternate(requests: list[Request], *, slice_seconds: float, say: Callable[[str], None] = print) -> Iterator[dict]:
    """Train all `requests` in turns of `slice_seconds`; yields each record as its run ends.

    A record says with whom its run alternated and how fast the machine was meanwhile. Raises `TrialFailed`.
    """
    players: list[Player] = []
    set_threads(requests[0].threads)
    try:
        for request in requests:
            say(f"starting {request.model} for {request.minutes:g} min")
            players.append(Player(request))
        yield from _rounds(players, slice_seconds, say)
    finally:
        for player in players:
            player.close()


def _rounds(players: list[Player], slice_seconds: float, say: Callable[[str], None]) -> Iterator[dict]:
    playing, speeds, number = list(players), [], 0
    together = [player.request.model for player in players]
    while playing:
        speeds.append(matmul_gflops())
        say(f"round {number + 1}: matrix product {speeds[-1]:.0f} GFLOP/s")
        shift = number % len(playing)
        for player in playing[shift:] + playing[:shift]:
            message = player.play(slice_seconds)
            if message["kind"] == "done":
                playing.remove(player)
                yield message["record"] | {"alternated_with": together, "matmul_gflops": spread(speeds)}
            else:
                say(slice_line(player.request, message))
        number += 1


def slice_line(request: Request, message: dict) -> str:
    """What a slice's report says, for people."""
    bpb = "" if message["bpb"] is None else f"  last point {message['bpb']:.3f} BPB"
    speed = message["bytes"] / message["seconds"] / 1000
    return (
        f"  {request.model:<18} {message['seconds']:6.1f} of {request.minutes * 60:.0f} s"
        f"  {message['bytes'] / 1e6:6.3f} MB  {speed:5.1f} kB/s{bpb}"
    )


def matmul_gflops() -> float:
    """Best speed of a square fp32 product in this process just now, 10^9 operations a second."""
    a = torch.ones(_SIZE, _SIZE)
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - begin)
    return 2e-9 * _SIZE**3 / min(times)


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
