"""The sampler against a float64 softmax written in numpy, and the edges of DM-44."""

import numpy as np
import pytest
import torch

from dormouse.errors import ConfigError, DormouseError
from dormouse.model.sampling import GREEDY_BELOW, SamplingSettings, pick, probabilities, sample

ONE_THREE_TWO = torch.tensor([1.0, 3.0, 2.0])


def reference(logits, *, temperature=1.0, top_k=0, top_p=1.0):
    """Temperature, then top-k, then top-p over what is left: one row, plain Python loops, float64."""
    x = np.asarray(logits, dtype=np.float64)
    order = sorted(range(len(x)), key=lambda symbol: (-x[symbol], symbol))
    kept = order[:top_k] if top_k else order
    weight = {symbol: np.exp((x[symbol] - x.max()) / temperature) for symbol in kept}
    total = sum(weight.values())
    chosen, reached = [], 0.0
    for symbol in kept:
        chosen.append(symbol)
        reached += weight[symbol] / total
        if reached >= top_p and top_p < 1:
            break
    result = np.zeros(len(x))
    for symbol in chosen:
        result[symbol] = weight[symbol] / sum(weight[other] for other in chosen)
    return result


def drawn(logits, count=200, seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.as_tensor(logits).expand(count, -1)
    return sample(rows, SamplingSettings(**settings), generator).tolist()


@pytest.mark.parametrize("temperature", [0, 0.0, -0.0, 1e-45, 1e-9, 5e-324, GREEDY_BELOW / 2])
def test_temperature_zero_and_anything_near_it_takes_the_most_likely_symbol(temperature):
    assert drawn(ONE_THREE_TWO, temperature=temperature) == [1] * 200


@pytest.mark.parametrize("limits", [{"top_p": 1e-9}, {"top_p": 5e-324}, {"top_k": 1}, {"top_k": 1, "top_p": 1e-9}])
def test_the_most_likely_symbol_survives_the_tightest_limits(limits):
    assert drawn(ONE_THREE_TWO, temperature=1.0, **limits) == [1] * 200


@pytest.mark.parametrize("top_k", [0, 3, 4, 256, 1000])
def test_top_k_zero_or_above_the_vocabulary_keeps_every_symbol(top_k):
    got = probabilities(ONE_THREE_TWO, SamplingSettings(temperature=1.0, top_k=top_k))
    np.testing.assert_allclose(got, [0.09003057, 0.66524096, 0.24472847], atol=1e-8)


def test_a_temperature_just_above_the_greedy_limit_divides_without_overflow():
    logits = torch.tensor([3e38, -3e38, 3e38, 0.0])
    got = probabilities(logits, SamplingSettings(temperature=GREEDY_BELOW))
    assert got.tolist() == [0.5, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 1e6])
@pytest.mark.parametrize("top_k", [0, 1, 7, 255])
@pytest.mark.parametrize("top_p", [0.05, 0.6, 0.999, 1.0])
def test_probabilities_equal_the_numpy_softmax(temperature, top_k, top_p):
    logits = torch.randn(3, 256, generator=torch.Generator().manual_seed(1)) * 4
    settings = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p)
    got = probabilities(logits, settings)
    for row in range(3):
        want = reference(logits[row].numpy(), temperature=temperature, top_k=top_k, top_p=top_p)
        np.testing.assert_allclose(got[row], want, rtol=1e-9, atol=1e-15)


def test_uniform_numbers_are_turned_into_symbols_in_proportion_to_their_probability():
    logits = torch.randn(256, generator=torch.Generator().manual_seed(2)) * 3
    settings = SamplingSettings(temperature=0.7, top_p=0.9)
    points = 20_000
    grid = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    ids = pick(logits.expand(points, -1), settings, grid)
    share = np.bincount(ids.numpy(), minlength=256) / points
    want = reference(logits.numpy(), temperature=0.7, top_p=0.9)
    assert np.abs(share - want).max() <= 1.0 / points
    assert share[want == 0].sum() == 0


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53, 1.0])
def test_the_ends_of_the_uniform_range_give_symbols_with_probability(uniform):
    logits = torch.tensor([0.0, -1000.0, 2.0, -2000.0])
    got = int(pick(logits, SamplingSettings(temperature=1.0), torch.tensor(uniform, dtype=torch.float64)))
    assert got == (2 if uniform == 0.0 else 0)


