"""What the user sees of a running run: a live line on a terminal, plain lines elsewhere.

Every number shown is in metrics.jsonl; the lines are formatted from its rows and hold nothing else. Plain
lines come at most every few seconds, so that a log file of a long run stays readable; evaluations, events and
the first and last lines always come.
"""

import time
from collections.abc import Mapping, Sequence
from typing import IO, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Display(Protocol):
    """Where lines go."""

    def say(self, text: str) -> None:
        """Show a sentence or a result; it stays."""

    def show(self, text: str, *, always: bool = False) -> None:
        """Show the current progress line."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainDisplay:
    """Lines of text to a stream; a reader that goes away does not stop the run."""

    def __init__(self, stream: IO[str], *, interval_seconds: float = 4.0) -> None:
        self._stream: IO[str] | None = stream
        self._interval = interval_seconds
        self._next = 0.0

    def say(self, text: str) -> None:
        """Print it."""
        if self._stream is None:
            return
        try:
            print(text, file=self._stream, flush=True)
        except BrokenPipeError:
            self._stream = None

    def show(self, text: str, *, always: bool = False) -> None:
        """Print it, unless a line was printed within the interval."""
        now = time.monotonic()
        if always or now >= self._next:
            self._next = now + self._interval
            self.say(text)

    def close(self) -> None:
        """Nothing to undo."""


class LiveDisplay:
    """One line that is redrawn at the bottom of a terminal, everything else above it."""

    def __init__(self, stream: IO[str]) -> None:
        self._console = Console(file=stream, highlight=False)
        self._live = Live(Text(""), console=self._console, transient=True, refresh_per_second=4)
        self._live.start()
        self._last = ""

    def say(self, text: str) -> None:
        """Print above the live line."""
        self._console.print(Text(text), soft_wrap=True)

    def show(self, text: str, *, always: bool = False) -> None:
        """Redraw the live line."""
        self._last = text
        self._live.update(Text(text))

    def close(self) -> None:
        """Keep the last progress line as ordinary text."""
        self._live.stop()
        if self._last:
            self._console.print(Text(self._last), soft_wrap=True)


class SilentDisplay:
    """Shows nothing (for --quiet and for tests)."""

    def say(self, text: str) -> None:
        """Drop it."""

    def show(self, text: str, *, always: bool = False) -> None:
        """Drop it."""

    def close(self) -> None:
        """Nothing to undo."""


def make_display(stream: IO[str], *, quiet: bool = False) -> Display:
    """Live on a terminal, plain lines elsewhere, nothing when quiet."""
    if quiet:
        return SilentDisplay()
    return LiveDisplay(stream) if stream.isatty() else PlainDisplay(stream)


def train_line(row: Mapping) -> str:
    """The progress line of a `train` row."""
    parts = [f"step {row['step']}/{row['total_steps'] or '?'}"]
    parts += [f"train {row['bpb']:.3f} BPB"] if row.get("bpb") is not None else []
    parts += [f"held-out {row['held_out_bpb']:.3f}"] if row.get("held_out_bpb") is not None else []
    parts += [f"{row['bytes_per_second']:,.0f} B/s"] if row.get("bytes_per_second") else []
    parts += [f"{duration(row['seconds_left'])} left"] if row.get("seconds_left") is not None else []
    norm = row.get("non_finite", {}).get("grad_norm", None)
    parts.append(f"grad {norm if norm is not None else format(row['grad_norm'], '.2f')}")
    parts += [routing_text(row)] if "moe" in row else []
    parts += [f"scored={row['scored']}"] if not row["scored"] else []
    parts += [f"skipped={row['skipped']}"] if row["skipped"] else []
    return "  ".join(parts)


def eval_line(row: Mapping) -> str:
    """The line of an `eval` row."""
    registers = "".join(f"  {name} {bpb:.3f}" for name, bpb in (row.get("by_register") or {}).items())
    best = "  best so far" if row["best"] else ""
    return (
        f"eval at step {row['step']}: held-out {row['bpb']:.4f} BPB on {row['scored_bytes']:,} bytes "
        f"(window {row['window_bytes']:,}, sha256 {row['data_sha256'][:12]}){registers}  {row['tsct']}{best}"
    )


def probe_line(row: Mapping) -> str:
    """The line of a `probe` row."""
    return f"probe at step {row['step']}: {'; '.join(probe_text(row))}"


def probe_text(facts: Mapping) -> list[str]:
    """A mixture probe in phrases, each raw number with its chance; what was not measured is left out."""
    found = []
    if facts["cosine"] is not None:
        kappa = "undefined" if facts["kappa"] is None else f"{facts['kappa']:.3f}"
        found = [
            f"cosine of passes {facts['cosine']:.3f}",
            f"same strongest expert {_beside_chance(facts, 'agreement')}, kappa {kappa}",
            f"identical sets {_beside_chance(facts, 'identical')}",
            f"disjoint sets {_beside_chance(facts, 'disjoint')}",
        ]
    found.append(f"support {facts['support']:.2f}, effective experts {facts['effective']:.2f}")
    if facts["disagreement"] is not None:
        found.append(f"texts disagree {_beside_chance(facts, 'disagreement')}")
    return found


def _beside_chance(facts: Mapping, name: str) -> str:
    return f"{facts[name]:.3f} (chance {facts[f'{name}_chance']:.3f})"


def routing_text(row: Mapping) -> str:
    """`moe=[0.562,0.438,0.000,0.000] H=0.494 dead=2 gate=0.512`: shares, entropy, unused experts, selected gate."""
    return f"{shares_text(row['moe'], row['moe_entropy'], row['moe_dead'])} gate={row['moe_gate']:.3f}"


def shares_text(shares: Sequence[float], entropy: float, dead: int) -> str:
    """The same without the gate."""
    return f"moe=[{','.join(f'{share:.3f}' for share in shares)}] H={entropy:.3f} dead={dead}"


def ran_text(forwards: Mapping[str, int], backwards: Mapping[str, int]) -> str:
    """`kda 12/12, retraction 6`: forwards and backwards of what ran; those of one number have no backward."""
    each = [
        f"{name} {number}" + (f"/{backwards[name]}" if backwards[name] else "") for name, number in forwards.items()
    ]
    return ", ".join(text for text, number in zip(each, forwards.values(), strict=True) if number)


def duration(seconds: float) -> str:
    """`42s`, `3m05s`, `2h10m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
