"""Where a number came from: code version, libraries, machine, date.

A result without these cannot be compared with another one. Nothing here names a person, a host or a path.
"""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

_LIBRARIES = ("dormouse-lm", "torch", "numpy", "pydantic", "safetensors")


def provenance(*, device: str = "cpu", threads: int | None = None) -> dict:
    """A JSON-ready record: commit, dirty, versions, device, cpu, cores, threads, date (UTC, ISO 8601).

    `commit` and `dirty` are None when the package does not run from a checkout.
    """
    commit, dirty = checkout()
    return {
        "commit": commit,
        "dirty": dirty,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _LIBRARIES}},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "device": device,
        "threads": threads,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


_ROOT = Path(__file__).resolve().parents[3]
_RESULTS = (":(exclude)benchmarks/results", ":(exclude,glob)experiments/*/runs.csv")
"""Files that a measurement itself writes: a series of runs would otherwise call its second run changed."""


def checkout(root: Path = _ROOT) -> tuple[str | None, bool | None]:
    """Commit of the checkout this package runs from, and whether tracked files other than results differ from it."""
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    return commit, bool(_git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *_RESULTS))


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_name() -> str:
    """Model name from the kernel where it offers one, else what the platform module says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
