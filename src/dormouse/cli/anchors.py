"""`dormouse anchors`: what counting tables and compressors reach on the bytes a model is scored on.

The figures of the built-in corpus come from a packaged file and appear at once; any other text is measured,
which takes a few seconds for the n-grams and up to two minutes for xz and zstd on 12 MB. Standard output
carries the table, or with `--json` one JSON object and nothing else; progress and remarks go to standard
error.
"""

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dormouse.lab.anchors.table import AnchorTable

EXAMPLES = """Examples:

  dormouse anchors

  dormouse anchors --data corpus/ --eval held-out.txt --skip xz,zstd

  dormouse anchors --orders 2-5 --json --out anchors.json

  dormouse anchors --fresh
"""


def anchors(
    data: Annotated[str, typer.Option(help="Built-in corpus name, or a file or folder.")] = "shelf",
    held_out: Annotated[
        str | None, typer.Option("--eval", help="Held-out file or folder. [default: the corpus's own]")
    ] = None,
    orders: Annotated[str, typer.Option(help="n-gram orders: 5, 2-8 or 2,5,8 (between 2 and 8).")] = "2-8",
    skip: Annotated[str, typer.Option(help="Kinds to leave out: order0, ngram, gzip, bzip2, xz, zstd.")] = "",
    window: Annotated[int, typer.Option(help="Scored bytes of the window column.")] = 40_960,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure even where packaged figures exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the figures, as JSON, to this new file.")] = None,
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Take out of the training text what also stands in the held-out text.")
    ] = False,
) -> None:
    """Classical yardsticks in bits per byte, on the same window and tail as a model."""
    order_list, kinds = parse_orders(orders), parse_kinds(skip)
    if window < 1:
        raise ConfigError(f"window={window} scores nothing; give at least 1 byte, 40960 is usual")
    if out is not None:
        refuse_unfit_output(out)

    from dormouse.config.schema import DataConfig, TrainConfig
    from dormouse.data.corpus import load_corpus
    from dormouse.lab.anchors.provenance import provenance
    from dormouse.lab.anchors.table import anchors_for

    lengths = TrainConfig(steps=1)  # only its default sequence lengths are read
    config = DataConfig(data=data, eval=held_out, dedup=dedup)
    corpus = load_corpus(config, seq_len=lengths.seq_len, eval_seq_len=lengths.eval_seq_len)
    for note in corpus.notes:
        say(note)
    table = anchors_for(
        corpus.train,
        corpus.held_out,
        train_sha256=corpus.train_sha256,
        held_out_sha256=corpus.held_out_sha256,
        window_bytes=window,
        kinds=kinds,
        orders=order_list,
        fresh=fresh,
        progress=say,
    )
    figures = {"corpus": corpus.name, **table.as_json(), "measured_now": table.provenance is None}
    figures["provenance"] = table.provenance or provenance()
    text = json.dumps(figures, indent=2) + "\n"
    if as_json:
        sys.stdout.write(text)
    else:
        show(table, corpus.name)
    if out is not None:
        write_new(out, text)


def say(message: str) -> None:
    """One line of progress on standard error."""
    print(message, file=sys.stderr, flush=True)


def refuse_unfit_output(out: Path) -> None:
    """Raise `DataError` unless the file can be made: it is made and removed, before minutes go into measuring."""
    write_new(out, "", consequence="nothing was measured")
    out.unlink()


def write_new(out: Path, text: str, *, consequence: str = "the figures are not in a file") -> None:
    """Write a file that does not exist yet; raises `DataError` if it does, or if the system refuses."""
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DataError(
            f"out={out} exists and would have been overwritten; {consequence}. Name a new file, or remove it."
        ) from None
    except OSError as error:
        raise DataError(
            f"out={out} cannot be written ({error.strerror}); {consequence}. "
            "Name a new file in an existing folder that you may write to."
        ) from None


def parse_orders(text: str) -> list[int]:
    """Orders from `5`, `2-8` or `2,5,8`, ascending; raises `ConfigError` outside 2..8."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        span = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not span or span[0] < 2 or span[-1] > 8:
            raise ConfigError(f"orders={text!r} is not a set of n-gram orders from 2 to 8; write 2-8, 5 or 2,5,8")
        found.update(span)
    return sorted(found)


def parse_kinds(skip: str) -> list[str]:
    """The kinds that remain; raises `ConfigError` for a name that does not exist."""
    from dormouse.lab.anchors.table import KINDS

    left_out = {part.strip() for part in skip.split(",") if part.strip()}
    if unknown := sorted(left_out.difference(KINDS)):
        raise ConfigError(f"skip={skip!r} names unknown kinds ({', '.join(unknown)}); known are {', '.join(KINDS)}")
    return [kind for kind in KINDS if kind not in left_out]


def show(table: "AnchorTable", name: str) -> None:
    """The table on standard output."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=f"bits per byte, corpus {name}")
    grid.add_column("method")
    for head in ("window", "tail", "window alone", "tail alone"):
        grid.add_column(head, justify="right")
    for row in table.rows:
        cells = (row.window, row.tail, row.window_alone, row.tail_alone)
        grid.add_row(row.name, *("" if value is None else f"{value:.3f}" for value in cells))
    console = Console()
    console.print(grid)
    console.print(
        f"window {table.scored_bytes:,} bytes, tail {table.tail_bytes:,} bytes of held-out text "
        f"{table.held_out_sha256[:16]}; training text {table.train_bytes:,} bytes {table.train_sha256[:16]}.\n"
        "n-grams are fitted on the training text and stay fixed. Compressors adapt while they code and see far back; "
        "window and tail are primed with the training text, 'alone' means without it.",
        highlight=False,
    )
    if table.provenance is not None:
        console.print(f"packaged figures, measured {table.provenance['date']}; --fresh measures again", highlight=False)
