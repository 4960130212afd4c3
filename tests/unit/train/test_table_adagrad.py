"""Row-wise Adagrad against its closed form."""

import pytest
import torch
from torch import nn

from dormouse.train.table_adagrad import TableAdagrad


def sparse(rows, values, size):
    return torch.sparse_coo_tensor(torch.tensor([rows]), torch.tensor(values), size, check_invariants=True)


def test_equal_gradients_move_a_row_by_the_rate_over_the_root_of_the_count():
    """g = (3, -3) has root mean square 3, so the n-th step is lr / sqrt(n) in every entry, against g's sign."""
    table = nn.Parameter(torch.zeros(5, 2))
    adagrad = TableAdagrad({"t": table}, lr=0.5)
    moved = 0.0
    for n in range(1, 5):
        table.grad = sparse([2], [[3.0, -3.0]], (5, 2))
        adagrad.step(1.0)
        moved += 0.5 / n**0.5
        assert table[2].tolist() == pytest.approx([-moved, moved], rel=1e-6)


def test_one_number_a_row_keeps_the_direction_of_the_gradient():
    """(4, 0): mean square 8, root 2.828, so the step is lr * (1.414, 0)."""
    table = nn.Parameter(torch.zeros(1, 2))
    table.grad = sparse([0], [[4.0, 0.0]], (1, 2))
    TableAdagrad({"t": table}, lr=1.0).step(0.25)
    assert table[0].tolist() == pytest.approx([-0.25 * 2**0.5, 0.0], rel=1e-6)


def test_a_row_read_twice_in_a_batch_gets_the_sum():
    table = nn.Parameter(torch.zeros(3, 1))
    adagrad = TableAdagrad({"t": table}, lr=1.0)
    table.grad = sparse([1, 1], [[2.0], [-5.0]], (3, 1))
    adagrad.step(1.0)
    assert table[1].item() == pytest.approx(1.0)
    assert adagrad.accumulators["t"][1].item() == pytest.approx(9.0)


def test_rows_that_were_not_read_keep_their_bits():
    start = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    table = nn.Parameter(start.clone())
    adagrad = TableAdagrad({"t": table}, lr=1.0)
    adagrad.step(1.0)
    assert torch.equal(table, start)
    table.grad = sparse([4], [[1.0, 2.0, 3.0]], (6, 3))
    adagrad.step(1.0)
    untouched = [0, 1, 2, 3, 5]
    assert torch.equal(table[untouched], start[untouched])
    assert not torch.equal(table[4], start[4])
    assert adagrad.accumulators["t"][untouched].count_nonzero() == 0


def test_saved_sums_continue_to_the_bit():
    def steps(adagrad, table, numbers):
        for n in numbers:
            table.grad = sparse([n % 2], [[1.0 + n, 0.5]], (2, 2))
            adagrad.step(1.0)

    whole, first, second = (nn.Parameter(torch.zeros(2, 2)) for _ in range(3))
    steps(TableAdagrad({"t": whole}, lr=0.3), whole, range(6))
    before, after = TableAdagrad({"t": first}, lr=0.3), TableAdagrad({"t": second}, lr=0.3)
    steps(before, first, range(3))
    after.load_state_dict({name: value.clone() for name, value in before.state_dict().items()})
    second.data.copy_(first.data)
    steps(after, second, range(3, 6))
    assert torch.equal(second, whole)
