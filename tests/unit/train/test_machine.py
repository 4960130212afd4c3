import ctypes
import random
import sys

import numpy as np
import pytest
import torch

from dormouse.errors import ConfigError
from dormouse.train import machine


def test_auto_falls_back_to_the_cpu_and_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device, note = machine.pick_device("auto")
    assert device == torch.device("cpu")
    assert "auto" in note
    assert "CPU" in note


@pytest.mark.parametrize("name", ["cuda", "cuda:3"])
def test_a_named_gpu_is_never_replaced_by_the_cpu(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=rf"device = {name}: not available.*--device cpu"):
        machine.pick_device(name)


def test_a_gpu_is_taken_when_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert machine.pick_device("auto") == (torch.device("cuda"), None)


def test_threads_are_set_and_returned():
    before = torch.get_num_threads()
    try:
        assert machine.set_threads(1) == torch.get_num_threads() == 1
        assert machine.set_threads(None) == torch.get_num_threads() == machine.default_threads() >= 1
    finally:
        torch.set_num_threads(before)


def test_one_seed_seeds_three_generators():
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    machine.seed_everything(2**40 + 7)
    first = draw()
    machine.seed_everything(2**40 + 7)
    assert draw() == first
    machine.seed_everything(8)
    assert draw() != first


def test_the_allocator_is_left_alone_where_it_is_not_glibc(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert machine.keep_large_blocks() is False
    monkeypatch.setattr(sys, "platform", "linux")

    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    assert machine.keep_large_blocks() is False
