"""Overrides are TOML values or bare words, and what is set is what comes back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse.config.load import load_run_config
from dormouse.config.overrides import parse_override, parse_value
from dormouse.config.problems import shown
from dormouse.errors import ConfigError

TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12).filter(lambda s: s != "none")
SETTINGS = st.one_of(
    st.tuples(st.just("model"), st.sampled_from(["d_ffn", "engram_rows"]), st.integers(64, 10**6)),
    st.tuples(st.just("model"), st.just("layout"), st.sampled_from(["parallel", "sequential"])),
    st.tuples(st.just("model"), st.sampled_from(["use_engram", "use_tsct", "controller_norm"]), st.booleans()),
    st.tuples(
        st.just("model"),
        st.just("engram_orders"),
        st.sets(st.integers(2, 8), min_size=1).map(lambda orders: tuple(sorted(orders))),
    ),
    st.tuples(st.just("train"), st.sampled_from(["lr", "muon_lr"]), st.floats(1e-300, 1e300)),
    st.tuples(st.just("train"), st.just("seed"), st.integers(0, 2**63 - 1)),
    st.tuples(st.just("train"), st.just("threads"), st.one_of(st.none(), st.integers(1, 64))),
    st.tuples(st.just("data"), st.just("data"), TEXT),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(SETTINGS, max_size=4, unique_by=lambda item: item[1]))
def test_an_override_written_out_and_read_back_is_the_same_value(chosen):
    texts = [f"{section}.{key}={shown(value)}" for section, key, value in chosen]
    config = load_run_config("small", overrides=texts)
    for section, key, value in chosen:
        assert getattr(getattr(config, section), key) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("1e-3", 1e-3),
        ("true", True),
        ("[2, 3, 4]", [2, 3, 4]),
        ("[2,3,4]", [2, 3, 4]),
        ('"a b"', "a b"),
        ("sequential", "sequential"),
        ("True", "True"),
        ("books/a=b #1", "books/a=b #1"),
        ("[experts, head]", ["experts", "head"]),
        ("2024-01-01", "2024-01-01"),
        ("{a = 1}", "{a = 1}"),
        ("1\nlr = 2", "1\nlr = 2"),
    ],
)
def test_a_value_is_toml_or_a_bare_word(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize("text", ["n_experts", "=8", "n_experts=", " = ", ""])
def test_an_override_without_key_or_value_is_refused(text):
    with pytest.raises(ConfigError, match="not of the form key=value"):
        parse_override(text)


def test_only_the_first_equals_sign_divides():
    assert parse_override("data.data=a=b") == ("data.data", "a=b")
