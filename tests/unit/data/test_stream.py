"""Training batches: a function of the step; every window once an epoch, for any ranks and any stop."""

import numpy as np
import pytest
import torch

from dormouse.data.stream import TrainStream
from dormouse.errors import DataError

SEQ = 4
# 20 numbered windows of 4 inputs, and the one byte that is only the last target.
NUMBERED = np.append(np.repeat(np.arange(20, dtype=np.uint8), SEQ), np.uint8(99))


def numbered(**changes) -> TrainStream:
    return TrainStream(NUMBERED, **({"seq_len": SEQ, "batch_size": 4, "seed": 7} | changes))


def ids(stream: TrainStream, steps: range) -> list[list[int]]:
    return [stream.batch(step).window_ids.tolist() for step in steps]


def test_each_epoch_visits_every_window_once_and_epochs_differ():
    seen = np.array(ids(numbered(), range(15))).reshape(3, 20)
    for epoch in seen:
        assert sorted(epoch.tolist()) == list(range(20))
    assert len({tuple(epoch.tolist()) for epoch in seen}) == 3


def test_the_window_number_names_the_bytes_that_are_read():
    for step in range(15):
        batch = numbered().batch(step)
        assert torch.equal(batch.inputs, batch.window_ids[:, None].expand(4, SEQ))


@pytest.mark.parametrize("stops", [(7,), (5,), (10,), (7, 12), (3, 3), (15,)])
def test_a_resumed_run_reads_what_the_uninterrupted_run_reads(stops):
    whole = ids(numbered(), range(15))
    parts, begin = [], 0
    for stop in (*stops, 15):
        parts += ids(numbered(), range(begin, stop))  # a new stream, as after a restart
        begin = stop
    assert parts == whole


def test_a_step_may_be_asked_in_any_order_and_again():
    stream = numbered()
    assert [ids(stream, range(step, step + 1))[0] for step in (9, 2, 9)] == [
        ids(numbered(), range(step, step + 1))[0] for step in (9, 2, 9)
    ]


@pytest.mark.parametrize(("world", "batch_size"), [(2, 2), (4, 1), (1, 4)])
def test_the_ranks_share_out_the_same_global_batch(world, batch_size):
    whole = ids(numbered(), range(15))
    ranks = [numbered(rank=rank, world=world, batch_size=batch_size) for rank in range(world)]
    shared = [[i for stream in ranks for i in stream.batch(step).window_ids.tolist()] for step in range(15)]
    assert shared == whole


def test_a_batch_may_be_larger_than_an_epoch():
    batch = numbered(batch_size=50).batch(0)
    counts = np.bincount(batch.window_ids.numpy(), minlength=20)
    assert counts.sum() == 50
    assert set(counts.tolist()) <= {2, 3}


def test_targets_are_the_next_bytes_also_across_windows():
    data = np.arange(21, dtype=np.uint8)
    batch = TrainStream(data, seq_len=5, batch_size=4, seed=0).batch(0)
    assert torch.equal(batch.targets, batch.inputs + 1)
    assert batch.inputs[:, 0].tolist() == (5 * batch.window_ids).tolist()
    assert sorted(batch.targets[:, -1].tolist()) == [5, 10, 15, 20]


def test_shapes_and_types_are_those_of_the_contract():
    batch = numbered(separator=b"\x05").batch(0)
    for tensor, dtype, shape in (
        (batch.inputs, torch.int64, (4, SEQ)),
        (batch.targets, torch.int64, (4, SEQ)),
        (batch.mask, torch.bool, (4, SEQ)),
        (batch.bounds, torch.bool, (4, SEQ)),
        (batch.window_ids, torch.int64, (4,)),
    ):
        assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape)
        assert tensor.is_contiguous()
    assert bool(batch.mask.all())
    assert numbered().batch(0).bounds is None


def test_context_plus_one_bytes_are_exactly_one_window():
    data = np.arange(9, dtype=np.uint8)
    stream = TrainStream(data, seq_len=8, batch_size=1, seed=0)
    assert stream.n_windows == 1
    assert stream.batch(5).inputs.tolist() == [list(range(8))]
    assert stream.batch(5).targets.tolist() == [list(range(1, 9))]
    with pytest.raises(DataError, match=r"8 bytes .*needs 9 bytes"):
        TrainStream(data[:8], seq_len=8, batch_size=1, seed=0)


@pytest.mark.parametrize(("size", "windows"), [(9, 1), (16, 1), (17, 2), (24, 2), (25, 3)])
def test_a_window_needs_the_byte_after_its_inputs(size, windows):
    stream = TrainStream(np.arange(size, dtype=np.uint8), seq_len=8, batch_size=windows, seed=0)
    assert stream.n_windows == windows
    batch = stream.batch(0)
    assert sorted(batch.inputs.flatten().tolist()) == list(range(8 * windows))
    assert sorted(batch.targets.flatten().tolist()) == list(range(1, 8 * windows + 1))


def test_the_bytes_of_a_file_are_the_numbers_the_model_sees():
    raw = bytes([0xEF, 0xBB, 0xBF, 0x61, 0x0D, 0x0A, 0x62, 0x00, 0xFF])
    batch = TrainStream(np.frombuffer(raw, dtype=np.uint8), seq_len=8, batch_size=1, seed=0).batch(0)
    assert [*batch.inputs[0].tolist(), int(batch.targets[0, -1])] == [239, 187, 191, 97, 13, 10, 98, 0, 255]


def test_a_window_marks_its_first_byte_only_if_a_document_starts_there():
    text = np.frombuffer(b"abc|defgh|ijklmno", dtype=np.uint8)
    stream = TrainStream(text, seq_len=4, batch_size=4, seed=0, separator=b"|")
    batch = stream.batch(0)
    rows = {int(number): row.tolist() for number, row in zip(batch.window_ids, batch.bounds, strict=True)}
    # windows: "abc|" "defg" "h|ij" "klmn"
    assert rows[0] == [True, False, False, False]
    assert rows[1] == [True, False, False, False]
    assert rows[2] == [False, False, True, False]
    assert rows[3] == [False, False, False, False]


def test_changing_a_batch_does_not_change_the_stream():
    stream = numbered()
    stream.batch(0).inputs.fill_(0)
    assert torch.equal(stream.batch(0).inputs, numbered().batch(0).inputs)
