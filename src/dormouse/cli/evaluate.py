"""`dormouse eval`: bits per byte of a checkpoint on its run's window, or on the whole held-out text."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse.errors import ConfigError, ResumeMismatch

if TYPE_CHECKING:
    from dormouse.config.schema import RunConfig
    from dormouse.data.corpus import Corpus
    from dormouse.train.load import LoadedRun

EXAMPLES = """Examples:

  dormouse eval runs/first

  dormouse eval runs/first --checkpoint latest --json

  dormouse eval runs/first --tail

  dormouse eval runs/first --probe

  dormouse eval runs/first --max-iter 1

  dormouse eval runs/first --eval letters.txt
"""


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    checkpoint: Annotated[str, typer.Option(help="best, latest, or a step number.")] = "best",
    max_iter: Annotated[int | None, typer.Option(help="Passes to run. [default: as many as were trained]")] = None,
    tail: Annotated[
        bool,
        typer.Option("--tail", help="Score the whole held-out text (for final reports) instead of the window."),
    ] = False,
    probe: Annotated[bool, typer.Option("--probe", help="Also say how alike the passes route, beside chance.")] = False,
    held_out: Annotated[str | None, typer.Option("--eval", help="Score this file or folder instead.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads. [default: physical cores]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Score a run: held-out bits per byte, the bytes it is about, and what yardsticks reach on them."""
    from dormouse.config.schema import TrainConfig
    from dormouse.train import evaluate as scoring
    from dormouse.train.load import load_run
    from dormouse.train.machine import keep_large_blocks, pick_device, set_threads
    from dormouse.train.probe import Collector
    from dormouse.train.run import make_window

    asked = TrainConfig(steps=1, device=device, threads=threads)  # only its checks of these two are wanted
    place, note = pick_device(asked.device)
    set_threads(asked.threads)
    keep_large_blocks()
    loaded = load_run(run, checkpoint=checkpoint, max_iter=max_iter, report=say)
    if probe and loaded.config.model.n_experts == 1:
        raise ConfigError(
            "probe with model.n_experts = 1: nothing is routed, so there would have been nothing to probe. "
            "Leave --probe out."
        )
    corpus = held_out_of(loaded, held_out)
    window = make_window(corpus, loaded.config, whole=tail)
    begin = time.perf_counter()
    collector = Collector()
    watch = collector.watch if probe else None
    result = scoring.evaluate(loaded.model.to(place), window, registers=corpus.registers, watch=watch)
    seconds = time.perf_counter() - begin
    facts = {
        "run": str(run),
        "checkpoint": loaded.checkpoint,
        "step": loaded.step,
        "passes": loaded.model.n_passes,
        "bpb": result.bpb,
        "scored_bytes": result.scored_bytes,
        "window_bytes": result.window_bytes,
        "data": held_out or corpus.name,
        "data_sha256": corpus.held_out_sha256,
        "train_sha256": corpus.train_sha256,
        "by_register": result.by_register,
        "tsct": loaded.tsct,
        "seconds": seconds,
        "bytes_per_second": result.scored_bytes / seconds,
    }
    if probe:
        found = collector.read()
        facts |= {"probe": vars(found), "moe_topk": loaded.config.model.moe_topk}
    for line in (note, *corpus.notes):
        if line:
            say(line)
    if as_json:
        print(json.dumps(facts))
    else:
        _show(facts, tail=tail)


def say(message: str) -> None:
    """One remark on standard error."""
    print(message, file=sys.stderr, flush=True)


def held_out_of(loaded: "LoadedRun", held_out: str | None) -> "Corpus":
    """The run's own held-out text, which must be what it was, or another one; the training text is not read."""
    from dormouse.config.schema import DataConfig
    from dormouse.data.corpus import load_held_out

    config: RunConfig = loaded.config
    known = loaded.record["data"]
    corpus = load_held_out(
        DataConfig.model_validate(config.data.model_dump() | ({} if held_out is None else {"eval": held_out})),
        seq_len=config.train.seq_len,
        eval_seq_len=config.train.eval_seq_len,
        train_sha256=known["train_sha256"],
    )
    expected = known["held_out_sha256"]
    if held_out is None and corpus.held_out_sha256 != expected:
        raise ResumeMismatch(
            f"held_out_sha256: the run was scored on {expected[:16]}, the file is now {corpus.held_out_sha256[:16]}; "
            "the score would not have been comparable. Restore the file, or name another text with --eval."
        )
    if corpus.held_out_sha256 != expected:
        say(f"{held_out} was not compared with the run's training text: passages of both would lower the score")
    return corpus


def _show(facts: dict, *, tail: bool) -> None:
    """The result for people."""
    from dormouse.cli.results import ranking, yardsticks

    print(
        f"{facts['bpb']:.4f} bits per byte on {facts['scored_bytes']:,} bytes (window {facts['window_bytes']:,}) "
        f"of {facts['data']}, sha256 {facts['data_sha256'][:16]}; "
        f"{facts['checkpoint']} of {facts['run']}, passes {facts['passes']}, {facts['tsct']}"
    )
    for name, bpb in (facts["by_register"] or {}).items():
        print(f"   {name:<12} {bpb:.4f}")
    if not tail:
        anchors = yardsticks(
            train_sha256=facts["train_sha256"],
            held_out_sha256=facts["data_sha256"],
            window_bytes=facts["window_bytes"],
        )
        print("\n".join(ranking(facts["bpb"], anchors, name="dormouse")))
    if "probe" in facts:
        print("\n".join(_probed(facts)))


def _probed(facts: dict) -> list[str]:
    """The mixture probe for people, and the published band where it is about the same number of experts."""
    from dormouse.instruments.mixture import BAND
    from dormouse.train.progress import probe_text

    found = facts["probe"]
    passes = "1 pass" if found["passes"] == 1 else f"{found['passes']} passes"
    lines = [f"routing of {found['positions']:,} bytes in {passes}:"]
    lines += [f"   {text}" for text in probe_text(found)]
    if (len(found["load"]), facts["moe_topk"]) == (BAND["experts"], BAND["top_k"]) and found["disjoint"] is not None:
        (low, high), (least, most) = BAND["disjoint"], BAND["identical"]
        lines.append(f"   published for 2 of 8: disjoint {low:.2f}-{high:.2f}, identical {least:.2f}-{most:.2f}")
    return lines
