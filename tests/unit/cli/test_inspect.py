"""`dormouse inspect` on the smallest run: its figures are those of `dormouse eval`, and refusals leave nothing."""

import io
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from dormouse.cli.main import main
from dormouse.store.rundir import RunDir

SMALL = (
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "max_iter=2", "kda_decay_rank=4"),
    *("kda_gate_rank=4", "engram_rows=64", "engram_dim=4", "seq_len=16", "batch_size=2", "eval_batches=2"),
    *("eval_seq_len=16", "eval_batch_size=2", "single_pass_fraction=0"),
)
TEXT = b"the cat sat on the mat, and the rat \xc3\xa9 sat.\n" * 8


def train(out, *sets):
    settings = [part for text in (*SMALL, *sets) for part in ("--set", text)]
    fixed = ("--data", "train.txt", "--eval", "held.txt", "--threads", "1", "--device", "cpu", "--sample-bytes", "0")
    assert main(["train", *fixed, "--steps", "4", "--out", out, "--quiet", *settings]) == 0


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = np.random.default_rng(5).choice([b"the ", b"cat ", b"sat. "], size=9000)
    (tmp_path / "train.txt").write_bytes(b"".join(words)[:30_000])
    (tmp_path / "held.txt").write_bytes(np.random.default_rng(6).bytes(2000))
    (tmp_path / "text.txt").write_bytes(TEXT)
    train("run")
    capsys.readouterr()
    return tmp_path / "run"


