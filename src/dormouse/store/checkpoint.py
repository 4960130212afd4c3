"""Checkpoints that are complete or absent.

A checkpoint is a folder `step_N`: the tensors in the format of torch.distributed.checkpoint, `state.json`
(everything that is not a tensor), and `manifest.json` with the size and SHA-256 of every other file. It is
written to a temporary folder, forced to disk, and renamed; names that begin with a dot never count. A kill at
any moment therefore leaves the earlier checkpoints as they were and at worst a temporary folder, which `tidy`
removes at the next start.

Replacing a checkpoint of the same step needs two renames. Between them the old one is called `.old-step_N`,
from where `tidy` brings it back, so that moment loses nothing either.

A state with a number that is not finite is never written: it would push the healthy checkpoints out of the
rotation.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from dormouse.errors import CheckpointError, TrainingHalted
from dormouse.store import tree
from dormouse.store.files import sha256, sync_file, sync_folder, write_json

Report = Callable[[str], None]
_MANIFEST, _STATE = "manifest.json", "state.json"


def save(root: Path, step: int, state: Mapping[str, object], manifest_extra: Mapping[str, object]) -> Path:
    """Write `state` (nested mappings of tensors and JSON values) as `root/step_N`; returns that folder.

    `manifest_extra` goes into the manifest as it is; a key `bpb` makes the checkpoint a candidate for `best`.
    `content` in it is a digest of each top-level part, by which two runs are compared without loading them.
    Raises `TrainingHalted`, writing nothing, when a tensor holds a non-finite number.
    """
    tensors, description = tree.flatten(dict(state))
    _refuse_non_finite(tensors, step)
    root.mkdir(parents=True, exist_ok=True)
    target, temporary = root / f"step_{step}", root / f".tmp-step_{step}"
    _remove(temporary)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "torch.distributed is uninitialized": meant so
        dcp.save(tensors, checkpoint_id=temporary, no_dist=True)
    write_json(temporary / _STATE, description)
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in _content(temporary)}
    content = {name: tree.digest(part) for name, part in state.items()}
    write_json(
        temporary / _MANIFEST,
        {"schema": 1, "step": step, **manifest_extra, "content": content, "files": files},
    )
    for path in _content(temporary):
        sync_file(path)
    sync_folder(temporary)
    _put_in_place(temporary, target)
    return target


def load(path: Path) -> dict:
    """The state saved at `path`, on the CPU; raises `CheckpointError` naming what is missing or damaged."""
    problem = damage(path)
    if problem is not None:
        raise CheckpointError(f"{path} is damaged: {problem}. Use another checkpoint of the run.")
    description = json.loads((path / _STATE).read_text(encoding="utf-8"))
    tensors = tree.templates(description)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp.load(tensors, checkpoint_id=path, no_dist=True)
    state = tree.unflatten(description, tensors)
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} does not hold a training state.")
    return state


def manifest(path: Path) -> dict:
    """The manifest of a checkpoint; raises `CheckpointError` when it is missing or not JSON."""
    try:
        content = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: {_MANIFEST} is missing") from None
    except ValueError:
        raise CheckpointError(f"{path}: {_MANIFEST} is not JSON (cut short?)") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: {_MANIFEST} is no manifest but a {type(content).__name__}")
    return content


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint (reads and hashes all of it), or None when it is complete."""
    try:
        listed = manifest(path)["files"]
    except CheckpointError as error:
        return str(error).split(": ", 1)[-1]
    except (KeyError, TypeError):
        return f"{_MANIFEST} lists no files"
    for name, expected in listed.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["bytes"]:
            return f"{name} has {file.stat().st_size:,} bytes, its manifest says {expected['bytes']:,}"
        if sha256(file) != expected["sha256"]:
            return f"{name} is not what its SHA-256 says"
    return None


def steps(root: Path) -> list[int]:
    """Steps of all folders that are called like a checkpoint, ascending; says nothing about their content."""
    names = (path.name.removeprefix("step_") for path in root.glob("step_*"))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def latest(root: Path, *, report: Report | None = None) -> Path | None:
    """The complete checkpoint with the highest step; damaged ones on the way go to `report`."""
    return _first_complete([root / f"step_{step}" for step in reversed(steps(root))], report)


def best(root: Path, *, report: Report | None = None) -> Path | None:
    """The complete checkpoint with the lowest held-out BPB (the earlier of two equal ones), or None."""
    scores = [(bpb, step) for step in steps(root) if (bpb := _bpb(root / f"step_{step}")) is not None]
    return _first_complete([root / f"step_{step}" for _, step in sorted(scores)], report)


def retain(root: Path, keep: int, *, upto: int) -> list[int]:
    """Keep the `keep` newest and the best of the checkpoints up to step `upto`; returns the removed steps.

    A later one can only be a damaged leftover that the run has not reached again: it neither counts nor goes.
    """
    found = [step for step in steps(root) if step <= upto]
    scores = [(bpb, step) for step in found if (bpb := _bpb(root / f"step_{step}")) is not None]
    kept = set(found[-keep:]) | ({min(scores)[1]} if scores else set())
    removed = [step for step in found if step not in kept]
    for step in removed:
        trash = root / f".trash-step_{step}"
        _remove(trash)
        (root / f"step_{step}").rename(trash)
        _remove(trash)
    return removed


def tidy(root: Path) -> None:
    """Finish what a kill interrupted: restore a replaced checkpoint, clear temporary folders."""
    for old in root.glob(".old-step_*"):
        original = root / old.name.removeprefix(".old-")
        if not original.exists():
            old.rename(original)
    for pattern in (".old-*", ".tmp-*", ".trash-*"):
        for leftover in root.glob(pattern):
            _remove(leftover)


def _refuse_non_finite(tensors: Mapping[str, Tensor], step: int) -> None:
    bad = [name for name, value in tensors.items() if not _all_finite(value)]
    if bad:
        raise TrainingHalted(
            f"the state at step {step} holds non-finite numbers ({', '.join(bad[:3])}); it was not saved, the earlier "
            "checkpoints are as they were. Start a new run with a smaller --lr."
        )


def _all_finite(value: Tensor) -> bool:
    """Smallest and largest are finite exactly when all are (NaN wins both); five times faster than asking each."""
    if not value.is_floating_point() or value.numel() == 0:
        return True
    return bool(torch.isfinite(torch.stack(value.aminmax())).all())


def _put_in_place(temporary: Path, target: Path) -> None:
    old = target.with_name(f".old-{target.name}")
    if target.exists():
        _remove(old)
        target.rename(old)
    os.rename(temporary, target)  # noqa: PTH104 - the one call that makes a checkpoint exist
    sync_folder(target.parent)
    _remove(old)


def _first_complete(paths: list[Path], report: Report | None) -> Path | None:
    for path in paths:
        problem = damage(path)
        if problem is None:
            return path
        if report is not None:
            report(f"checkpoint {path.name} is skipped: {problem}")
    return None


def _bpb(path: Path) -> float | None:
    try:
        return manifest(path).get("bpb")
    except CheckpointError:
        return None


def _content(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
