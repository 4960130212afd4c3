"""What a trace says of a text is what the model, the evaluation and the log line say of it."""

import numpy as np
import pytest
import torch

from dormouse.config.load import load_run_config
from dormouse.data.window import EvalWindow
from dormouse.errors import ConfigError, DataError, TrainingHalted
from dormouse.instruments.trace import trace
from dormouse.instruments.utilization import add_counts, utilization
from dormouse.model.lm import Dormouse
from dormouse.train.evaluate import evaluate

T0 = (
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "max_iter=3", "kda_decay_rank=4"),
    *("kda_gate_rank=4", "engram_rows=64", "engram_dim=4", "n_experts=6", "moe_topk=2"),
)
TEXT = np.frombuffer(b"the cat sat on the mat.\n\nand the rat sat on the cat.\n" * 5, dtype=np.uint8)


def make_model(*overrides, seed=0):
    torch.manual_seed(seed)
    keys = {text.split("=")[0] for text in overrides}
    kept = [text for text in T0 if text.split("=")[0] not in keys]
    model = Dormouse(load_run_config("tiny", None, [*kept, *overrides], {}).model).eval()
    with torch.no_grad():
        for parameter in (model.lm_head.weight, model.loop.iter_embed, model.loop.controller.weight):
            parameter.normal_(std=0.3)
    return model


def whole(model):
    return model(torch.from_numpy(TEXT.astype(np.int64))[None])


@pytest.mark.parametrize("overrides", [(), ("layout=parallel",), ("use_kda=false", "use_plain_attn=true")])
@pytest.mark.parametrize("separator", [None, b"\n\n"])
def test_the_mean_surprisal_is_the_score_of_the_evaluation(overrides, separator):
    model = make_model(*overrides)
    window = EvalWindow(TEXT, batches=None, batch_size=1, seq_len=len(TEXT) - 1, separator=separator)
    expected = evaluate(model, window)
    found = trace(model, TEXT, window=40, separator=separator)
    assert found.bpb == pytest.approx(expected.bpb, abs=1e-6)
    assert found.scored_bytes == expected.scored_bytes == len(TEXT) - 1
    assert found.bpb == pytest.approx(np.mean(found.bits[1:]), abs=1e-12)


def test_a_separator_changes_the_score_so_the_test_above_can_fail():
    model = make_model()
    assert abs(trace(model, TEXT).bpb - trace(model, TEXT, separator=b"\n\n").bpb) > 1e-4


def test_the_surprisal_of_a_byte_is_that_of_the_logits_before_it():
    model = make_model()
    log_p = whole(model).logits[0].double().log_softmax(-1)
    found = trace(model, TEXT, window=7).bits
    assert np.isnan(found[0])
    for place in (1, 7, 8, len(TEXT) - 1):
        assert found[place] == pytest.approx(-log_p[place - 1, TEXT[place]].item() / np.log(2), abs=1e-5)


@pytest.mark.parametrize("window", [1, 7, 32, 33, 10_000])
def test_the_size_of_the_windows_changes_nothing(window):
    model = make_model()
    expected, found = trace(model, TEXT, window=64), trace(model, TEXT, window=window)
    np.testing.assert_allclose(found.bits[1:], expected.bits[1:], atol=1e-5)
    np.testing.assert_allclose(found.gates, expected.gates, atol=1e-5)
    np.testing.assert_allclose(found.entropy, expected.entropy, atol=1e-5)
    np.testing.assert_array_equal(found.ids, expected.ids)


def test_experts_gates_and_shares_are_those_of_the_forward():
    model = make_model()
    routing = whole(model).routing
    found = trace(model, TEXT, window=50)
    np.testing.assert_array_equal(found.ids, routing.ids[:, 0].numpy())
    np.testing.assert_allclose(found.gates, routing.gates[:, 0].detach().numpy(), atol=1e-5)
    for number, chosen in enumerate(routing.ids):
        counts = torch.zeros(6, dtype=torch.int64)
        add_counts(counts, chosen)
        assert found.counts()[number].tolist() == counts.tolist()
        assert utilization(found.counts()[number]).shares == pytest.approx(utilization(counts).shares)
    assert (found.n_passes, found.top_k, found.n_experts) == (3, 2, 6)


