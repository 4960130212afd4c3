"""The machine a run uses: device, threads, seeds, and the allocator.

`auto` takes a GPU if there is one and says so if there is none; a device that was named is never replaced by
another. The thread count is set once at the start and recorded, because a sum over another number of threads
already differs in its last digits. glibc gives every block above 32 MB back to the system and faults it in
again at the next allocation; raising two of its thresholds keeps such blocks.
Other allocators are left alone.
"""

import contextlib
import ctypes
import os
import random
import sys
from pathlib import Path

import numpy as np
import rich.style  # noqa: F401 - draws from python's generator when imported, so before anything is seeded
import torch

from dormouse.errors import ConfigError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30


def pick_device(name: str) -> tuple[torch.device, str | None]:
    """(device, sentence for the user or None); raises `ConfigError` for a named device that is not there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda"), None
        return torch.device("cpu"), "device = auto: no CUDA device is available, running on the CPU."
    device = torch.device(name)
    missing = {
        "cuda": not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count(),
        "mps": not torch.backends.mps.is_available(),
    }
    if missing.get(device.type, False):
        raise ConfigError(
            f"train.device = {name}: not available on this machine; the CPU would have run in its place, many times "
            "slower. Pass --device cpu or --device auto."
        )
    return device, None


def default_threads() -> int:
    """Physical cores this process may use: hyper-threads count once, control-group limits are obeyed."""
    available = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in available}
    return max(1, min(len(cores), _quota(len(available))))


def set_threads(number: int | None) -> int:
    """Use `number` CPU threads (None: `default_threads`) inside operations; returns the number."""
    chosen = number or default_threads()
    torch.set_num_threads(chosen)
    with contextlib.suppress(RuntimeError):  # may only be set before the first parallel work of a process
        torch.set_num_interop_threads(1)
    return chosen


def memory_bytes() -> int | None:
    """Main memory of the machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def seed_everything(seed: int) -> None:
    """Seed the generators of python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def keep_large_blocks() -> bool:
    """Make glibc keep freed blocks of up to 1 GiB; returns whether that was possible here."""
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))


def _siblings(cpu: int) -> str:
    """Name of the physical core of a logical one; its own number where the kernel does not tell."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)


def _quota(otherwise: int) -> int:
    """CPUs that the control group grants, rounded up; `otherwise` where there is no limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return otherwise
    return otherwise if limit == "max" else -(-int(limit) // int(period))
