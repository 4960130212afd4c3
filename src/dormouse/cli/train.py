"""`dormouse train`: a configuration, a new run directory, a trained model.

Explicit flags beat `--set`, which beats `--config`, which beats the preset, which beats the defaults; the
configuration that results is the one that is printed, written to run.json and used.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse.errors import RunDirError

if TYPE_CHECKING:
    from dormouse.config.load import Resolved
    from dormouse.config.schema import RunConfig

EXAMPLES = """Examples:

  dormouse train --preset tiny --minutes 3

  dormouse train --preset tiny --steps 2000 --data books/ --out runs/books

  dormouse train --preset tiny --set n_experts=8 --set moe_topk=2 --steps 500 --seed 1

  dormouse train --resume --out runs/books --steps 4000
"""


def train(
    preset: Annotated[str, typer.Option(help="Named configuration; see dormouse config presets.")] = "tiny",
    config: Annotated[Path | None, typer.Option(help="TOML file on top of the preset.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change any key; repeatable.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Length as a time budget.")] = None,
    steps: Annotated[int | None, typer.Option(help="Length in optimiser steps.")] = None,
    data: Annotated[str | None, typer.Option(help="Built-in corpus name, or a file or folder of any bytes.")] = None,
    held_out: Annotated[str | None, typer.Option("--eval", help="Held-out file or folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory. [default: runs/<preset>-<date>-<time>]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random number.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads. [default: physical cores]")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", "--batch", help="Sequences a batch.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Bytes a sequence.")] = None,
    grad_accum: Annotated[int | None, typer.Option(help="Batches an optimiser step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate of AdamW.")] = None,
    weight_decay: Annotated[float | None, typer.Option("--weight-decay", "--wd", help="Decoupled decay.")] = None,
    grad_clip: Annotated[float | None, typer.Option(help="Largest global gradient norm.")] = None,
    moe: Annotated[int | None, typer.Option("--moe", help="Experts a byte (moe_topk); 0 blends all.")] = None,
    moe_path: Annotated[str | None, typer.Option(help="dispatch, masked or loop: how experts are computed.")] = None,
    retract_every: Annotated[int | None, typer.Option(help="Steps between two retractions; 0 is never.")] = None,
    retract_iters: Annotated[int | None, typer.Option(help="Iterations a retraction.")] = None,
    log_every: Annotated[int | None, typer.Option(help="Steps between two metric rows.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Steps between two evaluations.")] = None,
    eval_batches: Annotated[int | None, typer.Option(help="Batches of the scored window.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between two checkpoints.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Fail unless every tensor moved.")] = False,
    log_windows: Annotated[bool, typer.Option("--log-windows", help="Record which windows every step reads.")] = False,
    log_passes: Annotated[bool, typer.Option("--log-passes", help="Record every pass's expert shares.")] = False,
    sample_bytes: Annotated[int, typer.Option(min=0, help="Bytes of the sample at the end; 0 for none.")] = 400,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Train a byte model: loss per byte, held-out bits per byte, checkpoints that survive any kill."""
    from dormouse.cli.results import show_result
    from dormouse.cli.session import Request, default_path, run_training
    from dormouse.config.load import resolve

    flags = {
        "minutes": minutes,
        "steps": steps,
        "data": data,
        "eval": held_out,
        "seed": seed,
        "device": device,
        "threads": threads,
        "batch_size": batch_size,
        "seq_len": seq_len,
        "grad_accum": grad_accum,
        "lr": lr,
        "weight_decay": weight_decay,
        "grad_clip": grad_clip,
        "moe_topk": moe,
        "moe_path": moe_path,
        "retract_every": retract_every,
        "retract_iters": retract_iters,
        "log_every": log_every,
        "eval_every": eval_every,
        "eval_batches": eval_batches,
        "save_every": save_every,
    }
    resolved = resolve(preset, config, overrides or [], flags)
    chosen, path = resolved.config, out or default_path(preset)
    if resume:
        chosen = _config_to_resume(resolved, out, preset)
    request = Request(
        path=path,
        resume=resume,
        overwrite=overwrite,
        audit=audit,
        log_windows=log_windows,
        log_passes=log_passes,
        sample_bytes=sample_bytes,
        quiet=quiet,
        as_json=as_json,
    )
    report = run_training(chosen, request, origins=resolved.origins)
    show_result(report, as_json=as_json)


def _config_to_resume(resolved: "Resolved", out: Path | None, preset: str) -> "RunConfig":
    """The configuration for `--resume`: lengths and cadences that were not given are the run's own."""
    from dormouse.cli.session import keep_saved
    from dormouse.store.rundir import RunDir
    from dormouse.train.resume import saved_config

    if out is None:
        raise RunDirError(
            "resume without out: a new run would have started in a new directory. Name the run with --out, "
            "or use dormouse resume RUN."
        )
    if not (out / "run.json").exists():
        return resolved.config
    return keep_saved(resolved, saved_config(RunDir.open(out)), preset=preset)
