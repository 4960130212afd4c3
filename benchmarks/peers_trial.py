"""One run of the comparison: a model, a budget, and the record of what came out.

A peer's run is the loop below. Dormouse's run is the project's own: `prepare`, `start` and `train`, as
`dormouse train --preset tiny --minutes M` calls them, in a temporary run directory. Two of the loop's own hooks are
used to make it take turns. It asks a stop request once after every step, which is where the turn is passed on; and it
asks its schedule whether the constant part of the budget has passed, which is answered by the clock of the turns, as
the loop's own clock would count the waiting. Within the loop's evaluation, which asks the stop request too, the clock
stands still.

All runs are scored by `dormouse.train.evaluate` on the same bytes, cut into sequences of 512 with one byte of context,
and once more in sequences of 256, the length the GPTs and dormouse train at.
"""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peers_recipes import RECIPES, Peer
from benchmarks.peers_turns import Turns

from dormouse.config.load import load_run_config
from dormouse.config.schema import DataConfig
from dormouse.data.corpus import Corpus, load_corpus
from dormouse.data.window import EvalWindow
from dormouse.model.roles import Role, named_roles
from dormouse.store.provenance import provenance
from dormouse.store.rundir import RunDir
from dormouse.train.evaluate import EvalResult, evaluate
from dormouse.train.loop import train
from dormouse.train.machine import keep_large_blocks, set_threads
from dormouse.train.progress import SilentDisplay
from dormouse.train.run import Run, prepare, start
from dormouse.train.schedule import Schedule
from dormouse.train.signals import StopRequest

DORMOUSE = "dormouse"
MODELS = (DORMOUSE, *RECIPES)
WINDOW_BYTES = 40_960
_NEVER = 10**9


@dataclass(frozen=True)
class Request:
    """Which run, and on how many threads."""

    model: str
    minutes: float
    threads: int
    points: int = 8
    """Points of the curve at equal shares of the budget, the final score included."""


@dataclass(frozen=True)
class Trained:
    """What a run leaves."""

    steps: int
    trained_bytes: int
    parameters: int
    table_parameters: int
    recipe: dict
    """Every setting of the run."""


@dataclass(frozen=True)
class ActiveSchedule(Schedule):
    """A schedule whose time budget is counted by the turns instead of the wall."""

    turns: Turns | None = None

    def is_time_to_decide(self, step: int, elapsed_seconds: float) -> bool:
        """As the base class, with the seconds of training in place of `elapsed_seconds`."""
        seconds = elapsed_seconds if self.turns is None else self.turns.active()
        return super().is_time_to_decide(step, seconds)


class TurnStop(StopRequest):
    """A stop request that never asks to stop, but passes the turn on when it is asked between two steps."""

    def __init__(self, run: Run, turns: Turns) -> None:
        super().__init__()
        self._run, self._turns = run, turns

    @property
    def requested(self) -> bool:
        """Always False, after the next turn has come; in an evaluation the clock is stopped."""
        if self._run.state.model.training:
            progress = self._run.state.progress
            self._turns.between_steps(progress.step, progress.trained_bytes)
        else:
            self._turns.halt()
        return False


