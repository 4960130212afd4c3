"""From the `data` section of a configuration to the two byte streams of a run.

`data=shelf` is the built-in corpus with its own held-out file; anything else is a path. A path without `eval`
gives its last twentieth as held-out text, cut between two files of a folder, after a document separator, or
at a 4,096-byte block, whichever exists first near that place. Before anything is returned the two sides are
checked against each other: sizes (one window each at least), the same path or content on both sides, one path
inside the other, and runs of 64 bytes that stand on both sides. What was decided on the user's behalf is in
`notes`, for the program to print.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dormouse.config.schema import DataConfig
from dormouse.data import shelf
from dormouse.data.files import read_source, sha256_of
from dormouse.data.overlap import Overlap, find_overlap, remove_overlap
from dormouse.data.split import split_source
from dormouse.errors import DataError

OVERLAP_LIMIT = 1 << 28
"""Training streams of more bytes are compared with the held-out text only when `dedup` is on."""

_SEPARATE = "name separate text, or leave eval out and the last 5 % of data are held out"
_RESTORE = "put it back, or name another text with --eval"


@dataclass(frozen=True)
class Corpus:
    """The bytes of a run."""

    name: str
    """"shelf", or the path as the user wrote it."""
    train: np.ndarray
    """uint8 [n], read-only, possibly a memory map; empty when the held-out text alone was read."""
    held_out: np.ndarray
    """uint8 [m], read-only, possibly a memory map."""
    train_sha256: str
    """64 hex digits, of exactly the bytes in `train`, or as given when these were not read."""
    held_out_sha256: str
    """64 hex digits, of exactly the bytes in `held_out`."""
    registers: dict[str, list[tuple[int, int]]] | None = None
    """Kinds of text in the held-out stream as byte ranges [start, stop); None when unknown."""
    notes: tuple[str, ...] = field(default=())
    """Sentences for the user: what was decided or found while loading."""
    overlap: Overlap | None = None
    """Shared runs between the two streams as found before any removal; None when not compared."""


def load_corpus(config: DataConfig, *, seq_len: int, eval_seq_len: int) -> Corpus:
    """The two streams that `config` names; raises `DataError` before any work when they cannot serve.

    `seq_len` and `eval_seq_len` are the lengths in bytes of a training and an evaluation sequence; each side
    must hold one byte more. `config.dedup` removes from the training stream what also stands in the held-out
    stream.
    """
    corpus = _load(config, seq_len, eval_seq_len)
    _check_size("train", corpus.name, corpus.train, "seq_len", seq_len)
    _check_size("held-out", config.eval or corpus.name, corpus.held_out, "eval_seq_len", eval_seq_len)
    if corpus.train_sha256 == corpus.held_out_sha256:
        raise DataError(
            f"eval={config.eval} has the same content as data={config.data} (SHA-256 {corpus.train_sha256[:16]}): "
            "the score would be one on training text; name other text, or leave eval out"
        )
    if config.data == "shelf" and config.eval is None and not config.dedup:
        return corpus
    return _compare(corpus, dedup=config.dedup, seq_len=seq_len)


def load_held_out(config: DataConfig, *, seq_len: int, eval_seq_len: int, train_sha256: str) -> Corpus:
    """The held-out side alone, to score a run whose training text had `train_sha256`; `train` is empty.

    The training text is opened only where the held-out text is its end (`eval` unset, `data` a path). Raises
    `DataError` when there is no such text, when it is too short for one sequence of `eval_seq_len` bytes, and
    when it is the training text by place or by content.
    """
    _refuse_same_place(config, way_out="name separate text with --eval")
    registers, notes = None, ()
    if config.eval is None and config.data != "shelf":
        _, held_out, note = _cut(config, seq_len, eval_seq_len, way_out=_RESTORE)
        notes = (note,)
    elif config.eval in (None, "shelf"):
        held_out, registers = shelf.load_held_out(), shelf.registers()
    else:
        held_out = read_source("eval", Path(config.eval), way_out=_RESTORE).data
    name, way_out = config.eval or config.data, "name more text with --eval"
    _check_size("held-out", name, held_out, "eval_seq_len", eval_seq_len, way_out=way_out)
    sha256 = sha256_of(held_out)
    if sha256 == train_sha256:
        raise DataError(
            f"eval={name} has the same content as the run's training text (SHA-256 {sha256[:16]}): "
            "the score would be one on training text; name other text with --eval"
        )
    return Corpus(config.data, held_out[:0], held_out, train_sha256, sha256, registers=registers, notes=notes)


def _load(config: DataConfig, seq_len: int, eval_seq_len: int) -> Corpus:
    _refuse_same_place(config)
    if config.data == "shelf" and config.eval is None:
        return _shelf()
    if config.eval is None:
        return _split(config, seq_len, eval_seq_len)
    train = shelf.load_train() if config.data == "shelf" else read_source("data", Path(config.data)).data
    held_out = shelf.load_held_out() if config.eval == "shelf" else read_source("eval", Path(config.eval)).data
    return Corpus(
        name=config.data,
        train=train,
        held_out=held_out,
        train_sha256=sha256_of(train),
        held_out_sha256=sha256_of(held_out),
    )


def _shelf() -> Corpus:
    return Corpus(
        name="shelf",
        train=shelf.load_train(),
        held_out=shelf.load_held_out(),
        train_sha256=shelf.TRAIN_SHA256,
        held_out_sha256=shelf.HELD_OUT_SHA256,
        registers=shelf.registers(),
    )


def _split(config: DataConfig, seq_len: int, eval_seq_len: int) -> Corpus:
    train, held_out, note = _cut(config, seq_len, eval_seq_len)
    return Corpus(config.data, train, held_out, sha256_of(train), sha256_of(held_out), notes=(note,))


def _cut(
    config: DataConfig, seq_len: int, eval_seq_len: int, *, way_out: str | None = None
) -> tuple[np.ndarray, np.ndarray, str]:
    """Training part, held-out part, and the sentence that says where `data` was cut."""
    source = read_source("data", Path(config.data), way_out=way_out)
    separator = config.separator_bytes()
    cut, place = split_source(source, train_min=seq_len + 1, held_out_min=eval_seq_len + 1, separator=separator)
    train, held_out = source.data[:cut], source.data[cut:]
    note = (
        f"no eval file named: the last {len(held_out):,} of {len(source.data):,} bytes of {config.data} "
        f"({len(held_out) / len(source.data):.1%}) are held out, cut {place}"
    )
    return train, held_out, note


def _refuse_same_place(config: DataConfig, *, way_out: str = _SEPARATE) -> None:
    if config.eval is None or "shelf" in (config.data, config.eval):
        return
    data, held_out = Path(config.data).resolve(), Path(config.eval).resolve()
    relation = None
    if data == held_out or (data.exists() and held_out.exists() and data.samefile(held_out)):
        relation = "is the same place as"
    elif held_out.is_relative_to(data):
        relation = "lies inside"
    elif data.is_relative_to(held_out):
        relation = "contains"
    if relation:
        raise DataError(
            f"eval={config.eval} {relation} data={config.data}: the score would be one on training text; {way_out}"
        )


def _check_size(
    side: str, corpus_name: str, data: np.ndarray, key: str, length: int, *, way_out: str | None = None
) -> None:
    if len(data) < length + 1:
        raise DataError(
            f"{side} text of {corpus_name} holds {len(data):,} bytes, too small for one window: "
            f"{key}={length} needs {length + 1:,} bytes; {way_out or f'name more text or a smaller {key}'}"
        )


def _compare(corpus: Corpus, *, dedup: bool, seq_len: int) -> Corpus:
    """Reports shared runs in `notes`, and takes them out of the training stream when `dedup` is on."""
    if len(corpus.train) > OVERLAP_LIMIT and not dedup:
        size = f"{len(corpus.train):,}"
        note = f"training text of {size} bytes was not compared with the held-out text; dedup=true does"
        return replace(corpus, notes=(*corpus.notes, note))
    overlap = find_overlap(corpus.train, corpus.held_out)
    if not overlap.held_out_bytes:
        return replace(corpus, overlap=overlap)
    note = (
        f"leakage: {overlap.held_out_share:.2%} of the held-out bytes lie in {overlap.width}-byte runs "
        f"that also occur in the training text ({overlap.train_bytes:,} bytes there)"
    )
    if not dedup:
        return replace(corpus, overlap=overlap, notes=(*corpus.notes, f"{note}; dedup=true removes them"))
    train = remove_overlap(corpus.train, overlap)
    _check_size("train", f"{corpus.name} without what is also held out", train, "seq_len", seq_len)
    notes = (*corpus.notes, f"{note}; removed from the training text, {len(train):,} bytes remain")
    return replace(corpus, train=train, train_sha256=sha256_of(train), overlap=overlap, notes=notes)
