"""`dormouse generate` over a stub run: what goes to which stream, what is refused, what is left behind."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

from dormouse.cli import generate as command
from dormouse.errors import ConfigError, DataError, DormouseError
from dormouse.model.sampling import SamplingSettings


class Counter(torch.nn.Module):
    """Predicts, with certainty, the byte after the one it reads."""

    n_passes = 1

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Parameter(torch.eye(256).roll(1, dims=1) * 1000)

    def forward(self, ids, bounds=None, state=None):
        return SimpleNamespace(logits=self.rows[ids], state=None)


@pytest.fixture
def loads(monkeypatch):
    """Replaces the loader; returns the list of its calls and the model."""
    calls, model = [], Counter()

    def load_run(path, *, checkpoint="best", max_iter=None, report):
        calls.append((str(path), checkpoint))
        report("checkpoint step_9 is skipped: state.json is missing")
        return SimpleNamespace(model=model, step=7, checkpoint="step_7", bpb=2.5)

    monkeypatch.setattr("dormouse.train.load.load_run", load_run)
    return SimpleNamespace(calls=calls, model=model)


def run(*arguments):
    app = typer.Typer()
    app.command(epilog=command.EXAMPLES)(command.generate)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_standard_output_carries_the_new_bytes_and_nothing_else(loads):
    result = run("r", "--prompt", "a", "--bytes", 5)
    assert result.exit_code == 0
    assert result.stdout_bytes == b"bcdef"
    assert "5 bytes in " in result.stderr
    assert "step_7, seed 0" in result.stderr


def test_a_damaged_checkpoint_is_named_on_standard_error(loads):
    result = run("r", "--prompt", "a", "--bytes", 5, "--json")
    assert "checkpoint step_9 is skipped" in result.stderr
    assert json.loads(result.stdout)["text"] == "bcdef"


def test_bytes_that_are_no_text_pass_through_unless_utf8_is_asked_for(loads, tmp_path):
    file = tmp_path / "prompt"
    file.write_bytes(b"\x00\xfd")
    assert run("r", "--prompt-file", file, "--bytes", 4).stdout_bytes == b"\xfe\xff\x00\x01"
    assert run("r", "--prompt-file", file, "--bytes", 4, "--utf8").stdout_bytes.decode()


def test_text_on_the_command_line_is_continued_from_its_last_byte(loads):
    assert run("r", "--prompt", "\u00e9", "--bytes", 1).stdout_bytes == b"\xaa"


def test_no_prompt_starts_after_a_newline_and_no_bytes_write_nothing(loads):
    assert run("r", "--bytes", 2).stdout_bytes == b"\x0b\x0c"
    nothing = run("r", "--bytes", 0)
    assert nothing.exit_code == 0
    assert nothing.stdout_bytes == b""


def test_json_is_the_only_thing_on_standard_output_and_holds_text_bytes_and_settings(loads):
    result = run("r", "--prompt", "a", "--bytes", 3, "--json", "--checkpoint", "latest", "--top-k", 9, "--seed", 4)
    facts = json.loads(result.stdout)
    assert facts["text"] == "bcd"
    assert bytes.fromhex(facts["hex"]) == b"bcd"
    expected = {"run": "r", "step": 7, "checkpoint": "step_7", "bpb": 2.5, "top_k": 9, "seed": 4, "bytes": 3}
    assert facts.items() >= expected.items()
    assert facts["bytes_per_second"] > 0
    assert loads.calls == [("r", "latest")]


def test_a_file_gets_the_bytes_and_standard_output_stays_empty(loads, tmp_path):
    out = tmp_path / "text"
    result = run("r", "--prompt", "a", "--bytes", 3, "--out", out)
    assert result.stdout_bytes == b""
    assert out.read_bytes() == b"bcd"
    both = run("r", "--prompt", "a", "--bytes", 3, "--out", tmp_path / "other", "--json")
    assert json.loads(both.stdout)["out"] == str(tmp_path / "other")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--bytes", "-1"], "bytes = -1"),
        (["--temperature", "-0.5"], "temperature = -0.5"),
        (["--top-k", "-3"], "top_k = -3"),
        (["--top-p", "0"], "top_p = 0.0"),
        (["--top-p", "1.5"], "top_p = 1.5"),
        (["--seed", "-1"], "seed = -1"),
        (["--prompt", "a", "--prompt-file", "b"], "prompt = 'a' and prompt_file = b"),
        (["--out", "absent/file"], "out = absent/file"),
    ],
)
def test_a_value_without_meaning_is_refused_before_the_run_is_loaded(loads, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    result = run("r", *arguments)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(named)
    assert result.exception.exit_code == 2
    assert loads.calls == []
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_file_is_refused_and_kept(loads, tmp_path):
    out = tmp_path / "text"
    out.write_bytes(b"precious")
    result = run("r", "--out", out)
    assert isinstance(result.exception, ConfigError)
    assert out.read_bytes() == b"precious"
    assert loads.calls == []


def test_a_prompt_file_that_cannot_be_read_is_refused(loads, tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        result = run("r", "--prompt-file", path)
        assert isinstance(result.exception, DataError)
        assert str(path) in str(result.exception)
    assert loads.calls == []


def test_a_model_that_returns_nan_leaves_no_file_behind(loads, tmp_path):
    torch.nn.init.constant_(loads.model.rows, torch.nan)
    result = run("r", "--out", tmp_path / "text")
    assert isinstance(result.exception, DormouseError)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_what_was_written_and_reports_130(loads, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        yield b"ab"
        raise KeyboardInterrupt

    monkeypatch.setattr("dormouse.model.generate.generate", interrupted)
    result = run("r", "--out", tmp_path / "text")
    assert result.exit_code == 130
    assert (tmp_path / "text").read_bytes() == b"ab"


def test_options_that_a_greedy_choice_does_not_read_are_announced(loads):
    note = run("r", "--prompt", "a", "--temperature", 0, "--top-k", 5, "--seed", 3, "--bytes", 1)
    assert note.stdout_bytes == b"b"
    assert "--top-k, --seed would have no effect" in note.stderr
    assert "no effect" not in run("r", "--temperature", 0, "--bytes", 1).stderr


def test_torch_runs_on_one_thread_while_writing_and_on_its_own_number_afterwards(loads, monkeypatch):
    def watched(*arguments, **options):
        yield str(torch.get_num_threads()).encode()

    monkeypatch.setattr("dormouse.model.generate.generate", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert run("r").stdout_bytes == b"1"
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_help_shows_examples_and_the_defaults_of_the_sampler(loads):
    text = " ".join(run("--help").stdout.replace("\u2502", " ").split())
    assert "dormouse generate runs/demo --prompt" in text
    default = SamplingSettings()
    for value in (default.temperature, default.top_k, default.top_p):
        assert f"(default {value:g})" in text


def test_the_command_module_does_not_import_torch():
    code = "import sys, dormouse.cli.generate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
