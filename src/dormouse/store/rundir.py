"""A run directory: one run, one owner, known names.

    run.json             effective configuration, provenance, data hashes, window, parameter counts
    metrics.jsonl        every number that was printed (the truth; other displays are copies)
    checkpoints/step_N/  complete or absent
    packed/              weights in number formats, by `dormouse quantize`
    weights.safetensors  the best checkpoint's weights, written when the run ends
    inspect/             pages by `dormouse inspect`
    samples/             text the model wrote
    lock                 process id of the owner, empty when there is none

Ownership is an operating-system lock (`flock`) on the file `lock`, which dies with its process however that
dies, so a lock that can be taken although the file still names a process is a stale one. The file is emptied,
never removed: removing it would let two processes lock two files of the same name. Whether a directory may be
used is decided before anything in it is touched; a directory that holds anything but a run's own files is
never written to.
"""

import contextlib
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import IO, Self

from dormouse.errors import RunDirError
from dormouse.store.files import write_json

_OWN = {
    *("run.json", "metrics.jsonl", "checkpoints", "weights.safetensors", "lock"),
    *("samples", "packed", "inspect", "report.html"),
}
_TEMPORARY = {".run.json.tmp", ".metrics.jsonl.tmp", ".weights.safetensors.tmp"}


class RunDir:
    """Paths of a run and the right to write there; use `create` or `open`, then `close` (or `with`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_json = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.weights = path / "weights.safetensors"
        self.samples = path / "samples"
        self.notes: list[str] = []
        """Sentences for the user: what was found or removed on the way in."""
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> Self:
        """A new, locked run directory at `path`; parents are made.

        Raises `RunDirError` and changes nothing when `path` is a file, cannot be written, belongs to a
        running process, holds a run (unless `overwrite`, which removes the run's files), or holds files that
        are not a run's.
        """
        run = cls(path)
        try:
            run._refuse_unfit(overwrite=overwrite)
            path.mkdir(parents=True, exist_ok=True)
            run.lock()
        except OSError as error:
            raise RunDirError(
                f"out = {path}: cannot be written ({error.strerror}); nothing would have been saved. "
                "Name a folder you may write to with --out."
            ) from None
        try:
            run._refuse_unfit(overwrite=overwrite)
        except RunDirError:
            run.close()
            raise
        run._clear()
        run.checkpoints.mkdir(exist_ok=True)
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """The run at `path`, unlocked (to read); raises `RunDirError` if there is none."""
        run = cls(path)
        if not run.run_json.is_file():
            state = "has no run.json" if path.is_dir() else "is a file" if path.exists() else "does not exist"
            raise RunDirError(
                f"{path} {state}: there is no run to read there. Give the directory that `dormouse train --out` made."
            )
        return run

    def lock(self) -> None:
        """Take ownership until `close`; raises `RunDirError` naming the owner when another process has it."""
        try:
            file = (self.path / "lock").open("a+", encoding="ascii")
        except OSError as error:
            raise RunDirError(
                f"{self.path} cannot be written ({error.strerror}); nothing would have been saved. "
                "Change its permissions, or name another folder."
            ) from None
        file.seek(0)
        previous = file.read().strip()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise RunDirError(
                f"{self.path} is in use by process {previous or 'unknown'}: two runs would have mixed their files. "
                "Wait until it ends, stop it, or name another folder with --out."
            ) from None
        if previous:
            self.notes.append(f"stale lock of process {previous} taken over (that process is gone)")
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._lock = file

    def close(self) -> None:
        """Give ownership back."""
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read_run(self) -> dict:
        """Content of run.json; raises `RunDirError` if it is damaged."""
        try:
            return json.loads(self.run_json.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunDirError(f"{self.run_json} is not JSON ({error}); restore it, or start a new run.") from None

    def write_run(self, content: dict) -> None:
        """Replace run.json, completely or not at all."""
        write_json(self.run_json, content)

    def _refuse_unfit(self, *, overwrite: bool) -> None:
        """Raise `RunDirError` unless a new run may start here; touches nothing."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise RunDirError(
                f"out = {self.path}: is a file; a run needs a folder of its own. Name another with --out."
            )
        names = {entry.name for entry in self.path.iterdir()}
        foreign = sorted(names - _OWN - _TEMPORARY)
        if foreign:
            raise RunDirError(
                f"out = {self.path}: holds files that are not a run's ({', '.join(foreign[:3])}); the run would have "
                "been mixed with them. Name a new or empty folder with --out."
            )
        if names - _TEMPORARY - {"lock"} and not overwrite and not self._is_unused():
            raise RunDirError(
                f"out = {self.path}: already holds a run; its checkpoints and metrics would have been replaced. "
                f"Go on with it (dormouse resume {self.path}), name another folder with --out, or pass --overwrite."
            )

    def _is_unused(self) -> bool:
        """Whether nothing is here but what a start makes that ended before its first step."""
        holds_steps = self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        return not (self.run_json.exists() or self.metrics.exists() or holds_steps)

    def _clear(self) -> None:
        """Remove what an earlier run left (only names a run makes)."""
        found = [entry for entry in self.path.iterdir() if entry.name != "lock"]
        if any(entry.name in _OWN for entry in found):
            self.notes.append(f"overwriting the run in {self.path}")
        for entry in found:
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                with contextlib.suppress(FileNotFoundError):
                    entry.unlink()
