"""The program `dormouse`: which commands there are, and how their errors leave.

A command's module is imported only when that command is named; every other command is a name and a line of
help. So `--help` reads no configuration, no array library and no torch. Errors that a user can meet
(`DormouseError`) become their message on standard error and their exit code: 2 for "refused, nothing was
changed", 3 for training that stopped itself. Anything else is a fault of the program and keeps its traceback.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import typer

from dormouse import __version__
from dormouse.cli.waiting import wait_politely
from dormouse.errors import DormouseError

OVERVIEW = """Examples:

  dormouse demo

  dormouse train --preset tiny --minutes 3 --out runs/first

  dormouse eval runs/first

  dormouse generate runs/first --prompt "It is a truth"
"""


@dataclass(frozen=True)
class Command:
    """Where a command lives: `function` (or the typer app `app`) of `module`, with its `EXAMPLES`."""

    module: str
    function: str
    summary: str


COMMANDS = {
    "demo": Command("dormouse.cli.demo", "demo", "Train, score and sample on the built-in corpus, in minutes."),
    "train": Command("dormouse.cli.train", "train", "Train a model in a new run directory."),
    "resume": Command("dormouse.cli.resume", "resume", "Go on with a run that was stopped, killed or completed."),
    "eval": Command("dormouse.cli.evaluate", "evaluate", "Score a run in bits per byte."),
    "generate": Command("dormouse.cli.generate", "generate", "Continue a prompt with a trained run."),
    "quantize": Command("dormouse.cli.quantize", "quantize", "Pack a run's weights into a number format."),
    "inspect": Command("dormouse.cli.inspect", "inspect", "Show on a page where a run routes every byte of a text."),
    "anchors": Command("dormouse.cli.anchors", "anchors", "What counting tables and compressors reach on a text."),
    "config": Command("dormouse.cli.config", "app", "Show, compare and list configurations."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's arguments); returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    wait_politely()
    try:
        build_app(given[0] if given else None)(given, prog_name="dormouse")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except DormouseError as error:
        print(f"dormouse: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.filename is None:
            raise
        print(f"dormouse: {error.filename} cannot be used ({error.strerror}).", file=sys.stderr)
        return 2 if isinstance(error, PermissionError) else 1
    return 0


def build_app(wanted: str | None) -> typer.Typer:
    """The program with the module of the command `wanted` imported, and only that one."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        epilog=OVERVIEW,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_about)
    for name, command in COMMANDS.items():
        if name != wanted:
            app.command(name, help=command.summary)(_unused)
            continue
        module = import_module(command.module)
        if command.function == "app":
            app.add_typer(module.app, name=name)
        else:
            function: Callable = getattr(module, command.function)
            app.command(name, epilog=module.EXAMPLES)(function)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _about(
    version: bool = typer.Option(
        False, "--version", help="Show the version and leave.", is_eager=True, callback=_show_version
    ),
) -> None:
    """A byte-level language-model trainer and laboratory: one looped block, routed spectral experts."""


def _unused() -> None:
    """Stands for a command that was not asked for."""


if __name__ == "__main__":
    sys.exit(main())
