"""`dormouse demo`: the main job from end to end on the built-in corpus; its last lines say what came out."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dormouse.cli.session import Report

EXAMPLES = """Examples:

  dormouse demo

  dormouse demo --minutes 12 --out runs --seed 1
"""


def demo(
    out: Annotated[Path, typer.Option(help="Folder in which the run directory is made.")] = Path("runs"),
    minutes: Annotated[float | None, typer.Option(help="Training time. [default: 3]")] = None,
    steps: Annotated[int | None, typer.Option(help="Length in optimiser steps instead.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change any key; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random number. [default: 0]")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads. [default: physical cores]")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Train preset tiny on English books, score it beside classical yardsticks, and let it write."""
    from dormouse.cli.session import Request, default_path, run_training
    from dormouse.config.load import resolve

    flags = {"minutes": minutes, "steps": steps, "seed": seed, "threads": threads}
    resolved = resolve("tiny", None, overrides or [], flags)
    request = Request(path=default_path("demo", out), quiet=quiet, as_json=as_json)
    report = run_training(resolved.config, request, origins=resolved.origins)
    facts = summary(report)
    print(json.dumps(facts) if as_json else "\n".join(lines(facts)))


def summary(report: "Report") -> dict:
    """Everything the last lines show, ready for JSON."""
    from dormouse.cli.results import last_row, yardsticks
    from dormouse.store.rundir import RunDir

    assert report.result is not None
    record = RunDir.open(report.path).read_run()
    train, score = last_row(report, "train"), last_row(report, "eval")
    anchors = yardsticks(
        train_sha256=record["data"]["train_sha256"],
        held_out_sha256=report.result.data_sha256,
        window_bytes=report.result.window_bytes,
    )
    return {
        "run": str(report.path),
        **vars(report.result),
        "parameters": record["parameters"]["total"],
        "by_register": score.get("by_register"),
        **{key: train.get(key) for key in ("moe", "moe_entropy", "moe_dead", "moe_gate")},
        "anchors": anchors,
    }


def lines(facts: dict) -> list[str]:
    """The table, the experts, the sample, and how to go on."""
    from dormouse.cli.results import ranking
    from dormouse.train.progress import duration, routing_text

    registers = ", ".join(f"{name} {bpb:.3f}" for name, bpb in (facts["by_register"] or {}).items())
    found = [
        "",
        f"trained on {facts['trained_bytes']:,} bytes in {duration(facts['seconds'])} "
        f"({facts['total_steps']} steps, {facts['parameters']:,} parameters)",
        f"held-out bits per byte on {facts['scored_bytes']:,} bytes, lower is better "
        "(n-grams and compressors have read all of the training text):",
        *ranking(facts["bpb"], facts["anchors"], name=f"dormouse ({facts['checkpoint']})"),
    ]
    if registers:
        found.append(f"by kind of text: {registers}")
    if facts["moe"] is not None:
        found.append(f"experts: {routing_text(facts)}")
    return [
        *found,
        "",
        "it writes:",
        *(f"  | {line}" for line in facts["sample"].splitlines()),
        "",
        f"run: {facts['run']}",
        f"go on: dormouse resume {facts['run']} --steps {4 * facts['total_steps']}",
        f'write: dormouse generate {facts["run"]} --prompt "It is a truth universally acknowledged"',
    ]
