"""A trained run, ready to use: its model and its configuration."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from dormouse.config.schema import ModelConfig, RunConfig
from dormouse.errors import CheckpointError, ConfigError
from dormouse.model.lm import Dormouse
from dormouse.store.checkpoint import Report, best, latest, load, manifest, steps
from dormouse.store.rundir import RunDir
from dormouse.train.latch import Trip, apply_trips, tsct_line
from dormouse.train.resume import saved_config
from dormouse.train.state import load_weights


@dataclass(frozen=True)
class LoadedRun:
    """Unpacks as `model, config = load_run(path)`."""

    model: Dormouse
    """In evaluation mode, on the CPU."""
    config: RunConfig
    step: int
    checkpoint: str
    """Name of the checkpoint folder."""
    bpb: float | None
    """Held-out score the run gave this checkpoint, if it gave one."""
    tsct: str
    """Number format of the factors, and parts that fell back: `tsct=fp4 latched=1/4`."""
    record: dict
    """Content of run.json."""

    def __iter__(self) -> Iterator[object]:
        return iter((self.model, self.config))


def load_run(
    path: str | Path, *, checkpoint: str = "best", max_iter: int | None = None, report: Report = warnings.warn
) -> LoadedRun:
    """Load a run directory.

    `checkpoint` is best (lowest held-out BPB, or the newest if none was scored), latest, or a step number. `max_iter`
    is how many passes the model runs, from 1 to the run's own `max_iter`; without one, as many as it trained last.
    A damaged checkpoint in whose place another one is taken goes to `report` (default: `warnings.warn`). The
    global random generators are left as they were. Raises `RunDirError` if there is no run, `CheckpointError`
    if there is no such complete checkpoint, `ConfigError` for passes that the model does not have.
    """
    directory = RunDir.open(Path(path))
    config = saved_config(directory)
    folder = find_checkpoint(directory, checkpoint, report=report)
    if max_iter is not None and not 1 <= max_iter <= config.model.max_iter:
        raise ConfigError(
            f"max_iter = {max_iter}: the run has passes 1 to {config.model.max_iter}; no other has an embedding. "
            f"Give 1 to {config.model.max_iter}, or leave it out."
        )
    (model, tsct), details = load_model(config.model, folder), manifest(folder)
    model.n_passes = max_iter or model.n_passes
    return LoadedRun(model, config, details["step"], folder.name, details.get("bpb"), tsct, directory.read_run())


def load_model(config: ModelConfig, folder: Path) -> tuple[Dormouse, str]:
    """The model of a checkpoint folder, as it was last trained, and its `tsct_line`.

    In evaluation mode on the CPU, with the passes that were trained last and the parts that fell back. No generator is
    touched.
    """
    state = load(folder)
    with torch.random.fork_rng(devices=[]):
        model = Dormouse(config)
    load_weights(model, state["model"])
    trips = [Trip(**trip) for trip in state["latch"]["trips"]]
    apply_trips(model, trips)
    model.n_passes = state["progress"].get("n_passes") or config.max_iter
    return model.eval(), tsct_line(model, trips)


def find_checkpoint(directory: RunDir, wanted: str, *, report: Report | None = None) -> Path:
    """Folder of a complete checkpoint: best, latest, or a step number; damaged ones go to `report`."""
    root = directory.checkpoints
    if wanted in ("best", "latest"):
        found = _best(root, report) if wanted == "best" else None
        found = found or latest(root, report=report)
        if found is None:
            raise CheckpointError(
                f"{directory.path} has no complete checkpoint yet. Let it train to its first save, or resume it: "
                f"dormouse resume {directory.path}"
            )
        return found
    names = [str(step) for step in steps(root)]
    if wanted in names:
        return root / f"step_{wanted}"
    raise CheckpointError(
        f"checkpoint = {wanted}: the run has none of that name; it has best, latest, and the steps "
        f"{', '.join(names) or '(none)'}."
    )


def _best(root: Path, report: Report | None) -> Path | None:
    """`best`, and to `report` the checkpoints whose score cannot be read: one of them may be the better one."""
    found = best(root, report=report)
    if found is None or report is None:
        return found
    for step in steps(root):
        try:
            manifest(root / f"step_{step}")
        except CheckpointError:
            report(f"checkpoint step_{step} is skipped: its manifest cannot be read, so its score is unknown")
    return found
