"""`dormouse config`: what a preset means, how two configurations differ, which presets there are.

Nothing here builds a network or imports torch: sizes come from closed forms. A configuration is written as
the name of a preset or the path of a TOML file (a file stands on the preset given with `--on`), and `--set`
changes single keys. With `--json`, standard output holds one JSON object and nothing else.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dormouse.config.diff import diff_configs
from dormouse.config.flops import forward_flops, retraction_flops_per_step
from dormouse.config.inert import inert_settings
from dormouse.config.load import Resolved, load_run_config, preset_names, preset_text, resolve
from dormouse.config.problems import shown
from dormouse.config.schema import SECTIONS, ModelConfig, RunConfig, unbuilt
from dormouse.config.sizes import count_parts, memory_parameters, total_parameters

app = typer.Typer(no_args_is_help=True, help="Show, compare and list configurations.", add_completion=False)

SHOW_EXAMPLES = """Examples:

  dormouse config show tiny

  dormouse config show small --set n_experts=8 --set moe_topk=1 --parts

  dormouse config show tiny --config my.toml --json
"""
DIFF_EXAMPLES = """Examples:

  dormouse config diff small moe-cap-8

  dormouse config diff tiny tiny --set layout=parallel

  dormouse config diff tiny my.toml --json
"""
PRESETS_EXAMPLES = """Examples:

  dormouse config presets

  dormouse config presets --json
"""
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command(epilog=SHOW_EXAMPLES)
def show(
    preset: Annotated[str, typer.Argument(help="Preset name.")] = "tiny",
    file: Annotated[Path | None, typer.Option("--config", help="TOML file on top of the preset.")] = None,
    overrides: Sets = None,
    parts: Annotated[bool, typer.Option("--parts", help="Also list the network part by part.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the effective configuration: every key, its value, its origin, and the sizes it implies."""
    resolved = resolve(preset, file, overrides or [])
    if as_json:
        print_json(summary(preset, resolved))
        return
    console = Console()
    for name in SECTIONS:
        console.print(section_table(name, resolved))
    if parts:
        console.print(parts_table(resolved.config.model))
    model = resolved.config.model
    say = Console(soft_wrap=True, highlight=False)
    built, whole = total_parameters(model), total_parameters(model, built_only=False)
    rows = memory_parameters(model)
    say.print(f"{built:,} parameters, {rows:,} of them memory rows; {whole:,} with the parts not built.")
    say.print(cost_line(resolved.config))
    for line in unbuilt(model):
        say.print(f"[bold]refused:[/bold] {escape(line)}")
    for line in inert_settings(resolved.config):
        say.print(f"[bold]note:[/bold] {escape(line)}")


@app.command(epilog=DIFF_EXAMPLES)
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="Preset name or TOML file.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Preset name or TOML file.")],
    overrides: Sets = None,
    base: Annotated[str, typer.Option("--on", help="Preset on which a TOML file stands.")] = "tiny",
    as_json: AsJson = False,
) -> None:
    """Print the keys in which B, changed by --set, differs from A."""
    found = diff_configs(load_run_config(*named(left, base)), load_run_config(*named(right, base), overrides or []))
    if as_json:
        rows = [{"section": d.section, "key": d.key, "left": d.left, "right": d.right} for d in found]
        print_json({"left": left, "right": right, "differences": rows})
        return
    if not found:
        Console(soft_wrap=True, highlight=False).print(
            f"{escape(left)} and {escape(right)} are the same configuration."
        )
        return
    table = Table("key", escape(left), escape(right))
    for d in found:
        table.add_row(f"{d.section}.{d.key}", escape(shown(d.left)), escape(shown(d.right)))
    Console().print(table)


@app.command(epilog=PRESETS_EXAMPLES)
def presets(as_json: AsJson = False) -> None:
    """List the shipped presets: what each is for, and its size."""
    rows = []
    for name in preset_names():
        model = load_run_config(name).model
        rows.append(
            {
                "name": name,
                "purpose": purpose(name),
                "parameters": total_parameters(model),
                "with_unbuilt_parts": total_parameters(model, built_only=False),
                "unbuilt": unbuilt(model),
            }
        )
    if as_json:
        print_json({"presets": rows})
        return
    table = Table("preset", "for", "parameters", "with parts\nnot built", "trains")
    for row in rows:
        sizes = f"{row['parameters']:,}", f"{row['with_unbuilt_parts']:,}"
        table.add_row(str(row["name"]), str(row["purpose"]), *sizes, "no" if row["unbuilt"] else "yes")
    Console().print(table)


def named(text: str, base: str) -> tuple[str, Path | None]:
    """(preset, file) of a configuration written as a preset name or as the path of a TOML file."""
    is_file = text.endswith(".toml") or "/" in text
    return (base, Path(text)) if is_file else (text, None)


def purpose(name: str) -> str:
    """The first line of a preset's header, after its name."""
    return preset_text(name).splitlines()[0].partition(": ")[2]


def summary(preset: str, resolved: Resolved) -> dict[str, object]:
    """Everything that `config show` knows, ready for JSON."""
    config = resolved.config
    return {
        "preset": preset,
        "config": config.model_dump(mode="json"),
        "origins": dict(resolved.origins),
        "parameters": total_parameters(config.model),
        "memory_parameters": memory_parameters(config.model),
        "parameters_with_unbuilt_parts": total_parameters(config.model, built_only=False),
        **costs(config),
        "parts": [vars(part) for part in count_parts(config.model)],
        "unbuilt": unbuilt(config.model),
        "inert": inert_settings(config),
    }


def costs(config: RunConfig) -> dict[str, int | None]:
    """Operations a byte of a forward at windows of seq_len, and of retraction a step; None where nothing is built."""
    if config.model.use_byteflow:
        return {"forward_flops_per_byte": None, "retraction_flops_per_step": None}
    return {
        "forward_flops_per_byte": forward_flops(config.model, context=config.train.seq_len),
        "retraction_flops_per_step": retraction_flops_per_step(config.model, config.train),
    }


def cost_line(config: RunConfig) -> str:
    """The costs as a sentence."""
    forward, retraction = costs(config).values()
    if forward is None:
        return "Costs are not counted: byteflow is not built."
    return f"{forward:,} FLOPs a byte of a forward (all passes, built parts), {retraction:,} a step of retraction."


def section_table(name: str, resolved: Resolved) -> Table:
    """Keys, values, origins and meanings of one section."""
    table = Table("key", "value", "from", "meaning", title=name, title_justify="left")
    section = getattr(resolved.config, name)
    for key, field in SECTIONS[name].model_fields.items():
        origin = resolved.origins.get(f"{name}.{key}", "default")
        style = None if origin == "default" else "bold"
        cells = (shown(getattr(section, key)), origin, field.description or "")
        table.add_row(key, *(escape(cell) for cell in cells), style=style)
    return table


def parts_table(model: ModelConfig) -> Table:
    """The network part by part."""
    table = Table("part", "shape", "parameters", "tensors", "built", title="parts", title_justify="left")
    for part in count_parts(model):
        table.add_row(part.name, part.shape, f"{part.parameters:,}", str(part.tensors), "yes" if part.built else "no")
    return table


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object, indented, on standard output."""
    typer.echo(json.dumps(value, indent=2))
