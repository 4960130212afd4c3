"""DM-29: any bytes train and are scored; what is too small is refused by both commands, with both sizes."""

import json

import pytest

from dormouse.cli.main import main

NINE = bytes([0xEF, 0xBB, 0xBF, 0x61, 0x0D, 0x0A, 0x62, 0x00, 0xFF])
TOO_SMALL = {
    "empty": (b"", "empty (0 bytes)"),
    "one": (b"x", "holds 1 bytes"),
    "nine": (NINE, "holds 9 bytes"),
    "context": (b"y" * 16, "holds 16 bytes"),
}


@pytest.mark.parametrize("name", TOO_SMALL)
@pytest.mark.parametrize("side", ["data", "held_out"])
def test_training_refuses_a_side_that_is_too_small(command_line, capsys, name, side):
    content, said = TOO_SMALL[name]
    (command_line.folder / name).write_bytes(content)
    before = command_line.hashes()
    assert command_line.train("--steps", "1", "--out", "run", **{side: name}) == 2
    message = capsys.readouterr().err
    assert name in message
    assert said in message
    assert name == "empty" or "needs 17 bytes" in message
    assert "Traceback" not in message
    assert command_line.hashes() == before
    assert not (command_line.folder / "run").exists()


def test_scoring_refuses_what_is_too_small_or_no_file(command_line, capsys):
    assert command_line.train("--steps", "1", "--out", "run", "--quiet") == 0
    (command_line.folder / "folder").mkdir()
    for name, (content, _) in TOO_SMALL.items():
        (command_line.folder / name).write_bytes(content)
    before = command_line.hashes()
    capsys.readouterr()
    for name, said in {**{name: said for name, (_, said) in TOO_SMALL.items()}, "folder": "without files"}.items():
        assert main(["eval", "run", "--eval", name, "--threads", "1", "--json"]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert name in printed.err
        assert said in printed.err
    assert command_line.hashes() == before


def test_context_plus_one_bytes_are_one_window_for_both_commands(command_line, capsys):
    (command_line.folder / "small").write_bytes(NINE + b"01234567")
    (command_line.folder / "other").write_bytes(b"abcdefgh" + NINE)
    assert command_line.train("--steps", "1", "--out", "run", "--quiet", data="small", held_out="other") == 0
    assert json.loads((command_line.folder / "run" / "run.json").read_text())["data"]["training_windows"] == 1
    capsys.readouterr()
    assert main(["eval", "run", "--threads", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scored_bytes"] == 16