def inspected(capsys, *arguments):
    capsys.readouterr()
    assert main(["inspect", "run", "--threads", "1", "--json", *arguments]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


def files(run):
    return sorted(path.relative_to(run.parent).as_posix() for path in run.parent.rglob("*"))


def test_the_score_is_that_of_the_evaluation_on_the_same_bytes(run, capsys):
    facts, _ = inspected(capsys, "--text", "held.txt", "--max-bytes", "17")
    assert main(["eval", "run", "--eval", "held.txt", "--json", "--threads", "1"]) == 0
    scored = json.loads(capsys.readouterr().out)
    # `eval` reads 64 bytes in rows of 16 with fresh state, the page one row: the first row is the same
    assert scored["scored_bytes"] == 64
    (run.parent / "row.txt").write_bytes((run.parent / "held.txt").read_bytes()[:17])
    assert main(["eval", "run", "--eval", "row.txt", "--json", "--threads", "1"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (facts["scored_bytes"], row["scored_bytes"]) == (16, 16)
    assert facts["bpb"] == pytest.approx(row["bpb"], abs=1e-6)


def test_the_page_is_in_the_run_and_the_run_stays_a_run(run, capsys):
    facts, said = inspected(capsys, "--text", "text.txt")
    page = run / "inspect" / "text.txt.html"
    assert (facts["out"], facts["page_bytes"]) == ("run/inspect/text.txt.html", page.stat().st_size)
    assert page.read_bytes().startswith(b"<!doctype html>")
    assert (facts["bytes"], facts["scored_bytes"], facts["cut"], said) == (len(TEXT), len(TEXT) - 1, None, "")
    with RunDir.create(run, overwrite=True):
        assert not page.exists()


def test_shares_and_transitions_count_every_byte(run, capsys):
    facts, _ = inspected(capsys, "--text", "text.txt")
    assert [one["pass"] for one in facts["passes"]] == [1, 2]
    assert all(sum(one["shares"]) == pytest.approx(1) for one in facts["passes"])
    (pair,) = facts["agreement"]
    table = np.array(pair["transitions"])
    assert (pair["passes"], table.sum()) == ([1, 2], len(TEXT))
    assert pair["raw"] == pytest.approx(np.trace(table) / len(TEXT))
    np.testing.assert_allclose(table.sum(1) / len(TEXT), facts["passes"][0]["shares"])
    np.testing.assert_allclose(table.sum(0) / len(TEXT), facts["passes"][1]["shares"])


@pytest.mark.parametrize("sets", [(), ("moe_topk=2", "n_null_experts=2")])
def test_every_printed_figure_is_in_the_json_object(run, capsys, sets):
    if sets:
        train("run2", *sets)
    name = "run2" if sets else "run"
    capsys.readouterr()
    assert main(["inspect", name, "--text", "text.txt", "--out", "a.html"]) == 0
    printed = capsys.readouterr().out
    assert main(["inspect", name, "--text", "text.txt", "--out", "b.html", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    pair = facts["agreement"][0]
    assert f"{facts['bpb']:.4f} bits per byte on {facts['scored_bytes']:,} scored bytes of text.txt" in printed
    for one in facts["passes"]:
        shares = ",".join(f"{share:.3f}" for share in one["shares"])
        null = f" null={one['null']:.3f}" if sets else ""
        assert f"pass {one['pass']}: moe=[{shares}] H={one['entropy']:.3f} dead={one['dead']}{null}\n" in printed
    assert f"pass 1 and 2: same expert {pair['raw']:.3f} (chance {pair['chance']:.3f}, kappa " in printed
    assert ("same set" in printed) == bool(sets)
    if sets:
        assert f"same set {pair['identical']:.3f} (chance {pair['identical_chance']:.3f})" in printed
        assert f"nothing in common {pair['disjoint']:.3f} (chance {pair['disjoint_chance']:.3f})" in printed
    assert f"page: a.html ({facts['page_bytes']:,} bytes)" in printed
    assert (run.parent / "a.html").read_bytes() == (run.parent / "b.html").read_bytes()


def test_a_long_text_is_cut_and_that_is_announced_everywhere(run, capsys):
    facts, said = inspected(capsys, "--text", "text.txt", "--max-bytes", "100")
    assert facts["bytes"] == 100
    assert (
        facts["cut"] == f"only the first 100 bytes are shown; the text has {len(TEXT)}. --max-bytes takes up to 65,536."
    )
    assert facts["cut"] in said
    assert facts["cut"] in (run / "inspect" / "text.txt.html").read_text()


def test_a_text_of_just_the_most_bytes_is_not_cut(run, capsys):
    facts, _ = inspected(capsys, "--text", "text.txt", "--max-bytes", str(len(TEXT)))
    assert facts["cut"] is None


def test_standard_input_is_a_text(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(TEXT)))
    facts, _ = inspected(capsys, "--text", "-", "--max-bytes", "50")
    assert (facts["text"], facts["bytes"]) == ("standard input", 50)
    assert facts["cut"].startswith("only the first 50 bytes are shown; the text goes on")
    assert facts["out"] == "run/inspect/stdin.html"


def test_a_page_is_replaced_only_when_asked(run, capsys):
    inspected(capsys, "--text", "text.txt")
    page = run / "inspect" / "text.txt.html"
    page.write_text("mine")
    assert main(["inspect", "run", "--text", "text.txt"]) == 2
    assert "exists and would have been replaced; name another file, or --overwrite" in capsys.readouterr().err
    assert page.read_text() == "mine"
    inspected(capsys, "--text", "text.txt", "--overwrite")
    assert page.read_text() != "mine"


def test_the_checkpoint_is_chosen_as_in_eval(run, capsys):
    facts, _ = inspected(capsys, "--text", "text.txt", "--checkpoint", "latest")
    assert (facts["checkpoint"], facts["step"]) == ("step_4", 4)


def test_a_file_name_that_is_not_text_is_shown_as_far_as_it_is(run, capsys):
    name = os.fsdecode(b"caf\xe9.txt")
    (run.parent / name).write_bytes(TEXT)
    facts, _ = inspected(capsys, "--text", name, "--out", "page.html")
    assert facts["text"] == "caf\ufffd.txt"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--text", "none.txt"), "text = none.txt: cannot be read (No such file"),
        (("run", "--text", "empty.txt"), "text = empty.txt: holds 0 bytes"),
        (("run", "--text", "one.txt"), "text = one.txt: holds 1 byte;"),
        (("run", "--text", "run"), "text = run: is a folder"),
        (("none", "--text", "text.txt"), "none does not exist: there is no run to read there"),
        (("run", "--text", "text.txt", "--max-bytes", "1"), "max_bytes = 1: a page holds 2 to 65,536"),
        (("run", "--text", "text.txt", "--max-bytes", "65537"), "max_bytes = 65537"),
        (("run", "--text", "text.txt", "--threads", "0"), "threads = 0"),
        (("run", "--text", "text.txt", "--checkpoint", "3"), "checkpoint = 3"),
        (("run", "--text", "text.txt", "--out", "run"), "out = run: is a folder"),
        (("run", "--text", "text.txt", "--out", "no/page.html"), "out = no/page.html: there is no folder no"),
        (("run", "--text", "text.txt", "--out", "text.txt"), "out = text.txt: exists and would have been replaced"),
        (("run", "--text", "text.txt", "--out", "text.txt/page.html"), "out = text.txt/page.html"),
        (("run",), "--text"),
    ],
)
def test_refusals_name_field_and_value_and_write_nothing(run, capsys, arguments, said):
    (run.parent / "empty.txt").write_bytes(b"")
    (run.parent / "one.txt").write_bytes(b"x")
    before = files(run)
    assert main(["inspect", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert files(run) == before


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("n_experts=1", "moe_topk=0", "moe_lb_coef=0", "moe_gate_scale=one"), "model.n_experts = 1"),
        (("moe_topk=0", "moe_lb_coef=0"), "model.moe_topk = 0: the blend runs all 4 experts"),
    ],
)
def test_a_run_that_routes_nothing_is_refused_with_a_way_out(run, capsys, sets, said):
    train("other", *sets)
    capsys.readouterr()
    before = files(run)
    assert main(["inspect", "other", "--text", "text.txt"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "dormouse eval" in error
    assert files(run) == before
