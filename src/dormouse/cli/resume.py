"""`dormouse resume`: the same run, from its newest complete checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

  dormouse resume runs/first

  dormouse resume runs/first --steps 4000

  dormouse resume runs/first --minutes 12 --eval-every 500
"""


def resume(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    steps: Annotated[int | None, typer.Option(help="New length in optimiser steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="New length as a time budget, time spent included.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    log_every: Annotated[int | None, typer.Option(help="Steps between two metric rows.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Steps between two evaluations.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between two checkpoints.")] = None,
    audit: Annotated[bool, typer.Option("--audit", help="Fail unless every tensor moved.")] = False,
    log_windows: Annotated[bool, typer.Option("--log-windows", help="Record which windows every step reads.")] = False,
    log_passes: Annotated[bool, typer.Option("--log-passes", help="Record every pass's expert shares.")] = False,
    sample_bytes: Annotated[int, typer.Option(min=0, help="Bytes of the sample at the end; 0 for none.")] = 400,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Go on as if the run had never stopped; only length, cadence, device and threads may change."""
    from dormouse.cli.results import show_result
    from dormouse.cli.session import Request, existing_run, run_training
    from dormouse.config.schema import RunConfig, TrainConfig
    from dormouse.train.resume import saved_config

    saved = saved_config(existing_run(run))
    changes = {
        "device": device,
        "threads": threads,
        "log_every": log_every,
        "eval_every": eval_every,
        "save_every": save_every,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    if steps is not None or minutes is not None:
        given |= {"steps": steps, "minutes": minutes}
    train = TrainConfig.model_validate(saved.train.model_dump() | given)
    config = RunConfig(model=saved.model, train=train, data=saved.data)
    request = Request(
        path=run,
        resume=True,
        audit=audit,
        log_windows=log_windows,
        log_passes=log_passes,
        sample_bytes=sample_bytes,
        quiet=quiet,
        as_json=as_json,
    )
    show_result(run_training(config, request), as_json=as_json)
