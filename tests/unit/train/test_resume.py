import json
import os
from dataclasses import replace

import pytest

from dormouse.errors import CheckpointError, ResumeMismatch, RunDirError
from dormouse.store import checkpoint
from dormouse.store.rundir import RunDir
from dormouse.train.resume import check_same_run, saved_config


def stopped(runs, config=None):
    runs.train(runs.begin(config or runs.config()), stop_at=3)


def test_another_number_of_experts_is_refused_with_the_difference_shown(runs):
    stopped(runs)
    before = (runs.folder / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ResumeMismatch, match=r"model\.n_experts: 4 -> 8") as refusal:
        runs.go_on(runs.config(n_experts=8, lr=1e-3))
    assert "train.lr: 0.003 -> 0.001" in str(refusal.value)
    assert (runs.folder / "run" / "metrics.jsonl").read_bytes() == before


def test_length_cadence_threads_and_device_may_change(runs):
    stopped(runs)
    changed = runs.config(steps=9, log_every=2, eval_every=3, save_every=4, threads=2, device="auto")
    check_same_run(RunDir.open(runs.folder / "run"), changed)


def test_a_changed_length_is_announced_and_used(runs):
    stopped(runs)
    said = []
    assert runs.train(runs.go_on(runs.config(steps=8), said=said)).step == 8
    assert "resumed at step 3" in said
    assert "steps changed: 6 -> 8" in said
    assert any("schedule of the new length" in text for text in said)
    assert RunDir.open(runs.folder / "run").read_run()["resumed"][0]["changed"] == {"steps": [6, 8]}


def test_a_longer_run_after_a_completed_one_is_the_run_of_that_length(runs):
    """`train --steps 3`, then `--resume --steps 6`, inside the warm-up: every rate is the same in both."""
    runs.train(runs.begin(runs.config(), "whole"))
    runs.train(runs.begin(runs.config(steps=3), "parts"))
    runs.train(runs.go_on(runs.config(), "parts"))
    whole, parts = runs.content("whole", 6), runs.content("parts", 6)
    assert {key for key in whole if whole[key] != parts[key]} <= {"progress", "tally"}


def test_a_length_that_has_passed_is_refused(runs):
    stopped(runs)
    with pytest.raises(ResumeMismatch, match=r"train\.steps = 2: the run is at step 3"):
        runs.go_on(runs.config(steps=2))


