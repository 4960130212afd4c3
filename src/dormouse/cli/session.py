"""One start of a training run from the command line: checks, directory, loop, result, exit code.

Signals are caught from the first moment, before torch is imported. Everything that can be refused is refused
before the directory is touched. Lines for people go to standard output, or to standard error when `--json`
asks for one JSON object on standard output.
"""

import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dormouse.errors import RunDirError

if TYPE_CHECKING:
    from dormouse.config.load import Resolved
    from dormouse.config.schema import RunConfig
    from dormouse.store.rundir import RunDir
    from dormouse.train.finish import Result
    from dormouse.train.progress import Display
    from dormouse.train.run import Run


@dataclass(frozen=True)
class Request:
    """What to do in which directory, and how to talk about it."""

    path: Path
    resume: bool = False
    overwrite: bool = False
    audit: bool = False
    log_windows: bool = False
    log_passes: bool = False
    sample_bytes: int = 400
    """Length of the text that a completed run writes."""
    quiet: bool = False
    as_json: bool = False


@dataclass(frozen=True)
class Report:
    """How a start of a run ended."""

    path: Path
    step: int
    signal: int | None
    result: "Result | None"
    """None when a signal stopped the run before it was complete."""


def run_training(config: "RunConfig", request: Request, *, origins: Mapping[str, str] | None = None) -> Report:
    """Train as asked; `typer.Exit` with 128 + signal number after a signal, `DormouseError` when refused."""
    from dormouse.train.signals import StopRequest

    with StopRequest() as stop:
        from dormouse.train.finish import finish
        from dormouse.train.loop import train
        from dormouse.train.progress import make_display

        display = make_display(sys.stderr if request.as_json else sys.stdout, quiet=request.quiet)
        run = None
        try:
            run = _open(config, request, display, origins or {})
            outcome = train(run, display, stop)
            result = finish(run, display, sample_bytes=request.sample_bytes) if outcome.signal is None else None
        finally:
            display.close()
            if run is not None:
                run.close()
    report = Report(request.path, outcome.step, outcome.signal, result)
    if report.signal is not None:
        _stopped(report, request)
    return report


def _open(config: "RunConfig", request: Request, display: "Display", origins: Mapping[str, str]) -> "Run":
    """The run, assembled and announced."""
    from dormouse.train.resume import resume
    from dormouse.train.run import Options, prepare, start

    options = Options(audit=request.audit, log_windows=request.log_windows, log_passes=request.log_passes)
    prepared = prepare(absolute_paths(config))
    for note in prepared.notes:
        display.say(note)
    directory = _take(request)
    try:
        for note in directory.notes:
            display.say(note)
        if request.resume and directory.run_json.exists():
            run = resume(prepared, directory, options, report=display.say)
        else:
            if request.resume:
                display.say(f"{request.path} holds no run yet: a new one begins there")
            run = start(prepared, directory, options)
    except BaseException:
        directory.close()
        raise
    _announce(run, display, origins)
    return run


def _take(request: Request) -> "RunDir":
    """Own the directory: an existing run to resume, else a new one."""
    from dormouse.store.rundir import RunDir

    if request.resume and (request.path / "run.json").exists():
        directory = RunDir.open(request.path)
        directory.lock()
        return directory
    return RunDir.create(request.path, overwrite=request.overwrite)


def _announce(run: "Run", display: "Display", origins: Mapping[str, str]) -> None:
    """Say what is about to happen, with the settings that are not defaults."""
    from dormouse.cli.results import yardsticks
    from dormouse.config.inert import inert_settings
    from dormouse.config.problems import shown

    record = run.directory.read_run()
    for line in inert_settings(run.config):
        display.say(f"note: {line}")
    data, window = record["data"], record["window"]
    place = [record, *record.get("resumed", [])][-1]["provenance"]
    if origins:
        settings = (f"{key.split('.')[1]}={shown(_value(run.config, key))}" for key in sorted(origins))
        display.say(f"settings: {' '.join(settings)} (all of them: {run.directory.run_json})")
    display.say(
        f"{record['parameters']['total']:,} parameters on {place['device']}, {place['threads']} threads; "
        f"{data['name']}: {data['train_bytes']:,} training bytes, window of {window['bytes']:,} held-out bytes "
        f"({data['held_out_sha256'][:12]})"
    )
    known = yardsticks(
        train_sha256=data["train_sha256"],
        held_out_sha256=data["held_out_sha256"],
        window_bytes=window["bytes"],
    )
    display.say(f"to beat on it: {', '.join(f'{name} {bpb:.3f}' for name, bpb in known.items())}")
    display.say(f"run directory: {run.directory.path}")


def _value(config: "RunConfig", key: str) -> object:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


def _stopped(report: Report, request: Request) -> None:
    """Say how to go on, and leave with the signal's exit code."""
    assert report.signal is not None
    name = signal.Signals(report.signal).name
    way_on = f"dormouse resume {report.path}"
    if request.as_json:
        print(json.dumps({"run": str(report.path), "step": report.step, "stopped": name, "resume": way_on}))
    else:
        state = "state saved" if report.step else "nothing to save yet"
        print(f"stopped by {name} at step {report.step}, {state}. Go on with: {way_on}")
    raise typer.Exit(128 + report.signal)


def keep_saved(resolved: "Resolved", saved: "RunConfig", *, preset: str) -> "RunConfig":
    """The asked configuration, with the run's own value for what may change and was not given explicitly.

    What the preset says of such a key does not count as given. Data that were not named are the run's own.
    """
    from dormouse.config.diff import RESUME_MAY_CHANGE
    from dormouse.config.schema import DataConfig, RunConfig, TrainConfig

    given = {key for key, origin in resolved.origins.items() if origin != f"preset {preset}"}
    values = resolved.config.train.model_dump()
    length_given = bool(given & {"train.steps", "train.minutes"})
    for key in RESUME_MAY_CHANGE:
        is_given = length_given if key in ("steps", "minutes") else f"train.{key}" in given
        if not is_given:
            values[key] = getattr(saved.train, key)
    train = TrainConfig.model_validate(values)
    asked = {key: value for key, value in resolved.config.data.model_dump().items() if f"data.{key}" in given}
    data = DataConfig.model_validate(saved.data.model_dump() | asked)
    return RunConfig(model=resolved.config.model, train=train, data=data)


def absolute_paths(config: "RunConfig") -> "RunConfig":
    """The same configuration with data paths that mean the same in any current folder."""
    from dormouse.config.schema import DataConfig, RunConfig

    data = config.data.model_dump()
    for key in ("data", "eval"):
        if data[key] not in (None, "shelf"):
            data[key] = str(Path(data[key]).absolute())
    return RunConfig(model=config.model, train=config.train, data=DataConfig.model_validate(data))


def default_path(name: str, parent: Path = Path("runs")) -> Path:
    """`runs/<name>-<date>-<time>`, with a number behind it if that exists."""
    base = parent / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    candidates = [base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 1000))]
    return next((path for path in candidates if not path.exists()), base)


def existing_run(path: Path) -> "RunDir":
    """The run at `path`; raises `RunDirError` if there is none."""
    from dormouse.store.rundir import RunDir

    if path.is_file():
        raise RunDirError(f"{path} is a file; give the run's directory.")
    return RunDir.open(path)
