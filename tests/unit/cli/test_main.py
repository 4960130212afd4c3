import errno
import os
import subprocess
import sys
import time

import pytest

from dormouse.cli import main as program
from dormouse.errors import ConfigError, TrainingHalted

COMMANDS = ("demo", "train", "resume", "eval", "generate", "quantize", "inspect", "anchors", "config")
LISTS_TORCH = (
    "import sys; from dormouse.cli.main import main; code = main(sys.argv[1:]); "
    "sys.exit('torch' in sys.modules or code)"
)


def in_new_process(*arguments):
    command = [sys.executable, "-c", LISTS_TORCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(capsys, command):
    assert program.main([command, "--help"]) == 0
    if command != "config":
        assert f"dormouse {command}" in capsys.readouterr().out.partition("Examples")[2]


def test_the_overview_lists_every_command(capsys):
    assert program.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {command} " in shown for command in COMMANDS)
    assert "Examples" in shown


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["inspect", "--help"], ["config", "show", "tiny"]]
)
def test_help_and_configuration_never_import_torch(arguments):
    assert in_new_process(*arguments).returncode == 0


def test_help_returns_quickly():
    """Half a second, or three times a bare start of the interpreter on a busy machine."""

    def seconds(*command):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        return time.perf_counter() - begin

    bare = min(seconds("-c", "pass") for _ in range(3))
    help_text = min(seconds("-m", "dormouse.cli.main", "--help") for _ in range(5))
    assert help_text < max(0.5, 3 * bare)


def test_the_version_is_printed(capsys):
    from dormouse import __version__

    assert program.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(("error", "code"), [(ConfigError("field = 1: no"), 2), (TrainingHalted("nan"), 3)])
def test_an_error_of_the_user_is_its_message_and_exit_code_without_a_traceback(monkeypatch, capsys, error, code):
    from dormouse.cli import resume

    def fail(run: str) -> None:
        raise error

    monkeypatch.setattr(resume, "resume", fail)
    assert program.main(["resume", "x"]) == code
    captured = capsys.readouterr()
    assert captured.err == f"dormouse: {error}\n"
    assert captured.out == ""


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    from dormouse.cli import resume

    def fail(run: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(resume, "resume", fail)
    with pytest.raises(ZeroDivisionError):
        program.main(["resume", "x"])


@pytest.mark.parametrize(("error", "code"), [(errno.EACCES, 2), (errno.ENOSPC, 1)])
def test_a_refusal_of_the_system_names_the_path_without_a_traceback(monkeypatch, capsys, error, code):
    from dormouse.cli import resume

    def fail(run: str) -> None:
        raise OSError(error, os.strerror(error), "there/run.json")

    monkeypatch.setattr(resume, "resume", fail)
    assert program.main(["resume", "x"]) == code
    assert capsys.readouterr().err == f"dormouse: there/run.json cannot be used ({os.strerror(error)}).\n"


def test_an_unknown_option_or_command_is_refused_with_exit_code_two(capsys):
    assert program.main(["train", "--stepz", "3"]) == 2
    assert program.main(["trian"]) == 2
    assert "trian" in capsys.readouterr().err
