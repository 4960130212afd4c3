"""`dormouse inspect`: one HTML page that shows where a run routes every byte of a text, and how sure it is of it."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dormouse.instruments.byte_trace import ByteTrace
    from dormouse.train.load import LoadedRun

EXAMPLES = """Examples:

  dormouse inspect runs/first --text letters.txt

  dormouse inspect runs/first --text letters.txt --checkpoint latest --out letters.html

  head -c 2000 letters.txt | dormouse inspect runs/first --text - --json

The page is one file without links to the network. Experts of a byte are those that read it; its surprisal comes from
the bytes before it, so byte 0 is not scored, as in `dormouse eval`.
"""
LARGEST = 65_536  # bytes of text on a page; a page grows by 100 to 300 bytes for each


@dataclass(frozen=True)
class Text:
    """The bytes to look at."""

    name: str
    data: bytes
    cut: str | None
    """What was left out, in a sentence; None for nothing."""


def inspect(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    text: Annotated[str, typer.Option(help="File whose bytes are looked at; - is standard input.")],
    checkpoint: Annotated[str, typer.Option(help="best, latest, or a step number.")] = "best",
    max_bytes: Annotated[int, typer.Option(help=f"Read no more than this, 2 to {LARGEST}.")] = 8192,
    out: Annotated[Path | None, typer.Option(help="Page to write. [default: RUN/inspect/TEXT.html]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page if it exists.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads. [default: physical cores]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Write a page on which every byte of a text is colored by the experts that a run sends it to, pass by pass."""
    from dormouse.config.schema import TrainConfig

    TrainConfig(steps=1, threads=threads)  # only its check of the threads is wanted
    if not 2 <= max_bytes <= LARGEST:
        raise ConfigError(
            f"max_bytes = {max_bytes}: a page holds 2 to {LARGEST:,} bytes; fewer score nothing, and with more no "
            "browser would have scrolled smoothly. Name a number in between, and look at a long text in parts."
        )
    name = "stdin" if text == "-" else Path(text).name
    target = out or run / "inspect" / f"{name}.html"
    refuse_unfit_target(target, named=out is not None, overwrite=overwrite)
    facts, page = _look(run, read_text(text, max_bytes), checkpoint, threads)
    _write(target, page.encode())
    facts |= {"out": str(target), "page_bytes": len(page.encode())}
    print(json.dumps(facts)) if as_json else _show(facts)


def refuse_unfit_target(target: Path, *, named: bool, overwrite: bool) -> None:
    """Raise `ConfigError` where the page cannot be written, or would replace a file without being asked to."""
    if target.is_dir():
        raise ConfigError(f"out = {target}: is a folder, not a place for a page; name a file, for example page.html.")
    if target.exists() and not overwrite:
        raise ConfigError(f"out = {target}: exists and would have been replaced; name another file, or --overwrite.")
    if named and not target.parent.is_dir():
        raise ConfigError(
            f"out = {target}: there is no folder {target.parent}, and the page would have been lost; name a file in an "
            "existing folder."
        )


def read_text(source: str, most: int) -> Text:
    """The first `most` bytes of a file or of standard input (`-`); raises `DataError` if there are not two of them."""
    name = "standard input" if source == "-" else Path(source).name
    if source == "-":
        data, size = sys.stdin.buffer.read(most + 1), None
    else:
        data, size = _read_file(Path(source), most)
    if len(data) < 2:
        raise DataError(
            f"text = {source}: holds {len(data)} byte{'' if len(data) == 1 else 's'}; byte 0 is only read, so nothing "
            "would have been scored. Name a text of 2 bytes or more."
        )
    cut = None
    if len(data) > most:
        whole = "the text goes on" if size is None else f"the text has {size:,}"
        cut = f"only the first {most:,} bytes are shown; {whole}. --max-bytes takes up to {LARGEST:,}."
    return Text(os.fsencode(name).decode("utf-8", "replace"), data[:most], cut)


def _read_file(path: Path, most: int) -> tuple[bytes, int | None]:
    """(Up to `most` + 1 bytes, size of the file if it has one)."""
    if path.is_dir():
        raise DataError(f"text = {path}: is a folder; a page shows one text. Name a file in it.")
    try:
        with path.open("rb") as file:
            return file.read(most + 1), os.fstat(file.fileno()).st_size or None
    except OSError as error:
        raise DataError(
            f"text = {path}: cannot be read ({error.strerror}); there would have been nothing to look at. "
            "Name a readable file, or - for standard input."
        ) from None