def test_the_first_expert_is_the_argmax_and_confidence_its_probability():
    model = make_model()
    probs = whole(model).routing.probs[:, 0].detach().double().numpy()
    found = trace(model, TEXT)
    np.testing.assert_array_equal(found.ids[..., 0], probs.argmax(-1))
    np.testing.assert_allclose(found.confidence, probs.max(-1), atol=1e-6)
    np.testing.assert_allclose(found.entropy, -(probs * np.log2(probs)).sum(-1), atol=1e-5)


def test_among_equal_probabilities_the_lower_numbers_are_chosen():
    model = make_model()
    torch.nn.init.zeros_(model.loop.controller.weight)
    found = trace(model, TEXT)
    assert (found.ids == [0, 1]).all()
    np.testing.assert_allclose(found.confidence, 1 / 6, rtol=1e-6)
    np.testing.assert_allclose(found.entropy, np.log2(6), rtol=1e-6)
    assert found.max_entropy == pytest.approx(2.584963, abs=1e-6)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_a_selection_bias_chooses_and_the_largest_gate_comes_first(score):
    model = make_model("selection_bias=loss_free", f"router_score={score}")
    plain = trace(model, TEXT)
    model.loop.experts.router.selection_bias.copy_(torch.tensor([0, 0, 0, 0, 0, 5.0]))
    found, routing = trace(model, TEXT), whole(model).routing
    assert (plain.ids != 5).all(-1).any()
    assert (found.ids == 5).any(-1).all()
    assert (found.ids[..., 0] != 5).any()
    assert (np.diff(found.gates, axis=-1) <= 0).all()
    for place in (0, 100, 264):
        expected = dict(zip(routing.ids[1, 0, place].tolist(), routing.gates[1, 0, place].tolist(), strict=True))
        listed = dict(zip(found.ids[1, place].tolist(), found.gates[1, place].tolist(), strict=True))
        assert listed == pytest.approx(expected, abs=1e-5)
        assert found.confidence[1, place] == pytest.approx(
            routing.probs[1, 0, place, found.ids[1, place, 0]].item(), abs=1e-6
        )


def test_null_experts_are_columns_of_their_own_and_shares_are_those_of_the_log_line():
    model = make_model("n_null_experts=2")
    found, routing = trace(model, TEXT), whole(model).routing
    assert (found.n_experts, found.n_null, found.n_columns, found.counts().shape) == (6, 2, 8, (3, 8))
    assert found.max_entropy == 3
    assert found.counts()[:, 6:].sum() > 0
    for number, chosen in enumerate(routing.ids):
        counts = torch.zeros(6, dtype=torch.int64)
        add_counts(counts, chosen)
        assert found.counts()[number, :6].tolist() == counts.tolist()


def test_only_the_passes_that_run_are_traced():
    model = make_model()
    model.n_passes = 1
    assert trace(model, TEXT).ids.shape == (1, len(TEXT), 2)


@pytest.mark.parametrize("training", [True, False])
def test_a_trace_leaves_mode_generator_and_gradients_alone(training):
    model = make_model().train(training)
    before = torch.get_rng_state()
    trace(model, TEXT)
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("n_experts=1", "moe_topk=1", "moe_lb_coef=0", "moe_gate_scale=one"), "model.n_experts = 1: every byte uses"),
        (("moe_topk=0", "moe_lb_coef=0"), "model.moe_topk = 0: the blend runs all 6 experts"),
    ],
)
def test_a_model_that_selects_nothing_is_refused_by_name(overrides, named):
    with pytest.raises(ConfigError, match=named):
        trace(make_model(*overrides), TEXT)


def test_a_text_without_a_scored_byte_is_refused():
    with pytest.raises(DataError, match="text of 1 bytes"):
        trace(make_model(), TEXT[:1])


def test_a_surprisal_that_is_not_finite_stops():
    model = make_model()
    torch.nn.init.constant_(model.lm_head.bias, float("nan"))
    with pytest.raises(TrainingHalted, match="264 of 264 bytes have no finite probability"):
        trace(model, TEXT)
