"""SIGINT and SIGTERM become a request that the loop honours between two steps.

The handlers are set before the model is built and stay until the run directory is closed, so a signal during
start-up, the first step, an evaluation or a save is kept, not lost: a step is finished, a save is finished,
an evaluation is abandoned, then the state is saved and the program ends with 128 + signal number (130, 143).
A second signal ends the process at once; checkpoints are complete or absent, so the old ones stay as they
were.
"""

import os
import signal
import threading
from types import FrameType
from typing import Self

_STOPPING = b"\nstopping: finishing this step, then saving (once more to end at once without saving)\n"
_NOW = b"\nended at once; the last complete checkpoint is as it was\n"


class StopRequest:
    """Context manager; `signal` is the first signal that came, or None. Inactive outside the main thread."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, object] = {}

    @property
    def requested(self) -> bool:
        """True once a signal has come."""
        return self.signal is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyrefly: ignore[bad-argument-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            os.write(2, _NOW)
            os._exit(128 + number)
        self.signal = number
        os.write(2, _STOPPING)
