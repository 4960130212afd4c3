"""Two configurations are compared key by key; a resume may change only what does not make it another run."""

import pytest

from dormouse.config.diff import RESUME_MAY_CHANGE, diff_configs, resume_conflicts
from dormouse.config.load import load_run_config
from dormouse.config.schema import TrainConfig, section_of


def changed(*overrides):
    return load_run_config("small", overrides=overrides)


def test_equal_configurations_do_not_differ():
    assert diff_configs(changed(), changed("n_experts=3")) == []


def test_differences_are_listed_in_the_order_of_the_schema_with_both_values():
    found = diff_configs(changed(), changed("data=x", "lr=1.0", "layout=sequential", "threads=2"))
    assert [str(item) for item in found] == [
        'model.layout: "parallel" -> "sequential"',
        f"train.lr: {TrainConfig(steps=1).lr} -> 1.0",
        "train.threads: none -> 2",
        'data.data: "shelf" -> "x"',
    ]


@pytest.mark.parametrize(
    "override", ["steps=5", "minutes=9", "log_every=1", "save_every=1", "eval_every=1", "device=cpu"]
)
def test_a_resume_may_change_length_and_cadences(override):
    assert resume_conflicts(changed(), changed(override)) == []


@pytest.mark.parametrize(
    "override", ["rank=16", "lr=1", "seed=1", "batch_size=2", "data=x", "eval=y", "dedup=true", "eval_batches=2"]
)
def test_a_resume_may_not_become_another_run(override):
    key = override.partition("=")[0]
    assert [item.key for item in resume_conflicts(changed(), changed(override))] == [key]


def test_what_a_resume_may_change_are_keys_of_the_train_section():
    assert {section_of(key) for key in RESUME_MAY_CHANGE} == {"train"}
