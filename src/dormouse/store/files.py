"""Small files that are complete or absent: written beside their place, forced to disk, then renamed over it.

A rename inside one folder is atomic on the file systems we support, so a reader (or a run that is killed)
sees the old file or the new one and never a part of either. Forcing the folder as well makes the rename
survive a power cut.
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path

_BLOCK = 1 << 20


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; the temporary file is named `.<name>.tmp`."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: object) -> None:
    """`write_atomic` of indented JSON; raises ValueError on numbers that JSON does not have."""
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def sync_file(path: Path) -> None:
    """Force the content of one file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Force a folder's list of names to disk, where the platform allows it."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256(path: Path) -> str:
    """64 hex digits of the file's content, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
