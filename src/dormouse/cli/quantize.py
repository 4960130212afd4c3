"""`dormouse quantize`: a run's weights in a number format, packed into one file, and what that costs in BPB."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse.errors import ConfigError

if TYPE_CHECKING:
    from dormouse.model.lm import Dormouse
    from dormouse.train.packed import Sizes

EXAMPLES = """Examples:

  dormouse quantize runs/first --format fp4

  dormouse quantize runs/first --format int8 --tables int8

  dormouse quantize runs/first --format ternary --group 0 --out small.safetensors --json

The file holds the model's configuration too; `dormouse.load_packed(FILE)` reads it back.
"""


def quantize(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    fmt: Annotated[
        str, typer.Option("--format", help="bf16, fp16, fp8, fp4, int8, int4, ternary: the factors' format.")
    ],
    group: Annotated[
        int | None, typer.Option(help="Numbers that share a scale, 0 = a row. [default: the run's]")
    ] = None,
    tables: Annotated[str | None, typer.Option(help="Format of the memory tables. [default: as they are]")] = None,
    checkpoint: Annotated[str, typer.Option(help="best, latest, or a step number.")] = "best",
    out: Annotated[Path | None, typer.Option(help="File to write. [default: RUN/packed/FORMAT.safetensors]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads. [default: physical cores]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Pack a run's spectral factors into a number format, read them back, and score both on the run's window."""
    from dormouse.config.schema import TrainConfig

    check_formats(format=fmt, tables=tables)
    if group is not None and fmt in ("bf16", "fp16") and tables in (None, "bf16", "fp16"):
        raise ConfigError(f"group = {group} with format = {fmt}: no number of it has a scale; leave --group out.")
    if group is not None and group < 0:
        raise ConfigError(f"group = {group}: no such share of a row; use 0 for the whole row, or 32.")
    TrainConfig(steps=1, threads=threads)  # only its check of the threads is wanted
    target = out or run / "packed" / f"{fmt}.safetensors"
    if (target.exists() and not target.is_file()) or (target.parent.exists() and not target.parent.is_dir()):
        raise ConfigError(f"out = {target}: is not a place for a file; name one, for example {fmt}.safetensors.")
    if target.exists() and not overwrite:
        raise ConfigError(f"out = {target}: exists and would have been replaced; name another file, or --overwrite.")
    facts = _pack(run, fmt, group, tables, checkpoint, target, threads)
    print(json.dumps(facts)) if as_json else _show(facts)


def check_formats(**asked: str | None) -> None:
    """Raise `ConfigError` for a format that does not exist, or that packs nothing."""
    from dormouse.config.problems import nearest
    from dormouse.quant.formats import FORMATS

    known = [name for name in FORMATS if name != "fp32"]
    for key, name in asked.items():
        if name is not None and name not in known:
            near = nearest(name, known)
            hint = f" Did you mean {near}?" if near else ""
            raise ConfigError(f"{key} = {name}: nothing would have been packed; there are {', '.join(known)}.{hint}")


def check_parts(model: "Dormouse", tables: str | None) -> None:
    """Raise `ConfigError` where there is nothing to pack."""
    from dormouse.model.roles import Role, named_roles

    roles = {role for _, _, role in named_roles(model)}
    if Role.FACTOR not in roles:
        raise ConfigError("format: the run has no spectral factors (use_tsct = false); nothing would have been packed.")
    if tables is not None and Role.TABLE not in roles:
        raise ConfigError(f"tables = {tables}: the run has no memory tables (use_engram = false); leave --tables out.")


def _pack(
    run: Path, fmt: str, group: int | None, tables: str | None, checkpoint: str, target: Path, threads: int | None
) -> dict:
    from dormouse.cli.evaluate import held_out_of, say
    from dormouse.train import evaluate as scoring
    from dormouse.train.load import load_run
    from dormouse.train.machine import keep_large_blocks, set_threads
    from dormouse.train.packed import load_packed, pack_model, save_packed
    from dormouse.train.run import make_window

    set_threads(threads)
    keep_large_blocks()
    loaded = load_run(run, checkpoint=checkpoint, report=say)
    check_parts(loaded.model, tables)
    group = loaded.config.model.quant_group if group is None else group
    corpus = held_out_of(loaded, None)
    window = make_window(corpus, loaded.config)
    content, sizes = pack_model(loaded.model, fmt, group, tables=tables)
    before = scoring.evaluate(loaded.model, window)
    origin = {
        "run": run.resolve().name,
        "checkpoint": loaded.checkpoint,
        "step": loaded.step,
        "n_passes": loaded.model.n_passes,
    }
    save_packed(target, content, loaded.config.model, origin | {"format": fmt, "group": group, "tables": tables})
    after = scoring.evaluate(load_packed(target)[0], window)
    return {
        "run": str(run),
        "checkpoint": loaded.checkpoint,
        "step": loaded.step,
        "file": str(target),
        "format": fmt,
        "group": group,
        "tables": tables,
        "trained_format": loaded.config.model.quant,
        **_size_facts(sizes),
        "file_bytes": target.stat().st_size,
        "bpb_before": before.bpb,
        "bpb_after": after.bpb,
        "scored_bytes": after.scored_bytes,
        "data_sha256": corpus.held_out_sha256,
    }


def _size_facts(sizes: "Sizes") -> dict:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(sizes).items()}


def _show(facts: dict) -> None:
    """The result for people."""
    factors = f"{facts['factors_bytes']:,} -> {facts['packed_factors_bytes']:,} bytes"
    ratio = facts["factors_bytes"] / max(facts["packed_factors_bytes"], 1)
    print(f"factors in {facts['format']}: {factors} ({ratio:.2f} x smaller)")
    print(f"all weights: {facts['total_bytes']:,} -> {facts['packed_total_bytes']:,} bytes")
    change = facts["bpb_after"] - facts["bpb_before"]
    scored = f"on {facts['scored_bytes']:,} bytes, sha256 {facts['data_sha256'][:16]}"
    print(f"held-out: {facts['bpb_before']:.4f} -> {facts['bpb_after']:.4f} BPB ({change:+.4f}) {scored}")
    rest = 1 - facts["factors_bytes"] / facts["total_bytes"]
    if facts["tables"] is None and rest > 0.5:
        print(f"{rest:.0%} of all bytes are not factors; --tables int8 packs the memory tables too")
    for name in facts["kept"]:
        print(f"{name} is stored in fp32, its healthy parts rounded: a part of it fell back in training")
    print(f"file: {facts['file']} ({facts['file_bytes']:,} bytes)")
