"""On what the yardsticks were measured: versions of the compressors, machine, commit, date.

Compressors are the part of the table that can change with a library's version, so theirs are named one by
one. The commit is read from git when the package lies in a checkout and is absent otherwise.
"""

import os
import platform
import subprocess
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zstandard


def provenance() -> dict[str, Any]:
    """Plain types, ready for JSON."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _git("rev-parse", "HEAD"),
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "zlib": zlib.ZLIB_RUNTIME_VERSION,
            "zstandard": zstandard.__version__,
            "zstd": ".".join(str(part) for part in zstandard.ZSTD_VERSION),
        },
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
