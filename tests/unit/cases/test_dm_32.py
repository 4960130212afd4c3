"""DM-32: the printed number of scored bytes is the whole text but its first byte, and no batch size moves the score."""

import json

import numpy as np
import pytest

from dormouse.cli.main import main


def test_the_score_of_an_eleven_byte_text_does_not_depend_on_the_batch_size(command_line, capsys):
    """Sequences of 4 bytes in batches of 1, 2, 3 and 11, the same weights; the text is named by its SHA-256."""
    (command_line.folder / "eleven").write_bytes(np.random.default_rng(11).bytes(11))
    scores = []
    for size in (1, 2, 3, 11):
        sets = [f"eval_batch_size={size}", "eval_seq_len=4", "lr=0.05"]
        assert command_line.train("--steps", "3", "--out", f"run{size}", "--quiet", sets=sets) == 0
        capsys.readouterr()
        assert main(["eval", f"run{size}", "--eval", "eleven", "--tail", "--threads", "1", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["scored_bytes"] == 10
        assert found["data_sha256"] == command_line.hashes()["eleven"]
        scores.append(found["bpb"])
    assert scores == pytest.approx([scores[0]] * 4, rel=1e-6)
    assert abs(scores[0] - 8) > 1e-3
