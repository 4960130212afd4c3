"""`dormouse quantize` on the smallest run: the file is the forward in that format, and refusals leave nothing."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

import dormouse
from dormouse.cli.main import main
from dormouse.config.load import load_run_config
from dormouse.errors import CheckpointError
from dormouse.model.lm import Dormouse
from dormouse.train.load import load_run
from dormouse.train.packed import load_packed, pack_model, save_packed

SMALL = (
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "max_iter=2", "kda_decay_rank=4"),
    *("kda_gate_rank=4", "engram_rows=64", "engram_dim=4", "seq_len=16", "batch_size=2", "eval_batches=2"),
    *("eval_seq_len=16", "eval_batch_size=2", "single_pass_fraction=0"),
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = np.random.default_rng(5).choice([b"the ", b"cat ", b"sat. "], size=9000)
    (tmp_path / "train.txt").write_bytes(b"".join(words)[:30_000])
    (tmp_path / "held.txt").write_bytes(np.random.default_rng(6).bytes(2000))
    settings = [part for text in SMALL for part in ("--set", text)]
    fixed = ("--data", "train.txt", "--eval", "held.txt", "--threads", "1", "--device", "cpu", "--sample-bytes", "0")
    assert main(["train", *fixed, "--steps", "4", "--out", "run", "--quiet", *settings]) == 0
    return tmp_path / "run"


def quantized(capsys, *arguments):
    capsys.readouterr()
    assert main(["quantize", "run", "--threads", "1", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("fmt", ["bf16", "fp16", "fp8", "int8", "fp4", "int4", "ternary"])
def test_the_file_read_back_is_the_forward_in_that_format(run, capsys, fmt):
    facts = quantized(capsys, "--format", fmt)
    trained, config = load_run(run)
    seen = Dormouse(config.model.model_copy(update={"quant": fmt}))
    seen.load_state_dict(trained.state_dict())
    ids = torch.randint(256, (2, 40))
    back, origin = dormouse.load_packed(run / "packed" / f"{fmt}.safetensors")
    assert torch.equal(back(ids).logits, seen.eval()(ids).logits)
    assert origin["step"] == 4
    assert main(["eval", "run", "--json", "--threads", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["bpb"] == facts["bpb_before"]


def test_sizes_are_what_the_file_holds(run, capsys):
    facts = quantized(capsys, "--format", "int4", "--group", "0")
    with safe_open(run / "packed" / "int4.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    # 4 experts x (16 + 32 + 32 + 16) rows of 4 numbers: half a byte a number, an fp32 scale a row
    assert facts["factors_bytes"] == 4 * 96 * 4 * 4
    assert facts["packed_factors_bytes"] == 4 * 96 * (2 + 4)
    assert sum(tensor.nbytes for tensor in tensors.values()) == facts["packed_total_bytes"]
    assert facts["file_bytes"] == (run / "packed" / "int4.safetensors").stat().st_size


def test_memory_tables_are_packed_only_when_asked(run, capsys):
    plain = quantized(capsys, "--format", "fp8")
    both = quantized(capsys, "--format", "fp8", "--tables", "int8", "--out", "both.safetensors")
    table = load_run(run).model.loop.engram.table
    assert plain["packed_total_bytes"] - both["packed_total_bytes"] == table.nbytes - table.numel() - 4 * len(table)
    values = load_packed("both.safetensors")[0].loop.engram.table
    assert (values - table).abs().max() <= 0.51 * table.abs().max() / 127


def test_a_layer_with_a_fallen_back_expert_is_stored_as_the_forward_sees_it(tmp_path):
    config = load_run_config("tiny", None, [*SMALL, "quant=int4"], {}).model
    model = Dormouse(config)
    torch.nn.init.normal_(model.lm_head.weight, std=0.3)
    model.loop.experts.bank.weight_format.fell_back.add(2)
    content, sizes = pack_model(model, "int4", 32)
    assert sizes.kept == ("loop.experts.bank",)
    save_packed(tmp_path / "file", content, config, {})
    back, ids = load_packed(tmp_path / "file")[0], torch.randint(256, (2, 20))
    assert torch.equal(back.loop.experts.bank.up_U[2], model.loop.experts.bank.up_U[2])
    assert torch.equal(back(ids).logits, model.eval()(ids).logits)


def test_a_file_knows_how_many_passes_were_trained(tmp_path):
    config = load_run_config("tiny", None, list(SMALL), {}).model
    model = Dormouse(config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    model.n_passes = 1
    content, _ = pack_model(model, "bf16", 32)
    save_packed(tmp_path / "file", content, config, {"n_passes": 1})
    back, ids = load_packed(tmp_path / "file")[0], torch.randint(256, (1, 20))
    assert back.n_passes == 1
    two = load_packed(tmp_path / "file")[0]
    two.n_passes = 2
    assert not torch.equal(back(ids).logits, two(ids).logits)


def test_a_score_is_that_of_the_packed_weights(run, capsys):
    """A head that is not zero, and experts that matter, so that rounding shows in the score."""
    facts = quantized(capsys, "--format", "ternary", "--group", "0")
    back, _ = load_packed(run / "packed" / "ternary.safetensors")
    loaded = load_run(run)
    from dormouse.data.corpus import load_held_out
    from dormouse.train.evaluate import evaluate
    from dormouse.train.run import make_window

    corpus = load_held_out(
        loaded.config.data, seq_len=16, eval_seq_len=16, train_sha256=loaded.record["data"]["train_sha256"]
    )
    assert facts["bpb_after"] == evaluate(back, make_window(corpus, loaded.config)).bpb
    assert facts["bpb_after"] != facts["bpb_before"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--format", "fp5"), "format = fp5: nothing would have been packed"),
        (("--format", "fp32"), "format = fp32: nothing would have been packed"),
        (("--format", "fp4", "--tables", "int9"), "Did you mean int8?"),
        (("--format", "fp4", "--group", "-1"), "group = -1"),
        (("--format", "fp4", "--threads", "0"), "threads = 0"),
        (("--format", "fp4", "--checkpoint", "3"), "checkpoint = 3"),
        (("--format", "bf16", "--group", "8"), "group = 8 with format = bf16"),
        (("--format", "fp4", "--out", "run/checkpoints", "--overwrite"), "is not a place for a file"),
        (("--format", "fp4", "--out", "train.txt/x.safetensors"), "is not a place for a file"),
    ],
)
def test_refusals_name_field_and_value_and_write_nothing(run, capsys, arguments, said):
    before = sorted(path.name for path in run.iterdir())
    assert main(["quantize", "run", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.mark.parametrize(
    ("settings", "arguments", "said"),
    [
        (("use_tsct=false",), (), "no spectral factors"),
        (("use_engram=false",), ("--tables", "int8"), "no memory tables"),
    ],
)
def test_a_run_without_such_parts_is_refused(run, capsys, settings, arguments, said):
    fixed = ("--data", "train.txt", "--eval", "held.txt", "--threads", "1", "--device", "cpu", "--sample-bytes", "0")
    sets = [part for text in (*SMALL, *settings) for part in ("--set", text)]
    assert main(["train", *fixed, "--steps", "1", "--out", "other", "--quiet", *sets]) == 0
    assert main(["quantize", "other", "--format", "fp4", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (run.parent / "other" / "packed").exists()


def test_an_evaluation_says_in_which_format(run, capsys):
    assert main(["eval", "run", "--threads", "1"]) == 0
    assert "tsct=fp32" in capsys.readouterr().out
    assert main(["eval", "run", "--threads", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tsct"] == "tsct=fp32"


def test_an_existing_file_is_replaced_only_when_asked(run, capsys):
    quantized(capsys, "--format", "fp4")
    content = (run / "packed" / "fp4.safetensors").read_bytes()
    assert main(["quantize", "run", "--format", "fp4", "--group", "0"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (run / "packed" / "fp4.safetensors").read_bytes() == content
    quantized(capsys, "--format", "fp4", "--group", "2", "--overwrite")
    assert (run / "packed" / "fp4.safetensors").read_bytes() != content


def test_people_read_sizes_and_scores(run, capsys):
    assert main(["quantize", "run", "--format", "fp4"]) == 0
    out = capsys.readouterr().out
    assert "x smaller" in out
    assert "BPB" in out
    assert "fp4.safetensors" in out


@pytest.mark.parametrize("damage", ["cut", "text", "another"])
def test_another_or_damaged_file_is_refused(run, capsys, damage):
    path = run / "packed" / "fp4.safetensors"
    quantized(capsys, "--format", "fp4")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "text":
        path.write_text("not weights")
    else:
        path = run / "weights.safetensors"
    with pytest.raises(CheckpointError):
        load_packed(path)
