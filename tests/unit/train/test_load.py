import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from dormouse.errors import CheckpointError, RunDirError
from dormouse.store import checkpoint
from dormouse.store.rundir import RunDir
from dormouse.train.load import load_run


def test_a_completed_run_leaves_weights_sample_result_and_loads_again(runs):
    result = runs.train(runs.begin(runs.config(steps=5)), finish=True)
    path = runs.folder / "run"
    torch.manual_seed(4)
    before = torch.get_rng_state()
    loaded = load_run(path)
    model, config = loaded
    assert torch.equal(before, torch.get_rng_state())
    assert not model.training
    assert config == runs.config(steps=5)

    best = checkpoint.best(path / "checkpoints")
    assert (loaded.checkpoint, loaded.step, loaded.bpb) == (best.name, result.step, result.bpb)
    saved = checkpoint.load(best)["model"]
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())

    with safe_open(path / "weights.safetensors", "pt") as file:
        assert set(file.keys()) == set(saved)
        assert all(torch.equal(file.get_tensor(name), saved[name]) for name in file.keys())  # noqa: SIM118
        assert json.loads(file.metadata()["model_config"])["n_experts"] == 4
    sample = (path / "samples" / f"step_{result.step}.txt").read_bytes()
    assert sample.decode("utf-8", errors="replace") == result.sample
    assert len(sample) == 400

    record = RunDir.open(path).read_run()
    assert record["result"]["bpb"] == result.bpb
    assert record["window"] == {"bytes": 64, "scored_bytes": 64, "seq_len": 16}
    assert record["parameters"]["total"] == sum(p.numel() for p in model.parameters())
    assert record["parameters"]["total"] == sum(record["parameters"]["parts"].values())
    assert record["config"] == config.model_dump(mode="json")


def test_latest_and_a_step_can_be_asked_for_and_nothing_else(runs):
    runs.train(runs.begin(runs.config()))
    path = runs.folder / "run"
    assert load_run(path, checkpoint="latest").step == 6
    kept = checkpoint.steps(path / "checkpoints")
    assert load_run(path, checkpoint=str(kept[0])).step == kept[0]
    for name in ("77", "²", "-1", "", "9" * 5000):
        with pytest.raises(CheckpointError, match=rf"checkpoint = {name}: the run has none.*best, latest"):
            load_run(path, checkpoint=name)


def test_a_damaged_checkpoint_in_whose_place_another_is_taken_is_reported(runs):
    runs.train(runs.begin(runs.config()))
    path = runs.folder / "run"
    damaged = checkpoint.best(path / "checkpoints")
    (damaged / "state.json").unlink()
    said = []
    assert load_run(path, report=said.append).checkpoint != damaged.name
    assert said == [f"checkpoint {damaged.name} is skipped: state.json is missing"]
    with pytest.warns(UserWarning, match=f"checkpoint {damaged.name} is skipped"):
        load_run(path)


def test_a_checkpoint_whose_score_cannot_be_read_is_reported_too(runs):
    runs.train(runs.begin(runs.config()))
    path = runs.folder / "run"
    damaged = checkpoint.best(path / "checkpoints")
    (damaged / "manifest.json").write_bytes((damaged / "manifest.json").read_bytes()[:40])
    said = []
    assert load_run(path, report=said.append).checkpoint != damaged.name
    assert said == [f"checkpoint {damaged.name} is skipped: its manifest cannot be read, so its score is unknown"]


def test_without_a_score_best_is_the_newest(runs):
    runs.train(runs.begin(runs.config(eval_every=10_000)), stop_at=4)
    assert load_run(runs.folder / "run").step == 4


def test_a_run_without_a_checkpoint_and_no_run_are_refused(runs):
    runs.begin(runs.config()).close()
    with pytest.raises(CheckpointError, match=r"no complete checkpoint yet.*dormouse resume"):
        load_run(runs.folder / "run")
    with pytest.raises(RunDirError, match="does not exist"):
        load_run(runs.folder / "nothing")


def test_the_loaded_model_scores_what_the_run_wrote_down(runs):
    from dormouse.data.window import EvalWindow
    from dormouse.train.evaluate import evaluate

    runs.train(runs.begin(runs.config()))
    loaded = load_run(runs.folder / "run")
    held_out = np.fromfile(runs.folder / "held.txt", dtype=np.uint8)
    for batch_size in (1, 4):
        window = EvalWindow(held_out, window_bytes=64, batch_size=batch_size, seq_len=16)
        assert evaluate(loaded.model, window).bpb == pytest.approx(loaded.bpb, abs=1e-6)
