"""`dormouse eval` on the smallest run: what it reads, what it refuses, what it says beside the score."""

import json

import numpy as np
import pytest

from dormouse.cli.main import main
from dormouse.store import checkpoint

SMALL = [
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "max_iter=2", "kda_decay_rank=4"),
    *("kda_gate_rank=4", "engram_rows=64", "engram_dim=4", "seq_len=16", "batch_size=2", "eval_batches=2"),
    *("eval_seq_len=16", "eval_batch_size=2", "eval_every=2"),
]


def train(out, *arguments, sets=()):
    chosen = {text.split("=")[0]: text for text in (*SMALL, *sets)}
    settings = (part for setting in chosen.values() for part in ("--set", setting))
    fixed = ("--threads", "1", "--device", "cpu", "--sample-bytes", "0", "--quiet")
    assert main(["train", "--out", out, "--steps", "4", *fixed, *settings, *arguments]) == 0


def score(capsys, *arguments):
    """What `dormouse eval --json` prints, and its standard error."""
    assert main(["eval", *arguments, "--json", "--threads", "1"]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


def refusal(capsys, *arguments):
    """The message of a refused `dormouse eval`."""
    assert main(["eval", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    words = np.random.default_rng(5).choice([b"the ", b"cat ", b"sat. ", b"on\n", b"mat "], size=9000)
    (tmp_path / "train.txt").write_bytes(b"".join(words)[:40_000])
    (tmp_path / "held.txt").write_bytes(np.random.default_rng(6).bytes(2000))
    (tmp_path / "other.txt").write_bytes(np.random.default_rng(9).bytes(500))
    monkeypatch.chdir(tmp_path)
    train("run", "--data", "train.txt", "--eval", "held.txt")
    capsys.readouterr()
    return tmp_path


def test_the_training_text_is_not_read_to_score_a_held_out_text(folder, capsys):
    expected, _ = score(capsys, "run")
    record = json.loads((folder / "run" / "run.json").read_text())["data"]
    (folder / "train.txt").unlink()
    found, _ = score(capsys, "run")
    assert (found["bpb"], found["train_sha256"]) == (expected["bpb"], record["train_sha256"])
    other, said = score(capsys, "run", "--eval", "other.txt")
    assert other["train_sha256"] == record["train_sha256"]
    assert other["data_sha256"] != record["held_out_sha256"]
    assert "other.txt was not compared with the run's training text" in said


def test_a_text_that_has_gone_is_refused_with_a_way_out_that_works(folder, capsys):
    (folder / "held.txt").unlink()
    message = refusal(capsys, "run")
    assert "held.txt: there is no such file" in message
    assert "name another text with --eval" in message
    assert score(capsys, "run", "--eval", "other.txt")[0]["scored_bytes"] == 64


def test_the_end_of_a_single_file_needs_that_file(folder, capsys):
    train("own", "--data", "train.txt")
    capsys.readouterr()
    found, said = score(capsys, "own")
    assert "no eval file named" in said
    (folder / "train.txt").rename(folder / "moved.txt")
    assert "name another text with --eval" in refusal(capsys, "own")
    assert score(capsys, "own", "--eval", "other.txt")[0]["data_sha256"] != found["data_sha256"]


def test_training_text_is_not_scored_under_another_name(folder, capsys):
    assert "is the same place as" in refusal(capsys, "run", "--eval", "train.txt")
    (folder / "train.txt").rename(folder / "copy.txt")
    assert "same content as the run's training text" in refusal(capsys, "run", "--eval", "copy.txt")


def test_dedup_trains_on_what_remains_and_is_part_of_the_run(folder, capsys):
    own, held = (folder / "train.txt").read_bytes(), (folder / "held.txt").read_bytes()
    (folder / "train.txt").write_bytes(own + held[:400])
    train("clean", "--data", "train.txt", "--eval", "held.txt", sets=["dedup=true"])
    record = json.loads((folder / "clean" / "run.json").read_text())
    assert (record["config"]["data"]["dedup"], record["data"]["train_bytes"]) == (True, len(own))
    capsys.readouterr()
    assert score(capsys, "clean")[0]["train_sha256"] == record["data"]["train_sha256"]
    assert main(["train", "--resume", "--out", "clean", "--set", "dedup=false"]) == 2
    assert "data.dedup: true -> false" in capsys.readouterr().err


def test_a_record_without_the_key_is_a_run_without_dedup(folder, capsys):
    place = folder / "run" / "run.json"
    record = json.loads(place.read_text())
    assert record["config"]["data"].pop("dedup") is False
    place.write_text(json.dumps(record))
    assert score(capsys, "run")[0]["scored_bytes"] == 64
    assert main(["resume", "run", "--steps", "5", "--quiet", "--sample-bytes", "0"]) == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--device", "gpu"], 'train.device = "gpu"'),
        (["--device", ""], 'train.device = ""'),
        (["--threads", "-1"], "train.threads = -1"),
        (["--threads", "0"], "train.threads = 0"),
        (["--checkpoint", "²"], "checkpoint = ²"),
        (["--checkpoint", "٢"], "checkpoint = ٢"),
        (["--checkpoint", "9" * 5000], "checkpoint = 999"),
        (["--checkpoint", "../4"], "checkpoint = ../4"),
    ],
)
def test_a_value_without_meaning_is_refused_by_name(folder, capsys, arguments, named):
    message = refusal(capsys, "run", *arguments)
    assert named in message
    assert "Traceback" not in message


def test_generate_refuses_the_same_checkpoint_names(folder, capsys):
    assert main(["generate", "run", "--checkpoint", "²"]) == 2
    assert "checkpoint = ²" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["eval", "run", "--threads", "1"], ["generate", "run", "--bytes", "3"]])
