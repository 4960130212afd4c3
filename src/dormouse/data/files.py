"""A user's file or folder as one stream of bytes, exactly as they lie on the disk.

A single file is memory-mapped: nothing is decoded, no line end is touched, and a file larger than the memory
works. A folder is read into memory, all regular files below it in the order of their relative paths (compared
as bytes, so that the order depends on neither locale nor file system), joined without anything in between;
names that start with a dot are left out. `Source` remembers where each file starts, so that a split can fall
between two files.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dormouse.errors import DataError

_CHUNK = 1 << 22
_WAYS_OUT = {"data": "name one, or use data=shelf", "eval": "name one, or leave eval out"}


@dataclass(frozen=True)
class Source:
    """Bytes of one file or folder."""

    path: Path
    data: np.ndarray
    """uint8 [n], read-only; a memory map for a single file."""
    starts: tuple[int, ...]
    """Offset of the first byte of each file."""


def read_source(field: str, path: Path, *, way_out: str | None = None) -> Source:
    """The bytes below `path`; raises `DataError` naming `field` when there is nothing that can be read.

    `way_out` is what a user may do about a place that does not exist (default: what a new run would do).
    """
    try:
        if not path.exists():
            raise DataError(f"{field}={path}: there is no such file or folder; {way_out or _WAYS_OUT[field]}")
        if path.is_dir():
            return _read_folder(field, path)
        if not path.is_file():
            raise DataError(f"{field}={path} is neither a file nor a folder; name a file that can be read twice")
        return Source(path, _map_file(field, path), (0,))
    except OSError as error:
        raise DataError(f"{field}={path} cannot be read ({error.strerror}); nothing was started") from error


def _map_file(field: str, path: Path) -> np.ndarray:
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size == 0:
            raise DataError(f"{field}={path} is empty (0 bytes); name a file with text in it")
        return np.memmap(stream, dtype=np.uint8, mode="r")


def _read_folder(field: str, folder: Path) -> Source:
    paths = list_files(folder)
    if not paths:
        raise DataError(f"{field}={folder} is a folder without files; put text files there or name a file")
    pieces, starts, position = [], [], 0
    for path in paths:
        raw = path.read_bytes()
        starts.append(position)
        position += len(raw)
        pieces.append(raw)
    if position == 0:
        raise DataError(f"{field}={folder}: all {len(paths)} files in it are empty (0 bytes); name a folder with text")
    return Source(folder, np.frombuffer(b"".join(pieces), dtype=np.uint8), tuple(starts))


def list_files(folder: Path) -> list[Path]:
    """Regular files below `folder`, sorted by relative path; names that start with a dot are left out."""
    found = []
    for place, folders, names in os.walk(folder, onerror=_reraise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(place) / name for name in names if not name.startswith("."))
        found.extend(path for path in paths if path.is_file())
    return sorted(found, key=lambda path: os.fsencode(path.relative_to(folder).as_posix()))


def _reraise(error: OSError) -> None:
    raise error


def sha256_of(data: np.ndarray) -> str:
    """SHA-256 of a uint8 stream as 64 hex digits, read in pieces of 4 MiB."""
    digest = hashlib.sha256()
    for start in range(0, len(data), _CHUNK):
        digest.update(data[start : start + _CHUNK].tobytes())
    return digest.hexdigest()
