"""`dormouse eval`: bits per byte of a checkpoint on its run's window, or on the whole held-out text."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse.errors import ResumeMismatch

if TYPE_CHECKING:
    from dormouse.config.schema import RunConfig
    from dormouse.data.corpus import Corpus
    from dormouse.train.load import LoadedRun

EXAMPLES = """Examples:

  dormouse eval runs/first

  dormouse eval runs/first --checkpoint latest --json

  dormouse eval runs/first --tail

  dormouse eval runs/first --eval letters.txt
"""


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    checkpoint: Annotated[str, typer.Option(help="best, latest, or a step number.")] = "best",
    tail: Annotated[
        bool,
        typer.Option("--tail", help="Score the whole held-out text (for final reports) instead of the window."),
    ] = False,
    held_out: Annotated[str | None, typer.Option("--eval", help="Score this file or folder instead.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads. [default: physical cores]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Score a run: held-out bits per byte, the bytes it is about, and what yardsticks reach on them."""
    from dormouse.train import evaluate as scoring
    from dormouse.train.load import load_run
    from dormouse.train.machine import keep_large_blocks, pick_device, set_threads
    from dormouse.train.run import make_window

    place, note = pick_device(device)
    set_threads(threads)
    keep_large_blocks()
    loaded = load_run(run, checkpoint=checkpoint)
    corpus = _corpus(loaded, held_out)
    window = make_window(corpus, loaded.config, whole=tail)
    begin = time.perf_counter()
    result = scoring.evaluate(loaded.model.to(place), window, registers=corpus.registers)
    seconds = time.perf_counter() - begin
    facts = {
        "run": str(run),
        "checkpoint": loaded.checkpoint,
        "step": loaded.step,
        "bpb": result.bpb,
        "scored_bytes": result.scored_bytes,
        "window_bytes": result.window_bytes,
        "data": held_out or corpus.name,
        "data_sha256": corpus.held_out_sha256,
        "train_sha256": corpus.train_sha256,
        "by_register": result.by_register,
        "seconds": seconds,
        "bytes_per_second": result.scored_bytes / seconds,
    }
    if as_json:
        print(json.dumps(facts))
        return
    for line in (note, *corpus.notes):
        if line:
            print(line)
    _show(facts, tail=tail)


def _corpus(loaded: "LoadedRun", held_out: str | None) -> "Corpus":
    """The run's own corpus, or one with another held-out text; the run's own must be what it was."""
    from dormouse.config.schema import DataConfig
    from dormouse.data.corpus import load_corpus

    config: RunConfig = loaded.config
    data = config.data
    if held_out is not None:
        data = DataConfig.model_validate(data.model_dump() | {"eval": held_out})
    corpus = load_corpus(data, seq_len=config.train.seq_len, eval_seq_len=config.train.eval_seq_len)
    expected = loaded.record["data"]["held_out_sha256"]
    if held_out is None and corpus.held_out_sha256 != expected:
        raise ResumeMismatch(
            f"held_out_sha256: the run was scored on {expected[:16]}, the file is now "
            f"{corpus.held_out_sha256[:16]}; "
            "the score would not have been comparable. Restore the file, or name another text with --eval."
        )
    return corpus


def _show(facts: dict, *, tail: bool) -> None:
    """The result for people."""
    from dormouse.cli.results import ranking, yardsticks

    print(
        f"{facts['bpb']:.4f} bits per byte on {facts['scored_bytes']:,} bytes (window "
        f"{facts['window_bytes']:,}) of "
        f"{facts['data']}, sha256 {facts['data_sha256'][:16]}; {facts['checkpoint']} of {facts['run']}"
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
