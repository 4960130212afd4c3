"""Resuming: the same run, from its newest complete checkpoint.

Only what does not change a step may differ from run.json: length, cadences, how many checkpoints are kept,
device and threads. Data may have moved but not changed: it is compared by hash. Everything is compared before
the run's own record changes; only a save that a kill interrupted is finished or cleared first. Then metrics.jsonl
is cut back to what the checkpoint has seen, because the rows after it are about to be written again. A run that
was killed before its first checkpoint begins again at step 0: model and data are functions of the seed.

A changed length is announced: the rates of the steps to come follow the schedule of the new length, so the
result is the run that was planned for that length only if the steps already taken had the same rates in both.
"""

import operator
from collections.abc import Callable

from dormouse.config.diff import resume_conflicts
from dormouse.config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from dormouse.errors import ResumeMismatch, RunDirError
from dormouse.store import checkpoint
from dormouse.store.provenance import provenance
from dormouse.store.rundir import RunDir
from dormouse.train.run import Options, Prepared, Run, assemble, record

_PLACES = {"data", "eval"}
_HASHES = ("train_sha256", "held_out_sha256")
_NEEDED = {"data": _HASHES, "provenance": ("threads", "device")}


def saved_config(directory: RunDir) -> RunConfig:
    """The configuration in run.json; raises `RunDirError` if it cannot be read."""
    content = directory.read_run()
    try:
        sections = content["config"]
        config = RunConfig(
            model=ModelConfig.model_validate(sections["model"]),
            train=TrainConfig.model_validate(sections["train"]),
            data=DataConfig.model_validate(sections["data"]),
        )
        for section, keys in _NEEDED.items():
            operator.itemgetter(*keys)(content[section])
    except (KeyError, TypeError):
        raise RunDirError(
            f"{directory.run_json} does not hold the configuration, data hashes and provenance of a run; restore it, "
            "or start a new run."
        ) from None
    return config


def check_same_run(directory: RunDir, config: RunConfig) -> None:
    """Raise `ResumeMismatch`, showing the differences, when `config` is not the run's own."""
    conflicts = [item for item in resume_conflicts(saved_config(directory), config) if item.key not in _PLACES]
    if conflicts:
        raise ResumeMismatch(
            f"{directory.path} was made with other settings; another run would have continued from its weights:\n"
            + "\n".join(f"  {item}" for item in conflicts)
            + f"\nResume it as it is (dormouse resume {directory.path}), or start a new run elsewhere."
        )


def resume(
    prepared: Prepared, directory: RunDir, options: Options | None = None, *, report: Callable[[str], None]
) -> Run:
    """The run in an owned directory, ready to go on; damaged checkpoints and changed settings go to `report`.

    Raises `ResumeMismatch` for another configuration, other data, or a length that has passed already.
    """
    check_same_run(directory, prepared.config)
    previous = directory.read_run()
    _check_same_data(previous, prepared)
    checkpoint.tidy(directory.checkpoints)
    path = checkpoint.latest(directory.checkpoints, report=report)
    saved = {} if path is None else checkpoint.load(path)
    step = saved["progress"]["step"] if saved else 0
    changed = _changes(previous, prepared)
    spent = saved["clock"]["elapsed_seconds"] if saved else 0.0
    _check_length(prepared.config.train, step, spent, changed)
    run = assemble(prepared, directory, options or Options())
    try:
        if saved:
            run.state.load_state_dict(saved)
        _take_up(run, prepared, previous, changed)
    except BaseException:
        run.metrics.close()
        raise
    _announce(report, step, changed, found=path is not None)
    return run


def _take_up(run: Run, prepared: Prepared, previous: dict, changed: dict[str, list]) -> None:
    """Fix the new length, cut the rows that come again, and write this start into the run's record."""
    progress, spent = run.state.progress, run.state.elapsed_seconds
    if _has_new_length(changed, previous, progress.step):
        progress.total_steps = prepared.config.train.steps or prepared.schedule.total_for_rest(progress.step, spent)
    removed = run.metrics.truncate_after(progress.step, seen=progress.seen())
    run.metrics.write("event", progress.step, {"event": "resumed", "rows_removed": removed, "changed": changed})
    place = provenance(device=str(prepared.device), threads=prepared.threads)
    entry = {"step": progress.step, "changed": changed, "provenance": place}
    history = [*previous.get("resumed", []), entry]
    kept = {"provenance": previous["provenance"], "resumed": history}
    if run.state.progress.step == run.state.progress.total_steps and "result" in previous:
        kept["result"] = previous["result"]
    run.directory.write_run(record(run, prepared) | kept)


def _has_new_length(changed: dict[str, list], previous: dict, step: int) -> bool:
    """Whether the length is another than the checkpoint's: now, or at an earlier start that saved nothing after it."""
    unsaved = [entry["changed"] for entry in previous.get("resumed", []) if entry["step"] >= step]
    return any(key in changes for changes in (changed, *unsaved) for key in ("steps", "minutes"))


def _check_same_data(previous: dict, prepared: Prepared) -> None:
    for key in _HASHES:
        value = getattr(prepared.corpus, key)
        if previous["data"][key] != value:
            raise ResumeMismatch(
                f"{key}: the run has read {previous['data'][key][:16]}, the files are now {value[:16]}; other bytes "
                "would have been trained on or scored. Restore the files, or start a new run."
            )


def _check_length(train: TrainConfig, step: int, spent_seconds: float, changed: dict[str, list]) -> None:
    spent = spent_seconds / 60
    if "minutes" in changed and train.minutes is not None and train.minutes <= spent:
        raise ResumeMismatch(
            f"train.minutes = {train.minutes:g}: the run has spent {spent:.1f} minutes already, and a budget counts "
            f"them; it would have ended at once. Give more than {spent:.1f} minutes."
        )
    if train.steps is not None and train.steps < step:
        raise ResumeMismatch(
            f"train.steps = {train.steps}: the run is at step {step} already; it would have ended at once. "
            f"Give --steps {step} or more."
        )


def _changes(previous: dict, prepared: Prepared) -> dict[str, list]:
    """Train settings that differ from run.json, as [before, now]; threads and device as they were last used."""
    before, now = previous["config"]["train"], prepared.config.train.model_dump(mode="json")
    changed = {key: [before[key], value] for key, value in now.items() if before[key] != value}
    last = [previous, *previous.get("resumed", [])][-1]["provenance"]
    for key, value in (("threads", prepared.threads), ("device", str(prepared.device))):
        changed.pop(key, None)
        if last[key] != value:
            changed[key] = [last[key], value]
    return changed


def _announce(report: Callable[[str], None], step: int, changed: dict[str, list], *, found: bool) -> None:
    report(f"resumed at step {step}" if found else "no complete checkpoint yet: starting again at step 0 from the seed")
    for key, (before, now) in changed.items():
        report(f"{key} changed: {before} -> {now}")
    if "steps" in changed or "minutes" in changed:
        report("rate and number of passes of the coming steps follow the schedule of the new length")
    if "threads" in changed or "device" in changed:
        report("sums are rounded differently from here on: the result will not be equal to the bit")
