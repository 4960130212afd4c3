"""DM-09: the numbers of utilisation, from the counting to the row and the line."""

import pytest
import torch

from dormouse.instruments.utilization import add_counts, selected_sum, utilization
from dormouse.train.progress import train_line
from dormouse.train.tally import Tally

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("counts", "entropy", "dead"),
    [
        ((4, 2, 0, 0), 0.459148, 2),
        ((3, 3, 2, 0), 0.780639, 1),  # k = 2, four tokens: over assignments, not token shares (0.561278)
        ((9, 7, 0, 0), 0.4943, 2),
        ((6, 6, 6, 6), 1.0, 0),
        ((0, 8, 0, 0), 0.0, 3),
        ((7,), 1.0, 0),
    ],
)
def test_entropy_and_dead_experts_of_counts(counts, entropy, dead):
    found = utilization(counts)
    assert found.entropy == pytest.approx(entropy, abs=5e-5 if entropy == 0.4943 else 1e-6)
    assert found.dead == dead


def test_at_two_experts_a_token_assignments_are_counted_and_not_the_strongest_alone():
    counts = torch.zeros(4, dtype=torch.int64)
    add_counts(counts, torch.tensor([[0, 1], [0, 1], [0, 2], [1, 2]]))
    assert counts.tolist() == [3, 3, 2, 0]


def test_two_ranks_are_pooled_before_the_entropy():
    ranks = torch.tensor([[4, 0], [0, 4]])
    assert utilization(ranks.sum(0)).entropy == pytest.approx(1.0, abs=1e-12)
    assert sum(utilization(rank).entropy for rank in ranks) == 0.0


def test_masked_positions_change_neither_shares_nor_gate():
    """DM-01's numbers: rows 2 and 3 are padding, whatever stands there."""
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.99, 0.01], [0.99, 0.01]])
    mask = torch.tensor([True, True, False, False])
    for padding in (0, 1):
        ids = torch.tensor([[0], [1], [padding], [padding]])
        counts = torch.zeros(2, dtype=torch.int64)
        add_counts(counts, ids, mask)
        assert counts.tolist() == [1, 1]
        assert selected_sum(probs, ids, mask).item() == pytest.approx(0.9 + 0.8)


def record_of(probs, ids):
    from dormouse.model.records import RoutingRecord

    probs, ids = torch.tensor(probs), torch.tensor(ids)
    return RoutingRecord(probs, ids, 99.0 * probs.gather(-1, ids))


def test_the_gate_is_the_probability_before_scale_and_the_passes_are_kept_apart():
    tally = Tally(CPU, n_experts=2, n_passes=3)
    tally.route(record_of([[[[0.75, 0.25]]], [[[0.5, 0.5]]]], [[[[0]]], [[[1]]]]))
    tally.route(record_of([[[[0.25, 0.75]]]], [[[[0]]]]))
    reading = tally.read()
    assert reading.gate == pytest.approx((0.75 + 0.5 + 0.25) / 3)
    assert reading.utilization.shares == pytest.approx((2 / 3, 1 / 3))
    assert [each and each.shares for each in reading.by_pass] == [(1.0, 0.0), (0.0, 1.0), None]


def test_without_a_token_or_routing_there_is_no_field(runs):
    assert utilization([0, 0]) is None
    assert Tally(CPU, n_experts=2).read().gate is None
    for name, settings in {"one": ("n_experts=1", "moe_lb_coef=0"), "blend": ("moe_topk=0", "moe_lb_coef=0")}.items():
        runs.finish(runs.begin(runs.config(*settings, steps=1), name, log_passes=True))
        [row] = runs.rows(name, "train")
        assert not [key for key in row if key.startswith("moe")]
        assert "moe=" not in train_line(row)


def test_the_number_of_series_does_not_grow_with_passes_unless_asked(runs):
    series = {}
    for passes in (2, 3):
        for asked in (False, True):
            name = f"run{passes}{asked}"
            config = runs.config(f"max_iter={passes}", "moe_topk=2", steps=1)
            runs.finish(runs.begin(config, name, log_passes=asked))
            [row] = runs.rows(name, "train")
            series[passes, asked] = {key: row[key] for key in row if key.startswith("moe")}
    assert sorted(series[3, False]) == sorted(series[2, False]) == ["moe", "moe_dead", "moe_entropy", "moe_gate"]
    assert len(series[3, False]["moe"]) == 4
    by_pass = torch.tensor(series[3, True]["moe_by_pass"])
    assert by_pass.shape == (3, 4)
    torch.testing.assert_close(by_pass.mean(0), torch.tensor(series[3, True]["moe"]))
    assert 0.25 < series[3, True]["moe_gate"] * 2 <= 1.0  # the two largest of four, together


def test_everything_on_the_line_is_in_the_row(runs):
    runs.finish(runs.begin(runs.config(steps=2)))
    row = runs.rows("run", "train")[-1]
    shares = ",".join(f"{share:.3f}" for share in row["moe"])
    expected = f"moe=[{shares}] H={row['moe_entropy']:.3f} dead={row['moe_dead']} gate={row['moe_gate']:.3f}"
    assert expected in train_line(row)


def test_dead_is_judged_over_the_whole_log_window(runs):
    """An expert that one step of the window used is not dead."""
    tally = Tally(CPU, n_experts=2)
    tally.route(record_of([[[[0.9, 0.1]]]], [[[[0]]]]))
    assert tally.read().utilization.dead == 1
    tally.route(record_of([[[[0.1, 0.9]]]], [[[[1]]]]))
    assert tally.read().utilization.dead == 0
    tally.reset()
    tally.route(record_of([[[[0.9, 0.1]]]], [[[[0]]]]))
    assert tally.read().utilization.dead == 1
