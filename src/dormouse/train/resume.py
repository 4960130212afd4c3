"""Resuming: the same run, from its newest complete checkpoint.

Only what does not change a step may differ from run.json: length, cadences, how many checkpoints are kept,
device and threads. Data may have moved but not changed: it is compared by hash. Everything is compared before
anything is written. Then metrics.jsonl is cut back to the checkpoint's step, because the rows after it are
about to be written again. A run that was killed before its first checkpoint begins again at step 0: model and
data are functions of the seed.

A changed length is announced: the rates of the steps to come follow the schedule of the new length, so the
result is the run that was planned for that length only if the steps already taken had the same rates in both.
"""

from collections.abc import Callable

from dormouse.config.diff import resume_conflicts
from dormouse.config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from dormouse.errors import ResumeMismatch, RunDirError
from dormouse.store import checkpoint
from dormouse.store.provenance import provenance
from dormouse.store.rundir import RunDir
from dormouse.train.run import Options, Prepared, Run, assemble, record

_PLACES = {"data", "eval"}


def saved_config(directory: RunDir) -> RunConfig:
    """The configuration in run.json; raises `RunDirError` if it cannot be read."""
    content = directory.read_run()
    try:
        sections = content["config"]
        return RunConfig(
            model=ModelConfig.model_validate(sections["model"]),
            train=TrainConfig.model_validate(sections["train"]),
            data=DataConfig.model_validate(sections["data"]),
        )
    except (KeyError, TypeError):
        raise RunDirError(f"{directory.run_json} holds no configuration; restore it, or start a new run.") from None


def check_same_run(directory: RunDir, config: RunConfig) -> None:
    """Raise `ResumeMismatch`, showing the differences, when `config` is not the run's own."""
    conflicts = [item for item in resume_conflicts(saved_config(directory), config) if item.key not in _PLACES]
    if conflicts:
        raise ResumeMismatch(
            f"{directory.path} was made with other settings; another run would have continued from its "
            f"weights:\n"
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
    _check_length(prepared.config.train, step)
    run = assemble(prepared, directory, options or Options())
    if saved:
        run.state.load_state_dict(saved)
    if "steps" in changed or "minutes" in changed:
        run.state.progress.total_steps = prepared.config.train.steps
    removed = run.metrics.truncate_after(step)
    run.metrics.write("event", step, {"event": "resumed", "rows_removed": removed, "changed": changed})
    entry = {"step": step, "changed": changed, "provenance": provenance(threads=prepared.threads)}
    history = [*previous.get("resumed", []), entry]
    directory.write_run(record(run, prepared) | {"provenance": previous["provenance"], "resumed": history})
    _announce(report, step, changed, found=path is not None)
    return run


def _check_same_data(previous: dict, prepared: Prepared) -> None:
    found = {
        "train_sha256": prepared.corpus.train_sha256,
        "held_out_sha256": prepared.corpus.held_out_sha256,
    }
    for key, value in found.items():
        if previous["data"][key] != value:
            raise ResumeMismatch(
                f"{key}: the run has read {previous['data'][key][:16]}, the files are now {value[:16]}; "
                f"other bytes "
                "would have been trained on or scored. Restore the files, or start a new run."
            )


def _check_length(train: TrainConfig, step: int) -> None:
    if train.steps is not None and train.steps < step:
        raise ResumeMismatch(
            f"train.steps = {train.steps}: the run is at step {step} already; it would have ended at once. "
            f"Give --steps {step} or more."
        )


def _changes(previous: dict, prepared: Prepared) -> dict[str, list]:
    """Train settings that differ from run.json, as [before, now]; the number of threads as it really is."""
    before, now = previous["config"]["train"], prepared.config.train.model_dump(mode="json")
    changed = {key: [before[key], value] for key, value in now.items() if before[key] != value}
    changed.pop("threads", None)
    threads = previous["provenance"]["threads"]
    if threads != prepared.threads:
        changed["threads"] = [threads, prepared.threads]
    return changed


def _announce(report: Callable[[str], None], step: int, changed: dict[str, list], *, found: bool) -> None:
    report(f"resumed at step {step}" if found else "no complete checkpoint yet: starting again at step 0 from the seed")
    for key, (before, now) in changed.items():
        report(f"{key} changed: {before} -> {now}")
    if "steps" in changed or "minutes" in changed:
        report("the learning rate of the coming steps follows the schedule of the new length")
    if "threads" in changed or "device" in changed:
        report("sums are rounded differently from here on: the result will not be equal to the bit")