def _look(run: Path, text: Text, checkpoint: str, threads: int | None) -> tuple[dict, str]:
    """Run the model over the text: the numbers, and the page."""
    import numpy as np

    from dormouse.cli.evaluate import say
    from dormouse.data.files import sha256_of
    from dormouse.instruments.trace import trace
    from dormouse.report.inspection import Inspection, render
    from dormouse.train.load import load_run
    from dormouse.train.machine import set_threads

    set_threads(threads)
    loaded = load_run(run, checkpoint=checkpoint, report=say)
    data = np.frombuffer(text.data, dtype=np.uint8)
    found = trace(loaded.model, data, separator=loaded.config.data.separator_bytes())
    if text.cut:
        say(f"{text.name}: {text.cut}")
    passes = _passes(found)
    page = render(
        Inspection(
            trace=found,
            run=run.resolve().name,
            checkpoint=loaded.checkpoint,
            step=loaded.step,
            text=text.name,
            cut=text.cut,
            evenness=tuple(one["entropy"] for one in passes),
            settings=_settings(loaded),
        )
    )
    return {
        "run": str(run),
        "checkpoint": loaded.checkpoint,
        "step": loaded.step,
        "text": text.name,
        "cut": text.cut,
        "data_sha256": sha256_of(data),
        "bytes": len(data),
        "scored_bytes": found.scored_bytes,
        "bpb": found.bpb,
        "n_experts": found.n_experts,
        "n_null_experts": found.n_null,
        "top_k": found.top_k,
        "passes": passes,
        "agreement": _agreement(found),
    }, page


def _passes(found: "ByteTrace") -> list[dict]:
    """Use of the experts in each pass as a log line has it: shares among experts, null experts beside them."""
    import torch

    from dormouse.instruments.utilization import utilization

    rows = []
    for number, counts in enumerate(torch.from_numpy(found.counts()), 1):
        use = utilization(counts[: found.n_experts])
        row = {
            "pass": number,
            "shares": None if use is None else list(use.shares),
            "entropy": None if use is None else use.entropy,
            "dead": found.n_experts if use is None else use.dead,
        }
        null = (counts[found.n_experts :].sum() / counts.sum()).item()
        rows.append(row | ({"null": null} if found.n_null else {}))
    return rows


def _agreement(found: "ByteTrace") -> list[dict]:
    """Agreement of every pair of passes, numbered from 1."""
    from dormouse.instruments.pass_agreement import agreements

    pairs = [dict(vars(pair)) for pair in agreements(found.ids, found.n_columns)]
    return [
        {"passes": [pair.pop("first") + 1, pair.pop("second") + 1], **pair, "transitions": pair["transitions"].tolist()}
        for pair in pairs
    ]


def _settings(loaded: "LoadedRun") -> dict[str, str]:
    """What a reader of the page should know of the run."""
    model = loaded.config.model
    return {
        "experts": f"{model.moe_topk} of {model.n_experts} a byte",
        "passes": f"{loaded.model.n_passes} of {model.max_iter}",
        "width": f"{model.d_model}, experts {model.d_ffn}",
        "layout": model.layout,
        "factor on gates": model.moe_gate_scale,
        "balance coefficient": f"{model.moe_lb_coef:g}",
        "number format": loaded.tsct,
        "trained on": str(loaded.record["data"]["name"]),
        "held-out BPB": "not scored" if loaded.bpb is None else f"{loaded.bpb:.4f}",
    }


def _write(target: Path, page: bytes) -> None:
    from dormouse.store.files import write_atomic

    target.parent.mkdir(exist_ok=True)
    write_atomic(target, page)


def _show(facts: Mapping) -> None:
    """The result for people."""
    from dormouse.train.progress import shares_text

    print(
        f"{facts['bpb']:.4f} bits per byte on {facts['scored_bytes']:,} scored bytes of {facts['text']}, sha256 "
        f"{facts['data_sha256'][:16]}; {facts['checkpoint']} of {facts['run']}"
    )
    for one in facts["passes"]:
        null = f" null={one['null']:.3f}" if "null" in one else ""
        shares = "no expert" if one["shares"] is None else shares_text(one["shares"], one["entropy"], one["dead"])
        print(f"pass {one['pass']}: {shares}{null}")
    for pair in facts["agreement"]:
        first, second = pair["passes"]
        kappa = "undefined" if pair["kappa"] is None else f"{pair['kappa']:.3f}"
        line = f"pass {first} and {second}: same expert {pair['raw']:.3f} (chance {pair['chance']:.3f}, kappa {kappa})"
        if facts["top_k"] > 1:
            line += (
                f", same set {pair['identical']:.3f} (chance {pair['identical_chance']:.3f}), nothing in common "
                f"{pair['disjoint']:.3f} (chance {pair['disjoint_chance']:.3f})"
            )
        print(line)
    print(f"page: {facts['out']} ({facts['page_bytes']:,} bytes)")