def test_a_uniform_number_on_the_edge_between_two_symbols_belongs_to_the_second():
    halves = [pick(torch.zeros(2), SamplingSettings(temperature=1.0), torch.tensor(u)) for u in (0.0, 0.5)]
    assert [int(symbol) for symbol in halves] == [0, 1]


def test_ties_go_to_the_lowest_byte_in_the_greedy_choice_and_at_both_edges():
    logits = torch.zeros(256)
    logits[[9, 70, 200]] = 5.0
    assert drawn(logits, temperature=0.0, count=3) == [9] * 3
    two = probabilities(logits, SamplingSettings(temperature=1.0, top_k=2))
    assert two.nonzero().flatten().tolist() == [9, 70]
    nucleus = probabilities(logits[[9, 70, 200]], SamplingSettings(temperature=1.0, top_p=0.5))
    assert nucleus.tolist() == [0.5, 0.5, 0.0]


def test_greedy_leaves_its_generator_alone_and_sampling_leaves_the_global_one_alone():
    generator = torch.Generator().manual_seed(3)
    own, everyone = generator.get_state(), torch.get_rng_state()
    sample(ONE_THREE_TWO, SamplingSettings(temperature=0.0), generator)
    assert torch.equal(generator.get_state(), own)
    sample(ONE_THREE_TWO, SamplingSettings(temperature=1.0), generator)
    assert not torch.equal(generator.get_state(), own)
    assert torch.equal(torch.get_rng_state(), everyone)


def test_the_same_seed_draws_the_same_symbols_and_another_seed_others():
    logits = torch.zeros(256)
    assert drawn(logits, seed=5, temperature=1.0) == drawn(logits, seed=5, temperature=1.0)
    assert drawn(logits, seed=5, temperature=1.0) != drawn(logits, seed=6, temperature=1.0)


def test_forbidden_symbols_are_never_drawn_and_limits_count_only_allowed_ones():
    allowed = torch.tensor([True, False, True])
    assert drawn(ONE_THREE_TWO, temperature=0.0, count=2) == [1, 1]
    assert int(pick(ONE_THREE_TWO, SamplingSettings(temperature=0.0), None, allowed=allowed)) == 2
    got = probabilities(ONE_THREE_TWO, SamplingSettings(temperature=1.0, top_k=2), allowed=allowed)
    np.testing.assert_allclose(got, [0.26894142, 0.0, 0.73105858], atol=1e-8)


def test_minus_infinity_is_a_legal_logit_of_probability_zero():
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf])
    assert set(drawn(logits, temperature=1.0)) == {1}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_refused_with_the_byte_named(value, temperature):
    logits = torch.zeros(2, 256)
    logits[1, 65] = value
    with pytest.raises(DormouseError, match=r"logit of byte 65 is (nan|inf)"):
        sample(logits, SamplingSettings(temperature=temperature), torch.Generator())


def test_a_row_without_any_possible_byte_is_refused():
    nothing = torch.zeros(3, dtype=torch.bool)
    for temperature in (0.0, 1.0):
        with pytest.raises(DormouseError, match="nothing to draw from"):
            sample(ONE_THREE_TWO, SamplingSettings(temperature=temperature), torch.Generator(), allowed=nothing)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", -0.5),
        ("top_p", 1.0001),
        ("top_p", float("nan")),
    ],
)
def test_settings_without_meaning_are_refused_with_field_value_and_way_out(field, value):
    with pytest.raises(ConfigError, match=rf"^{field} = {value}: .*; give "):
        SamplingSettings(**{field: value})


def test_low_precision_logits_are_sampled_in_float64():
    logits = torch.randn(256, generator=torch.Generator().manual_seed(4)).bfloat16()
    got = probabilities(logits, SamplingSettings(temperature=1.0))
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got, reference(logits.double().numpy()), rtol=1e-12)