def test_changed_data_are_refused(runs):
    stopped(runs)
    (runs.folder / "held.txt").write_bytes(os.urandom(2000))
    with pytest.raises(ResumeMismatch, match="held_out_sha256"):
        runs.go_on(runs.config())


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(runs):
    runs.train(runs.begin(runs.config(), "whole"))
    runs.train(runs.begin(runs.config()), stop_at=4)
    root = runs.folder / "run" / "checkpoints"
    assert checkpoint.steps(root)[-1] == 4
    victim = root / "step_4" / "__0_0.distcp"
    os.truncate(victim, victim.stat().st_size // 2)
    said = []
    run = runs.go_on(runs.config(), said=said)
    assert run.state.progress.step == 3
    assert any("step_4 is skipped" in text and "__0_0.distcp" in text for text in said)
    runs.train(run)
    assert runs.content("run", 6) == runs.content("whole", 6)


def test_rows_after_the_checkpoint_are_written_once(runs):
    stopped(runs)
    path = runs.folder / "run" / "metrics.jsonl"
    with path.open("a") as file:
        file.write(json.dumps({"schema": 1, "kind": "train", "step": 4}) + "\n" + '{"schema": 1, "ki')
    runs.train(runs.go_on(runs.config()))
    assert [row["step"] for row in runs.rows("run", "train")] == [1, 2, 3, 4, 5, 6]


def test_without_any_checkpoint_the_run_begins_again_from_its_seed(runs):
    runs.train(runs.begin(runs.config(), "whole"))
    runs.begin(runs.config()).close()
    said = []
    runs.train(runs.go_on(runs.config(), said=said))
    assert any("starting again at step 0" in text for text in said)
    assert runs.content("run", 6) == runs.content("whole", 6)


def test_a_completed_run_resumed_does_nothing_new(runs):
    runs.train(runs.begin(runs.config()))
    before = runs.content("run", 6)
    assert runs.train(runs.go_on(runs.config())).step == 6
    assert runs.content("run", 6) == before
    assert [row["step"] for row in runs.rows("run", "train")] == [1, 2, 3, 4, 5, 6]


def test_the_saved_configuration_is_the_one_the_run_was_given(runs):
    config = runs.config(lr=1.5e-3, seed=9)
    runs.begin(config).close()
    assert saved_config(RunDir.open(runs.folder / "run")) == config


def test_a_run_json_without_configuration_is_refused(runs):
    runs.begin(runs.config()).close()
    (runs.folder / "run" / "run.json").write_text("{}")
    with pytest.raises(RunDirError, match="does not hold the configuration"):
        saved_config(RunDir.open(runs.folder / "run"))


def test_a_checkpoint_of_another_model_is_refused_naming_tensors(runs):
    from dormouse.model.lm import Dormouse
    from dormouse.train.state import load_weights

    small, wide = Dormouse(runs.config().model), Dormouse(runs.config(d_ffn=64).model)
    with pytest.raises(
        CheckpointError, match=r"experts\.bank\.down_U has shape \[4, 32, 4\], the model's is \[4, 64, 4\]"
    ):
        load_weights(wide, small.state_dict())
    missing = small.state_dict()
    del missing["norm.weight"]
    with pytest.raises(CheckpointError, match=r"norm\.weight is missing"):
        load_weights(small, missing)


def test_a_resumed_start_is_compared_with_the_one_before_it(runs):
    """Threads 1, 2, 2, 1: a change is announced at the second and the fourth start only."""
    stopped(runs)
    announced = []
    for threads in (2, 2, 1):
        said = []
        runs.go_on(runs.config(threads=threads), said=said).close()
        announced.append([text for text in said if text.startswith("threads")])
    assert announced == [["threads changed: 1 -> 2"], [], ["threads changed: 2 -> 1"]]


def test_another_device_is_announced_although_auto_chose_it(runs):
    stopped(runs)
    directory = RunDir.open(runs.folder / "run")
    record = directory.read_run()
    record["provenance"]["device"] = "cuda"
    directory.write_run(record)
    said = []
    runs.go_on(runs.config(), said=said).close()
    assert "device changed: cuda -> cpu" in said
    assert any("rounded differently" in text for text in said)
    assert directory.read_run()["resumed"][-1]["provenance"]["device"] == "cpu"


def spend(runs, seconds):
    """Pretend that the three steps of the run took `seconds`."""
    run = runs.begin(runs.config())
    run.state.elapsed_seconds = seconds
    runs.train(run, stop_at=3)


def test_a_new_time_budget_counts_the_time_spent(runs):
    """Three steps in 90 s, then 2 minutes: one more step fits into the 30 s that are left."""
    spend(runs, 90.0)
    run = runs.go_on(runs.config(steps=None, minutes=2.0))
    assert run.state.progress.total_steps == 4
    assert runs.train(run).step == 4


def test_a_new_time_budget_whose_constant_part_lasts_is_decided_by_the_loop(runs):
    spend(runs, 90.0)
    run = runs.go_on(runs.config(steps=None, minutes=60.0))
    assert run.state.progress.total_steps is None
    run.close()


def test_a_time_budget_that_is_spent_is_refused(runs):
    spend(runs, 90.0)
    before = (runs.folder / "run" / "run.json").read_bytes()
    with pytest.raises(ResumeMismatch, match=r"train\.minutes = 1: the run has spent 1\.5 minutes already"):
        runs.go_on(runs.config(steps=None, minutes=1.0))
    assert (runs.folder / "run" / "run.json").read_bytes() == before


def test_an_evaluation_after_its_checkpoint_is_written_once(runs):
    """A signal during the evaluation of step 4 saves step 4 unevaluated; two resumes evaluate it, one row stays."""
    runs.train(runs.begin(runs.config(), "whole"))
    run = runs.begin(runs.config(eval_every=0))
    runs.train(run, stop_at=4)
    directory = RunDir.open(runs.folder / "run")
    record = directory.read_run()
    record["config"]["train"]["eval_every"] = 2
    directory.write_run(record)
    path = runs.folder / "run" / "metrics.jsonl"
    with path.open("a") as file:
        file.write(json.dumps({"schema": 1, "kind": "eval", "step": 4, "bpb": 9.0}) + "\n")
    runs.train(runs.go_on(runs.config()))
    assert [row["step"] for row in runs.rows("run", "eval")] == [4, 6]
    assert runs.rows("run", "eval")[0]["bpb"] == runs.rows("whole", "eval")[1]["bpb"]


def test_run_files_that_are_damaged_are_refused_without_a_traceback(runs):
    stopped(runs)
    directory = RunDir.open(runs.folder / "run")
    with (runs.folder / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\n")
    with pytest.raises(RunDirError, match="not UTF-8"):
        runs.go_on(runs.config())
    record = directory.read_run()
    del record["provenance"]
    directory.write_run(record)
    with pytest.raises(RunDirError, match="provenance"):
        runs.go_on(runs.config())


def test_a_new_length_outlives_a_kill_before_the_next_checkpoint(runs):
    """run.json knows the new length at once, the checkpoint only from its next save on."""
    stopped(runs)
    longer = runs.config(steps=8, save_every=0)

    def kill(step, model):
        raise RuntimeError("killed")

    run = runs.go_on(longer)
    run.settings = replace(run.settings, gradient_hook=kill)
    with pytest.raises(RuntimeError, match="killed"):
        runs.train(run)
    assert runs.train(runs.go_on(longer)).step == 8


def test_a_new_time_budget_outlives_a_kill_too(runs):
    runs.train(runs.begin(runs.config(steps=3)))
    budget = runs.config(steps=None, minutes=60.0, save_every=0)
    runs.go_on(budget).close()
    again = runs.go_on(budget)
    again.close()
    assert again.state.progress.total_steps != 3