def test_a_damaged_best_checkpoint_is_named_on_standard_error(folder, capsys, command):
    name = checkpoint.best(folder / "run" / "checkpoints").name
    file = folder / "run" / "checkpoints" / name / "state.json"
    file.write_bytes(file.read_bytes() + b" ")
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    assert f"checkpoint {name} is skipped: state.json has" in printed.err
    assert json.loads(printed.out)["checkpoint"] != name


WIDE = ("n_experts=8", "moe_topk=2", "max_iter=3", "single_pass_fraction=0")


def test_the_probe_stands_beside_chance_and_the_published_band(folder, capsys):
    train("wide", "--data", "train.txt", "--eval", "held.txt", sets=WIDE)
    capsys.readouterr()
    assert main(["eval", "wide", "--probe", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert "routing of 64 bytes in 3 passes" in printed
    assert "published for 2 of 8: disjoint 0.25-0.53, identical 0.04-0.14" in printed
    found, _ = score(capsys, "wide", "--probe")
    assert {"cosine", "kappa", "identical_chance", "disjoint_chance", "disagreement"} <= set(found["probe"])
    assert f"disjoint sets {found['probe']['disjoint']:.3f}" in printed
    plain, _ = score(capsys, "wide")
    assert "probe" not in plain
    assert plain["bpb"] == found["bpb"]


def test_the_band_is_not_shown_for_other_numbers_of_experts(folder, capsys):
    assert main(["eval", "run", "--probe", "--threads", "1"]) == 0
    assert "published" not in capsys.readouterr().out


def test_a_probe_without_routing_is_refused(folder, capsys):
    train("one", "--data", "train.txt", "--eval", "held.txt", sets=["n_experts=1", "moe_topk=0", "moe_lb_coef=0"])
    capsys.readouterr()
    assert "probe with model.n_experts = 1" in refusal(capsys, "one", "--probe")


def test_fewer_passes_can_be_asked_for_and_others_are_refused(folder, capsys):
    """One pass scores what a model with its second pass switched off scores; both say how many they ran."""
    from dormouse.train.evaluate import evaluate
    from dormouse.train.load import load_run
    from dormouse.train.run import make_window, prepare

    train("two", "--data", "train.txt", "--eval", "held.txt", sets=("single_pass_fraction=0",))
    capsys.readouterr()
    both, _ = score(capsys, "two")
    one, _ = score(capsys, "two", "--max-iter", "1")
    assert (both["passes"], one["passes"]) == (2, 1)
    model, config = load_run("two")
    model.n_passes = 1
    assert one["bpb"] == evaluate(model, make_window(prepare(config).corpus, config)).bpb
    assert one["bpb"] != both["bpb"]
    for number in ("0", "3"):
        assert f"max_iter = {number}: the run has passes 1 to 2" in refusal(capsys, "two", "--max-iter", number)


def test_generation_takes_fewer_passes_too(folder, capsys):
    train("two", "--data", "train.txt", "--eval", "held.txt", sets=("single_pass_fraction=0",))
    capsys.readouterr()
    facts = []
    for more in ((), ("--max-iter", "1")):
        assert main(["generate", "two", "--bytes", "20", "--json", *more]) == 0
        facts.append(json.loads(capsys.readouterr().out))
    assert [found["passes"] for found in facts] == [2, 1]
    assert main(["generate", "two", "--max-iter", "9"]) == 2
