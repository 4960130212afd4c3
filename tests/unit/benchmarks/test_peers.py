"""The comparison with peers: every peer learns, is scored on the same bytes, and time is shared as it says."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # the benchmarks are not part of the installed package

from benchmarks import peers, peers_alternate, peers_trial
from benchmarks.peers_gpt import Gpt, GptShape
from benchmarks.peers_recipes import RECIPES, Peer
from benchmarks.peers_record import Results, lead, table
from benchmarks.peers_recurrent import OrderedStreams, Recurrent
from benchmarks.peers_turns import Turns

from dormouse.errors import ConfigError

SMALL = GptShape(width=32, layers=2, heads=1, context=24, orders=(2, 3, 4), rows=64, row_width=8)


@pytest.fixture(scope="module")
def corpus():
    return peers_trial.corpus()


def perturbed(model):
    torch.manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model.eval()


@pytest.mark.parametrize("name", RECIPES)
def test_every_peer_learns_and_is_scored_on_exactly_40960_bytes(name, corpus):
    recipe = RECIPES[name]
    fewer = replace(recipe, batch=2, shape=replace(recipe.shape, layers=min(recipe.shape.layers, 3)))
    peer = Peer(fewer, corpus.train)
    losses = [peer.step(0, 0.25) for _ in range(5)]
    assert losses[-1] < losses[0] - 0.02
    scored = peers_trial.evaluate(peer.model, peers_trial.window(corpus))
    assert scored.scored_bytes == scored.window_bytes == 40_960
    assert scored.bpb < 8.5


@pytest.mark.parametrize(("name", "parameters"), [("gpt", 1_049_984), ("lstm", 1_184_000), ("gru", 920_832)])
def test_peers_have_the_published_sizes(name, parameters, corpus):
    assert sum(p.numel() for p in Peer(RECIPES[name], corpus.train).model.parameters()) == parameters


def test_the_tuned_peer_has_the_tables_of_the_preset_tiny(corpus):
    from dormouse.config.load import load_preset
    from dormouse.model.engram import Engram

    theirs = Engram(load_preset("tiny")).table
    for name in ("gpt-ngram-tuned", "gpt-ngram-shallow"):
        own = Peer(RECIPES[name], corpus.train).model.memory.table
        assert own.shape == theirs.shape
        assert own.std().item() == pytest.approx(theirs.std().item(), rel=0.01)


def test_a_later_byte_does_not_change_an_earlier_logit():
    for model in (perturbed(Gpt(SMALL)), perturbed(Recurrent("gru", width=16))):
        ids = torch.randint(256, (1, 60), generator=torch.Generator().manual_seed(0))
        changed = ids.clone()
        changed[0, 40] ^= 1
        with torch.no_grad():
            a, b = model(ids).logits, model(changed).logits
        assert torch.allclose(a[:, :40], b[:, :40], atol=1e-6)
        assert (a[:, 40] - b[:, 40]).abs().max() > 1e-4


def test_a_longer_text_is_read_through_a_window_of_the_trained_length():
    """With one layer, a position's logits are those of the last `context` bytes alone, at any offset."""
    model = perturbed(Gpt(replace(SMALL, layers=1, orders=())))
    ids = torch.randint(256, (2, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = model(ids).logits
        alone = torch.stack([model(ids[:, t - 23 : t + 1]).logits[:, -1] for t in range(23, 50)], 1)
    torch.testing.assert_close(whole[:, 23:], alone, atol=1e-4, rtol=1e-4)


def test_carried_state_makes_pieces_one_text():
    for kind in ("lstm", "gru"):
        model = perturbed(Recurrent(kind, width=16))
        ids = torch.randint(256, (2, 20), generator=torch.Generator().manual_seed(2))
        first = model(ids[:, :7])
        second = model(ids[:, 7:], state=first.state)
        torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), model(ids).logits)


def test_ordered_streams_read_on_and_start_again():
    streams = OrderedStreams(np.arange(241, dtype=np.uint8), streams=3, piece=16)
    assert streams.pieces == 5
    assert streams.batch(0).inputs[:, 0].tolist() == [0, 80, 160]
    for step in range(4):
        here, after = streams.batch(step), streams.batch(step + 1)
        assert torch.equal(here.inputs[:, 1:], here.targets[:, :-1])
        assert torch.equal(here.targets[:, -1], after.inputs[:, 0])
    assert [streams.continues(step) for step in range(6)] == [False, True, True, True, True, False]
    assert torch.equal(streams.batch(5).inputs, streams.batch(0).inputs)


class Stage:
    """A clock that moves only when told, and a conductor that grants ten seconds each time."""

    def __init__(self):
        self.time, self.reports = 0.0, []

    def ask(self, report):
        self.reports.append(report)
        self.time += 1000.0
        return 10.0

    def score(self):
        self.time += 300.0
        return 5.0

    def turns(self, *, budget, points):
        return Turns(self.ask, self.score, budget_seconds=budget, points=points, now=lambda: self.time)


