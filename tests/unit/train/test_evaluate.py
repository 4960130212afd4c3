import math

import numpy as np
import pytest
import torch

from dormouse.data.window import EvalWindow
from dormouse.errors import TrainingHalted
from dormouse.train.evaluate import EvaluationAbandoned, evaluate


def costly(losses):
    """Logits in which the byte after byte i costs `losses[i]` nats, for text 0, 1, 2, ..."""
    rows = torch.zeros(256, 256, dtype=torch.float64)
    for byte, nats in enumerate(losses):
        keep = math.exp(-nats)
        rows[byte] = math.log((1 - keep) / 255)
        rows[byte, byte + 1] = math.log(keep)
    return rows


def counting_text(number):
    return np.arange(number, dtype=np.uint8)


@pytest.mark.parametrize("constant", [0.0, 3.25])
def test_equal_logits_score_exactly_eight_bits(tools, constant):
    text = np.frombuffer(np.random.default_rng(0).bytes(1000), dtype=np.uint8)
    model = tools.Table(logits=torch.full((256, 256), constant))
    window = EvalWindow(text, batches=3, batch_size=2, seq_len=16)
    result = evaluate(model, window)
    assert result.bpb == 8.0
    assert (result.scored_bytes, result.window_bytes) == (96, 96)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 11])
def test_eleven_bytes_are_scored_as_eleven_whatever_the_batch(tools, batch_size):
    """Eight bytes of 1 nat and three of 4 nats: 20 / (11 ln 2)."""
    model = tools.Table(logits=costly([1.0] * 8 + [4.0] * 3))
    window = EvalWindow(counting_text(12), batches=None, batch_size=batch_size, seq_len=4)
    result = evaluate(model, window)
    assert result.scored_bytes == 11
    assert result.bpb == pytest.approx(20 / (11 * math.log(2)), abs=1e-9)
    assert result.bpb == pytest.approx(2.623082, abs=1e-6)


def test_a_first_byte_without_context_is_not_scored(tools):
    model = tools.Table(logits=costly([1.0] * 7 + [4.0] * 3))
    result = evaluate(model, EvalWindow(counting_text(11), batches=None, batch_size=2, seq_len=4))
    assert result.scored_bytes == 10
    assert result.bpb == pytest.approx(19 / (10 * math.log(2)), abs=1e-9)


def test_the_denominator_is_bytes_not_characters(tools):
    """Two characters, three bytes, 3 nats in all: 1.442695, by characters 2.164043."""
    model = tools.Table(logits=costly([1.0] * 3))
    result = evaluate(model, EvalWindow(counting_text(4), batches=None, batch_size=1, seq_len=8))
    assert result.bpb == pytest.approx(1.442695, abs=1e-6)


def test_a_file_shorter_than_the_window_says_how_many_bytes_were_scored(tools):
    result = evaluate(tools.Table(), EvalWindow(counting_text(11), batches=10, batch_size=8, seq_len=512))
    assert (result.bpb, result.scored_bytes, result.window_bytes) == (8.0, 10, 40_960)


def test_the_model_is_in_evaluation_mode_only_while_it_is_scored(tools):
    seen = []

    class Watched(tools.Table):
        def forward(self, ids, bounds=None, state=None):
            seen.append((self.training, torch.is_grad_enabled()))
            return super().forward(ids, bounds, state)

    for mode in (True, False):
        model = Watched().train(mode)
        evaluate(model, EvalWindow(counting_text(9), batches=None, seq_len=4, batch_size=1))
        assert model.training is mode
    assert set(seen) == {(False, False)}


def test_no_random_number_is_drawn_and_no_gradient_left(tools):
    torch.manual_seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    model = tools.Table()
    evaluate(model, EvalWindow(counting_text(9), batches=None, seq_len=4))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert model.rows.grad is None


def test_each_register_gets_the_mean_of_its_own_bytes(tools):
    """Bytes 1..8 cost 1 nat and 9..11 cost 4; the cut is inside a sequence."""
    model = tools.Table(logits=costly([1.0] * 8 + [4.0] * 3))
    registers = {"cheap": [(0, 9)], "dear": [(9, 11), (11, 12)], "both": [(7, 11)], "absent": [(12, 99)]}
    window = EvalWindow(counting_text(12), batches=None, batch_size=2, seq_len=5)
    found = evaluate(model, window, registers=registers).by_register
    expected = {"cheap": 1.0, "dear": 4.0, "both": (1 + 1 + 4 + 4) / 4}
    assert found == pytest.approx({name: nats / math.log(2) for name, nats in expected.items()})


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_loud(tools, bad):
    rows = torch.zeros(256, 256)
    rows[3, 7] = bad
    model = tools.Table(logits=rows).train()
    with pytest.raises(TrainingHalted, match=r"1 of 8 scored bytes"):
        evaluate(model, EvalWindow(counting_text(9), batches=None, seq_len=4))
    assert model.training


def test_a_stop_request_abandons_the_evaluation_and_restores_the_mode(tools):
    model = tools.Table().train()
    answers = iter([False, True])
    with pytest.raises(EvaluationAbandoned):
        evaluate(
            model,
            EvalWindow(counting_text(50), batches=None, batch_size=1, seq_len=4),
            should_stop=lambda: next(answers),
        )
    assert model.training