class Trial:
    """A prepared run: `go` waits for its turn, trains, scores, and returns the record."""

    def __init__(self, request: Request, ask, *, folder: Path) -> None:
        """`ask` as in `Turns`; `folder` is an empty place for dormouse's run directory."""
        self.request = request
        self.provenance = provenance(threads=request.threads)  # of the code that runs, whatever is edited meanwhile
        seconds = request.minutes * 60
        self.turns = Turns(ask, lambda: self.score(512).bpb, budget_seconds=seconds, points=request.points)
        set_threads(request.threads)
        keep_large_blocks()
        self.corpus = corpus()
        if request.model == DORMOUSE:
            self.run = dormouse_run(request, folder)
            self.model = self.run.state.model
        else:
            self.peer = Peer(RECIPES[request.model], self.corpus.train)
            self.model = self.peer.model

    def go(self) -> dict:
        """Train in turns; a JSON-ready record."""
        if self.request.model == DORMOUSE:
            trained = train_dormouse(self.run, self.turns)
        else:
            trained = train_peer(self.peer, self.turns, self.request.minutes)
        self.turns.close_slice(trained.trained_bytes)
        at_512, at_256 = self.score(512), self.score(256)
        seconds = self.turns.active()
        end = {"seconds": seconds, "bytes": trained.trained_bytes, "steps": trained.steps, "bpb": at_512.bpb}
        return {
            "model": self.request.model,
            "minutes": self.request.minutes,
            "bpb": at_512.bpb,
            "bpb_at_256": at_256.bpb,
            "by_register": at_512.by_register,
            "scored_bytes": at_512.scored_bytes,
            "seconds": seconds,
            "bytes_per_second": trained.trained_bytes / seconds,
            **asdict(trained),
            "curve": [*self.turns.curve, end],
            "slices": [list(piece) for piece in self.turns.slices],
            "provenance": self.provenance,
        }

    def score(self, seq_len: int) -> EvalResult:
        """Bits per byte of the model as it is on the 40,960 bytes, in sequences of `seq_len`."""
        return evaluate(self.model, window(self.corpus, seq_len), registers=self.corpus.registers)


def corpus() -> Corpus:
    """The built-in corpus."""
    return load_corpus(DataConfig(), seq_len=256, eval_seq_len=512)


def window(data: Corpus, seq_len: int = 512) -> EvalWindow:
    """The scored bytes: the first 40,960 after byte 0 of the held-out text."""
    return EvalWindow(data.held_out, batch_size=8, seq_len=seq_len, window_bytes=WINDOW_BYTES)


def train_peer(peer: Peer, turns: Turns, minutes: float) -> Trained:
    """The peers' training loop: constant rate, then a number of steps that the speed so far decides."""
    schedule, step, total = peer.schedule(minutes), 0, None
    turns.begin()
    while step != total:
        if total is None and schedule.is_time_to_decide(step, turns.active()):
            total = schedule.total_from(step)
        peer.step(step, schedule.scale(step, total))
        step += 1
        turns.between_steps(step, step * peer.bytes_per_step)
    turns.halt()
    parameters = sum(p.numel() for p in peer.model.parameters())
    recipe = asdict(peer.recipe) | {"clip": 1.0, "schedule": "warm-up, constant, linear"}
    return Trained(step, step * peer.bytes_per_step, parameters, peer.table_parameters(), recipe)


def dormouse_run(request: Request, folder: Path) -> Run:
    """A new run of the preset `tiny`, evaluated and saved only at its end."""
    flags = {
        "minutes": request.minutes,
        "threads": request.threads,
        "device": "cpu",
        "eval_every": _NEVER,
        "save_every": _NEVER,
    }
    config = load_run_config("tiny", None, [], flags)
    return start(prepare(config), RunDir.create(folder / "run"))


def train_dormouse(run: Run, turns: Turns) -> Trained:
    """The project's own training loop, taking turns."""
    run.schedule = ActiveSchedule(**vars(run.schedule), turns=turns)
    turns.begin()
    try:
        outcome = train(run, SilentDisplay(), TurnStop(run, turns))
    finally:
        turns.halt()
        run.close()
    named = list(named_roles(run.state.model))
    return Trained(
        outcome.step,
        run.state.progress.trained_bytes,
        sum(p.numel() for _, p, _ in named),
        sum(p.numel() for _, p, role in named if role is Role.TABLE),
        run.config.model_dump(mode="json"),
    )


def run_trial(request: Request, ask) -> dict:
    """One run from start to record."""
    with tempfile.TemporaryDirectory(prefix="dormouse-peers-") as folder:
        return Trial(request, ask, folder=Path(folder)).go()