def test_the_clock_counts_training_and_neither_waiting_nor_scoring():
    stage = Stage()
    turns = stage.turns(budget=40.0, points=4)
    turns.begin()
    for step in range(1, 11):
        stage.time += 4.0
        turns.between_steps(step, step * 100)
    turns.halt()
    turns.close_slice(1000)
    assert turns.active() == 40.0
    assert [report["kind"] for report in stage.reports] == ["ready", "slice", "slice", "slice"]
    assert turns.slices == [(12.0, 300), (12.0, 300), (12.0, 300), (4.0, 100)]
    assert [(p["seconds"], p["steps"], p["bpb"]) for p in turns.curve] == [
        (12.0, 3, 5.0),
        (20.0, 5, 5.0),
        (32.0, 8, 5.0),
    ]


def test_a_budget_fixes_its_steps_from_the_speed_of_its_constant_part():
    """One second a step for half of 80 s: 40 steps, hence 80 in all, however slow the rest is."""
    stage, scales = Stage(), []

    def step(number, scale):
        stage.time += 1.0 if number < 40 else 3.0
        scales.append(scale)

    class Counted(Peer):
        def __init__(self):
            self.recipe, self.model, self.bytes_per_step, self.step = RECIPES["gru"], torch.nn.Linear(2, 2), 8, step

        def schedule(self, minutes):
            return peers_trial.Schedule(4, 0.5, 0.0, minutes)

    trained = peers_trial.train_peer(Counted(), stage.turns(budget=80.0, points=1), 80 / 60)
    assert (trained.steps, trained.trained_bytes) == (80, 640)
    assert scales[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(scales[4:40]) == {1.0}
    assert scales[40] == pytest.approx(39 / 40)
    assert scales[-1] == 0.0


def test_dormouse_takes_turns_in_its_own_loop(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(peers_trial, "WINDOW_BYTES", 4096)
    reports = []

    def ask(report):
        reports.append(report)
        return 0.2

    request = peers_trial.Request("dormouse", minutes=0.02, threads=1, points=1)
    record = peers_trial.Trial(request, ask, folder=tmp_path).go()
    assert len(reports) > 2
    assert record["trained_bytes"] == record["steps"] * 16 * 256
    assert sum(size for _, size in record["slices"]) == record["trained_bytes"]
    assert sum(seconds for seconds, _ in record["slices"]) == pytest.approx(record["seconds"], abs=0.1)
    assert record["bpb"] < 8.0
    json.dumps(record, allow_nan=False)


def test_only_one_plays_at_a_time_and_the_order_turns():
    said, order = [], []

    class Player:
        def __init__(self, name, slices):
            self.request, self.left = peers_trial.Request(name, 1.0, 1), slices

        def play(self, seconds):
            order.append(self.request.model)
            self.left -= 1
            if self.left:
                return {"kind": "slice", "seconds": seconds, "bytes": 1, "bpb": None}
            return {"kind": "done", "record": {"model": self.request.model}}

    players = [Player("gpt", 3), Player("lstm", 1), Player("gru", 2)]
    records = list(peers_alternate._rounds(players, 5.0, said.append))
    assert order == ["gpt", "lstm", "gru", "gru", "gpt", "gpt"]
    assert [record["model"] for record in records] == ["lstm", "gru", "gpt"]
    assert records[0]["alternated_with"] == ["gpt", "lstm", "gru"]
    assert records[0]["matmul_gflops"]["min"] > 0


def run_record(model, bpb, **more):
    sizes = dict.fromkeys(("seconds", "steps", "trained_bytes", "bytes_per_second", "parameters"), 1)
    extra = {"table_parameters": 0, "curve": [], "matmul_gflops": {"median": 1.0}}
    return {"model": model, "minutes": 2.0, "bpb": bpb, "bpb_at_256": bpb, **sizes, **extra, **more}


def test_finished_pairs_are_kept_and_other_settings_are_refused(tmp_path):
    path = tmp_path / "results" / "peers.json"
    first = Results.open(path, {"threads": 2})
    first.add(run_record("gru", 2.5))
    again = Results.open(path, {"threads": 2})
    assert again.has("gru", 2.0)
    assert not again.has("gru", 4.0)
    assert not again.has("lstm", 2.0)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="threads"):
        Results.open(path, {"threads": 1})
    assert path.read_bytes() == before
    path.write_text("[]")
    with pytest.raises(ConfigError, match="not a results file"):
        Results.open(path, {"threads": 2})


def test_the_lead_is_over_the_better_score_of_the_best_peer():
    group = [run_record("dormouse", 2.0), run_record("gpt", 2.3, bpb_at_256=2.1), run_record("gru", 2.2)]
    assert lead(group) == ["dormouse is 0.100 BPB below the best peer (gpt, 2.100)"]
    group[0]["bpb"] = 2.15
    assert lead(group) == ["dormouse is 0.050 BPB ABOVE the best peer (gpt, 2.100)"]
    assert lead(group[1:]) == []
    assert sum("gru" in line for line in table(group)) == 2


def test_a_model_that_does_not_exist_is_refused_before_any_work(capsys):
    with pytest.raises(SystemExit) as refused:
        peers.main(["--models", "transformer-xl"])
    assert refused.value.code == 2
    assert "dormouse" in capsys.readouterr().err
    with pytest.raises(SystemExit) as refused:
        peers.main(["--minutes", "0"])
    assert refused.value.code == 2
